"""sentence-transformers gives our vectors, and transformers our ids of added words, in both directions."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import albert
from albert.convert.convert_checkpoint import convert
from tests.conftest import train_small_model
from tests.parity.test_published_forms import SPECIAL, albert_tokenizer, different, has_known_difference, sentences
from tests.tokenization.script_texts import texts_of_all_scripts

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
library = pytest.importorskip("sentence_transformers")
base = pytest.importorskip("sentence_transformers.base.modules")
Dense, Normalize, Transformer = base.Dense, base.Normalize, base.Transformer
Pooling = pytest.importorskip("sentence_transformers.sentence_transformer.modules").Pooling

TEXTS = [*sentences(60, seed=1), "a", "", "x y " * 60]
WORDS = ["<URL>", "ibuprofen", "Straße", "été", "c++", "भारतीय"]
KINDS = {
  "mean": ("mean", lambda: []),
  "several": (("mean_sqrt_len_tokens", "max", "cls"), lambda: [Dense(96, 20), Normalize()]),
  "cls": ("cls", lambda: [Normalize(), Dense(32, 8, bias=False, activation_function=torch.nn.Identity())]),
  "max": ("max", lambda: [Dense(32, 8, activation_function=torch.nn.ReLU())]),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """A directory of transformers, with a tokenizer.json alone."""
  directory = tmp_path_factory.mktemp("library")
  settings: dict[str, Any] = {"user_defined_symbols": [], "character_coverage": 1.0, "hard_vocab_limit": False}
  tokenizer = albert_tokenizer(train_small_model(directory / "x.model", sentences(1000, seed=1), 1500, **settings))
  sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 3}
  sizes |= {"vocab_size": len(tokenizer), "embedding_size": 16, "max_position_embeddings": 64}
  torch.manual_seed(3)
  config = transformers.AlbertConfig(initializer_range=0.1, **sizes)
  for part in (tokenizer, transformers.AlbertForMaskedLM(config).eval()):
    part.save_pretrained(directory / "source")
  return directory / "source"


def assert_same_vectors(directory: Path) -> None:
  expected = library.SentenceTransformer(str(directory), device="cpu").encode(TEXTS)
  np.testing.assert_allclose(albert.encode(TEXTS, directory), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_a_directory_that_is_read_and_written(source: Path, tmp_path: Path, kind: str) -> None:
  modes, make_layers = KINDS[kind]
  transformer = Transformer(str(source), max_seq_length=None if kind == "mean" else 20)
  model = library.SentenceTransformer(modules=[transformer, Pooling(32, modes), *make_layers()], device="cpu")
  model.save_pretrained(str(tmp_path / "theirs"))
  assert_same_vectors(tmp_path / "theirs")
  convert(str(tmp_path / "theirs"), str(tmp_path / "ours"), "sentence_transformers")
  assert_same_vectors(tmp_path / "ours")


def test_vectors_of_a_directory_of_transformers(source: Path, tmp_path: Path) -> None:
  convert(str(source), str(tmp_path / "ours"), "sentence_transformers")
  assert_same_vectors(tmp_path / "ours")
  np.testing.assert_allclose(albert.encode(TEXTS, tmp_path / "ours"), albert.encode(TEXTS, source), atol=1e-5)


@pytest.mark.parametrize("do_lower_case", [False, True])
def test_what_the_library_saves_of_our_directory(source: Path, tmp_path: Path, do_lower_case: bool) -> None:
  shutil.copytree(source, tmp_path / "source", ignore=shutil.ignore_patterns("tokenizer*"))
  shutil.copy(source.parent / "x.model", tmp_path / "source" / "spiece.model")
  (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": do_lower_case}))
  convert(str(tmp_path / "source"), str(tmp_path / "ours"), "sentence_transformers")
  library.SentenceTransformer(str(tmp_path / "ours"), device="cpu").save_pretrained(str(tmp_path / "theirs"))
  assert_same_vectors(tmp_path / "theirs")
  texts = [text for text in texts_of_all_scripts(12_000, seed=77) if not SPECIAL.search(text)]
  library_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
  for directory in ("ours", "theirs"):
    others = different(albert.Tokenizer.from_pretrained(tmp_path / directory), library_tokenizer, texts)
    assert [text for text in others if not has_known_difference(text) and len(text) < 1000] == []


def test_added_words_have_the_same_ids(source: Path, tmp_path: Path) -> None:
  (tmp_path / "words.txt").write_text("\n".join(WORDS))
  convert(str(source), str(tmp_path / "ours"), "albert", add_tokens=str(tmp_path / "words.txt"))
  convert(str(tmp_path / "ours"), str(tmp_path / "theirs"), "huggingface")
  ours = albert.Tokenizer.from_pretrained(tmp_path / "ours")
  rng = random.Random(5)
  texts = [" ".join(rng.sample([*text.split(), *rng.choices(WORDS, k=3)], k=8)) for text in sentences(10_000, seed=2)]
  texts += [text.replace(" ", "", 4) for text in texts[:1000]]
  expected = ours.encode_batch(texts)
  assert sum(i >= ours.vocab_size - 2 * len(WORDS) for ids in expected for i in ids) > 10_000
  for tokenizer in (transformers.AutoTokenizer, transformers.AlbertTokenizer):
    theirs = tokenizer.from_pretrained(tmp_path / "theirs")
    assert theirs(texts, add_special_tokens=False)["input_ids"] == expected
  convert(str(tmp_path / "theirs"), str(tmp_path / "back"), "albert")
  assert albert.Tokenizer.from_pretrained(tmp_path / "back").sha256 == ours.sha256
