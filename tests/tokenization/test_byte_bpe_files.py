"""The files of byte-level BPE vocabularies: their hash, their kinds, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary import SpecialIds, read_vocabulary_files, vocabulary_sha256
from tests.tokenization.byte_bpe_reference import tokenizer_values, train, write_vocabulary


def test_the_hash_is_that_of_both_files(tmp_path: Path) -> None:
  path = write_vocabulary(tmp_path / "a")
  tokenizer = Tokenizer(path)
  assert tokenizer.sha256 == vocabulary_sha256(path)
  assert list(read_vocabulary_files(path)) == ["vocab.json", "merges.txt"]
  renamed = tmp_path / "b" / "large-vocab.json"
  renamed.parent.mkdir()
  renamed.write_bytes(Path(path).read_bytes())
  renamed.with_name("large-merges.txt").write_bytes(Path(path).with_name("merges.txt").read_bytes())
  assert vocabulary_sha256(str(renamed)) == tokenizer.sha256
  write_vocabulary(tmp_path / "a", merges=train()[1][:-1])
  assert vocabulary_sha256(path) != tokenizer.sha256
  assert load_tokenizer(tokenizer.config).sha256 == vocabulary_sha256(path)


def test_a_tokenizer_json_of_another_kind_beside_weights_is_refused(tmp_path: Path) -> None:
  for content, message in {'{"model": {"type": "WordLevel"}}': "type 'WordLevel'", "": "not JSON"}.items():
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=rf"tokenizer\.json: .*{message}"):
      Tokenizer.from_pretrained(tmp_path)
  (tmp_path / "tokenizer.json").unlink()
  with pytest.raises(UserError, match=r"has no spiece\.model or .* or tokenizer\.json beside it: put the vocabulary"):
    Tokenizer.from_pretrained(tmp_path)


def _write_tokenizer(directory: Path, **changes: Any) -> str:
  values = tokenizer_values()
  model = values["model"] | changes.pop("model", {})
  path = directory / "tokenizer.json"
  path.write_text(json.dumps(values | changes | {"model": model}, indent=1, ensure_ascii=False))
  return str(path)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model": {"type": "WordLevel"}}, r"holds a vocabulary of the type 'WordLevel', not byte-level BPE: give the"),
    ({"model": {"merges": None}}, r"model has no vocab or no merges"),
    ({"model": {"dropout": 0.1}}, r"model\.dropout is 0\.1, which is not supported"),
    ({"model": {"merges": ["a b c"]}}, r", merge 1: 'a b c' must be two pieces"),
    ({"model": {"merges": ["h e", "z z"]}}, r", merge 2: the merge of 'z' and 'z' names the unknown piece 'zz'"),
    ({"model": {"merges": ["h e", "h e"]}}, r", merge 2: stands in .*tokenizer\.json, merge 1 already: give a file in"),
    ({"normalizer": {"type": "NFC"}}, r"normalizer is \{'type': 'NFC'\}, which is not supported"),
    ({"pre_tokenizer": {"type": "Whitespace"}}, r"pre_tokenizer is \{'type': 'Whitespace'\}, only ByteLevel"),
    ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, r"with add_prefix_space false"),
    ({"added_tokens": [{"id": 9999, "content": "new", "special": False}]}, r"the added token 'new' is not special"),
    ({"added_tokens": [{"id": 7, "content": "<s>", "special": True}]}, r"which contradicts model\.vocab"),
  ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
  with pytest.raises(UserError, match=rf"tokenizer\.json.*{message}") as error:
    Tokenizer(_write_tokenizer(tmp_path, **changes))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("vocab", "merges", "message"),
  [
    (None, b"#version: 0.2\nt h e\n", r"merges\.txt, line 2: 't h e' must be two pieces with a space between them"),
    (None, b"#version: 0.2\nh e\nzz a\n", r"merges\.txt, line 3: .* names the unknown piece 'zz'"),
    (None, b"h e\n\xff\n", r"merges\.txt, line 2: not UTF-8"),
    (None, None, r"merges\.txt: no such file: put the merges of .*vocab\.json there"),
    (b'{"a": 0,\n"b": 1,\n"a": 2}', b"", r"vocab\.json: no piece has the id 0, but the ids of 2 pieces must be 0 to 1"),
    (b'{"a": 0, "b": 0}', b"", r"vocab\.json: no piece has the id 1"),
    (b'{"a": 0, "b": "x"}', b"", r"vocab\.json: no piece has the id 1"),
    (b'{"a": 0, "b": true}', b"", r"vocab\.json: no piece has the id 1"),
    (b'{"a": 0}', b"", r"vocab\.json: no piece is '\u0100', which stands for byte 0x00"),
    (b"[PAD]\n[UNK]\n", b"", r"vocab\.json, line 1: not JSON"),
    (b"", b"", r"vocab\.json: not JSON \(it is empty\)"),
    (b'{"model": {}}', b"", r"vocab\.json: is a tokenizer\.json: name it tokenizer\.json"),
  ],
)
def test_damaged_files_are_refused_with_their_line(
  tmp_path: Path, vocab: bytes | None, merges: bytes | None, message: str
) -> None:
  path = Path(write_vocabulary(tmp_path))
  if vocab is not None:
    path.write_bytes(vocab)
  path.with_name("merges.txt").unlink() if merges is None else path.with_name("merges.txt").write_bytes(merges)
  with pytest.raises(UserError, match=message):
    Tokenizer(path)


def test_a_merge_of_characters_that_stand_for_no_byte_is_refused(tmp_path: Path) -> None:
  path = write_vocabulary(tmp_path, [*train()[0], "▁", "▁h"], [("▁", "h")])
  with pytest.raises(UserError, match=r"merges\.txt, line 2: '▁h' has a character that stands for no byte: give the"):
    Tokenizer(path)


@pytest.mark.parametrize("name", ["<pad>", "<unk>", "<s>", "</s>", "<mask>"])
def test_each_special_piece_is_required(tmp_path: Path, name: str) -> None:
  pieces = [piece for piece in train()[0] if piece != name]
  with pytest.raises(UserError, match=rf"vocab\.json: none of its {len(pieces)} pieces is {name} or \["):
    Tokenizer(write_vocabulary(tmp_path, pieces))


def test_names_of_special_pieces_may_be_those_of_bert(tmp_path: Path) -> None:
  names = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
  tokenizer = Tokenizer(write_vocabulary(tmp_path, [names.get(piece, piece) for piece in train()[0]]))
  assert tokenizer.special_ids == SpecialIds(pad=1, unk=3, cls=0, sep=2, mask=4)
  assert tokenizer.decode(tokenizer.encode("[MASK]")) == "[MASK]"
