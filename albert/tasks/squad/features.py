"""Tokenizes questions about paragraphs into overlapping windows: `[CLS] question [SEP] part of the paragraph [SEP]`.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.squad.files import SquadAnswer, SquadQuestion
from albert.tokenization.packing import max_context_windows, window_starts
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import SpecialIds, TokenizerConfig, TokensWithOffsets

# L tokens of a window, P tokens of a paragraph, W windows of a question.

# The labels of an example. An example is one window. Its first two labels are the positions of the first and the last
# token of the answer in the window; both are 0, the position of [CLS], if the window does not contain the answer.
START_POSITIONS = "start_positions"
END_POSITIONS = "end_positions"
# 1 for a window that does not contain the answer.
IS_IMPOSSIBLE = "is_impossible"
# The question's index among all questions of the split.
QUESTION_INDEX = "question_index"
# Token features. The first one is 1 for tokens at which no answer may start or end: those of the question, and [SEP].
P_MASK = "p_mask"
# The start and the end of the token in the paragraph, in characters; 0 for tokens outside the paragraph.
CHAR_STARTS = "char_starts"
CHAR_ENDS = "char_ends"
# 1 in the window that has the most context around the token, 0 in other windows that contain the token.
IS_MAX_CONTEXT = "is_max_context"

# A block holds successive tokens of a window, int32 [5, tokens]: a row of ids, and a row for each of these features.
_FEATURE_ROWS = (P_MASK, CHAR_STARTS, CHAR_ENDS, IS_MAX_CONTEXT)


@dataclasses.dataclass(frozen=True)
class SquadFeaturizer:
  """Tokenizes a chunk of questions. Each window becomes an example. The featurizer can be pickled.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: maximum tokens of a window, at least max_query_length + 4: [CLS], two [SEP] and one token of the
      paragraph are added to the question.
    max_query_length: maximum tokens of a question; a longer one is truncated.
    doc_stride: tokens between the starts of two successive windows.
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int
  max_query_length: int
  doc_stride: int

  def __call__(self, questions: Sequence[SquadQuestion]) -> TokenizedExamples:
    """Makes the windows of all questions, in order. The labels mark the first answer of each question."""
    tokenizer = load_tokenizer(self.tokenizer_config)
    sep_block = np.array([[tokenizer.special_ids.sep], [1], [0], [0], [0]], np.int32)
    remaining_question_ids = iter(tokenizer.encode_batch(question.text for question in questions))
    windows: list[np.ndarray] = []
    labels: list[tuple[int, int, int]] = []
    question_indices: list[int] = []
    # Questions about the same paragraph follow each other, so each paragraph is tokenized once.
    for paragraph, group in itertools.groupby(questions, key=lambda question: question.paragraph):
      tokens = tokenizer.encode_with_offsets(paragraph.context)
      for question in group:
        query = next(remaining_question_ids)[: self.max_query_length]
        answer = answer_tokens(tokens, question.answers[0]) if question.answers else None
        question_block = _make_question_block(query, tokenizer.special_ids)
        paragraph_start = question_block.shape[1]  # position of the paragraph's first token in each window
        for part_start, part in self._cut_paragraph(tokens, len(query)):
          windows.append(np.concatenate([question_block, part, sep_block], axis=1))
          labels.append(_window_labels(answer, part_start, part.shape[1], paragraph_start))
          question_indices.append(question.index)
    return _make_examples(windows, labels, question_indices)

  def _cut_paragraph(self, tokens: TokensWithOffsets, query_length: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the part of the paragraph in each window: the index of its first token, and its block (_FEATURE_ROWS)."""
    num_tokens = len(tokens.ids)
    room = self.max_seq_length - query_length - 3  # [CLS] and two [SEP]
    starts = window_starts(num_tokens, room, self.doc_stride)
    p_mask, is_max_context = np.zeros(num_tokens, np.int32), np.ones_like(tokens.ids)
    paragraph_block = np.stack([tokens.ids, p_mask, tokens.starts, tokens.ends, is_max_context])
    if len(starts) == 1:
      yield 0, paragraph_block
      return
    best_windows = max_context_windows(num_tokens, starts, room)
    for window, start in enumerate(starts):
      part = paragraph_block[:, start : start + room].copy()
      part[1 + _FEATURE_ROWS.index(IS_MAX_CONTEXT)] = best_windows[start : start + room] == window
      yield start, part


def answer_tokens(tokens: TokensWithOffsets, answer: SquadAnswer) -> tuple[int, int] | None:
  """Finds the tokens of an answer.

  Args:
    tokens: the tokens of the paragraph.
    answer: the answer.
  Returns: the indices of the first and the last token that overlap with the answer. If no token overlaps with it, both
    are the index of the next token, or of the last one. None if the paragraph has no tokens.
  """
  if not len(tokens.ids):
    return None
  # The first token that ends after the answer's start, and the last token that starts before the answer's end.
  first = int(np.searchsorted(tokens.ends, answer.start, side="right"))
  last = int(np.searchsorted(tokens.starts, answer.start + len(answer.text), side="left")) - 1
  first = min(first, len(tokens.ids) - 1)
  return first, max(first, last)


def _window_labels(
  answer_in_paragraph: tuple[int, int] | None, part_start: int, part_size: int, paragraph_start: int
) -> tuple[int, int, int]:
  """Returns the first three labels of a window; its token `paragraph_start` is `part_start` in the paragraph."""
  first, last = answer_in_paragraph or (-1, -1)
  if first < part_start or last >= part_start + part_size:
    return 0, 0, 1
  shift = paragraph_start - part_start  # from an index in the paragraph to a position in the window
  return first + shift, last + shift, 0


def _make_question_block(query: list[int], special_ids: SpecialIds) -> np.ndarray:
  """The block of `[CLS] question [SEP]`."""
  block = np.zeros((1 + len(_FEATURE_ROWS), len(query) + 2), np.int32)
  block[0] = [special_ids.cls, *query, special_ids.sep]
  # P_MASK: no answer may start or end here. It stays 0 for [CLS], which stands for "no answer".
  block[1 + _FEATURE_ROWS.index(P_MASK), 1:] = 1
  return block


def _make_examples(
  windows: list[np.ndarray], labels: list[tuple[int, int, int]], question_indices: list[int]
) -> TokenizedExamples:
  ids, *token_features = np.concatenate(windows, axis=1)
  start_positions, end_positions, is_impossible = np.array(labels, np.int32).T
  return TokenizedExamples(
    input_ids=np.ascontiguousarray(ids),
    sequence_lengths=np.array([window.shape[1] for window in windows], np.int32),
    sequence_counts=np.ones(len(windows), np.int32),
    labels={
      START_POSITIONS: start_positions,
      END_POSITIONS: end_positions,
      IS_IMPOSSIBLE: is_impossible,
      QUESTION_INDEX: np.array(question_indices, np.int32),
    },
    token_features={
      name: np.ascontiguousarray(values) for name, values in zip(_FEATURE_ROWS, token_features, strict=True)
    },
  )


def gold_texts(questions: Sequence[SquadQuestion], examples: TokenizedExamples) -> dict[int, str]:
  """Returns the text that the labels of each question mark. Training learns this text as the answer.

  Args:
    questions: all questions of the split.
    examples: their windows.
  Returns: index of the question -> text. Questions whose answer is in no window are left out.
  """
  labels = examples.labels
  texts: dict[int, str] = {}
  for window in np.flatnonzero(labels[IS_IMPOSSIBLE] == 0):
    window_start = examples.token_offsets[window]  # index of the window's first token among the tokens of all windows
    char_start = examples.token_features[CHAR_STARTS][window_start + labels[START_POSITIONS][window]]
    char_end = examples.token_features[CHAR_ENDS][window_start + labels[END_POSITIONS][window]]
    index = int(labels[QUESTION_INDEX][window])
    texts[index] = questions[index].paragraph.context[char_start:char_end]
  return texts
