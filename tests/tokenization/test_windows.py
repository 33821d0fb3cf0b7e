"""The windows of a question equal those with which SQuAD models are trained; spans are texts of the context.

The windows of a text to classify are the same in Python and in the graph.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.export.network import cut_into_windows, windows_by_text
from albert.tasks.squad.features import CHAR_ENDS, CHAR_STARTS, SquadFeaturizer
from albert.tasks.squad.files import SquadParagraph, SquadQuestion
from albert.tokenization.packing import pack_windows, question_windows
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import SpecialIds, TokenizerConfig
from tests.conftest import english_like_documents
from tests.tokenization.reference import TEXTS

WINDOW_SIZES = {"max_query_length": 5, "doc_stride": 7}
MAX_LENGTH = 30


@pytest.mark.parametrize("context", [" ".join(english_like_documents(1)[0]), *TEXTS], ids=len)
def test_windows_equal_those_of_training(spm_model: str, context: str) -> None:
  text = "Where did the captain sell the garden in the year 1999?"
  paragraph = SquadParagraph("", context)
  featurizer = SquadFeaturizer(TokenizerConfig(spm_model), max_seq_length=MAX_LENGTH, **WINDOW_SIZES)
  examples = featurizer([SquadQuestion("1", 0, text, paragraph)])
  windows = question_windows(Tokenizer(spm_model), text, context, max_length=MAX_LENGTH, **WINDOW_SIZES)
  assert windows.inputs["input_mask"].sum(axis=1).tolist() == examples.sequence_lengths.tolist()
  is_token = windows.inputs["input_mask"] > 0
  assert windows.inputs["input_ids"][is_token].tolist() == examples.input_ids.tolist()
  assert windows.char_starts[is_token].tolist() == examples.token_features[CHAR_STARTS].tolist()
  assert windows.char_ends[is_token].tolist() == examples.token_features[CHAR_ENDS].tolist()
  for values in (*windows.inputs.values(), windows.char_starts, windows.char_ends):
    assert (values.dtype, values.shape) == (np.int32, is_token.shape)
    assert not values[~is_token].any()


def test_a_span_is_its_text_in_the_context(spm_model: str) -> None:
  context = "The captain   sold the GARDEN, in 1999."
  tokenizer = Tokenizer(spm_model)
  windows = question_windows(tokenizer, "Who?", context)
  # The context is the tokens `first` to `last` of the window.
  first = 1 + len(tokenizer.encode("Who?")) + 1  # after [CLS], the question and [SEP]
  last = windows.inputs["input_ids"].shape[1] - 2  # before [SEP]
  num_context_tokens = last - first + 1
  assert windows.inputs["segment_ids"][0].tolist() == [0] * first + [1] * (num_context_tokens + 1)  # and [SEP]
  assert windows.text(0, first, last) == context
  captain = first + len(tokenizer.encode("The"))
  assert windows.text(0, captain, captain + len(tokenizer.encode("captain sold")) - 1) == "captain   sold"


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"max_length": 8, "max_query_length": 5}, "max_length=8: no room for the context beside 5 tokens"),
    ({"doc_stride": 0}, "max_query_length=64 and doc_stride=0: both must be at least 1"),
  ],
)
def test_sizes_that_leave_no_room_are_refused(spm_model: str, settings: dict[str, int], message: str) -> None:
  with pytest.raises(UserError, match=message):
    question_windows(Tokenizer(spm_model), "the captain sold the garden in the year", "home", **settings)


# (lengths of the texts, max_length, doc_stride, max_windows)
WINDOWED = [
  ([0, 1, 8, 9, 30, 12], 10, 3, 4),
  ([25, 7], 10, 50, 9),  # a stride of more than a window holds
  ([17], 10, 8, 1),
  ([3, 2], 10, 4, 5),
  ([], 10, 4, 5),
]


@pytest.mark.parametrize(("lengths", "max_length", "doc_stride", "max_windows"), WINDOWED)
def test_the_graph_cuts_texts_into_the_windows_of_python(
  lengths: list[int], max_length: int, doc_stride: int, max_windows: int
) -> None:
  special_ids = SpecialIds(pad=91, unk=92, cls=93, sep=94, mask=95)
  texts = [list(range(number * 40 + 100, number * 40 + 100 + length)) for number, length in enumerate(lengths)]
  # The definition: a window begins doc_stride tokens after the one before it, until the last token is in a window.
  room, expected = max_length - 2, []
  for text in texts:
    starts = [0]
    while starts[-1] + room < len(text):
      starts.append(starts[-1] + min(doc_stride, room))
    expected.append([[93, *text[start : start + room], 94] for start in starts[:max_windows]])
  offsets = np.cumsum([0, *lengths])
  ids = np.array([token for text in texts for token in text], np.int32)
  packed, window_lengths, counts = pack_windows((ids, offsets), max_length, doc_stride, max_windows, special_ids)
  assert packed.tolist() == [token for windows in expected for window in windows for token in window]
  assert window_lengths.tolist() == [len(window) for windows in expected for window in windows]
  assert counts.tolist() == [len(windows) for windows in expected]
  ragged = tf.RaggedTensor.from_row_splits(ids, offsets.astype(np.int64))
  windows_of_texts = cut_into_windows(
    ragged, max_seq_length=max_length, doc_stride=doc_stride, special_ids=special_ids, max_windows=max_windows
  )
  input_ids, mask, segments = (
    values.numpy() for values in windows_by_text(windows_of_texts, tf.constant(len(lengths), tf.int64))
  )
  num_windows = max(map(len, expected), default=0)
  assert input_ids.shape[:2] == mask.shape[:2] == (len(lengths), num_windows)
  assert not segments.any()
  for row, windows in enumerate(expected):
    assert mask[row].sum(axis=1).tolist() == [*map(len, windows), *[0] * (num_windows - len(windows))]
    for window, tokens in enumerate(windows):
      assert input_ids[row, window, : len(tokens)].tolist() == tokens
  assert not input_ids[mask == 0].any()
