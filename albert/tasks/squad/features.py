"""Questions on paragraphs -> TokenizedExamples: overlapping windows `[CLS] question [SEP] part of the paragraph [SEP]`.

Needs no TensorFlow: many processes run it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.squad.data import Answer, Question
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.offsets import OffsetTokenizer, TokensWithOffsets
from albert.tokenization.tokenizer import CLS_ID, SEP_ID, load_tokenizer

# L tokens of a window, P of a paragraph, W windows of a question.

# Labels of an example (a window): places of the answer's first and last token in it, [CLS] (0) without one.
START_POSITIONS = "start_positions"
END_POSITIONS = "end_positions"
# 1 for a window without an answer.
IS_IMPOSSIBLE = "is_impossible"
# The question's place in the data.
QUESTION_INDEX = "question_index"
# Token features: 1 where no answer may start or end (the question, [SEP]); the token's place in the paragraph
# (0 outside of it); 1 if no other window shows more of what is around the token.
P_MASK = "p_mask"
CHAR_STARTS = "char_starts"
CHAR_ENDS = "char_ends"
IS_MAX_CONTEXT = "is_max_context"
_TOKEN_ROWS = (P_MASK, CHAR_STARTS, CHAR_ENDS, IS_MAX_CONTEXT)


@dataclasses.dataclass(frozen=True)
class SquadFeaturizer:
  """Makes Examples of a chunk of questions, an example a window; picklable.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: longest window, at least max_query_length + 4.
    max_query_length: tokens kept of a question.
    doc_stride: tokens from the start of a window to that of the next.
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int
  max_query_length: int
  doc_stride: int

  def __call__(self, questions: Sequence[Question]) -> TokenizedExamples:
    """The windows of all questions, in order. The labels are those of a question's first answer."""
    tokenizer = load_tokenizer(self.tokenizer_config, OffsetTokenizer)
    asked = tokenizer.encode_batch(question.text for question in questions)
    blocks: list[np.ndarray] = []
    lengths: list[int] = []
    labels: list[tuple[int, int, int, int]] = []
    place = 0
    for paragraph, group in itertools.groupby(questions, key=lambda question: question.paragraph):
      tokens = tokenizer.encode_with_offsets(paragraph.context)
      for question in group:
        query = asked[place][: self.max_query_length]
        place += 1
        answer = answer_tokens(tokens, question.answers[0]) if question.answers else None
        head, tail = _head(query), _TAIL
        for start, window in self._windows(tokens, len(query)):
          size = window.shape[1]
          blocks += (head, window, tail)
          lengths.append(head.shape[1] + size + 1)
          labels.append((*_positions(answer, start, size, head.shape[1]), question.index))
    return _examples(blocks, lengths, labels)

  def _windows(self, tokens: TokensWithOffsets, query_length: int) -> Iterator[tuple[int, np.ndarray]]:
    """(first token, rows [5, L] of the paragraph's part) of each window of a question."""
    num_tokens = len(tokens.ids)
    room = self.max_seq_length - query_length - 3
    starts = window_starts(num_tokens, room, self.doc_stride)
    rows = np.stack([tokens.ids, np.zeros(num_tokens, np.int32), tokens.starts, tokens.ends, np.ones_like(tokens.ids)])
    if len(starts) == 1:
      yield 0, rows
      return
    best = max_context_windows(num_tokens, starts, room)
    for index, start in enumerate(starts):
      window = rows[:, start : start + room].copy()
      window[4] = best[start : start + room] == index
      yield start, window


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
  """The first token of each window of at most `room` tokens. Together the windows show every token."""
  step = min(room, doc_stride)
  return [0, *range(step, num_tokens - room + step, step)] if num_tokens > room else [0]


def max_context_windows(num_tokens: int, starts: Sequence[int], room: int) -> np.ndarray:
  """int [P]: for each token the window that shows most of what is around it.

  That is the greatest of min(tokens before it, tokens after it) + 0.01 * tokens of the window; the first of equals.
  """
  begins = np.array(starts)[:, None]
  sizes = np.minimum(num_tokens - begins, room)
  before = np.arange(num_tokens) - begins  # [W, P]
  after = sizes - 1 - before
  scores = np.minimum(before, after) + 0.01 * sizes
  return np.argmax(np.where((before >= 0) & (after >= 0), scores, -1.0), axis=0)


def answer_tokens(tokens: TokensWithOffsets, answer: Answer) -> tuple[int, int] | None:
  """The first and the last token that the answer touches; the next token if it touches none; None without tokens."""
  if not len(tokens.ids):
    return None
  first = int(np.searchsorted(tokens.ends, answer.start, side="right"))
  last = int(np.searchsorted(tokens.starts, answer.start + len(answer.text), side="left")) - 1
  first = min(first, len(tokens.ids) - 1)
  return first, max(first, last)


def _positions(answer: tuple[int, int] | None, start: int, size: int, offset: int) -> tuple[int, int, int]:
  """start_positions, end_positions and is_impossible of a window whose part of the paragraph begins at `offset`."""
  if answer is None or answer[0] < start or answer[1] >= start + size:
    return 0, 0, 1
  return answer[0] - start + offset, answer[1] - start + offset, 0


def _head(query: list[int]) -> np.ndarray:
  """Rows [5, L] of `[CLS] question [SEP]`."""
  head = np.zeros((5, len(query) + 2), np.int32)
  head[0] = [CLS_ID, *query, SEP_ID]
  head[1, 1:] = 1
  return head


_TAIL = np.array([[SEP_ID], [1], [0], [0], [0]], np.int32)


def _examples(
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


def gold_texts(questions: Sequence[Question], examples: TokenizedExamples) -> dict[int, str]:
  """Question's index -> the text that its labels stand for; questions without an answer in any window are left out."""
  labels = examples.labels
  texts: dict[int, str] = {}
  for window in np.flatnonzero(labels[IS_IMPOSSIBLE] == 0):
    offset = examples.token_offsets[window]
    start = examples.token_features[CHAR_STARTS][offset + labels[START_POSITIONS][window]]
    end = examples.token_features[CHAR_ENDS][offset + labels[END_POSITIONS][window]]
    index = int(labels[QUESTION_INDEX][window])
    texts[index] = questions[index].paragraph.context[start:end]
  return texts
