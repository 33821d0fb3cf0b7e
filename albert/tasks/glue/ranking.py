"""QNLI as a ranking task: each sentence is compared with the other sentences of its question.

MT-DNN and RoBERTa train QNLI this way for the GLUE leaderboard. Each row of the file becomes one example with several
sequences, one for each candidate answer: the row's own sentence first, then the other sentences of its question. The
row's sentence is predicted to be the answer if its score is the highest. As in the plain formulation, each row has one
prediction.

The other sentences of a question are taken from the row's own file and, if it is available, from the training file,
because since QNLI's second release the two sentences of a question may be in different files. Labels of the training
file are not used for this. A row whose question occurs only once has no other candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.glue.data import TextRows
from albert.tasks.glue.features import TextFeaturizer

IS_RIGHT = "is_right"
# Maximum number of candidates besides the row's own sentence; the rest is left out. The published files have one.
_MAX_OTHER_CANDIDATES = 7


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
