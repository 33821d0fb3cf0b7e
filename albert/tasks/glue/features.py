"""Tokenizes texts and pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`; long texts in windows.

Also makes the examples of QNLI as a ranking task (--formulation=ranking), as MT-DNN and RoBERTa train it for the GLUE
leaderboard. Each row becomes one example with a sequence for each candidate answer: the row's own sentence first, then
the other sentences of its question. The row's sentence is predicted to be the answer if its score is the highest. As in
the plain formulation, each row has one prediction. The other sentences are taken from the row's own file and, if it is
available, from the training file, because since QNLI's second release the two sentences of a question may be in
different files. Labels of the training file are not used for this.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.glue.files import TextRows
from albert.tokenization.packing import pack_pair, pack_single, pack_windows
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig

LABEL_IDS = "label_ids"
SCORES = "scores"
IS_RIGHT = "is_right"
# Maximum number of candidates besides the row's own sentence; the rest is left out. The published files have one.
_MAX_OTHER_CANDIDATES = 7


@dataclasses.dataclass(frozen=True)
class TextFeaturizer:
  """Tokenizes a chunk of rows. It can be pickled.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: maximum tokens of a sequence. In a pair that is too long, the longer text loses its last token
      until the pair fits (see pack_pair).
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int

  def __call__(self, rows: TextRows) -> TokenizedExamples:
    """Tokenizes each row.

    Returns: N examples. Their label is "label_ids", int32 [N] or [N, C]; for a regression it is "scores", float32 [N].
    """
    ids, lengths, counts = self.sequences(rows)
    label_name = LABEL_IDS if rows.labels.dtype == np.int32 else SCORES
    return TokenizedExamples(ids, lengths, counts, {label_name: rows.labels})

  def sequences(self, rows: TextRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes the sequences of each row: one.

    Returns: the ids of all sequences, concatenated, int32; the length of each sequence, int32 [Q]; and the number of
      sequences of each row, int32 [N].
    """
    return *self.encode(rows.first, rows.second), np.ones(len(rows), np.int32)

  def encode(self, first: Sequence[str], second: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray]:
    """Tokenizes texts, or pairs of texts.

    Args:
      first: N texts.
      second: the second texts of N pairs; None for single texts.
    Returns: the ids of all sequences, concatenated, int32; and the length of each sequence, int32 [N].
    """
    tokenizer = load_tokenizer(self.tokenizer_config)
    encoded = tokenizer.encode_batch_flat(first)
    if second is None:
      return pack_single(encoded, self.max_seq_length, tokenizer.special_ids)
    return pack_pair(encoded, tokenizer.encode_batch_flat(second), self.max_seq_length, tokenizer.special_ids)


@dataclasses.dataclass(frozen=True)
class WindowFeaturizer(TextFeaturizer):
  """Tokenizes each text to one or more overlapping windows (--long_texts=windows). It can be pickled.

  Attributes:
    doc_stride: tokens between the starts of two successive windows.
    max_windows: maximum number of windows of a text; the rest of the text is cut off.
  """

  doc_stride: int
  max_windows: int

  def sequences(self, rows: TextRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes the windows of each text, see TextFeaturizer.sequences."""
    tokenizer = load_tokenizer(self.tokenizer_config)
    return pack_windows(
      tokenizer.encode_batch_flat(rows.first),
      self.max_seq_length,
      self.doc_stride,
      self.max_windows,
      tokenizer.special_ids,
    )


class RankingExample(NamedTuple):
  """One row of the file with the candidates of its question.

  Attributes:
    question: the text that all candidates share.
    candidates: the row's own sentence, then the other sentences of the question.
    is_right: whether the row's own sentence answers the question.
  """

  question: str
  candidates: tuple[str, ...]
  is_right: bool


@dataclasses.dataclass(frozen=True)
class RankingExamples(Sequence[RankingExample]):
  """N ranking examples, one for each row and in the order of the rows.

  Attributes:
    rows: the rows of the file.
    examples: the candidates and the label of each row.
  """

  rows: TextRows
  examples: Sequence[RankingExample]

  def __len__(self) -> int:
    return len(self.examples)

  @overload
  def __getitem__(self, index: int) -> RankingExample: ...
  @overload
  def __getitem__(self, index: slice) -> RankingExamples: ...
  def __getitem__(self, index: int | slice) -> RankingExample | RankingExamples:
    if isinstance(index, slice):
      return RankingExamples(self.rows[index], self.examples[index])
    return self.examples[index]


def make_ranking_examples(rows: TextRows, right_class: int, more_rows: TextRows | None = None) -> RankingExamples:
  """Adds to each row the other sentences of its question.

  Args:
    rows: pairs of question and sentence.
    right_class: class of the rows whose sentence answers the question.
    more_rows: rows of another file, whose sentences are candidates too. Their labels are not used.
  Returns: one example for each of `rows`.
  """
  # Question -> its sentences, as the keys of a dict, which holds each sentence once and keeps the order of the files.
  candidates: dict[str, dict[str, None]] = {}
  all_rows = [rows] if more_rows is None else [rows, more_rows]
  for rows_of_file in all_rows:
    assert rows_of_file.second is not None
    for question, sentence in zip(rows_of_file.first, rows_of_file.second, strict=True):
      candidates.setdefault(question, {})[sentence] = None
  assert rows.second is not None
  examples = []
  for question, sentence, label in zip(rows.first, rows.second, rows.labels, strict=True):
    other_candidates = [candidate for candidate in candidates[question] if candidate != sentence]
    candidates_of_row = (sentence, *other_candidates[:_MAX_OTHER_CANDIDATES])
    examples.append(RankingExample(question, candidates_of_row, is_right=bool(label == right_class)))
  return RankingExamples(rows, examples)


@dataclasses.dataclass(frozen=True)
class RankingFeaturizer:
  """Converts a chunk of ranking examples to TokenizedExamples. It can be pickled, and needs no TensorFlow.

  Attributes:
    pair_featurizer: encodes each pair of question and candidate.
  """

  pair_featurizer: TextFeaturizer

  def __call__(self, chunk: RankingExamples) -> TokenizedExamples:
    """Makes one sequence of each pair of question and candidate. The label is is_right, int32 [N]."""
    is_right = np.array([example.is_right for example in chunk.examples], np.int32)
    counts = np.array([len(example.candidates) for example in chunk.examples], np.int32)
    questions = [example.question for example in chunk.examples for _ in example.candidates]
    sentences = [candidate for example in chunk.examples for candidate in example.candidates]
    ids, lengths = self.pair_featurizer.encode(questions, sentences)
    return TokenizedExamples(ids, lengths, counts, {IS_RIGHT: is_right})
