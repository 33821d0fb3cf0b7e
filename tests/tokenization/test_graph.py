"""GraphTokenizer gives the same normalized texts and ids as Tokenizer; packing of ids into model inputs.

ALBERT_DATA_DIR (holding vocab/30k-clean.model) adds the original vocabulary to the fixture's.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.graph import GraphTokenizer
from albert.tokenization.graph_packing import pack_pair, pack_single
from albert.tokenization.tokenizer import CLS_ID, SEP_ID, Tokenizer
from tests.conftest import SaveModel, english_like_documents
from tests.tokenization.reference import TEXTS, random_texts

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


def differences(
  model_file: str, texts: list[str], do_lower_case: bool = True, *, convert_quotes: bool = False
) -> list[tuple[str, object, object]]:
  """Returns (text, result in Python, result in the graph) for each text whose normalized text or ids differ."""
  python = Tokenizer(model_file, do_lower_case, convert_quotes=convert_quotes)
  graph = GraphTokenizer(model_file, do_lower_case, convert_quotes=convert_quotes)

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
  def run(batch: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
    return graph.normalize(batch), graph.tokenize(batch)

  differences: list[tuple[str, object, object]] = []
  for start in range(0, len(texts), 4096):
    batch = texts[start : start + 4096]
    normalized, ids = run(tf.constant([text.encode() for text in batch]))
    expected = [python.normalize(text).encode() for text in batch]
    differences += [row for row in zip(batch, expected, normalized.numpy(), strict=True) if row[1] != row[2]]
    differences += [
      row for row in zip(batch, python.encode_batch(batch), ids.to_list(), strict=True) if row[1] != row[2]
    ]
  return differences


def compare(model_file: str, texts: list[str], do_lower_case: bool = True, *, convert_quotes: bool = False) -> None:
  """Asserts equal normalized texts and ids for every text."""
  assert differences(model_file, texts, do_lower_case, convert_quotes=convert_quotes)[:3] == []


def code_point_texts() -> list[str]:
  """Returns texts with every assigned code point between letters, Σ, digits and commas, eight in each text, and every
  code point of the BMP alone."""
  # Planes 4 to 13 and the rest of 3 and 14 are unassigned, 15 and 16 are private.
  code_points = (*range(0xD800), *range(0xE000, 0x31400), *range(0xE0000, 0xE0200))
  characters = [chr(c) for c in code_points if c & 0xFFFE != 0xFFFE and not 0xFDD0 <= c <= 0xFDEF]
  around = [f"A{c}Σ {c}19{c}9,{c} Σ{c}b" for c in characters]
  return ["".join(around[i : i + 8]) for i in range(0, len(around), 8)] + characters[:0x10000:3]


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
  if request.param == "fixture":
    return spm_model
  return str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_same_ids_for_sentences_and_random_texts(model_file: str, do_lower_case: bool) -> None:
  documents = english_like_documents(200, seed=9)
  sentences = list(itertools.chain.from_iterable(documents))
  passages = [" ".join(document * 10) for document in documents[:50]]
  assert len(sentences) > 1000
  compare(model_file, TEXTS + sentences + passages + random_texts(4000, seed=5), do_lower_case)


@pytest.mark.thorough
def test_same_ids_for_every_code_point(model_file: str) -> None:
  compare(model_file, code_point_texts())


def test_same_ids_for_repeated_letters(model_file: str) -> None:
  compare(model_file, repeated_texts(4000))


def test_convert_quotes(spm_model: str) -> None:
  compare(spm_model, ["``Hello,'' ''bye'' ``` ''''' `", *random_texts(50, seed=6)], convert_quotes=True)


def test_invalid_utf8_is_replaced_as_python_does(spm_model: str) -> None:
  rng = random.Random(7)
  some_bytes = b"A \x80\xbf\xc0\xc3\xe2\x82\xac\xed\xa0\xf0\x9f\x98\x80\xf4\x90\xff\xe0\x9f"
  texts = [bytes(rng.choices(some_bytes, k=rng.randrange(1, 12))) for _ in range(3000)]
  graph, python = GraphTokenizer(spm_model), Tokenizer(spm_model)
  replaced = [text.decode("utf-8", errors="replace") for text in texts]
  assert graph.normalize(tf.constant(texts)).numpy().tolist() == [python.normalize(t).encode() for t in replaced]
  assert graph.tokenize(tf.constant(texts)).to_list() == python.encode_batch(replaced)


def test_empty_texts_and_empty_batch(spm_model: str) -> None:
  graph = GraphTokenizer(spm_model)
  assert graph.tokenize(tf.constant(["", " ", "\u3000\u200b"])).to_list() == [[], [], []]
  empty = graph.tokenize(tf.zeros([0], tf.string))
  assert (empty.to_list(), empty.dtype) == ([], tf.int32)


def test_pieces_of_several_words(save_model: SaveModel) -> None:
  pieces = [("▁", -1.0), ("a", -1.0), ("b", -1.0), ("▁a▁b", -1.0), (",", -9.0), ("9", -1.0), ("9,", -1.0)]
  compare(save_model(pieces), ["a  b a", "a b", "9,9,", "¨a¨b"])


def test_vocabulary_without_comma_is_refused(save_model: SaveModel) -> None:
  with pytest.raises(UserError, match=r'"," is not a piece of this vocabulary'):
    GraphTokenizer(save_model([("▁", -1.0), ("a", -1.0)]))


class Exported(tf.Module):
  """A module as in a SavedModel for serving. It takes texts and returns model inputs."""

  def __init__(self, model_file: str):
    super().__init__()
    self.tokenizer = GraphTokenizer(model_file)

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.string)], autograph=False)
  def __call__(self, first: tf.Tensor, second: tf.Tensor) -> dict[str, tf.Tensor]:
    return pack_pair(self.tokenizer.tokenize(first), self.tokenizer.tokenize(second), max_length=12)

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
  def single(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
    return pack_single(self.tokenizer.tokenize(text), max_length=8)


@pytest.fixture(scope="module")
def exported(spm_model: str) -> Exported:
  return Exported(spm_model)


def test_graph_has_allowed_ops_only(exported: Exported) -> None:
  ops = set()
  for function in (exported.__call__, exported.single):
    definition = function.get_concrete_function().graph.as_graph_def()
    ops |= {node.op for node in definition.node}
    ops |= {node.op for inner in definition.library.function for node in inner.node_def}
  assert "SentencepieceTokenizeOp" in ops
  assert ops <= ALLOWED_OPS


def test_saved_model_keeps_the_ids(exported: Exported, tmp_path: Path) -> None:
  texts = ["The captain, 1999,", "İstanbul ΑΣ"]
  tf.saved_model.save(exported, str(tmp_path / "saved"))
  os.rename(tmp_path / "saved", tmp_path / "moved")
  loaded = tf.saved_model.load(str(tmp_path / "moved"))
  answers = loaded(tf.constant(texts), tf.constant(texts[::-1]))
  for name, values in exported(tf.constant(texts), tf.constant(texts[::-1])).items():
    np.testing.assert_array_equal(answers[name], values)


def truncate_by_steps(a: list[int], b: list[int], max_length: int) -> None:
  """Truncates a pair in place like the original ALBERT: removes the last token of the longer text, or of b."""
  while len(a) + len(b) > max_length - 3:
    (a if len(a) > len(b) else b).pop()


def test_pack_pair_equals_the_loop() -> None:
  lengths = list(itertools.product(range(9), range(9)))
  for max_length in (5, 6, 9, 12, 30):
    rows_a = [list(range(100, 100 + a)) for a, _ in lengths]
    rows_b = [list(range(200, 200 + b)) for _, b in lengths]
    packed = pack_pair(
      tf.ragged.constant(rows_a, tf.int32, ragged_rank=1),
      tf.ragged.constant(rows_b, tf.int64, ragged_rank=1),
      max_length,
    )
    assert {name: (values.dtype, values.shape[1]) for name, values in packed.items()} == dict.fromkeys(
      ("input_ids", "input_mask", "segment_ids"), (tf.int32, max_length)
    )
    for index, (a, b) in enumerate(zip(rows_a, rows_b, strict=True)):
      truncate_by_steps(a, b, max_length)
      padding = [0] * (max_length - len(a) - len(b) - 3)
      assert packed["input_ids"][index].numpy().tolist() == [CLS_ID, *a, SEP_ID, *b, SEP_ID, *padding]
      assert packed["input_mask"][index].numpy().tolist() == [1] * (len(a) + len(b) + 3) + padding
      assert packed["segment_ids"][index].numpy().tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + padding


def test_pack_single() -> None:
  packed = pack_single(tf.ragged.constant([[7, 8, 9], [], [6, 7, 8, 9, 10]], tf.int32), max_length=5)
  assert packed["input_ids"].numpy().tolist() == [[2, 7, 8, 9, 3], [2, 3, 0, 0, 0], [2, 6, 7, 8, 3]]
  assert packed["input_mask"].numpy().tolist() == [[1] * 5, [1, 1, 0, 0, 0], [1] * 5]
  assert packed["segment_ids"].numpy().tolist() == [[0] * 5] * 3


def test_too_short_to_pack() -> None:
  ids = tf.ragged.constant([[7]], tf.int32)
  with pytest.raises(UserError, match=r"max_length=2: too short"):
    pack_single(ids, 2)
  with pytest.raises(UserError, match=r"max_length=4: too short"):
    pack_pair(ids, ids, 4)


def test_runs_of_unknown_characters_are_shortened(spm_model: str) -> None:
  """The SentencePiece op would take minutes for a long run. test_graph_offsets.py compares the tokens of such runs."""
  graph = GraphTokenizer(spm_model)
  texts = tf.constant(["東京" * (1 << 14) + " the", "", "東"])
  shortened, _ = graph._shorten_unknown_runs(graph._to_normalized_code_points(texts))
  assert shortened.row_lengths().numpy().tolist() == [64 + len(" the"), 0, 1]
