"""The files for transformers' tokenizers: their settings, and the pieces that no text may yield.

tests/parity compares the ids with those of transformers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from albert.convert.huggingface import write_tokenizer
from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import train_small_model
from tests.tokenization.reference import TEXTS


def write(tokenizer: Tokenizer, directory: Path, *, fills_masks: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
  write_tokenizer(tokenizer, str(directory), max_length=48, fills_masks=fills_masks)
  names = ("tokenizer.json", "tokenizer_config.json")
  values, config = (json.loads((directory / name).read_text(encoding="utf-8")) for name in names)
  return values, config


def test_the_config_says_how_text_was_normalized_and_cut(spm_model: str, tmp_path: Path) -> None:
  _, config = write(Tokenizer(spm_model, do_lower_case=False), tmp_path)
  assert (config["do_lower_case"], config["model_max_length"]) == (False, 48)
  assert config["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
  assert (config["cls_token"], config["mask_token"]) == ("[CLS]", "[MASK]")


def test_normalizers_are_in_the_order_of_normalize_text(spm_model: str, tmp_path: Path) -> None:
  def steps(tokenizer: Tokenizer) -> list[str]:
    values, _ = write(tokenizer, tmp_path)
    return [step["type"] for step in values["normalizer"]["normalizers"]]

  lowered = ["Replace", "Strip", "NFKD", "Replace", "Replace", "Lowercase", "NFC", "Precompiled", "Replace", "Strip"]
  assert steps(Tokenizer(spm_model)) == lowered
  assert steps(Tokenizer(spm_model, do_lower_case=False)) == lowered[:4] + lowered[6:]
  assert steps(Tokenizer(spm_model, keep_accents=True)) == lowered[:2] + lowered[4:6] + lowered[7:]
  assert steps(Tokenizer(spm_model, convert_quotes=True)) == [*lowered[:2], "Replace", *lowered[2:]]


def test_pieces_keep_their_ids_and_those_of_the_comma_rule_occur_in_no_text(spm_model: str, tmp_path: Path) -> None:
  ours = Tokenizer(spm_model)
  values, _ = write(ours, tmp_path)
  assert [(token["id"], token["content"], token["lstrip"]) for token in values["added_tokens"]] == [
    (i, piece, piece == "[MASK]") for i, piece in enumerate(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
  ]
  pieces = [piece for piece, _ in values["model"]["vocab"]]
  assert [piece.removesuffix(" ") for piece in pieces] == ours.pieces
  with_space = [piece for piece in pieces if piece.endswith(" ")]
  assert with_space
  assert with_space == [piece for piece in pieces if re.search(r"\d, ?$", piece)]
  scores = dict(values["model"]["vocab"])
  # SentencePiece computes the scores of user-defined symbols: 0.1 * (bytes - 1).
  assert (scores["-"], scores["–"]) == (0, pytest.approx(0.2, abs=1e-4))


def test_words_begin_at_spaces_and_text_after_a_mask_can_continue_a_word(spm_model: str, tmp_path: Path) -> None:
  ours, texts = Tokenizer(spm_model), [text for text in TEXTS if "," not in text]  # without the comma rule
  values, _ = write(ours, tmp_path)
  assert Tokenizer.from_pretrained(tmp_path).encode_batch(texts) == ours.encode_batch(texts)
  splitter, metaspace = values["pre_tokenizer"]["pretokenizers"]
  assert (splitter["type"], metaspace["prepend_scheme"]) == ("WhitespaceSplit", "always")
  values, _ = write(ours, tmp_path, fills_masks=True)
  assert Tokenizer.from_pretrained(tmp_path).encode_batch(texts) == ours.encode_batch(texts)
  (metaspace,) = values["pre_tokenizer"]["pretokenizers"]
  assert metaspace["prepend_scheme"] == "first"


@pytest.mark.parametrize("prefix", [True, False])
def test_bpe_has_all_divisions_of_a_piece_and_cuts_out_symbols(prefix: bool, corpus_file: str, tmp_path: Path) -> None:
  lines = Path(corpus_file).read_text(encoding="utf-8").lower().splitlines()
  vocabulary = train_small_model(tmp_path / "bpe.model", lines, 200, "bpe", add_dummy_prefix=prefix)
  values, _ = write(Tokenizer(vocabulary), tmp_path)
  assert values["model"]["type"] == "BPE"
  vocab, merges = values["model"]["vocab"], values["model"]["merges"]
  divisions = [[piece[:end], piece[end:]] for piece in vocab for end in range(1, len(piece))]
  expected = [pair for pair in divisions if all(part in vocab and not part.endswith(" ") for part in pair)]
  assert sorted(pair for pair in expected if not "".join(pair).endswith(" ")) == sorted(merges)
  symbols = values["pre_tokenizer"]["pretokenizers"][-1]["pattern"]["Regex"]
  assert re.fullmatch(f"(?:{symbols})+", '()"-.–£€')
  assert values["pre_tokenizer"]["pretokenizers"][-2]["prepend_scheme"] == ("always" if prefix else "never")
