"""Tokenizes questions about paragraphs into overlapping windows: `[CLS] question [SEP] part of the paragraph [SEP]`.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.squad.data import SquadAnswer, SquadQuestion
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.offsets import OffsetTokenizer, TokensWithOffsets
from albert.tokenization.tokenizer import CLS_ID, SEP_ID, load_tokenizer

# L tokens of a window, P of a paragraph, W windows of a question.

# Labels of an example, which is one window: positions of the first and last token of the answer in the window. A window
# without the answer has position 0, that of [CLS].
START_POSITIONS = "start_positions"
END_POSITIONS = "end_positions"
# 1 for a window that does not contain the answer.
IS_IMPOSSIBLE = "is_impossible"
# The question's index among all questions of the split.
QUESTION_INDEX = "question_index"
# Token features: 1 where no answer may start or end (the question, [SEP]); the start and end of the token in the
# paragraph, in characters (0 outside of it); 1 in the window that has the most context around the token.
P_MASK = "p_mask"
CHAR_STARTS = "char_starts"
CHAR_ENDS = "char_ends"
IS_MAX_CONTEXT = "is_max_context"
# A block is int32 [5, number of tokens]: the ids, then these token features.
_TOKEN_ROWS = (P_MASK, CHAR_STARTS, CHAR_ENDS, IS_MAX_CONTEXT)


@dataclasses.dataclass(frozen=True)
class SquadFeaturizer:
  """Tokenizes a chunk of questions. Each window is an example. It can be pickled.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: maximum tokens of a window, at least max_query_length + 4.
    max_query_length: maximum tokens of a question; a longer one is truncated.
    doc_stride: tokens between the starts of two successive windows.
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int
  max_query_length: int
  doc_stride: int

  def __call__(self, questions: Sequence[SquadQuestion]) -> TokenizedExamples:
    """Makes the windows of all questions, in order. Labels mark the first answer of each question."""
    tokenizer = load_tokenizer(self.tokenizer_config, OffsetTokenizer)
    question_ids = tokenizer.encode_batch(question.text for question in questions)
    blocks: list[np.ndarray] = []
    lengths: list[int] = []
    labels: list[tuple[int, int, int, int]] = []
    remaining_ids = iter(question_ids)
    # Questions about the same paragraph follow each other, so each paragraph is tokenized once.
    for paragraph, group in itertools.groupby(questions, key=lambda question: question.paragraph):
      tokens = tokenizer.encode_with_offsets(paragraph.context)
      for question in group:
        query = next(remaining_ids)[: self.max_query_length]
        answer = answer_tokens(tokens, question.answers[0]) if question.answers else None
        question_block = _make_question_block(query)
        offset = question_block.shape[1]  # number of tokens before the paragraph
        for start, part in self._cut_paragraph(tokens, len(query)):
          size = part.shape[1]
          blocks += (question_block, part, _SEP_BLOCK)
          lengths.append(offset + size + 1)
          labels.append((*_window_labels(answer, start, size, offset), question.index))
    return _make_examples(blocks, lengths, labels)

  def _cut_paragraph(self, tokens: TokensWithOffsets, query_length: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the part of the paragraph in each window of a question.

    Args:
      tokens: the tokens of the paragraph.
      query_length: tokens of the question.
    Yields: the index of the part's first token in the paragraph, and a block (see _TOKEN_ROWS), int32 [5, L].
    """
    num_tokens = len(tokens.ids)
    room = self.max_seq_length - query_length - 3
    starts = window_starts(num_tokens, room, self.doc_stride)
    rows = np.stack([tokens.ids, np.zeros(num_tokens, np.int32), tokens.starts, tokens.ends, np.ones_like(tokens.ids)])
    if len(starts) == 1:
      yield 0, rows
      return
    best = max_context_windows(num_tokens, starts, room)
    for index, start in enumerate(starts):
      part = rows[:, start : start + room].copy()
      part[4] = best[start : start + room] == index
      yield start, part


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
  """Returns the index of the first token of each window, such that the windows contain every token.

  Args:
    num_tokens: tokens of the paragraph.
    room: maximum tokens of the paragraph in one window.
    doc_stride: tokens between the starts of two successive windows, if it is less than `room`.
  """
  step = min(room, doc_stride)
  return [0, *range(step, num_tokens - room + step, step)] if num_tokens > room else [0]


def max_context_windows(num_tokens: int, starts: Sequence[int], room: int) -> np.ndarray:
  """Finds, for each token, the window with the most context around it, as the original code does.

  The context is min(tokens before it, tokens after it) + 0.01 * tokens in the window. In a tie, the first window wins.

  Args:
    num_tokens: tokens of the paragraph.
    starts: the first token of each window.
    room: maximum tokens of the paragraph in one window.
  Returns: the index of the window for each token, int [P].
  """
  begins = np.array(starts)[:, None]
  sizes = np.minimum(num_tokens - begins, room)
  before = np.arange(num_tokens) - begins  # [W, P]
  after = sizes - 1 - before
  scores = np.minimum(before, after) + 0.01 * sizes
  return np.argmax(np.where((before >= 0) & (after >= 0), scores, -1.0), axis=0)


def answer_tokens(tokens: TokensWithOffsets, answer: SquadAnswer) -> tuple[int, int] | None:
  """Finds the tokens of an answer.

  Args:
    tokens: the tokens of the paragraph.
    answer: the answer.
  Returns: the indices of the first and last token that overlap with the answer. If no token overlaps with it, both are
    the index of the next token. None if the paragraph has no tokens.
  """
  if not len(tokens.ids):
    return None
  first = int(np.searchsorted(tokens.ends, answer.start, side="right"))
  last = int(np.searchsorted(tokens.starts, answer.start + len(answer.text), side="left")) - 1
  first = min(first, len(tokens.ids) - 1)
  return first, max(first, last)


def _window_labels(answer: tuple[int, int] | None, start: int, size: int, offset: int) -> tuple[int, int, int]:
  """Returns start_positions, end_positions and is_impossible of a window.

  Args:
    answer: the first and the last token of the answer in the paragraph; None if there is no answer.
    start: the first token of the paragraph that the window contains.
    size: number of tokens of the paragraph that the window contains.
    offset: number of tokens in the window before the paragraph.
  """
  if answer is None or answer[0] < start or answer[1] >= start + size:
    return 0, 0, 1
  return answer[0] - start + offset, answer[1] - start + offset, 0


def _make_question_block(query: list[int]) -> np.ndarray:
  """The block of `[CLS] question [SEP]`."""
  block = np.zeros((5, len(query) + 2), np.int32)
  block[0] = [CLS_ID, *query, SEP_ID]
  block[1, 1:] = 1  # p_mask: no answer may start or end here. [CLS] stands for "no answer".
  return block


# The block of the last [SEP].
_SEP_BLOCK = np.array([[SEP_ID], [1], [0], [0], [0]], np.int32)


def _make_examples(
  blocks: list[np.ndarray], lengths: list[int], labels: list[tuple[int, int, int, int]]
) -> TokenizedExamples:
  rows = np.concatenate(blocks, axis=1)
  columns = np.array(labels, np.int32).T
  return TokenizedExamples(
    np.ascontiguousarray(rows[0]),
    np.array(lengths, np.int32),
    np.ones(len(lengths), np.int32),
    dict(zip((START_POSITIONS, END_POSITIONS, IS_IMPOSSIBLE, QUESTION_INDEX), columns, strict=True)),
    {name: np.ascontiguousarray(row) for name, row in zip(_TOKEN_ROWS, rows[1:], strict=True)},
  )


def gold_texts(questions: Sequence[SquadQuestion], examples: TokenizedExamples) -> dict[int, str]:
  """Returns the text that the labels of each question mark.

  Args:
    questions: all questions of the split.
    examples: their windows.
  Returns: index of the question -> text. Questions whose answer is in no window are left out.
  """
  labels = examples.labels
  texts: dict[int, str] = {}
  for window in np.flatnonzero(labels[IS_IMPOSSIBLE] == 0):
    offset = examples.token_offsets[window]
    start = examples.token_features[CHAR_STARTS][offset + labels[START_POSITIONS][window]]
    end = examples.token_features[CHAR_ENDS][offset + labels[END_POSITIONS][window]]
    index = int(labels[QUESTION_INDEX][window])
    texts[index] = questions[index].paragraph.context[start:end]
  return texts
