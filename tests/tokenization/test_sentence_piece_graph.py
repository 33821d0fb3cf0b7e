"""SentencePieceGraphTokenizer, which runs in the TensorFlow graph, gives the normalized texts and ids of Tokenizer.

The module also tests the packing of ids into model inputs in the graph. If ALBERT_DATA_DIR is set, the original
vocabulary is tested, too. It is vocab/30k-clean.model in this directory.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.packing_graph import pack_pair, pack_single
from albert.tokenization.sentence_piece_graph import SentencePieceGraphTokenizer
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import CLS_ID, SENTENCE_PIECE_IDS, SEP_ID, TokenizerConfig
from tests.conftest import SaveModel, english_like_documents
from tests.tokenization.reference import TEXTS, random_texts
from tests.tokenization.test_sentence_piece import OPTIONS, model_with_options, texts_with_odd_spaces

# The ops that tensorflow-text 2.12 and TensorFlow Serving have: two ops of SentencePiece, and core ops.
ALLOWED_OPS = frozenset({
  "AddV2", "All", "Assert", "BroadcastTo", "Cast", "ConcatV2", "Const", "Cumsum", "DenseBincount", "Equal",
  "ExpandDims", "Fill", "FloorDiv", "FloorMod", "GatherV2", "Greater", "GreaterEqual", "Identity", "If", "Less",
  "LogicalAnd", "LogicalNot", "Max", "Maximum", "Minimum", "Mul", "NoOp", "NotEqual", "OnesLike", "Pack",
  "Placeholder", "Prod", "RaggedGather", "RaggedRange", "RaggedTensorToTensor", "Range", "Reshape", "SelectV2",
  "SentencepieceOp", "SentencepieceTokenizeOp", "Shape", "Size", "Squeeze", "StaticRegexReplace", "StridedSlice",
  "StringSplitV2", "Sub", "TensorScatterUpdate", "Tile", "Transpose", "UnicodeDecode", "UnicodeEncode",
  "UnicodeTranscode", "Where", "ZerosLike",
})  # fmt: skip
NUM_SPECIAL_TOKENS = 3  # of a pair: [CLS] a [SEP] b [SEP]


def find_differences(
  model_file: str, texts: list[str], do_lower_case: bool = True, **switches: bool
) -> list[tuple[str, object, object]]:
  """Returns (text, result in Python, result in the graph) for each text whose normalized text or ids differ."""
  python = Tokenizer(model_file, do_lower_case, **switches)
  graph = SentencePieceGraphTokenizer(TokenizerConfig(model_file, do_lower_case, **switches))

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
  def normalize_and_tokenize(batch: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
    return graph.normalize(batch), graph.tokenize(batch)

  differences: list[tuple[str, object, object]] = []
  for start in range(0, len(texts), 4096):
    batch = texts[start : start + 4096]
    normalized, ids = normalize_and_tokenize(tf.constant([text.encode() for text in batch]))
    expected_texts = [python.normalize(text).encode() for text in batch]
    texts_and_ids: list[tuple[str, Any, Any]] = [*zip(batch, expected_texts, normalized.numpy(), strict=True)]
    texts_and_ids += zip(batch, python.encode_batch(batch), ids.to_list(), strict=True)
    differences += [(text, expected, in_graph) for text, expected, in_graph in texts_and_ids if expected != in_graph]
  return differences


def assert_equal_ids(model_file: str, texts: list[str], do_lower_case: bool = True, **switches: bool) -> None:
  """Asserts equal normalized texts and ids for every text."""
  assert find_differences(model_file, texts, do_lower_case, **switches)[:3] == []


def code_point_texts() -> list[str]:
  """Returns texts in which every code point stands between letters, Σ, digits and commas.

  There are eight code points in each text. Every third code point of the BMP is also a text of its own.
  """
  # All but unassigned ones (planes 4 to 13, and most of 3 and 14) and private ones (planes 15 and 16).
  code_points = (*range(0xD800), *range(0xE000, 0x31400), *range(0xE0000, 0xE0200))
  # Without the 66 noncharacters of Unicode: U+FDD0 to U+FDEF, and the last two code points of each plane.
  characters = [chr(c) for c in code_points if c & 0xFFFE != 0xFFFE and not 0xFDD0 <= c <= 0xFDEF]
  contexts = [f"A{c}Σ {c}19{c}9,{c} Σ{c}b" for c in characters]
  return ["".join(contexts[i : i + 8]) for i in range(0, len(contexts), 8)] + characters[:0x10000:3]


def repeated_texts(count: int) -> list[str]:
  """Returns long words of few different letters. Most have many segmentations with equal scores."""
  rng = random.Random(4)
  alphabets = ["ab", "la", "19", "aei", "co", "!?.", "0123456789,", "e", "-.", "abcdefghijklmnopqrstuvwxyz"]
  return ["".join(rng.choices(rng.choice(alphabets), k=rng.randrange(1, 200))) for _ in range(count)]


@pytest.fixture(
  scope="module",
  params=[
    "fixture",
    pytest.param(
      "30k",
      marks=[
        pytest.mark.thorough,
        pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="no ALBERT_DATA_DIR"),
      ],
    ),
  ],
)
def model_file(request: pytest.FixtureRequest, spm_model: str) -> str:
  """The vocabulary of the tests, and the original one."""
  if request.param == "fixture":
    return spm_model
  return str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_same_ids_for_sentences_and_random_texts(model_file: str, do_lower_case: bool) -> None:
  documents = english_like_documents(200, seed=9)
  sentences = list(itertools.chain.from_iterable(documents))
  passages = [" ".join(document * 10) for document in documents[:50]]
  assert len(sentences) > 1000
  assert_equal_ids(model_file, TEXTS + sentences + passages + random_texts(4000, seed=5), do_lower_case)


@pytest.mark.thorough
def test_same_ids_for_every_code_point(model_file: str) -> None:
  assert_equal_ids(model_file, code_point_texts())


def test_same_ids_for_repeated_letters(model_file: str) -> None:
  assert_equal_ids(model_file, repeated_texts(4000))


@pytest.mark.parametrize("do_lower_case", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_same_ids_if_accents_are_kept(model_file: str, do_lower_case: bool) -> None:
  texts = [*TEXTS, "Schön İΣ ΑΣİ", *random_texts(1000, seed=5), *code_point_texts()[::9]]
  assert_equal_ids(model_file, texts, do_lower_case, keep_accents=True)


def test_same_ids_with_converted_quotes(spm_model: str) -> None:
  assert_equal_ids(spm_model, ["``Hello,'' ''bye'' ``` ''''' `", *random_texts(50, seed=6)], convert_quotes=True)


def test_invalid_utf8_is_replaced_as_python_does(spm_model: str) -> None:
  rng = random.Random(7)
  some_bytes = b"A \x80\xbf\xc0\xc3\xe2\x82\xac\xed\xa0\xf0\x9f\x98\x80\xf4\x90\xff\xe0\x9f"
  encoded = [bytes(rng.choices(some_bytes, k=rng.randrange(1, 12))) for _ in range(3000)]
  texts = [text.decode("utf-8", errors="replace") for text in encoded]
  graph, python = SentencePieceGraphTokenizer(TokenizerConfig(spm_model)), Tokenizer(spm_model)
  assert graph.normalize(tf.constant(encoded)).numpy().tolist() == [python.normalize(text).encode() for text in texts]
  assert graph.tokenize(tf.constant(encoded)).to_list() == python.encode_batch(texts)


def test_empty_texts_and_an_empty_batch_have_no_ids(spm_model: str) -> None:
  graph = SentencePieceGraphTokenizer(TokenizerConfig(spm_model))
  assert graph.tokenize(tf.constant(["", " ", "\u3000\u200b"])).to_list() == [[], [], []]
  empty = graph.tokenize(tf.zeros([0], tf.string))
  assert (empty.to_list(), empty.dtype) == ([], tf.int32)


def test_same_ids_if_a_piece_has_several_words(save_model: SaveModel) -> None:
  pieces = [("▁", -1.0), ("a", -1.0), ("b", -1.0), ("▁a▁b", -1.0), (",", -9.0), ("9", -1.0), ("9,", -1.0)]
  assert_equal_ids(save_model(pieces), ["a  b a", "a b", "9,9,", "¨a¨b"])


def test_a_vocabulary_without_comma_is_refused(save_model: SaveModel) -> None:
  with pytest.raises(UserError, match=r'"," is not a piece of this vocabulary'):
    SentencePieceGraphTokenizer(TokenizerConfig(save_model([("▁", -1.0), ("a", -1.0)])))


class TextsToInputs(tf.Module):
  """Takes texts and returns model inputs, like the first part of a model for serving."""

  def __init__(self, model_file: str):
    super().__init__()
    self.tokenizer = SentencePieceGraphTokenizer(TokenizerConfig(model_file))

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.string)], autograph=False)
  def __call__(self, first: tf.Tensor, second: tf.Tensor) -> dict[str, tf.Tensor]:
    return pack_pair(
      self.tokenizer.tokenize(first), self.tokenizer.tokenize(second), max_length=12, special_ids=SENTENCE_PIECE_IDS
    )

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
  def single(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
    return pack_single(self.tokenizer.tokenize(text), max_length=8, special_ids=SENTENCE_PIECE_IDS)


@pytest.fixture(scope="module")
def texts_to_inputs(spm_model: str) -> TextsToInputs:
  return TextsToInputs(spm_model)


def test_the_graph_has_only_ops_of_tensorflow_serving(texts_to_inputs: TextsToInputs) -> None:
  ops = set()
  for function in (texts_to_inputs.__call__, texts_to_inputs.single):
    definition = function.get_concrete_function().graph.as_graph_def()
    ops |= {node.op for node in definition.node}
    ops |= {node.op for inner_function in definition.library.function for node in inner_function.node_def}
  assert "SentencepieceTokenizeOp" in ops
  assert ops <= ALLOWED_OPS


@pytest.mark.thorough
def test_a_saved_model_that_was_moved_gives_the_same_ids(texts_to_inputs: TextsToInputs, tmp_path: Path) -> None:
  first_texts = tf.constant(["The captain, 1999,", "İstanbul ΑΣ"])
  second_texts = first_texts[::-1]
  tf.saved_model.save(texts_to_inputs, str(tmp_path / "saved"))
  os.rename(tmp_path / "saved", tmp_path / "moved")
  loaded_module = tf.saved_model.load(str(tmp_path / "moved"))
  expected, inputs = texts_to_inputs(first_texts, second_texts), loaded_module(first_texts, second_texts)
  for name, values in expected.items():
    np.testing.assert_array_equal(inputs[name], values)


def truncate_by_steps(a: list[int], b: list[int], max_length: int) -> None:
  """Truncates a pair in place like the original ALBERT: removes the last token of the longer text, or of b."""
  while len(a) + len(b) > max_length - NUM_SPECIAL_TOKENS:
    longer = a if len(a) > len(b) else b
    longer.pop()


def test_pack_pair_truncates_and_pads_pairs_of_any_lengths() -> None:
  lengths = list(itertools.product(range(9), range(9)))
  for max_length in (5, 6, 9, 12, 30):
    rows_a = [list(range(100, 100 + length_a)) for length_a, _ in lengths]
    rows_b = [list(range(200, 200 + length_b)) for _, length_b in lengths]
    packed = pack_pair(
      tf.ragged.constant(rows_a, tf.int32, ragged_rank=1),
      tf.ragged.constant(rows_b, tf.int64, ragged_rank=1),
      max_length,
      SENTENCE_PIECE_IDS,
    )
    assert list(packed) == ["input_ids", "input_mask", "segment_ids"]
    assert all(values.dtype == tf.int32 and values.shape[1] == max_length for values in packed.values())
    for index, (a, b) in enumerate(zip(rows_a, rows_b, strict=True)):
      truncate_by_steps(a, b, max_length)
      length = len(a) + len(b) + NUM_SPECIAL_TOKENS
      padding = [0] * (max_length - length)
      assert packed["input_ids"][index].numpy().tolist() == [CLS_ID, *a, SEP_ID, *b, SEP_ID, *padding]
      assert packed["input_mask"][index].numpy().tolist() == [1] * length + padding
      assert packed["segment_ids"][index].numpy().tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + padding


def test_pack_single_truncates_and_pads_texts() -> None:
  packed = pack_single(tf.ragged.constant([[7, 8, 9], [], [6, 7, 8, 9, 10]], tf.int32), 5, SENTENCE_PIECE_IDS)
  assert packed["input_ids"].numpy().tolist() == [[2, 7, 8, 9, 3], [2, 3, 0, 0, 0], [2, 6, 7, 8, 3]]
  assert packed["input_mask"].numpy().tolist() == [[1] * 5, [1, 1, 0, 0, 0], [1] * 5]
  assert packed["segment_ids"].numpy().tolist() == [[0] * 5] * 3


def test_a_length_without_room_for_a_token_of_each_text_is_refused() -> None:
  ids = tf.ragged.constant([[7]], tf.int32)
  with pytest.raises(UserError, match=r"max_length=2: too short"):
    pack_single(ids, 2, SENTENCE_PIECE_IDS)
  with pytest.raises(UserError, match=r"max_length=4: too short"):
    pack_pair(ids, ids, 4, SENTENCE_PIECE_IDS)


def test_ids_equal_those_of_python_with_every_option_of_the_trainer(tmp_path: Path) -> None:
  for option, model_type in (("no prefix", "unigram"), ("extra spaces", "bpe"), ("no normalization", "unigram")):
    model = model_with_options(tmp_path, option, model_type)
    assert_equal_ids(model, [*TEXTS, *random_texts(200, seed=44), *texts_with_odd_spaces(200)])


@pytest.mark.thorough
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("option", OPTIONS)
def test_ids_equal_those_of_python_with_each_option(option: str, model_type: str, tmp_path: Path) -> None:
  model = model_with_options(tmp_path, option, model_type)
  assert_equal_ids(model, [*TEXTS, *random_texts(1000, seed=44), *texts_with_odd_spaces(400)])
