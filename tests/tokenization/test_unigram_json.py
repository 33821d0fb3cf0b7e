"""A tokenizer.json with unigram pieces is read as a SentencePiece model; what would give other ids is refused.

tests/parity compares the ids with those of transformers.
"""

from __future__ import annotations

import base64
import functools
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from albert.errors import UserError
from albert.io.protobuf import decode_fields
from albert.tokenization import vocabulary
from albert.tokenization.recorded_settings import tokenizer_config
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.tokenizer_json import read_tokenizer
from tests.conftest import english_like_documents
from tests.tokenization.reference import TEXTS, find_differences, random_texts
from tests.tokenization.unigram_reference import QUOTES, values, write_vocabulary

PIECES = {"▁": -2.0, ",": -9.0, "▁1,": -3.0, "▁a▁b": 0.0} | dict.fromkeys("abcdehiorsuABSσςé\"'`-हन\u093f1ᄒ", -3.0)
ACCENTS = ["NFKD", "StripAccents"]


def precompiled(spm_model: str) -> dict[str, Any]:
  """The step that has the normalization of a trained model (nmt_nfkc)."""
  (spec,) = (field.value for field in decode_fields(Path(spm_model).read_bytes()) if field.number == 3)
  (charsmap,) = (field.value for field in decode_fields(spec) if field.number == 2)
  return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


@pytest.mark.parametrize(
  ("steps", "text", "expected"),
  [
    ([], "``Aé हि 1,", "▁ ` ` A é ▁ ह \u093f ▁1,"),  # no comma rule
    (QUOTES, "``A''", '▁ " A "'),
    (["Lowercase"], "ABé", "▁ a b é"),
    (ACCENTS, "Aé ﬁ हि\u0941न", "▁ A e ▁ <unk> i ▁ ह न"),
    (["StripAccents"], "é e\u0301 हि", "▁ é ▁ e ▁ ह"),
    ([*ACCENTS, "Lowercase"], " ÀB\u2003[CLS]", "▁ a b ▁ <unk> c <unk> s <unk>"),
    ([], "a b", "▁ a ▁ b"),
  ],
)
def test_the_steps_of_the_normalizer_are_followed(tmp_path: Path, steps: list[Any], text: str, expected: str) -> None:
  tokenizer = Tokenizer(write_vocabulary(tmp_path, PIECES, steps))
  assert " ".join(map(tokenizer.piece, tokenizer.encode(text))) == expected


def test_rules_for_characters_stay_and_marks_are_dropped(tmp_path: Path, spm_model: str) -> None:
  step = precompiled(spm_model)
  before = sentencepiece.SentencePieceProcessor(model_file=spm_model)
  path = write_vocabulary(tmp_path, PIECES, ["StripAccents", step])
  after = sentencepiece.SentencePieceProcessor(model_proto=read_tokenizer(path, Path(path).read_bytes()).vocabulary)
  characters = [chr(c) for c in (*range(1, 0xD800), *range(0xE000, 0x30000)) if unicodedata.category(chr(c)) != "Cn"]
  for character in characters:
    expected = before.normalize(f"x{character}x")
    if after.normalize(f"x{character}x") != expected:
      assert unicodedata.category(character)[0] == "M", hex(ord(character))
      assert after.normalize(f"x{character}x") == after.normalize("xx")
  # The letters of a syllable are joined by the rules of the model, but not after StripAccents.
  assert [len(processor.normalize("ᄒ\u1161")) for processor in (before, after)] == [2, 3]


@pytest.mark.parametrize("steps", [[*QUOTES, *ACCENTS, "Lowercase"], ["StripAccents"]])
def test_a_graph_gives_the_same_ids_and_offsets(tmp_path: Path, spm_model: str, steps: list[Any]) -> None:
  documents = [" ".join(document) for document in english_like_documents(20, seed=5)]
  texts = [*TEXTS, *documents, *random_texts(500, seed=3), "हिन्दी भाषा में", "한국어"]
  path = write_vocabulary(tmp_path, PIECES, [*steps, precompiled(spm_model)])
  differences = find_differences(path, texts, **Tokenizer(path).config.switches())
  if steps == ["StripAccents"]:  # the offsets of characters that become several, as with keep_accents
    differences = [row for row in differences if row[1][0] != row[2][0]]
  assert differences == []


def added_token(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
  return {"id": token_id, "content": content, "special": False, "normalized": True} | flags


def with_added_tokens(directory: Path, steps: list[Any], tokens: dict[int, str]) -> str:
  content = values(PIECES, steps)
  content["added_tokens"] += [added_token(i, token) for i, token in tokens.items()]
  (directory / "tokenizer.json").write_text(json.dumps(content))
  return str(directory / "tokenizer.json")


NUM_PIECES = 5 + len(PIECES)
# "-" is a piece already. Of <ab> and <ab>c, the longer one counts.
TOKENS = {5 + list(PIECES).index("-"): "-", NUM_PIECES: "<AB>", NUM_PIECES + 1: "<ab>c"}


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("a <AB> b", "▁ a ▁<ab> ▁ b"),
    ("a<ab>b-<ab>c", "▁ a ▁<ab> ▁ b ▁- ▁<ab>c"),
    ("<ab><AB>cc", "▁<ab> ▁<ab>c ▁ c"),
    ("<a b>", "▁ <unk> a ▁ b <unk>"),
  ],
)
def test_added_tokens_stay_whole(tmp_path: Path, text: str, expected: str) -> None:
  path = with_added_tokens(tmp_path, ["Lowercase"], TOKENS)
  tokenizer = Tokenizer(path)
  ids, starts, ends = tokenizer.encode_with_offsets(text)
  assert " ".join(map(tokenizer.piece, ids)) == expected
  assert ids.tolist() == tokenizer.encode(text)
  ranges = zip(ids.tolist(), starts, ends, strict=True)
  assert all(text[start:end].lower() == TOKENS[i].lower() for i, start, end in ranges if i in TOKENS)


