"""The settings that a vocabulary was made with are read from the files beside it, obeyed, and never contradicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.tokenization.recorded_settings import huggingface_tokenizer_config, tokenizer_config
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import TokenizerConfig
from tests.conftest import PieceType, SaveModel


def token(content: str, *, special: bool = True) -> dict[str, Any]:
  """A token as transformers writes it."""
  return {"content": content, "lstrip": False, "normalized": False, "special": special}


# What transformers 4 writes for its tokenizers of the kinds of vocabularies, with the keys that change no ids.
ALBERT = {
  "added_tokens_decoder": {"0": token("<pad>"), "4": token("[MASK]")},
  "additional_special_tokens": [],
  "bos_token": "[CLS]",
  "clean_up_tokenization_spaces": False,
  "cls_token": "[CLS]",
  "do_lower_case": True,
  "keep_accents": False,
  "mask_token": token("[MASK]"),
  "model_max_length": 512,
  "pad_token": "<pad>",
  "remove_space": True,
  "sep_token": "[SEP]",
  "sp_model_kwargs": {},
  "tokenizer_class": "AlbertTokenizer",
  "unk_token": "<unk>",
}
BERT = {
  "do_basic_tokenize": True,
  "do_lower_case": True,
  "mask_token": "[MASK]",
  "never_split": None,
  "strip_accents": None,
  "tokenize_chinese_chars": True,
  "tokenizer_class": "BertTokenizer",
  "unk_token": "[UNK]",
}
ROBERTA = {"add_prefix_space": False, "cls_token": "<s>", "errors": "replace", "tokenizer_class": "RobertaTokenizer"}
SPIECE, VOCAB, BPE = "spiece.model", "vocab.txt", "vocab.json"


def config_of(directory: Path, name: str, values: dict[str, Any]) -> TokenizerConfig:
  """The settings of a vocabulary, which is not opened, beside a tokenizer_config.json."""
  (directory / "tokenizer_config.json").write_text(json.dumps(values))
  return tokenizer_config(str(directory / name))


@pytest.mark.parametrize(
  ("name", "values", "expected"),
  [
    (SPIECE, {}, {}),
    (SPIECE, ALBERT, {}),
    (SPIECE, ALBERT | {"remove_space": False, "mask_token": "<mask>"}, {}),
    (SPIECE, ALBERT | {"do_lower_case": False}, {"do_lower_case": False}),
    (SPIECE, ALBERT | {"keep_accents": True}, {"keep_accents": True}),
    (VOCAB, BERT | {"strip_accents": False}, {"keep_accents": True}),
    (VOCAB, BERT | {"strip_accents": False, "do_lower_case": False}, {"do_lower_case": False}),
    (VOCAB, BERT | {"strip_accents": True}, {}),
    (VOCAB, BERT | {"strip_accents": True, "do_lower_case": False}, {"do_lower_case": False}),
    (VOCAB, BERT | {"tokenize_chinese_chars": False}, {}),
    (BPE, ROBERTA, {}),
  ],
)
def test_settings_of_hugging_face_are_obeyed(
  tmp_path: Path, name: str, values: dict[str, Any], expected: dict[str, bool]
) -> None:
  config = config_of(tmp_path, name, values)
  assert config == TokenizerConfig(str(tmp_path / name), **expected)
  assert config_of(tmp_path, name, huggingface_tokenizer_config(config)) == config


@pytest.mark.parametrize(
  ("name", "values", "message"),
  [
    (SPIECE, {"add_prefix_space": False}, "add_prefix_space is false, with which transformers gives other ids"),
    (SPIECE, {"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is {'enable_sampling': True}"),
    (SPIECE, {"tokenizer_class": "XLNetTokenizer"}, "tokenizer_class is 'XLNetTokenizer'.* only 'AlbertTokenizer'"),
    (SPIECE, {"mask_token": token("<msk>")}, "mask_token is '<msk>'.* only '\\[MASK\\]'"),
    (SPIECE, {"truncation_side": "left"}, "truncation_side is 'left'"),
    (SPIECE, {"additional_special_tokens": ["<e1>"]}, "adds the token '<e1>', which would be cut"),
    (SPIECE, {"extra_special_tokens": {"image_token": "<img>"}}, "adds the token '<img>'"),
    (SPIECE, {"added_tokens_decoder": {"9": token("<URL>", special=False)}}, "adds the token '<URL>'"),
    (VOCAB, {"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class is 'BertJapaneseTokenizer'"),
    (VOCAB, {"do_basic_tokenize": False}, "do_basic_tokenize is false"),
    (VOCAB, {"never_split": ["<URL>"]}, "never_split is \\['<URL>'\\]"),
    (BPE, {"add_prefix_space": True}, "add_prefix_space is true"),
  ],
)
def test_settings_of_hugging_face_that_give_other_ids_are_refused(
  tmp_path: Path, name: str, values: dict[str, Any], message: str
) -> None:
  with pytest.raises(UserError, match=rf"tokenizer_config\.json: {message}"):
    config_of(tmp_path, name, values)


@pytest.mark.parametrize(
  ("file", "values", "message"),
  [
    ("special_tokens_map.json", {"mask_token": "<msk>"}, "mask_token is '<msk>'"),
    ("special_tokens_map.json", {"additional_special_tokens": [token("<e1>")]}, "adds the token '<e1>'"),
    ("added_tokens.json", {"<URL>": 30000}, "adds the token '<URL>'"),
  ],
)
def test_files_with_added_tokens_are_checked(tmp_path: Path, file: str, values: dict[str, Any], message: str) -> None:
  (tmp_path / file).write_text(json.dumps(values))
  with pytest.raises(UserError, match=rf"{file}: {message}"):
    tokenizer_config(str(tmp_path / SPIECE))
  (tmp_path / file).write_text(json.dumps({"cls_token": token("[CLS]")} if "map" in file else {"[MASK]": 4}))
  assert tokenizer_config(str(tmp_path / SPIECE)) == TokenizerConfig(str(tmp_path / SPIECE))


def test_a_directory_that_transformers_5_wrote_is_read(tmp_path: Path, save_model: SaveModel) -> None:
  pieces = [("▁", -1.0), ("–", 0.0), ("e", -2.0)]
  (tmp_path / SPIECE).write_bytes(Path(save_model(pieces, {"–": PieceType.USER_DEFINED})).read_bytes())
  # It lists the user-defined symbols, and has this number if the tokenizer has no limit.
  values = ALBERT | {"extra_special_tokens": ["[CLS]", "–"], "model_max_length": int(1e30), "add_prefix_space": True}
  assert config_of(tmp_path, SPIECE, values) == TokenizerConfig(str(tmp_path / SPIECE))
  with pytest.raises(UserError, match="adds the token 'e', which would be cut"):
    config_of(tmp_path, SPIECE, values | {"extra_special_tokens": ["e"]})


def test_of_several_names_of_a_special_piece_the_first_counts(tmp_path: Path, save_model: SaveModel) -> None:
  (tmp_path / SPIECE).write_bytes(Path(save_model([("<s>", 0.0), ("e", -2.0)])).read_bytes())
  assert config_of(tmp_path, SPIECE, {"cls_token": "[CLS]"})
  with pytest.raises(UserError, match=r"cls_token is '<s>'.* only '\[CLS\]'"):
    config_of(tmp_path, SPIECE, {"cls_token": "<s>"})


def test_every_tokenizer_has_the_settings_beside_its_vocabulary(save_model: SaveModel, tmp_path: Path) -> None:
  model = Path(save_model([("▁", -1.0), *((character, -2.0) for character in "Thescoön")]))
  vocabulary = tmp_path / "hub" / SPIECE
  vocabulary.parent.mkdir()
  vocabulary.write_bytes(model.read_bytes())
  assert config_of(vocabulary.parent, SPIECE, {"do_lower_case": False, "keep_accents": True})
  for tokenizer in (Tokenizer(vocabulary), Tokenizer.from_pretrained(vocabulary.parent)):
    assert tokenizer.decode(tokenizer.encode("The schön")) == "The schön"
  assert Tokenizer(model).normalize("The schön") == "the schon"
  message = r"keep_accents=false is given, but .*keep_accents=true \(.*tokenizer_config\.json"
  with pytest.raises(UserError, match=message):
    Tokenizer(vocabulary, keep_accents=False)


def test_the_case_of_byte_level_bpe_has_no_effect_so_it_may_differ(tmp_path: Path) -> None:
  (tmp_path / "config.json").write_text(json.dumps({"task": "classifier", "data": {"do_lower_case": True}}))
  assert tokenizer_config(str(tmp_path / BPE), do_lower_case=False)
  with pytest.raises(UserError, match="do_lower_case=false is given"):
    tokenizer_config(str(tmp_path / VOCAB), do_lower_case=False)


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
  for name, do_lower_case in {"vocabulary": True, "weights": False}.items():
    (tmp_path / name).mkdir()
    (tmp_path / name / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": do_lower_case}))
  message = r"vocabulary/.* says do_lower_case=true, but .*weights/.* says do_lower_case=false"
  with pytest.raises(UserError, match=message):
    tokenizer_config(str(tmp_path / "vocabulary" / SPIECE), str(tmp_path / "weights"))


def test_a_default_that_earlier_versions_recorded_for_pretraining_is_not_a_setting(tmp_path: Path) -> None:
  data = {"do_lower_case": True}
  (tmp_path / "config.json").write_text(json.dumps({"task": "pretraining", "data": data}))
  assert not tokenizer_config(str(tmp_path / SPIECE), do_lower_case=False).do_lower_case
  (tmp_path / "config.json").write_text(json.dumps({"task": "pretraining", "data": data | {"keep_accents": None}}))
  with pytest.raises(UserError, match="do_lower_case=false is given, but the vocabulary was made with"):
    tokenizer_config(str(tmp_path / SPIECE), do_lower_case=False)
