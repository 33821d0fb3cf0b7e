"""The settings that the pretraining examples depend on. Each one is a flag of data_prep.create_pretraining_data."""

from __future__ import annotations

import dataclasses
import math

from albert.config.base import Config, option
from albert.config.command_flags import INT64_MAX
from albert.errors import UserError
from albert.tokenization import recorded_settings
from albert.tokenization.vocabulary import TokenizerConfig

SOP, NSP, NONE = "sop", "nsp", "none"
# BERT's segments of several sentences, and RoBERTa's other input formats (RoBERTa, section 4.2).
SEGMENTS, SENTENCE_PAIR, FULL_SENTENCES, DOC_SENTENCES = "segments", "sentence_pair", "full_sentences", "doc_sentences"
_MIN_SEQ_LENGTH = 8
# Packed instances store lengths and positions in 16 bits.
_MAX_SEQ_LENGTH = (1 << 16) - 1
# The masks are in the shards, or training makes them (albert.data.dynamic_masking).
STATIC, NO_MASKS = "static", "none"
_MAX_DUPE_FACTOR = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparationSettings(Config):
  """The settings of data preparation, described by their `option` texts.

  0 for `max_predictions_per_seq` becomes max_seq_length * masked_lm_prob, rounded up.
  """

  max_seq_length: int = option(
    512, "number of tokens in an example, special tokens included", minimum=_MIN_SEQ_LENGTH, maximum=_MAX_SEQ_LENGTH
  )
  max_predictions_per_seq: int = option(
    0, "greatest number of masked tokens in an example; 0: max_seq_length * masked_lm_prob, rounded up", minimum=0
  )
  masked_lm_prob: float = option(0.15, "share of the tokens to mask", above=0, maximum=1)
  ngram: int = option(
    3, "greatest number of consecutive words that are masked together; p(n) ~ 1/n for n words", minimum=1
  )
  short_seq_prob: float = option(
    0.1,
    "share of the examples with a shorter, random target length (not for --input_format=sentence_pair)",
    minimum=0,
    maximum=1,
  )
  dupe_factor: int = option(
    10,
    "number of times that each document is used, each time with other segments and masks",
    minimum=1,
    maximum=_MAX_DUPE_FACTOR,
  )
  sentence_prediction: str = option(
    SOP,
    "sop: two consecutive segments, swapped or not (ALBERT); nsp: the second segment is the next or a random one "
    "(BERT); none: a single segment",
    choices=(SOP, NSP, NONE),
  )
  input_format: str = option(
    SEGMENTS,
    "segments: segments of several sentences, up to the length (BERT); sentence_pair: two sentences; doc_sentences: "
    "whole sentences of one document; full_sentences: whole sentences of consecutive documents, with a separator "
    "between documents (RoBERTa); the last two need --sentence_prediction=none",
    choices=(SEGMENTS, SENTENCE_PAIR, FULL_SENTENCES, DOC_SENTENCES),
  )
  masking: str = option(
    STATIC,
    "static: the masks are in the shards; none: training makes the masks, new ones each time it sees an example",
    choices=(STATIC, NO_MASKS),
  )
  random_seed: int = option(
    12345,
    "seed of all random draws of data preparation; --seed is another name for it (training has its own --seed)",
    minimum=-INT64_MAX,
    maximum=2 * INT64_MAX,
  )
  do_lower_case: bool | None = option(
    None,
    "convert the text to lower case; by default as tokenizer_config.json or config.json beside the vocabulary says, "
    "and true if there is none (byte-level BPE ignores it)",
  )
  keep_accents: bool | None = option(
    None,
    "keep accents and do not decompose characters; by default as this file says, and false if there is none "
    "(byte-level BPE ignores it)",
  )
  eval_share: float = option(
    0.0,
    "share of the documents that are held out, chosen by a hash of their text and the seed: their examples are in the "
    "folder heldout of output_dir, and pretraining evaluates on them",
    minimum=0,
    below=1,
  )
  heldout: bool = False  # whether these are the settings of the held-out documents

  def __post_init__(self) -> None:
    super().__post_init__()
    for name in ("ngram", "max_predictions_per_seq"):
      if getattr(self, name) > self.max_seq_length:
        raise UserError(f"{name} must be at most max_seq_length ({self.max_seq_length}), got {getattr(self, name)}")
    has_two_segments = self.sentence_prediction != NONE
    if self.input_format == SENTENCE_PAIR and not has_two_segments:
      raise UserError("--input_format=sentence_pair with --sentence_prediction=none: give sop or nsp")
    if self.has_whole_sentences and has_two_segments:
      raise UserError(
        f"--input_format={self.input_format} with --sentence_prediction={self.sentence_prediction}: "
        "these inputs have one segment; give --sentence_prediction=none"
      )
    if self.max_predictions_per_seq == 0:
      # This gives 77 for 512 and 20 for 128. The small constant keeps 0.15 * 100 from becoming 16.
      object.__setattr__(self, "max_predictions_per_seq", math.ceil(self.max_seq_length * self.masked_lm_prob - 1e-9))

  def of_heldout(self) -> PreparationSettings:
    """Returns the settings of the held-out documents: each is used once, and its masks never change."""
    return dataclasses.replace(self, heldout=True, dupe_factor=1, masking=STATIC)

  def tokenizer_config(self, spm_model_file: str) -> TokenizerConfig:
    """Returns the settings of the tokenizer: those given, or those that the vocabulary was made with."""
    switches = {"do_lower_case": self.do_lower_case, "keep_accents": self.keep_accents}
    return recorded_settings.tokenizer_config(spm_model_file, **switches, convert_quotes=False)

  @property
  def has_whole_sentences(self) -> bool:
    """Whether an example is as many whole sentences as fit."""
    return self.input_format in (FULL_SENTENCES, DOC_SENTENCES)

  @property
  def max_num_tokens(self) -> int:
    """The greatest number of tokens of text: `max_seq_length` minus [CLS] and one [SEP] for each segment."""
    return self.max_seq_length - (2 if self.sentence_prediction == NONE else 3)

  @property
  def min_words(self) -> int:
    """The smallest number of words that a document needs to give an instance: one for each segment."""
    return 1 if self.sentence_prediction == NONE else 2