@pytest.mark.thorough
def test_a_graph_keeps_added_tokens_whole(tmp_path: Path, spm_model: str) -> None:
  rng = random.Random(4)
  texts = [*TEXTS, *random_texts(500, seed=3)]
  texts += ["".join(rng.choices([*"ab-<>c ́", "<AB>", "<ab>c", "``", " \u200b"], k=12)) for _ in range(500)]
  path = with_added_tokens(tmp_path, [*QUOTES, *ACCENTS, "Lowercase", precompiled(spm_model)], TOKENS)
  assert find_differences(path, texts, **Tokenizer(path).config.switches()) == []
  assert sum(NUM_PIECES in ids for ids in Tokenizer(path).encode_batch(texts)) > 100


WORDS = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    ("normalizer", {"type": "NFKC"}, "a step of normalizer is 'NFKC'"),
    ("normalizer.normalizers", [{"type": "Lowercase"}, {"type": "StripAccents"}], "a step of normalizer is 'StripAcc"),
    ("normalizer.normalizers", [{"type": "NFKD"}], "normalizer is 'NFKD without StripAccents'"),
    ("normalizer.normalizers", QUOTES[:1], "normalizer is 'Replace of one kind of quotes'"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "not a SentencePiece model"),
    ("pre_tokenizer", None, "the first step of pre_tokenizer is null"),
    ("pre_tokenizer", WORDS, "the first step of pre_tokenizer is 'Metaspace'"),
    ("pre_tokenizer.pretokenizers", [{"type": "WhitespaceSplit"}, WORDS], "the second step of pre_tokenizer is {"),
    ("post_processor", {"type": "RobertaProcessing"}, "post_processor is 'RobertaProcessing'"),
    ("model.byte_fallback", True, "model.byte_fallback is true"),
    ("model.unk_id", None, "model.unk_id is null"),
    ("added_tokens", [{}], r"is damaged \(KeyError\): put the spiece.model"),
    ("model.vocab", [["<unk>"], ["a", 0.0]], r"is damaged \(ValueError\)"),
    ("added_tokens", [added_token(NUM_PIECES, "<URL>", lstrip=True)], "an added token that is not special is {'id"),
    ("added_tokens", [added_token(NUM_PIECES, "a b")], "an added token that is not special is {'id"),
    ("added_tokens", [added_token(NUM_PIECES, "-")], r"a piece that is empty or occurs twice is \['-'\]"),
    ("added_tokens", [{"id": 999, "content": "<URL>", "special": True}], "an added token is '<URL>'"),
    ("model.vocab", [["<unk>", 0.0], ["a", 0.0], ["a", 1.0]], r"a piece that is empty or occurs twice is \['a'\]"),
    ("model.vocab", [["<unk>", 0.0], ["a", 0.0]], r"none of its 2 pieces is <pad> or \[PAD\]"),
  ],
)
def test_what_would_give_other_ids_is_refused(tmp_path: Path, path: str, value: Any, message: str) -> None:
  content = values(PIECES, [])
  if path == "model.vocab":
    content["added_tokens"] = []
  *stages, last = path.split(".")
  functools.reduce(dict.__getitem__, stages, content)[last] = value
  file = tmp_path / "tokenizer.json"
  file.write_text(json.dumps(content))
  with pytest.raises(UserError, match=f"tokenizer.json: {message}"):
    Tokenizer(file)


def test_a_vocabulary_is_found_and_its_settings_are_those_of_its_normalizer(tmp_path: Path) -> None:
  path = write_vocabulary(tmp_path, PIECES, [*QUOTES, "Lowercase"])
  assert vocabulary.find_vocabulary(str(tmp_path)) == path
  assert vocabulary.vocabulary_copies(path) == {"tokenizer.json": path}
  settings = {"tokenizer_class": "AlbertTokenizer", "keep_accents": True, "do_lower_case": True}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
  assert tokenizer_config(path).switches() == {"do_lower_case": True, "keep_accents": True, "convert_quotes": True}
  with pytest.raises(UserError, match=r"do_lower_case=false is given, but .*tokenizer\.json"):
    Tokenizer(path, do_lower_case=False)
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"keep_accents": False}))
  with pytest.raises(UserError, match="keep_accents is false, which contradicts the step NFKD in the normalizer"):
    Tokenizer(path)
  (tmp_path / "spiece.model").write_bytes(b"")
  assert vocabulary.find_vocabulary(str(tmp_path)) == str(tmp_path / "spiece.model")
