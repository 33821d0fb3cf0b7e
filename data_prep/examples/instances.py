"""Turns a unit of text into pretraining instances: tokenized, cut into segments and masked.

An instance is one pretraining example before it is written to a shard.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import numpy as np

from albert.data import masks, random_streams
from albert.tokenization.tokenizer import load_tokenizer
from data_prep.documents import (
  Counts,
  Documents,
  TextDocument,
  concatenate_documents,
  is_heldout,
  load_documents,
  merge_documents,
)
from data_prep.examples import segments
from data_prep.examples.packing import InstanceTokens, assemble
from data_prep.examples.settings import FULL_SENTENCES, NSP, STATIC, PreparationSettings
from data_prep.units import TextRange, TextUnit

# Approximate number of tokens that are masked at a time.
_BATCH_TOKENS = 1 << 18
# Greatest number of streams (a stream is one duplicate of a document) that are cut into segments at a time.
_MAX_STREAMS = 1 << 16


@dataclasses.dataclass(frozen=True)
class InstanceBatch:
  """Instances: their segments and labels, their tokens, and the tokens after masking with the predictions."""

  instances: segments.InstanceSegments
  tokens: InstanceTokens
  masked: masks.MaskedTokens


class InstanceMaker:
  """Turns units of text into instances. Each process has one."""

  def __init__(self, settings: PreparationSettings, spm_model_file: str):
    self.settings = settings
    self.tokenizer = load_tokenizer(settings.tokenizer_config(spm_model_file))
    self.random_ids = np.flatnonzero(~self.tokenizer.is_special)  # may replace a masked token

  def with_settings(self, settings: PreparationSettings) -> InstanceMaker:
    """Returns a copy with other settings and the same tokenizer."""
    maker = copy.copy(self)
    maker.settings = settings
    return maker

  def _is_selected(self, document: TextDocument) -> bool:
    """Whether the settings are for this document: those of the held-out ones, or of the others."""
    settings = self.settings
    if not settings.eval_share:
      return True
    return is_heldout(document, settings.eval_share, settings.random_seed) == settings.heldout

  def _load(self, ranges: tuple[TextRange, ...]) -> tuple[Documents, Counts]:
    settings = self.settings
    return load_documents(ranges, self.tokenizer, settings.min_words, settings.max_num_tokens, self._is_selected)

  def load(self, unit: TextUnit) -> tuple[Documents, int, Counts]:
    """Reads and tokenizes the documents of a unit.

    For the input format full_sentences, all documents become a single one, with separators between them. For NSP, a
    unit with a single document also gets the documents of its neighbour, from which random second segments are drawn.
    If the neighbour has no documents, the unit's document is dropped.

    Returns:
      The documents; how many of them, from the first one, belong to the unit; and the unit's counts.
    """
    settings = self.settings
    documents, counts = self._load(unit.ranges)
    num_used = len(documents)
    if settings.sentence_prediction == NSP and num_used == 1:
      documents = concatenate_documents(documents, self._load(unit.donors)[0])
      if len(documents) == 1:
        return documents, 0, dataclasses.replace(counts, dropped=counts.dropped + 1)
    if settings.input_format == FULL_SENTENCES and num_used:
      return merge_documents(documents, self.tokenizer.special_ids.sep), 1, counts
    return documents, num_used, counts

  def make_batches(self, documents: Documents, num_used: int) -> Iterator[InstanceBatch]:
    """Makes all instances of the first `num_used` documents, for all duplicates, in batches of about `_BATCH_TOKENS`.

    NSP draws random second segments from all documents.
    """
    settings = self.settings
    num_streams = num_used * settings.dupe_factor
    for first_stream in range(0, num_streams, _MAX_STREAMS):
      stream_numbers = np.arange(first_stream, min(first_stream + _MAX_STREAMS, num_streams))
      duplicates, stream_documents = divmod(stream_numbers, num_used)
      ordinals, offsets = documents.file_ordinals[stream_documents], documents.offsets[stream_documents]
      keys = segments.stream_keys(settings.random_seed, ordinals, offsets, duplicates)
      instances = segments.make_instances(documents, settings, stream_documents, keys)
      lengths = instances.a_end - instances.a_start + instances.b_end - instances.b_start
      # Instances of similar length are masked together, since masking takes as many steps as the longest one needs.
      by_length = np.argsort(lengths, kind="stable")
      batch_numbers = np.cumsum(lengths[by_length] + 3) // _BATCH_TOKENS  # + 3: [CLS] and two [SEP]
      batch_starts = np.flatnonzero(np.diff(batch_numbers)) + 1  # of all batches but the first one
      for batch_indices in np.split(by_length, batch_starts):
        yield self._mask(documents, segments.InstanceSegments(*(column[batch_indices] for column in instances)))

  def _mask(self, documents: Documents, instances: segments.InstanceSegments) -> InstanceBatch:
    """Builds the token sequences of instances, and masks them unless training does."""
    settings, special_ids = self.settings, self.tokenizer.special_ids
    tokens = assemble(documents, instances, cls_id=special_ids.cls, sep_id=special_ids.sep)
    lengths = np.diff(tokens.row_splits)
    budgets = masks.num_predictions(lengths, settings.masked_lm_prob, settings.max_predictions_per_seq)
    masked = masks.mask_tokens(
      tokens.ids,
      tokens.word_starts,
      tokens.maskable,
      tokens.row_splits,
      budgets=budgets if settings.masking == STATIC else np.zeros_like(budgets),
      keys=random_streams.draw(instances.keys, segments.FOR_MASKING),
      ngram=settings.ngram,
      mask_id=special_ids.mask,
      random_ids=self.random_ids,
    )
    return InstanceBatch(instances, tokens, masked)
