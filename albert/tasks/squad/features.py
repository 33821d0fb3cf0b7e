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
from albert.tasks.squad.flags import NUM_SPECIAL_TOKENS
from albert.tokenization.packing import max_context_windows, window_starts
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig, TokensWithOffsets

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

_LABEL_COLUMNS = (START_POSITIONS, END_POSITIONS, IS_IMPOSSIBLE, QUESTION_INDEX)
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
    _, _, cls, sep, _ = tokenizer.special_ids
    sep_block = np.array([[sep], [1], [0], [0], [0]], np.int32)
    remaining_question_ids = iter(tokenizer.encode_batch(question.text for question in questions))
    windows: list[np.ndarray] = []
    labels: list[tuple[int, ...]] = []
    cut_tokens: list[int] = []  # of the question, in each of its windows
    # Questions about the same paragraph follow each other, so each paragraph is tokenized once.
    for paragraph, group in itertools.groupby(questions, key=lambda question: question.paragraph):
      tokens = tokenizer.encode_with_offsets(paragraph.context)
      paragraph_block = np.stack([tokens.ids, np.zeros(len(tokens.ids), np.int32), tokens.starts, tokens.ends])
      for question in group:
        query = (all_ids := next(remaining_question_ids))[: self.max_query_length]
        # P_MASK is 1 where no answer may start or end. It stays 0 for [CLS], which stands for "no answer".
        question_block = np.zeros((1 + len(_FEATURE_ROWS), len(query) + 2), np.int32)
        question_block[0], question_block[1, 1:] = [cls, *query, sep], 1
        answer = answer_tokens(tokens, question.answers[0]) if question.answers else None
        first, last = answer or (-1, -1)
        room = self.max_seq_length - len(query) - NUM_SPECIAL_TOKENS
        for part, is_max_context in cut_windows(len(tokens.ids), room, self.doc_stride):
          window = np.vstack([paragraph_block[:, part], is_max_context])
          windows.append(np.concatenate([question_block, window, sep_block], axis=1))
          shift = len(query) + 2 - part.start  # from an index in the paragraph to a position in the window
          has_answer = part.start <= first and last < part.stop
          positions = (first + shift, last + shift, 0) if has_answer else (0, 0, 1)
          labels.append((*positions, question.index))
          cut_tokens.append(len(all_ids) - len(query))
    ids, *token_features = np.concatenate(windows, axis=1)
    return TokenizedExamples(
      input_ids=ids,
      sequence_lengths=np.array([window.shape[1] for window in windows], np.int32),
      sequence_counts=np.ones(len(windows), np.int32),
      labels=dict(zip(_LABEL_COLUMNS, np.array(labels, np.int32).T, strict=True)),
      token_features=dict(zip(_FEATURE_ROWS, token_features, strict=True)),
      cut_tokens=np.array(cut_tokens, np.int32),
    )


def cut_windows(num_tokens: int, room: int, doc_stride: int) -> Iterator[tuple[slice, np.ndarray]]:
  """Yields the tokens of each window of a text, and whether no other window has more context around each of them.

  Args:
    num_tokens: tokens of the text.
    room: maximum tokens of the text in one window.
    doc_stride: tokens between the starts of two successive windows.
  """
  starts = window_starts(num_tokens, room, doc_stride)
  best_windows = max_context_windows(num_tokens, starts, room) if len(starts) > 1 else np.zeros(num_tokens, np.int32)
  for window, start in enumerate(starts):
    part = slice(start, start + room)
    yield part, best_windows[part] == window


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
