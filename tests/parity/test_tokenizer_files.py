"""transformers makes our ids with the tokenizer.json that albert.convert writes, for vocabularies of every kind.

The texts are docstrings; with ALBERT_DATA_DIR, which may hold glue/ and vocab/30k-clean.model, also the development
sets of GLUE, with the vocabulary of the English ALBERT.
"""

from __future__ import annotations

import ast
import inspect
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.convert.huggingface import write_tokenizer
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks
from tests.conftest import train_small_model
from tests.tokenization import byte_bpe_reference, wordpiece_reference
from tests.tokenization.reference import random_texts

transformers = pytest.importorskip("transformers")

DATA = os.environ.get("ALBERT_DATA_DIR", "")


def docstrings(count: int) -> list[str]:
  """The first docstrings of NumPy's modules, in the order of their files, as they are written."""
  texts: dict[str, None] = {}
  for path in sorted(Path(inspect.getfile(np)).parent.rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
        texts[(ast.get_docstring(node) or "")[:400]] = None
    if len(texts) > count:
      break
  return list(texts)[:count]


def glue_texts(count: int) -> list[str]:
  """Texts of the development sets of four tasks."""
  columns = {"SST-2": [0], "MRPC": [3, 4], "RTE": [1, 2], "STS-B": [7, 8]}
  texts = []
  for task, indices in columns.items():
    for line in Path(DATA, "glue", task, "dev.tsv").read_text(encoding="utf-8-sig").splitlines()[1:]:
      cells = line.split("\t")
      texts += [cells[index] for index in indices if index < len(cells)]
  return random.Random(2).sample(texts, count)


@pytest.fixture(scope="module")
def texts() -> list[str]:
  return docstrings(2000)


@pytest.fixture(scope="module")
def vocabularies(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  directory = tmp_path_factory.mktemp("vocabularies")
  sample = " ".join(texts[::10])
  lines = sample.lower().splitlines()
  characters = sorted({c for c in sample.lower() if not c.isspace()})
  words = sorted({word for word in sample.lower().split() if word.isalpha() and len(word) > 1})[::3]
  pieces, merges = byte_bpe_reference.train(400, sample[:20000])
  return {
    "unigram": train_small_model(directory / "unigram.model", lines, 1000, split_by_number=False),
    "bpe": train_small_model(directory / "bpe.model", lines, 1000, "bpe"),
    "bytes": train_small_model(directory / "bytes.model", lines, 1200, byte_fallback=True),
    "wordpiece": wordpiece_reference.write_vocabulary(
      directory / "vocab.txt",
      ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{c}" for c in characters), *words],
    ),
    "byte_level_bpe": byte_bpe_reference.write_vocabulary(directory / "byte_level", pieces, merges),
  }


def load_theirs(directory: Path, ours: Tokenizer, *, fills_masks: bool = False) -> Any:
  """Writes the files, and loads them as AutoTokenizer does."""
  directory.mkdir()
  write_tokenizer(ours, str(directory), max_length=512, fills_masks=fills_masks)
  (directory / "config.json").write_text('{"model_type": "albert"}')
  return transformers.AutoTokenizer.from_pretrained(directory)


def different(ours: Tokenizer, theirs: Any, texts: Sequence[str]) -> list[str]:
  found = theirs(list(texts), add_special_tokens=False)["input_ids"]
  return [text for text, ids, other in zip(texts, ours.encode_batch(texts), found, strict=True) if ids != other]


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("kind", ["unigram", "bpe", "bytes", "wordpiece", "byte_level_bpe"])
def test_the_ids_of_2000_docstrings_are_ours(
  kind: str, do_lower_case: bool, vocabularies: dict[str, str], texts: list[str], tmp_path: Path
) -> None:
  """Only the comma rule can differ, in vocabularies with a piece that ends in a digit and a comma."""
  ours = Tokenizer(vocabularies[kind], do_lower_case)
  theirs = load_theirs(tmp_path / "hf", ours)
  assert len(texts) == 2000
  others = different(ours, theirs, texts)
  assert [text for text in others if not re.search(r"\d,", text)] == []
  assert len(others) <= (50 if kind in ("unigram", "bpe", "bytes") else 0)


@pytest.mark.parametrize("keep_accents", [True, False])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_ids_of_random_texts_are_ours(
  do_lower_case: bool, keep_accents: bool, vocabularies: dict[str, str], tmp_path: Path
) -> None:
  ours = Tokenizer(vocabularies["unigram"], do_lower_case, keep_accents=keep_accents)
  others = different(ours, load_theirs(tmp_path / "hf", ours), random_texts(3000, seed=5))
  # The comma rule; and letters with several accents, which transformers' Precompiled does not compose.
  assert [text for text in others if not re.search(r"\d[\u0300-\u036f]*,|[\u0300-\u036f]{2}", text)] == []


@pytest.mark.skipif(not Path(DATA, "glue").is_dir(), reason="ALBERT_DATA_DIR not set")
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_ids_of_2000_texts_of_glue_are_ours(do_lower_case: bool, tmp_path: Path) -> None:
  ours = Tokenizer(Path(DATA, "vocab", "30k-clean.model"), do_lower_case)
  theirs = load_theirs(tmp_path / "hf", ours)
  texts = glue_texts(2000)
  assert different(ours, theirs, texts) == []
  # AlbertTokenizer takes the pieces of tokenizer.json and has its own normalizers, which convert quotes.
  albert_tokenizer = transformers.AlbertTokenizer.from_pretrained(tmp_path / "hf")
  quotes = Tokenizer(ours.model_file, do_lower_case, convert_quotes=True)
  assert different(quotes, albert_tokenizer, texts) == []


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece", "byte_level_bpe"])
def test_pairs_have_our_ids_and_type_ids_and_long_ones_are_cut(
  kind: str, vocabularies: dict[str, str], tmp_path: Path
) -> None:
  ours = Tokenizer(vocabularies[kind])
  theirs = load_theirs(tmp_path / "hf", ours)
  pair = ("Returns the values (a copy).", "Is it a view - or not?")
  expected, found = ours([pair[0]], [pair[1]]), theirs(*pair)
  assert found["input_ids"] == expected["input_ids"][0].tolist()
  assert found["token_type_ids"] == expected["segment_ids"][0].tolist()
  assert len(theirs("a " * 2000, truncation=True)["input_ids"]) == 512


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
def test_masks_in_text_have_our_ids(kind: str, vocabularies: dict[str, str], tmp_path: Path) -> None:
  ours = Tokenizer(vocabularies[kind])
  theirs = load_theirs(tmp_path / "hf", ours, fills_masks=True)
  for text in ("Returns the [MASK] of an array.", "[MASK] the [MASK].", "The array[MASK]s, (see [MASK] [MASK])"):
    assert theirs(text, add_special_tokens=False)["input_ids"] == encode_with_masks(ours, text)


def test_the_offsets_of_a_model_that_fills_no_masks_are_those_of_words(
  vocabularies: dict[str, str], tmp_path: Path
) -> None:
  theirs = load_theirs(tmp_path / "hf", Tokenizer(vocabularies["unigram"]))
  offsets = theirs("The array  of an array", return_offsets_mapping=True)["offset_mapping"]
  assert {start for start, _ in offsets} >= {0, 4, 11, 14, 17}
  assert not {start for start, _ in offsets} & {3, 9, 10, 13, 16}
