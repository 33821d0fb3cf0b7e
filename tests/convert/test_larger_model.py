"""More tokens and more positions: the new rows, the tokenizer that belongs to them, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.convert.convert_checkpoint import convert
from albert.convert.model import read_model
from albert.errors import UserError
from albert.tokenization.graph import make_graph_tokenizer
from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import train_small_model
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config
from tests.tokenization.wordpiece_reference import write_vocabulary

EMBEDDINGS, BIAS = "bert/embeddings/word_embeddings", "cls/predictions/output_bias"
POSITIONS = "bert/embeddings/position_embeddings"
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "ab"]


def write_source(directory: Path, spm_model: str, vocabulary: str = "", **config: int) -> str:
  model = small_config(spm_model, **config)
  tensors = huggingface_tensors(random_weights(model, seed=3, with_heads=("masked_lm",)))
  source = write_huggingface(directory / "source", model, tensors)
  shutil.copy(vocabulary or spm_model, source)
  return source


def add(source: str, directory: Path, tokens: str) -> Tokenizer:
  (directory / "tokens.txt").write_text(tokens)
  convert(source, str(directory / "new"), "albert", add_tokens=str(directory / "tokens.txt"))
  return Tokenizer.from_pretrained(directory / "new")


@pytest.mark.parametrize("padding", [0, 2, 9])
def test_a_new_row_is_the_mean_of_the_rows_of_its_pieces(tmp_path: Path, spm_model: str, padding: int) -> None:
  old = Tokenizer(spm_model)
  source = write_source(tmp_path, spm_model, vocab_size=old.vocab_size + padding)
  new = add(source, tmp_path, "<URL>\n\nzyxin\n Zyxin\nthe\n")
  assert new.pieces == [*old.pieces, "▁<url>", "<url>", "▁zyxin", "zyxin"]
  texts = ["See <URL>.", "(<URL>,<url>) Zyxin unzyxined", "captain, the zyxin's"]
  pieces = [[new.pieces[i] for i in ids if i >= old.vocab_size] for ids in new.encode_batch(texts)]
  assert pieces == [["▁<url>"], ["<url>", "<url>", "▁zyxin", "zyxin"], ["▁zyxin"]]

  before, after = read_model(source).weights, read_model(str(tmp_path / "new")).weights
  start = old.encode("zyxin")
  assert old.pieces[start[0]] == "▁"
  for name in (EMBEDDINGS, BIAS):
    assert len(after[name]) == old.vocab_size + max(4, padding)
    for ids, piece in ((start, "▁zyxin"), (start[1:], "zyxin")):
      expected = before[name][ids].astype(np.float64).mean(axis=0)
      np.testing.assert_allclose(after[name][new.pieces.index(piece)], expected, rtol=1e-6)
    np.testing.assert_array_equal(after[name][: old.vocab_size], before[name][: old.vocab_size])
    np.testing.assert_array_equal(after[name][new.vocab_size :], before[name][new.vocab_size :])


@pytest.mark.thorough
def test_the_graph_has_the_same_tokens(tmp_path: Path, spm_model: str) -> None:
  new = add(write_source(tmp_path, spm_model), tmp_path, "<URL>\nzyxin\n")
  texts = ["See <URL>.", "(<URL>,<url>) Zyxin unzyxined", "", "captain, the zyxin's" * 30]
  assert make_graph_tokenizer(new.config).tokenize(tf.constant(texts)).to_list() == new.encode_batch(texts)


def test_a_word_is_not_cut_even_where_a_longer_piece_would_be_better(tmp_path: Path, spm_model: str) -> None:
  old = Tokenizer(spm_model)
  longest = sorted((p[1:] for p in old.pieces if p.startswith("▁") and p.isascii), key=len)[-1]
  word = longest[1:-1]
  assert old.encode(longest) == [old.pieces.index("▁" + longest)]
  new = add(write_source(tmp_path, spm_model), tmp_path, word)
  assert word in [new.pieces[i] for i in new.encode(longest)]


@pytest.mark.parametrize(
  ("rules", "ids"),
  [
    ({}, [10, 10, 7, 5, 5, 1]),
    ({"do_lower_case": False, "strip_accents": True}, [10, 10, 7, 5, 5, 1]),
    ({"tokenize_chinese_chars": False, "strip_accents": False}, [10, 10, 7, 1, 1]),
  ],
)
def test_a_word_of_wordpiece(tmp_path: Path, spm_model: str, rules: dict[str, bool], ids: list[int]) -> None:
  source = write_source(tmp_path, spm_model, write_vocabulary(tmp_path / "vocab.txt", WORDPIECES), vocab_size=10)
  (Path(source) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | rules))
  new = add(source, tmp_path, "abba\n")
  assert new.encode("abba abbaa ä a一") == ids
  convert(str(tmp_path / "new"), str(tmp_path / "hub"), "huggingface")
  again = Tokenizer.from_pretrained(tmp_path / "hub")
  assert (again.sha256, again.encode("abba abbaa ä a一")) == (new.sha256, ids)
  before, after = read_model(source).weights, read_model(str(tmp_path / "new")).weights
  np.testing.assert_allclose(after[EMBEDDINGS][10], before[EMBEDDINGS][[9, 8, 7]].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("num_positions", [49, 150, 40_000])
def test_positions_continue_with_copies_in_order(tmp_path: Path, spm_model: str, num_positions: int) -> None:
  source = write_source(tmp_path, spm_model)
  convert(source, str(tmp_path / "new"), "albert", max_position_embeddings=num_positions)
  before, after = read_model(source), read_model(str(tmp_path / "new"))
  assert after.config.max_position_embeddings == num_positions
  np.testing.assert_array_equal(after.weights[POSITIONS], before.weights[POSITIONS][np.arange(num_positions) % 48])


@pytest.mark.parametrize(
  ("tokens", "error"),
  [
    ("fine\ntwo words\n", "tokens.txt, line 2: 'two words' is special, or several words"),
    ("[MASK]\n", "tokens.txt, line 1: '[MASK]' is special"),
    ("\u200b\u0301\n", "tokens.txt, line 1: "),
    ("zyxin15,\n", "tokens.txt, line 1: 'zyxin15,' would be cut in any case"),
    ("the\n\n", "has no token that "),
    ("", "has no token that "),
  ],
)
def test_tokens_that_are_refused(tmp_path: Path, spm_model: str, tokens: str, error: str) -> None:
  with pytest.raises(UserError, match=re.escape(error)):
    add(write_source(tmp_path, spm_model), tmp_path, tokens)
  assert not (tmp_path / "new").exists()


def test_what_cannot_grow_is_refused(tmp_path: Path, spm_model: str) -> None:
  source = write_source(tmp_path, spm_model)
  with pytest.raises(UserError, match="--max_position_embeddings=48: the model has 48 positions: give more"):
    convert(source, str(tmp_path / "new"), "albert", max_position_embeddings=48)
  Path(source, "spiece.model").unlink()
  with pytest.raises(UserError, match="no vocabulary beside them: give --spm_model_file"):
    add(source, tmp_path, "zyxin\n")
  lines = ["the lazy dog jumps over the quick fox"] * 20
  train_small_model(Path(source) / "spiece.model", lines, 40, "bpe", hard_vocab_limit=False)
  with pytest.raises(UserError, match=r"spiece\.model must be a unigram vocabulary"):
    add(source, tmp_path, "zyxin\n")
