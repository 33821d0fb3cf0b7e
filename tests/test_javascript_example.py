"""The JavaScript of examples/javascript gives the ids of Tokenizer, and answers with exported ONNX models.

The ids need Node.js 20 or later. The answers need its package onnxruntime-node, too, which `npm ci` installs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import SaveModel
from tests.tokenization.reference import TEXTS, random_texts
from tests.tokenization.script_texts import texts_of_all_scripts
from tests.tokenization.test_sentence_piece import OPTIONS, model_with_options, texts_with_odd_spaces

# Types of pieces, see SentencePiece's sentencepiece_model.proto.
_USER_DEFINED, _UNUSED, _BYTE = 4, 5, 6
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "javascript"
_ENCODE_SCRIPT = """
import { readFileSync } from "node:fs";
import { Tokenizer } from %s;
const { model, options, texts } = JSON.parse(readFileSync(0, "utf8"));
const tokenizer = new Tokenizer(model, options);
process.stdout.write(JSON.stringify(texts.map((text) => tokenizer.encode(text))));
"""


def find_node() -> str:
  """The path of Node.js. Skips the test if there is none, or only an older one."""
  path = shutil.which("node")
  version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout if path else ""
  if not path or int(version.removeprefix("v").partition(".")[0] or 0) < 20:
    pytest.skip("Node.js 20 or later is not installed")
  return path


def ids_in_javascript(model_file: str, texts: list[str], switches: dict[str, bool]) -> list[list[int]]:
  """The ids of texts, computed by examples/javascript/tokenizer.mjs. `switches` are those of Tokenizer."""
  options = {re.sub("_(.)", lambda match: match[1].upper(), name): value for name, value in switches.items()}
  result = subprocess.run(
    [find_node(), "--input-type=module", "--eval", _ENCODE_SCRIPT % json.dumps((EXAMPLE / "tokenizer.mjs").as_uri())],
    input=json.dumps({"model": model_file, "options": options, "texts": texts}),
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  ids: list[list[int]] = json.loads(result.stdout)
  return ids


def assert_equal_ids(model_file: str, texts: list[str], **switches: bool) -> None:
  switches = {"do_lower_case": True, "convert_quotes": False, "keep_accents": False} | switches
  ids = ids_in_javascript(model_file, texts, switches)
  expected = Tokenizer(model_file, **switches).encode_batch(texts)
  triples = zip(texts, expected, ids, strict=True)
  differences = [triple for triple in triples if triple[1] != triple[2]]
  assert (len(differences), differences[:3]) == (0, [])


def test_ids_equal_those_of_python(spm_model: str) -> None:
  texts = [*TEXTS, "lone \ud800 surrogate", *texts_of_all_scripts(500, seed=0)]
  assert_equal_ids(spm_model, texts, do_lower_case=False, convert_quotes=True)
  assert_equal_ids(spm_model, [*texts, "İst ΑΣİ schön"], keep_accents=True)


@pytest.mark.thorough
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_ids_of_ten_thousand_texts_equal_those_of_python(spm_model: str, do_lower_case: bool) -> None:
  texts = texts_of_all_scripts(10_000, seed=1)
  assert len(set(texts)) > 9_900  # a few short texts may be equal
  assert_equal_ids(spm_model, texts, do_lower_case=do_lower_case)


@pytest.mark.thorough
@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="ALBERT_DATA_DIR is not set")
def test_ids_of_the_original_vocabulary_equal_those_of_python() -> None:
  model_file = str(Path(os.environ["ALBERT_DATA_DIR"], "vocab", "30k-clean.model"))
  assert_equal_ids(model_file, texts_of_all_scripts(10_000, seed=2) + random_texts(2000, seed=3))


@pytest.mark.thorough
def test_ids_of_unusual_vocabularies_equal_those_of_python(save_model: SaveModel) -> None:
  texts = [*TEXTS, *texts_of_all_scripts(200, seed=4), "a b  a b,", "1,9, x1,", "[CLS]9,"]
  # Pieces of one character, with their scores.
  characters = [(character, -1.0 - index / 3) for index, character in enumerate("▁aeinorst19")]
  for pieces in ([*characters, (",", -5.0)], characters, [*characters, ("▁a▁b", -1.0), ("9,", -0.5), ("an", -2.0)]):
    assert_equal_ids(save_model(pieces, {"an": _USER_DEFINED, "t": _UNUSED}), texts)


@pytest.mark.thorough
@pytest.mark.parametrize("option", OPTIONS)
def test_ids_equal_those_of_python_with_each_option_of_the_trainer(option: str, tmp_path: Path) -> None:
  model_file = model_with_options(tmp_path, option, "unigram")
  if "prefix" in option or "space" in option or option in ("bytes", "symbols that are normalized"):
    with pytest.raises(AssertionError, match=r"not a unigram model of the kind|changes the user-defined symbol"):
      ids_in_javascript(model_file, [""], {"do_lower_case": True, "convert_quotes": False})
  else:
    assert_equal_ids(model_file, [*TEXTS, *random_texts(200, seed=45), *texts_with_odd_spaces(400)])


def test_a_vocabulary_of_another_kind_is_refused(save_model: SaveModel) -> None:
  byte_pieces = [(f"<0x{byte:02X}>", -1.0) for byte in range(256)]
  model_file = save_model([("▁", -1.0), *byte_pieces], dict.fromkeys((piece for piece, _ in byte_pieces), _BYTE))
  with pytest.raises(AssertionError, match=r"not a unigram model of the kind that data_prep/train_vocab\.py trains"):
    ids_in_javascript(model_file, [""], {"do_lower_case": True, "convert_quotes": False})
