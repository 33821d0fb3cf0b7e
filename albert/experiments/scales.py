"""The scales at which an experiment can be run: at the paper's sizes, in some hours, in one or two, or in a minute."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config.base import from_dict
from albert.config.model import ModelConfig, named_model
from albert.errors import UserError
from albert.experiments.catalog import Experiment, Variant

# A reduced model gets initial weights with the standard deviation _INITIALIZER_SCALE / sqrt(hidden size). For
# ALBERT-large (hidden size 1024) this is 0.02, the paper's value for all sizes. With 0.02, a model of hidden size 128
# learns only the frequencies of words for thousands of steps.
_INITIALIZER_SCALE = 0.02 * math.sqrt(1024)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
  """The sizes of the models at a scale, and the settings of data preparation and training.

  Attributes:
    hidden: hidden size in the paper -> hidden size at this scale; empty if the models keep the paper's sizes.
    embeddings: embedding size in the paper -> embedding size at this scale. It is not used for a model without
      factorized embeddings (BERT, and some ablations), whose embedding size equals the hidden size at every scale.
    depths: number of layers in the paper -> number of layers at this scale.
    groups: number of groups of layers that share their weights in the paper -> their number at this scale.
    head_size: size of an attention head in a reduced model; 0 if nothing is reduced.
    vocab_size: size of the vocabulary that is trained if none is given.
    max_seq_length: tokens per sequence.
    max_predictions_per_seq: masked tokens per sequence at most; 0 for 15% of max_seq_length.
    dupe_factor: number of times that the text is used, each time with other masks.
    num_shards: number of shard files.
    max_megabytes: amount of text that is taken from the installed packages; 0 for all of it.
    train: flags of run_pretraining: batch size, steps and learning rate.
    shallow_stages: the stages of pretraining with fewer layers, as pairs of the share of the steps at which the stage
      ends and the share of the layers that it trains. The rest of the steps trains all layers.
    num_seeds: number of runs of each variant.
    finetuning: flags of fine-tuning that replace values of the task's recipe.
    merges_variants: whether models of an experiment that differ in the paper may be the same model at this scale.
  """

  hidden: Mapping[int, int] = dataclasses.field(default_factory=dict)
  embeddings: Mapping[int, int] = dataclasses.field(default_factory=dict)
  depths: Mapping[int, int] = dataclasses.field(default_factory=dict)
  groups: Mapping[int, int] = dataclasses.field(default_factory=dict)
  head_size: int = 0
  vocab_size: int = 30000
  max_seq_length: int = 512
  max_predictions_per_seq: int = 0
  dupe_factor: int = 10
  num_shards: int = 256
  max_megabytes: float = 0
  train: Mapping[str, Any]
  shallow_stages: Sequence[tuple[float, float]] = ()
  num_seeds: int = 1
  finetuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  merges_variants: bool = False

  @property
  def is_reduced(self) -> bool:
    """Whether models are smaller than the paper's."""
    return bool(self.hidden)

  def finetuning_flags(self, script: str) -> dict[str, Any]:
    """Returns the flags of fine-tuning that replace values of the task's recipe; none at the paper's scale.

    Args:
      script: name of the script. In the short sequences of a smaller scale, questions of SQuAD are also shorter, and
        so are the steps from window to window.
    """
    if not self.finetuning:
      return {}
    flags = {**self.finetuning, "max_seq_length": self.max_seq_length}
    if script == "run_squad":
      flags |= {"max_query_length": self.max_seq_length // 4, "doc_stride": self.max_seq_length // 4}
    return flags

  def stages(self, model: ModelConfig) -> list[dict[str, Any]]:
    """Returns the stages of a model's pretraining, as a recipe has them; none if all steps train all layers.

    Args:
      model: the model. The depth of a stage is a multiple of its groups of layers.
    """
    groups = model.num_hidden_groups
    stages = []
    for until, share in self.shallow_stages:
      depth = max(1, round(model.num_hidden_layers * share / groups)) * groups
      if depth < model.num_hidden_layers:
        stages.append({"until": until, "num_hidden_layers": depth})
    return [*stages, {"until": 1}] if stages else []

  def model(self, variant: Variant, vocab_size: int) -> ModelConfig:
    """Returns the model of a variant at this scale.

    Args:
      variant: the variant, with the paper's sizes.
      vocab_size: size of the vocabulary.
    Raises:
      UserError: this scale does not define a reduced value for one of the variant's sizes.
    """
    config = from_dict(ModelConfig, named_model(variant.model).to_dict() | dict(variant.fields), source=variant.name)
    if not self.is_reduced:
      return dataclasses.replace(config, vocab_size=vocab_size)

    def reduce_size(sizes: Mapping[int, int], field: str) -> int:
      size = getattr(config, field)
      if size not in sizes:
        raise UserError(
          f"{variant.name}: {field}={size} has no reduced value at this scale: give one of "
          f"{', '.join(map(str, sizes))}, or --scale=paper"
        )
      return sizes[size]

    hidden = reduce_size(self.hidden, "hidden_size")
    is_factorized = config.embedding_size != config.hidden_size
    return dataclasses.replace(
      config,
      vocab_size=vocab_size,
      hidden_size=hidden,
      embedding_size=reduce_size(self.embeddings, "embedding_size") if is_factorized else hidden,
      # The feed-forward layer keeps its ratio to the hidden size.
      intermediate_size=config.intermediate_size * hidden // config.hidden_size,
      num_hidden_layers=reduce_size(self.depths, "num_hidden_layers"),
      num_hidden_groups=reduce_size(self.groups, "num_hidden_groups"),
      num_attention_heads=max(1, hidden // self.head_size),
      max_position_embeddings=self.max_seq_length,
      initializer_range=round(_INITIALIZER_SCALE / math.sqrt(hidden), 4),
    )


_PAPER_HIDDEN = (768, 1024, 2048, 4096, 6144)
_PAPER_EMBEDDINGS = (64, 128, 256)

SCALES: dict[str, Scale] = {
  "smoke": Scale(
    hidden={size: size // 32 for size in _PAPER_HIDDEN},
    embeddings={size: size // 32 for size in _PAPER_EMBEDDINGS},
    depths={1: 1, 3: 1, 6: 1, 12: 2, 24: 2, 48: 2},
    groups={1: 1, 2: 2, 4: 2, 12: 2},
    head_size=8,
    vocab_size=1000,
    max_seq_length=32,
    dupe_factor=1,
    num_shards=2,
    max_megabytes=0.3,
    train={
      "train_batch_size": 16,
      "num_train_steps": 8,
      "num_warmup_steps": 2,
      "learning_rate": 0.005,
      "log_every_steps": 2,
    },
    finetuning={"num_train_steps": 4, "num_warmup_steps": 1, "learning_rate": 1e-4, "train_batch_size": 16},
    merges_variants=True,
  ),
  "small": Scale(
    hidden=dict(zip(_PAPER_HIDDEN, (96, 128, 192, 256, 320), strict=True)),
    embeddings={size: size // 4 for size in _PAPER_EMBEDDINGS},
    depths={1: 1, 3: 2, 6: 3, 12: 4, 24: 6, 48: 8},
    groups={1: 1, 2: 2, 4: 3, 12: 4},
    head_size=32,
    vocab_size=2000,
    max_seq_length=64,
    dupe_factor=1,
    num_shards=8,
    # With a rate of 0.006 after 100 steps of warm-up, one of two seeds learned only the frequencies of words. With
    # 0.002, four shared layers learn less (benchmarks/results/pretraining_trials_2026-11-23.md).
    train={"train_batch_size": 32, "num_train_steps": 800, "num_warmup_steps": 240, "learning_rate": 0.005},
    num_seeds=2,
    finetuning={
      "optimizer": "lamb",
      "learning_rate": 0.004,
      "num_train_steps": 500,
      "num_warmup_steps": 50,
      "train_batch_size": 32,
    },
  ),
  "medium": Scale(
    hidden=dict(zip(_PAPER_HIDDEN, (128, 160, 224, 288, 352), strict=True)),
    embeddings={64: 32, 128: 64, 256: 96},  # with 128 instead of 96 they were as wide as the base model
    depths={1: 1, 3: 2, 6: 4, 12: 6, 24: 8, 48: 10},
    groups={1: 1, 2: 2, 4: 3, 12: 6},
    head_size=32,
    vocab_size=8000,
    max_seq_length=128,
    dupe_factor=2,
    num_shards=8,
    # configs/pretraining_fast.json with four times its steps.
    train={"train_batch_size": 8, "num_train_steps": 24000, "num_warmup_steps": 2400, "learning_rate": 0.003},
    shallow_stages=((0.5, 1 / 3), (0.7, 1 / 2)),
    num_seeds=3,
    finetuning={"learning_rate": 2e-4, "num_train_steps": 2000, "num_warmup_steps": 200, "train_batch_size": 32},
  ),
  # For experiments about the text and the objectives of pretraining. Sentence order is learned much faster than at
  # medium: by two layers, with embeddings as wide as the network, in short sequences, which give more sentence labels
  # for the same number of tokens (benchmarks/results/pretraining_trials_2026-11-25.md). ALBERT-base is then the same
  # model with and without factorized embeddings.
  "shallow": Scale(
    hidden=dict(zip(_PAPER_HIDDEN, (128, 160, 224, 288, 352), strict=True)),
    embeddings={64: 64, 128: 128, 256: 160},
    depths={1: 1, 3: 1, 6: 1, 12: 2, 24: 3, 48: 4},
    groups={1: 1, 2: 2, 4: 2, 12: 2},
    head_size=32,
    vocab_size=8000,
    max_seq_length=64,
    dupe_factor=8,
    num_shards=8,
    train={"train_batch_size": 16, "num_train_steps": 20000, "num_warmup_steps": 2000, "learning_rate": 0.004},
    num_seeds=3,
    finetuning={"learning_rate": 2e-4, "num_train_steps": 2000, "num_warmup_steps": 200, "train_batch_size": 32},
  ),
  "paper": Scale(
    # The authors' value, according to https://github.com/google-research/albert/issues/51.
    max_predictions_per_seq=20,
    train={
      "train_batch_size": 4096,
      "num_train_steps": 125000,
      "num_warmup_steps": 3125,
      "learning_rate": 0.00176,
    },
  ),
}


def check_variants(experiment: Experiment, scale_name: str) -> None:
  """Checks that a scale keeps the variants of an experiment apart.

  Args:
    experiment: the experiment.
    scale_name: a key of SCALES.
  Raises:
    UserError: two variants are the same model at this scale, and are pretrained in the same way.
  """
  scale = SCALES[scale_name]
  if scale.merges_variants:
    return
  earlier: list[tuple[str, ModelConfig, Variant]] = []
  for variant in experiment.variants:
    model = scale.model(variant, scale.vocab_size)
    training = dataclasses.replace(variant, name="", model="", fields={}, starts_from="", x=None, paper={})
    for earlier_name, earlier_model, earlier_training in earlier:
      if (earlier_model, earlier_training) == (model, training):
        raise UserError(
          f"--run={experiment.name}: {earlier_name!r} and {variant.name!r} are the same model at --scale={scale_name}: "
          "take another scale, or only some variants (--variants)"
        )
    earlier.append((variant.name, model, training))
