"""What pretraining examples are a function of (`Settings`), and the work on one unit of text."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from albert.config.base import Config, option
from albert.config.ranges import INT64_MAX
from albert.data import masking, random_streams
from albert.errors import UserError
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, SEP_ID, Tokenizer
from data_prep import inputs, segments, shards
from data_prep.corpus import Counts, Unit, join_documents, load_documents
from data_prep.runners.spills import Spill, SpillWriter

_BATCH_TOKENS = 1 << 18
_MAX_STREAMS = 1 << 16
_MIN_SEQ_LENGTH = 8
# Spills store lengths and positions in 16 bits.
_MAX_SEQ_LENGTH = (1 << 16) - 1
# Masks written into the shards, or left to training (albert.data.dynamic_masking).
STATIC, NO_MASKS = "static", "none"
MASKINGS = (STATIC, NO_MASKS)
_MAX_DUPE_FACTOR = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Config):
  """The settings of data preparation, each a flag of data_prep.create_pretraining_data.

  `max_predictions_per_seq` 0 stands for the derived value: max_seq_length * masked_lm_prob, rounded up.
  """

  max_seq_length: int = option(
    512, "tokens in an example, special ones included", minimum=_MIN_SEQ_LENGTH, maximum=_MAX_SEQ_LENGTH
  )
  max_predictions_per_seq: int = option(
    0, "masked tokens in an example; 0: max_seq_length * masked_lm_prob, rounded up", minimum=0
  )
  masked_lm_prob: float = option(0.15, "share of tokens to mask", above=0, maximum=1)
  ngram: int = option(3, "greatest number of words masked in one go; p(n) ~ 1/n", minimum=1)
  short_seq_prob: float = option(
    0.1, "share of examples that aim for a shorter length (sentence pairs never do)", minimum=0, maximum=1
  )
  dupe_factor: int = option(
    10, "times each document is used, with other segments and masks", minimum=1, maximum=_MAX_DUPE_FACTOR
  )
  sentence_prediction: str = option(
    segments.SOP,
    "second segment: the next one, swapped or not (sop); the next or a random one (nsp); none",
    choices=segments.SENTENCE_PREDICTIONS,
  )
  input_format: str = option(
    segments.SEGMENTS,
    "segments: of several sentences, filled up to the length, as BERT's; sentence_pair: two sentences; with "
    "--sentence_prediction=none, doc_sentences: whole sentences of one document; full_sentences: of several, "
    "with a separator between (RoBERTa)",
    choices=segments.INPUT_FORMATS,
  )
  masking: str = option(
    STATIC,
    "static: masks in the shards; none: training makes them, new ones each time it sees an example",
    choices=MASKINGS,
  )
  random_seed: int = option(12345, "seed of every random draw", minimum=-INT64_MAX, maximum=2 * INT64_MAX)
  do_lower_case: bool = option(True, "lower-case the text")

  def __post_init__(self) -> None:
    super().__post_init__()
    for name in ("ngram", "max_predictions_per_seq"):
      if getattr(self, name) > self.max_seq_length:
        raise UserError(f"{name} must be at most max_seq_length ({self.max_seq_length}), got {getattr(self, name)}")
    self._check_format()
    if self.max_predictions_per_seq == 0:
      # 77 at 512 and 20 at 128; the small constant keeps 0.15 * 100 from becoming 16.
      derived = math.ceil(self.max_seq_length * self.masked_lm_prob - 1e-9)
      object.__setattr__(self, "max_predictions_per_seq", derived)

  def _check_format(self) -> None:
    is_pair = self.sentence_prediction != segments.NONE
    if self.input_format == segments.SENTENCE_PAIR and not is_pair:
      raise UserError("--input_format=sentence_pair with --sentence_prediction=none: a pair is for sop or nsp")
    if self.input_format in (segments.FULL_SENTENCES, segments.DOC_SENTENCES) and is_pair:
      raise UserError(
        f"--input_format={self.input_format} with --sentence_prediction={self.sentence_prediction}: "
        "these inputs have one segment; give --sentence_prediction=none"
      )

  @property
  def rules(self) -> segments.Rules:
    return segments.Rules(self.max_seq_length, self.short_seq_prob, self.sentence_prediction, self.input_format)


def special_free_ids(tokenizer: Tokenizer) -> np.ndarray:
  """Ids a random replacement is drawn from: every piece that stands for text."""
  return np.flatnonzero(~tokenizer.is_special)


@dataclasses.dataclass(frozen=True)
class Batch:
  """Some instances with their tokens before and after masking."""

  instances: segments.Instances
  tokens: segments.Tokens
  masked: masking.MaskedTokens


def make_batches(
  documents: segments.Documents, num_own: int, settings: Settings, random_ids: np.ndarray
) -> Iterator[Batch]:
  """All instances of the first `num_own` documents (the others are donors only), all duplicates."""
  num_streams = num_own * settings.dupe_factor
  for first in range(0, num_streams, _MAX_STREAMS):
    duplicate, streams = divmod(np.arange(first, min(first + _MAX_STREAMS, num_streams)), num_own)
    keys = segments.document_keys(
      settings.random_seed, documents.file_ordinals[streams], documents.offsets[streams], duplicate
    )
    instances = segments.make_instances(documents, settings.rules, streams, keys)
    lengths = instances.a_end - instances.a_start + instances.b_end - instances.b_start
    # Rows of like length are masked together: those that need many steps do not keep the others waiting.
    order = np.argsort(lengths, kind="stable")
    group = np.cumsum(lengths[order] + 3) // _BATCH_TOKENS
    for rows in np.split(order, np.flatnonzero(np.diff(group)) + 1):
      yield _mask(documents, segments.Instances(*(column[rows] for column in instances)), settings, random_ids)


def _mask(
  documents: segments.Documents, instances: segments.Instances, settings: Settings, random_ids: np.ndarray
) -> Batch:
  tokens = segments.assemble(documents, instances, cls_id=CLS_ID, sep_id=SEP_ID)
  lengths = np.diff(tokens.row_splits)
  budgets = masking.num_predictions(lengths, settings.masked_lm_prob, settings.max_predictions_per_seq)
  masked = masking.mask_tokens(
    tokens.ids,
    tokens.word_starts,
    tokens.maskable,
    tokens.row_splits,
    budgets=budgets if settings.masking == STATIC else np.zeros_like(budgets),
    keys=random_streams.draw(instances.keys, segments.MASKS),
    ngram=settings.ngram,
    mask_id=MASK_ID,
    random_ids=random_ids,
  )
  return Batch(instances, tokens, masked)


class Packed(NamedTuple):
  """[I] instances: their keys (uint64), words end to end, how many words each has, labels."""

  keys: np.ndarray
  words: np.ndarray
  sizes: np.ndarray
  labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class UnitTask:
  """A unit of text and where its instances belong.

  Attributes:
    unit: of text.
    spill_path: the file its instances go to.
    merged_record: the unit's record in a merged file of an earlier run that holds its instances; None if none does.
  """

  unit: Unit
  spill_path: str
  merged_record: dict[str, Any] | None = None


class Outcome(enum.Enum):
  """What became of a unit: its instances were made or kept, or those that a merged file holds are of other text."""

  MADE = "made"
  KEPT = "kept"
  OUTDATED = "outdated"


class UnitMaker:
  """Turns units of text into spills; one per process."""

  def __init__(self, settings: Settings, spm_model_file: str):
    self.settings = settings
    self.tokenizer = Tokenizer(spm_model_file, settings.do_lower_case)
    self.random_ids = special_free_ids(self.tokenizer)
    self.words = shards.word_dtype(self.tokenizer.vocab_size)

  def load(self, unit: Unit) -> tuple[segments.Documents, int, Counts]:
    """The unit's documents, with donors behind them where NSP needs some; how many are its own; counts.

    For full sentences they are one document.

    A document that has no other one near it cannot be paired for NSP: it is dropped.
    """
    rules = self.settings.rules
    documents, counts = load_documents(unit.ranges, self.tokenizer, rules)
    num_own = len(documents)
    if rules.sentence_prediction == segments.NSP and num_own == 1:
      documents = join_documents(documents, load_documents(unit.donors, self.tokenizer, rules)[0])
      if len(documents) == 1:
        return documents, 0, dataclasses.replace(counts, dropped=counts.dropped + 1)
    if rules.input_format == segments.FULL_SENTENCES and num_own:
      return segments.run_together(documents, SEP_ID), 1, counts
    return documents, num_own, counts

  def packed(self, unit: Unit) -> Iterator[Packed | Counts]:
    """The unit's instances in batches, and last of all its counts."""
    documents, num_own, counts = self.load(unit)
    if num_own:
      for batch in make_batches(documents, num_own, self.settings, self.random_ids):
        labels = batch.instances.labels
        words, sizes = shards.pack(batch.tokens, batch.masked, labels, self.words)
        yield Packed(random_streams.draw(batch.instances.keys, segments.ORDER), words, sizes, labels)
    yield counts

  def make_spill(self, task: UnitTask) -> Outcome:
    """Writes the unit's instances, unless a file of an earlier run has them and the unit's text is still the same.

    The summary of the file holds Counts, and examples per label; its record says what the unit was read from.
    """
    unit, record = inputs.read_unit(task.unit)
    if task.merged_record is not None:
      return Outcome.KEPT if task.merged_record == record else Outcome.OUTDATED
    kept = Spill.load(task.spill_path)
    if kept is not None and kept.records() == [record]:
      return Outcome.KEPT
    num_labels = np.zeros(2, np.int64)
    counts = Counts()
    with SpillWriter(task.spill_path) as writer:
      for made in self.packed(unit):
        if isinstance(made, Counts):
          counts = made
        else:
          writer.add(made.keys, made.words, made.sizes)
          num_labels += np.bincount(made.labels, minlength=2)
      writer.close({"counts": dataclasses.asdict(counts), "labels": num_labels.tolist()}, [record])
    return Outcome.MADE


_maker: UnitMaker | None = None


def start_worker(settings: Settings, spm_model_file: str) -> None:
  """Opens the tokenizer of this process."""
  global _maker  # noqa: PLW0603 - what a process of a pool has to itself
  _maker = UnitMaker(settings, spm_model_file)


def make_spill(task: UnitTask) -> Outcome:
  """`UnitMaker.make_spill` of this process, for a pool."""
  assert _maker is not None, "start_worker comes first"
  return _maker.make_spill(task)
