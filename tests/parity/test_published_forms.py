"""transformers saves ALBERTs in the forms of published ones in other languages: our ids and vectors are the same."""

from __future__ import annotations

import itertools
import random
import re
import struct
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import albert
from albert.io.protobuf import decode_fields
from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import train_small_model
from tests.tokenization.script_texts import texts_of_all_scripts
from tests.tokenization.wordpiece_reference import vocabulary_pieces, write_vocabulary

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

# Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Bengali, Tamil, Telugu, Thai, Hiragana, Katakana, Han, Hangul.
ALPHABETS = [(0x61, 0x7B), (0xC0, 0x180), (0x3B1, 0x3CA), (0x410, 0x460), (0x5D0, 0x5EB), (0x620, 0x650),
             (0x904, 0x94D), (0x985, 0x9CE), (0xB85, 0xBCE), (0xC05, 0xC4E), (0xE01, 0xE3B), (0x3041, 0x3097),
             (0x30A1, 0x30F7), (0x4E00, 0x4F00), (0xAC00, 0xAD00)]  # fmt: skip
# What no text below has: special tokens, ▁, and control characters that are whitespace for Python only.
SPECIAL = re.compile("\\[CLS\\]|\\[SEP\\]|\\[MASK\\]|<pad>|<unk>|▁|[\x0b\x1c-\x1f]")


