"""Joins the ids of texts to sequences, for many texts at once, and cuts long texts into overlapping windows.

A sequence is `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`. The windows of SQuAD models are
`[CLS] question [SEP] part of the context [SEP]`, those of classifiers `[CLS] part of the text [SEP]`.
`packing_graph` makes the same sequences with TensorFlow ops; `albert.tasks.squad.features` makes the windows of whole
data sets, with labels.

Legend: N texts (or pairs of texts), T tokens of all texts, P tokens of all sequences; for windows, W windows, S tokens
of the longest one, P tokens of a paragraph (the context).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from albert.errors import UserError
from albert.tokenization.vocabulary import PAD_ID, SpecialIds

if TYPE_CHECKING:
  from albert.tokenization.tokenizer import Tokenizer

# A pair (ids, offsets): the ids of N texts, concatenated, int32 [T], and integers [N + 1]. The ids of text n are
# ids[offsets[n] : offsets[n + 1]].
Ragged = tuple[np.ndarray, np.ndarray]


def pack_single(texts: Ragged, max_length: int, special_ids: SpecialIds) -> tuple[np.ndarray, np.ndarray]:
  """Makes the sequence `[CLS] text [SEP]` of each text. A text that is too long is truncated at its end.

  Args:
    texts: see Ragged; `Tokenizer.encode_batch_flat` returns it.
    max_length: maximum tokens of a sequence, [CLS] and [SEP] included.
    special_ids: the ids of [CLS] and [SEP], see `Tokenizer.special_ids`.

  Returns:
    ids: int32 [P], the ids of all sequences, concatenated.
    lengths: int32 [N], the number of tokens of each sequence.

  Raises:
    UserError: max_length leaves no room for a text.
  """
  ids, offsets = texts
  kept = np.minimum(np.diff(offsets), text_budget(max_length, 1))
  return _pack([(ids, offsets[:-1], kept)], special_ids)


def pack_pair(first: Ragged, second: Ragged, max_length: int, special_ids: SpecialIds) -> tuple[np.ndarray, np.ndarray]:
  """Makes the sequence `[CLS] a [SEP] b [SEP]` of each pair of texts.

  While a sequence is too long, the last token of the longer text is removed; of b if both are equally long.

  Args:
    first, second: the texts a and b of the pairs, see Ragged.
    max_length: maximum tokens of a sequence, [CLS] and [SEP] included.
    special_ids: the ids of [CLS] and [SEP], see `Tokenizer.special_ids`.

  Returns, Raises: see pack_single.
  """
  (ids_a, offsets_a), (ids_b, offsets_b) = first, second
  length_a, length_b = np.diff(offsets_a), np.diff(offsets_b)
  budget = text_budget(max_length, 2)
  # The removal of single tokens that the docstring describes ends as follows. If both texts are longer than half of the
  # budget, each keeps half of it, and a keeps one token more if the budget is odd. Otherwise the shorter text is kept
  # whole, and the longer one keeps the rest of the budget.
  kept_a = np.minimum(length_a, np.maximum(budget - length_b, (budget + 1) // 2))
  kept_b = np.minimum(length_b, budget - kept_a)
  return _pack([(ids_a, offsets_a[:-1], kept_a), (ids_b, offsets_b[:-1], kept_b)], special_ids)


def padded(ids: np.ndarray, lengths: np.ndarray, *, pad_id: int = PAD_ID) -> dict[str, np.ndarray]:
  """Pads sequences to the longest one.

  Args:
    ids: int32 [P], the ids of all sequences, concatenated. Each sequence ends with [SEP].
    lengths: int32 [N], the number of tokens of each sequence.
    pad_id: the id of padding.

  Returns:
    input_ids, input_mask (1 for tokens, 0 for padding) and segment_ids (1 for the tokens after the first [SEP], 0 for
    those before it and for padding), int32 [N, S], where S is the largest length.
  """
  mask = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
  input_ids = np.full(mask.shape, pad_id, np.int32)
  input_ids[mask] = ids
  return {
    "input_ids": input_ids,
    "input_mask": mask.astype(np.int32),
    "segment_ids": is_second_segment(input_ids, mask).astype(np.int32),
  }


def is_second_segment(input_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Returns which tokens of sequences [..., S] are after the first [SEP], bool [..., S]; False for padding."""
  # [SEP] is the last token of a sequence, so its id need not be known.
  last = np.maximum(mask.sum(axis=-1, keepdims=True) - 1, 0)
  is_separator = mask & (input_ids == np.take_along_axis(input_ids, last, axis=-1))
  num_separators_before = np.cumsum(is_separator, axis=-1) - is_separator
  return (num_separators_before > 0) & mask


