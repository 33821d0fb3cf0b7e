"""QNLI and WNLI as competitions: each row with its rivals is one example of several sequences.

The references of ALBERT's GLUE results do both so (MT-DNN and RoBERTa rank the sentences of a QNLI question and the
candidates of a WNLI pronoun). Here each row keeps its own example, whose first sequence is the row itself: the row
is right if it beats its rivals. So predictions are of rows, as in the plain form.

QNLI's rivals are the other sentences asked of with the same question, in the row's own file and, where it is at
hand, in the training file (whose labels are not looked at): since QNLI's second release the two sentences of a
question may be in different files. WNLI's rivals are the candidates of other rows about the same pronoun and the
nouns of `wnli_spans`. A row may have no rivals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.glue import wnli_spans
from albert.tasks.glue.data import Rows
from albert.tasks.glue.features import Featurizer

IS_RIGHT = "is_right"
# Rivals of a question beyond these are left out; the published files have one.
_MOST_SENTENCES = 7


class Group(NamedTuple):
  """A row and its rivals: `first` is what they have in common, `seconds` are the row's own text and the rivals'."""

  first: str
  seconds: tuple[str, ...]
  is_right: bool


@dataclasses.dataclass(frozen=True)
class Groups(Sequence[Group]):
  """N groups, in the order of the rows they are of.

  Attributes:
    rows: as the file has them.
    groups: each with the row's label as a truth value.
  """

  rows: Rows
  groups: Sequence[Group]

  def __len__(self) -> int:
    return len(self.groups)

  @overload
  def __getitem__(self, index: int) -> Group: ...
  @overload
  def __getitem__(self, index: slice) -> Groups: ...
  def __getitem__(self, index: int | slice) -> Group | Groups:
    if isinstance(index, slice):
      return Groups(self.rows[index], self.groups[index])
    return self.groups[index]


def group_questions(rows: Rows, right: int, others: Rows | None = None) -> Groups:
  """QNLI's rows, each with the other sentences of its question.

  Args:
    rows: pairs of question and sentence.
    right: the label of a sentence that answers its question.
    others: more such rows, whose sentences are rivals, too.
  """
  assert rows.second is not None
  sentences: dict[str, dict[str, None]] = {}
  for source in (rows, others) if others is not None else (rows,):
    assert source.second is not None
    for question, sentence in zip(source.first, source.second, strict=True):
      sentences.setdefault(question, {})[sentence] = None
  groups = []
  for question, own, label in zip(rows.first, rows.second, rows.labels, strict=True):
    rivals = [sentence for sentence in sentences[question] if sentence != own]
    groups.append(Group(question, (own, *rivals[:_MOST_SENTENCES]), bool(label == right)))
  return Groups(rows, groups)


def group_candidates(rows: Rows, right: int) -> Groups:
  """WNLI's rows, each with its hypothesis about the other candidates. A row whose pronoun is not found stands alone.

  Args:
    rows: pairs of premise and hypothesis.
    right: the label of a hypothesis that follows from its premise.
  """
  assert rows.second is not None
  mentions = [wnli_spans.find_mention(*pair) for pair in zip(rows.first, rows.second, strict=True)]
  candidates: dict[tuple[str, str, str], list[str]] = {}
  for premise, mention in zip(rows.first, mentions, strict=True):
    if mention is not None:
      candidates.setdefault((premise, mention.before.lower(), mention.after.lower()), []).append(mention.candidate)
  groups = []
  for premise, own, mention, label in zip(rows.first, rows.second, mentions, rows.labels, strict=True):
    hypotheses = [own]
    if mention is not None:
      siblings = candidates[premise, mention.before.lower(), mention.after.lower()]
      hypotheses += [mention.with_candidate(span) for span in wnli_spans.rivals(premise, mention, siblings)]
    groups.append(Group(premise, tuple(hypotheses), bool(label == right)))
  return Groups(rows, groups)


@dataclasses.dataclass(frozen=True)
class GroupFeaturizer:
  """Makes Examples of a chunk of groups; picklable."""

  pairs: Featurizer

  def __call__(self, groups: Groups) -> TokenizedExamples:
    """A sequence for the row and each rival. The labels are is_right int32 [N]."""
    is_right = np.array([group.is_right for group in groups.groups], np.int32)
    counts = np.array([len(group.seconds) for group in groups.groups], np.int32)
    first = [group.first for group in groups.groups for _ in group.seconds]
    second = [text for group in groups.groups for text in group.seconds]
    ids, lengths = self.pairs.pack(first, second)
    return TokenizedExamples(ids, lengths, counts, {IS_RIGHT: is_right})