def sentences(count: int, seed: int) -> list[str]:
  """Sentences of eight words in one of the scripts."""
  rng = random.Random(seed)
  letters = [[c for c in map(chr, range(*block)) if unicodedata.category(c)[0] in "LM"] for block in ALPHABETS]
  words = [["".join(rng.choices(alphabet, k=rng.randrange(2, 7))) for _ in range(60)] for alphabet in letters]
  ends = [".", ",", "!", " 1999", "", "।"]
  return [" ".join(rng.choices(rng.choice(words), k=8)) + rng.choice(ends) for _ in range(count)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
  found = [text for text in texts_of_all_scripts(12_000, seed=77) if not SPECIAL.search(text)]
  return [*found, *sentences(1000, seed=1), *map(str.upper, sentences(1000, seed=1))]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> str:
  """A model without user-defined symbols, of which transformers 5 makes added tokens."""
  path = tmp_path_factory.mktemp("hub") / "spiece.model"
  settings: dict[str, Any] = {"user_defined_symbols": [], "character_coverage": 1.0, "hard_vocab_limit": False}
  return train_small_model(path, sentences(4000, seed=1), 3000, **settings)


def albert_tokenizer(model_file: str, **settings: Any) -> Any:
  """The AlbertTokenizer of a SentencePiece model, as transformers makes it if it can read the file.

  It needs the same version of protobuf as the library sentencepiece, which is newer than TensorFlow's.
  """
  vocab, charsmap = [], b""
  for field in decode_fields(Path(model_file).read_bytes()):
    values = {inner.number: inner.value for inner in decode_fields(field.value)} if field.number in (1, 3) else {}
    if field.number == 1:
      vocab.append((values[1].decode(), *struct.unpack("<f", values[2])))
    charsmap = values.get(2, b"") if field.number == 3 else charsmap
  return transformers.AlbertTokenizer(vocab=vocab, _spm_precompiled_charsmap=charsmap, **settings)


def is_mark(character: str) -> bool:
  return unicodedata.category(character)[0] == "M" or character in "\u200c\u200d\uff9e\uff9f"


def has_known_difference(text: str) -> bool:
  """Σ may end a word, and transformers' Precompiled does not follow the rules for a letter with several marks."""
  return "Σ" in text or any(is_mark(b) and (is_mark(a) or a == "\ufffd") for a, b in itertools.pairwise(text))


def different(ours: Tokenizer, theirs: Any, texts: list[str]) -> list[str]:
  found = theirs(texts, add_special_tokens=False)["input_ids"]
  return [text for text, ids, other in zip(texts, ours.encode_batch(texts), found, strict=True) if ids != other]


@pytest.mark.parametrize("keep_accents", [False, True])
@pytest.mark.parametrize("do_lower_case", [False, True])
def test_tokenizer_json_alone(
  tmp_path: Path, model_file: str, texts: list[str], do_lower_case: bool, keep_accents: bool
) -> None:
  albert_tokenizer(model_file, do_lower_case=do_lower_case, keep_accents=keep_accents).save_pretrained(tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
  ours, theirs = Tokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert len(texts) > 10_000
  others = different(ours, theirs, texts)
  unknown = [text for text in others if not has_known_difference(text)]
  assert len(unknown) <= 15  # with marks that are newer than Unicode 10, which StripAccents does not know
  assert different(ours, theirs, sentences(1000, seed=1)) == []


def test_added_tokens(tmp_path: Path, model_file: str, texts: list[str]) -> None:
  theirs = albert_tokenizer(model_file)
  tokens = ["<URL>", "Covid-19", "한국어", "ab"]
  assert theirs.add_tokens(tokens) == len(tokens)
  theirs.save_pretrained(tmp_path)
  rng = random.Random(5)
  marked = ["".join([text[:at], rng.choice(tokens), text[at:]]) for text in texts for at in [rng.randrange(9)]]
  ours = Tokenizer.from_pretrained(tmp_path)
  others = different(ours, transformers.AutoTokenizer.from_pretrained(tmp_path), marked)
  assert len([text for text in others if not has_known_difference(text)]) <= 15
  assert sum(max(ids) >= ours.vocab_size - len(tokens) for ids in ours.encode_batch(marked)) > 10_000


@pytest.mark.parametrize("tokenize_chinese_chars", [False, True])
@pytest.mark.parametrize(
  ("do_lower_case", "strip_accents"), [(True, None), (True, False), (False, None), (False, True)]
)
def test_settings_of_bert_tokenizer(
  tmp_path: Path, texts: list[str], do_lower_case: bool, strip_accents: bool | None, tokenize_chinese_chars: bool
) -> None:
  pieces = vocabulary_pieces()
  settings = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
  settings |= {"tokenize_chinese_chars": tokenize_chinese_chars}
  theirs = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, **settings)
  theirs.save_pretrained(tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
  ours = Tokenizer.from_pretrained(tmp_path)
  texts = [*texts, "a" * 100, "a" * 101]
  others = different(ours, theirs, texts)
  # A final Σ; private use; a part of the Han characters, whose range tokenizers has too short.
  known = re.compile("[Σ\ue000-\uf8ff\U0002b820-\U0002b91f\U000e1000-\U0010ffff]")
  assert len([text for text in others if not known.search(text)]) <= 150  # characters newer than Unicode 8
  assert different(ours, theirs, sentences(1000, seed=1)) == []
  # The same pieces as vocab.txt with the same settings, whose words may have 200 characters.
  (tmp_path / "tokenizer.json").unlink()
  older = Tokenizer(write_vocabulary(tmp_path / "vocab.txt", pieces))
  texts = [text for text in texts if not re.search(r"\S{40}", text)]
  assert older.encode_batch(texts) == ours.encode_batch(texts)


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"remove_space": False}])
def test_spiece_model(model_file: str, texts: list[str], settings: dict[str, bool]) -> None:
  theirs = albert_tokenizer(model_file, keep_accents=True, **settings)
  ours = Tokenizer(model_file, settings.get("do_lower_case", True), keep_accents=True, convert_quotes=True)
  others = different(ours, theirs, texts)
  unknown = [text for text in others if not has_known_difference(text) and not re.search(r"\d,", text)]
  assert len(unknown) <= 15


@pytest.mark.parametrize(
  "fields",
  [
    {"embedding_size": 64, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "silu"},
    {"max_position_embeddings": 40_000, "layer_norm_eps": 1e-3, "hidden_act": "gelu_fast", "vocab_size": 3072},
  ],
)
def test_vectors_of_texts(tmp_path: Path, model_file: str, fields: dict[str, Any]) -> None:
  theirs = albert_tokenizer(model_file)
  sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 3}
  config = transformers.AlbertConfig(**{"vocab_size": len(theirs), "initializer_range": 0.1} | sizes | fields)
  torch.manual_seed(3)
  model = transformers.AlbertModel(config).eval()
  for part in (theirs, model):
    part.save_pretrained(tmp_path)
  texts = sentences(20, seed=1)
  batch = theirs(texts, return_tensors="pt", padding=True)
  with torch.no_grad():
    states = model(**batch).last_hidden_state
  mask = batch["attention_mask"][:, :, None]
  expected = (states * mask).sum(1) / mask.sum(1)
  assert np.abs(albert.encode(texts, encoder=tmp_path) - expected.numpy()).max() < 1e-5
