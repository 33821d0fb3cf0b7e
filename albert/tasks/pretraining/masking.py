"""Decides whether pretraining draws new masks for each epoch (dynamic masking), and with which settings."""

from __future__ import annotations

from collections.abc import Callable

from albert.config.run import PretrainingConfig
from albert.data.manifest import Manifest
from albert.data.masks.dynamic_masking import DynamicMasking
from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer

# Settings of dynamic masking for shards without a manifest (ALBERT, section 4.1).
_DEFAULT_MASKED_LM_PROB, _DEFAULT_NGRAM = 0.15, 3


def make_masking(
  config: PretrainingConfig, manifest: Manifest | None, vocab_size: int, load_tokenizer: Callable[[], Tokenizer]
) -> DynamicMasking | None:
  """Makes the dynamic masking of training.

  Args:
    config: the settings of pretraining.
    manifest: the manifest beside the shards to train on; None if there is none.
    vocab_size: number of pieces in the model's vocabulary.
    load_tokenizer: returns the tokenizer of --spm_model_file. It is called only for dynamic masks.
  Returns: the masking, or None if the masks in the shards are used.
  Raises:
    UserError: the settings, the shards and the vocabulary do not fit together.
  """
  shard_settings = manifest.settings if manifest else {}
  is_unmasked = shard_settings.get("masking") == "none"
  if is_unmasked and config.masking == "static":
    raise UserError("--masking=static: the shards of --input_file were written without masks: give dynamic or auto")
  if config.masking != "dynamic" and not is_unmasked:
    for flag in ("masked_lm_prob", "ngram"):
      if getattr(config, flag):
        raise UserError(
          f"--{flag}={getattr(config, flag)} has an effect only on dynamic masks: also give --masking=dynamic"
        )
    return None
  if not config.spm_model_file:
    raise UserError("dynamic masks need --spm_model_file: the vocabulary of the shards, which shows where words start")
  tokenizer = load_tokenizer()
  if tokenizer.vocab_size != vocab_size:
    raise UserError(
      f"--spm_model_file={config.spm_model_file} has {tokenizer.vocab_size} pieces, the model has vocab_size "
      f"{vocab_size}: give the vocabulary of the shards, and --vocab_size={tokenizer.vocab_size}"
    )
  return DynamicMasking.from_tokenizer(
    tokenizer,
    config.masked_lm_prob or shard_settings.get("masked_lm_prob", _DEFAULT_MASKED_LM_PROB),
    config.ngram or shard_settings.get("ngram", _DEFAULT_NGRAM),
  )