def pack_windows(
  texts: Ragged, max_length: int, doc_stride: int, max_windows: int, special_ids: SpecialIds
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Makes sequences `[CLS] part of a text [SEP]`, the overlapping windows of each text.

  Args:
    texts: N texts, see Ragged.
    max_length: maximum tokens of a window, [CLS] and [SEP] included; at least 3.
    doc_stride: tokens between the starts of two successive windows, see window_starts.
    max_windows: maximum number of windows of a text; the rest of the text is cut off.
    special_ids: the ids of [CLS] and [SEP].

  Returns:
    ids: int32, the ids of all windows, concatenated.
    lengths: int32 [W], the number of tokens of each window.
    counts: int32 [N], the number of windows of each text, at least 1.
  """
  ids, offsets = texts
  room = text_budget(max_length, 1)
  starts = [window_starts(length, room, doc_stride)[:max_windows] for length in np.diff(offsets).tolist()]
  counts = np.array([len(starts_of_text) for starts_of_text in starts], np.int32)
  begins = np.repeat(offsets[:-1], counts) + np.array([start for some in starts for start in some], np.int64)
  part_lengths = np.minimum(np.repeat(offsets[1:], counts) - begins, room)
  return *_pack([(ids, begins, part_lengths)], special_ids), counts


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
  """Returns the index of the first token of each window. Every token is in at least one window.

  Args:
    num_tokens: tokens of the paragraph.
    room: maximum tokens of the paragraph in one window.
    doc_stride: tokens between the starts of two successive windows. If it is larger than `room`, `room` is used.
  """
  if num_tokens <= room:
    return [0]
  step = min(room, doc_stride)
  # A window that starts at token s ends at s + room. The last window is the first that reaches the last token.
  # It starts at num_tokens - room, rounded up to a multiple of step.
  last_start = -(-(num_tokens - room) // step) * step
  return list(range(0, last_start + 1, step))


def max_context_windows(num_tokens: int, starts: Sequence[int], room: int) -> np.ndarray:
  """Finds, for each token, the window with the most context around it, as the original code does.

  The context is min(tokens before it, tokens after it) + 0.01 * tokens in the window. In a tie, the first window wins.

  Args:
    num_tokens: tokens of the paragraph.
    starts: the first token of each window.
    room: maximum tokens of the paragraph in one window.
  Returns: the index of the window for each token, int [P].
  """
  first_tokens = np.array(starts)[:, None]  # [W, 1]
  sizes = np.minimum(num_tokens - first_tokens, room)  # [W, 1]
  tokens_before = np.arange(num_tokens) - first_tokens  # [W, P]
  tokens_after = sizes - 1 - tokens_before  # [W, P]
  contexts = np.minimum(tokens_before, tokens_after) + 0.01 * sizes
  is_in_window = (tokens_before >= 0) & (tokens_after >= 0)
  return np.argmax(np.where(is_in_window, contexts, -1.0), axis=0)


@dataclasses.dataclass(frozen=True)
class QuestionWindows:
  """The windows of one question and its context.

  Attributes:
    context: the text that may answer the question.
    inputs: input_ids, input_mask and segment_ids, int32 [W, S], the input of a SQuAD model.
    char_starts, char_ends: int32 [W, S], the range of each token in the context, in characters; 0 for tokens of the
      question, [CLS], [SEP] and padding.
  """

  context: str
  inputs: dict[str, np.ndarray]
  char_starts: np.ndarray
  char_ends: np.ndarray

  def text(self, window: int, start: int, end: int) -> str:
    """Returns the text of a span of tokens.

    Args:
      window: the index of the window.
      start, end: the positions of the first and the last token of the span in the window.
    """
    return self.context[self.char_starts[window, start] : self.char_ends[window, end]]


def question_windows(
  tokenizer: Tokenizer,
  question: str,
  context: str,
  *,
  max_length: int = 384,
  max_query_length: int = 64,
  doc_stride: int = 128,
) -> QuestionWindows:
  """Tokenizes a question and its context into the windows that a SQuAD model reads.

  Args:
    tokenizer: the tokenizer of the model.
    question: the question.
    context: the text that may answer it, of any length.
    max_length: maximum tokens of a window, [CLS] and [SEP] included.
    max_query_length: maximum tokens of the question; a longer one is cut at its end.
    doc_stride: tokens between the starts of two successive windows.

  Returns:
    The windows, at least one.

  Raises:
    UserError: max_length leaves no room for the context, or a number is below 1.

  Example:
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> windows = albert.question_windows(tokenizer, "Who drank it?", "They drank the pub dry.", max_length=64)
    >>> windows.inputs["input_ids"].shape == windows.char_starts.shape
    True
    >>> first = int(windows.inputs["segment_ids"][0].argmax())  # the first token of the context
    >>> windows.text(0, first, windows.char_ends[0].argmax())
    'They drank the pub dry.'
  """
  if max_query_length < 1 or doc_stride < 1:
    raise UserError(f"max_query_length={max_query_length} and doc_stride={doc_stride}: both must be at least 1")
  query = tokenizer.encode(question)[:max_query_length]
  tokens = tokenizer.encode_with_offsets(context)
  first = len(query) + 2  # the position of the first token of the context, after [CLS] question [SEP]
  room = max_length - first - 1  # for the context; the last token is [SEP]
  if room < 1:
    raise UserError(
      f"max_length={max_length}: no room for the context beside {len(query)} tokens of the question: give a larger "
      "max_length or a smaller max_query_length"
    )
  parts = [slice(start, start + room) for start in window_starts(len(tokens.ids), room, doc_stride)]
  pad, _, cls, sep, _ = tokenizer.special_ids
  windows = [np.array([cls, *query, sep, *tokens.ids[part], sep], np.int32) for part in parts]
  lengths = np.array([len(window) for window in windows], np.int32)
  inputs = padded(np.concatenate(windows), lengths, pad_id=pad)
  char_starts, char_ends = np.zeros((2, len(windows), int(lengths.max())), np.int32)
  for window, part in enumerate(parts):
    char_starts[window, first : lengths[window] - 1] = tokens.starts[part]
    char_ends[window, first : lengths[window] - 1] = tokens.ends[part]
  return QuestionWindows(context, inputs, char_starts, char_ends)


def text_budget(max_length: int, num_segments: int) -> int:
  """Returns how many tokens of text a sequence can hold besides [CLS] and one [SEP] for each segment.

  Raises:
    UserError: there is no room for one token of each segment.
  """
  budget = max_length - 1 - num_segments
  if budget < num_segments:
    raise UserError(f"max_seq_length={max_length}: [CLS], texts and [SEP] need at least {1 + 2 * num_segments}")
  return budget


def _pack(
  segments: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], special_ids: SpecialIds
) -> tuple[np.ndarray, np.ndarray]:
  """Makes the sequences `[CLS] segment [SEP] segment [SEP] ...`.

  Args:
    segments: for each segment of a sequence: ids, int32; and integers [N], the index of its first id and its length.
    special_ids: the ids of [CLS] and [SEP].
  """
  lengths = 1 + np.sum([kept + 1 for _, _, kept in segments], axis=0)  # [N]
  starts = np.cumsum(lengths) - lengths
  packed = np.empty(int(lengths.sum()), np.int32)
  packed[starts] = special_ids.cls
  starts = starts + 1
  for ids, first, kept in segments:
    # 0, 1, ..., kept[0] - 1, 0, 1, ..., kept[1] - 1, ...
    index_in_segment = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
    packed[np.repeat(starts, kept) + index_in_segment] = ids[np.repeat(first, kept) + index_in_segment]
    packed[starts + kept] = special_ids.sep
    starts = starts + kept + 1
  return packed, lengths.astype(np.int32)
