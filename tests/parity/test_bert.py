"""BERT's own weights and the Chinese ALBERT's, as transformers saves them, here and back. Needs the extra `parity`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.model import MODELS, ModelConfig, load_model_config
from albert.convert.convert_checkpoint import convert
from albert.tokenization.tokenizer import Tokenizer
from albert.weights.files import open_weights
from tests.models.build_models import build_pretraining_model
from tests.parity.huggingface import (
  LOGITS_TOLERANCE,
  TOLERANCE,
  encode,
  linear_head_rows,
  random_inputs,
  run_theirs,
  to_tensors,
)
from tests.parity.rows import assert_ok, largest_difference

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
  "vocab_size": 61,
  "hidden_size": 32,
  "num_hidden_layers": 3,
  "num_attention_heads": 4,
  "intermediate_size": 48,
  "max_position_embeddings": 24,
}
CHINESE = ["老师看见了花园。", "ALBERT卖了3把钥匙", "她的姐姐忘记了一封信"]
# The ids of [PAD], [UNK], [CLS], [SEP] and [MASK] are those of the published vocabularies.
PIECES = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]",
          *sorted(set("".join(CHINESE)) - set("ALBERT")), "al", "##bert", "the", "##s", ",", "."]  # fmt: skip


def save_theirs(directory: Path, class_name: str, config: Any, scale: float = 0.1) -> Path:
  """Saves a model of transformers whose weights are all random, so that no two are equal, and a vocabulary."""
  torch.manual_seed(3)
  model = getattr(transformers, class_name)(config)
  with torch.no_grad():
    for name, weight in model.named_parameters():
      is_scale = "LayerNorm" in name and name.endswith("weight")
      weight.copy_(torch.randn_like(weight) * scale + float(is_scale))
  model.eval().save_pretrained(directory)
  (directory / "vocab.txt").write_bytes("".join(f"{piece}\n" for piece in PIECES).encode())
  (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
  return directory


def assert_same_states(directory: Path, class_name: str) -> ModelConfig:
  """Compares the hidden states of our encoder with those of transformers, both with the weights in a directory."""
  file = open_weights(str(directory))
  config = file.config()
  assert config is not None
  weights = {name: file.read(name) for name in file.entries}
  inputs = random_inputs(config)
  ours = encode(config, weights, inputs)
  theirs = run_theirs(directory, class_name, inputs, output_hidden_states=True)
  assert len(ours.hidden_states) == len(theirs.hidden_states) == config.num_hidden_layers + 1
  for state, expected in zip(ours.hidden_states, theirs.hidden_states, strict=True):
    assert largest_difference(state, expected) < TOLERANCE
  if "pooler_output" in theirs:
    assert largest_difference(ours.pooled_output, theirs.pooler_output) < TOLERANCE
  return config


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
  from safetensors.numpy import load_file

  return dict(load_file(directory / "model.safetensors"))


def with_old_names(directory: Path) -> None:
  """Renames the weights as in the file of bert-base-uncased, which also has constants and the tied output layer."""
  from safetensors.numpy import save_file

  tensors = read_tensors(directory)
  renamed = {}
  for name, value in tensors.items():
    is_norm = "LayerNorm" in name
    renamed[name.replace("weight", "gamma").replace("bias", "beta") if is_norm else name] = value
  renamed["bert.embeddings.position_ids"] = np.arange(len(tensors["bert.embeddings.position_embeddings.weight"]))[None]
  renamed["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
  save_file(renamed, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_bert_model_gives_its_hidden_states(tmp_path: Path, activation: str) -> None:
  settings = transformers.BertConfig(**SIZES, hidden_act=activation, classifier_dropout=0.3)
  directory = save_theirs(tmp_path / "bert", "BertModel", settings)
  config = assert_same_states(directory, "BertModel")
  expected = {"embedding_size": 32, "sharing": "none", "hidden_dropout_prob": 0.1, "classifier_dropout_prob": 0.3}
  assert {name: getattr(config, name) for name in expected} == expected


def test_a_default_config_of_transformers_is_bert_base(tmp_path: Path) -> None:
  path = tmp_path / "config.json"
  for content in ('{"model_type": "bert"}', json.dumps(transformers.BertConfig().to_dict())):
    path.write_text(content)
    expected = dataclasses.replace(MODELS["bert_base"], vocab_size=30522, hidden_act="gelu_erf")
    assert load_model_config(str(path)) == expected


def test_bert_for_pretraining_comes_back_bit_for_bit(tmp_path: Path) -> None:
  directory = save_theirs(tmp_path / "bert", "BertForPreTraining", transformers.BertConfig(**SIZES))
  theirs_before = run_theirs(directory, "BertForPreTraining", random_inputs(ModelConfig(**SIZES)))
  with_old_names(directory)
  before = read_tensors(directory)
  convert(str(directory), str(tmp_path / "ours"), "albert")
  file = open_weights(str(tmp_path / "ours"))
  config = file.config()
  assert config is not None
  inputs = random_inputs(config)
  positions = np.tile(np.arange(inputs["input_ids"].shape[1]), (len(inputs["input_ids"]), 1))
  model = build_pretraining_model(config, {name: file.read(name) for name in file.entries})
  ours = model(to_tensors(inputs | {"masked_lm_positions": positions}))
  assert largest_difference(ours.masked_lm_logits, theirs_before.prediction_logits) < LOGITS_TOLERANCE
  assert largest_difference(ours.sentence_logits, theirs_before.seq_relationship_logits) < TOLERANCE

  convert(str(tmp_path / "ours"), str(tmp_path / "back"), "huggingface", architecture="BertForPreTraining")
  after = read_tensors(tmp_path / "back")
  for name, value in before.items():
    if name.endswith(("position_ids", "predictions.decoder.weight")):
      continue
    new_name = name.replace("gamma", "weight").replace("beta", "bias")
    assert after.pop(new_name).tobytes() == value.tobytes(), name
  assert after == {}
  theirs = run_theirs(tmp_path / "back", "BertForPreTraining", inputs)
  assert largest_difference(theirs.prediction_logits, theirs_before.prediction_logits) == 0
  assert_same_states(tmp_path / "back", "BertForPreTraining")
  assert (tmp_path / "back" / "vocab.txt").read_bytes() == (directory / "vocab.txt").read_bytes()
  assert transformers.AutoConfig.from_pretrained(tmp_path / "back").model_type == "bert"
  assert_same_ids(tmp_path / "back")


@pytest.mark.parametrize(
  ("head", "classes", "architecture", "prefix"),
  [
    ("classifier", 3, "BertForSequenceClassification", ""),
    ("classifier", 1, "BertForMultipleChoice", ""),
    ("squad", 2, "BertForQuestionAnswering", "cls/squad/"),
  ],
)
def test_transformers_gives_our_logits_of_task_heads(
  tmp_path: Path, head: str, classes: int, architecture: str, prefix: str
) -> None:
  config = ModelConfig(**SIZES, embedding_size=32, sharing="none")
  assert_ok(linear_head_rows(tmp_path, head, classes, architecture, prefix, config))


def assert_same_ids(directory: Path) -> None:
  """Compares the ids of our tokenizer with those of transformers' BertTokenizer."""
  ours = Tokenizer.from_pretrained(directory)
  theirs = transformers.BertTokenizer(str(directory / "vocab.txt"), do_lower_case=True)
  for text in CHINESE:
    special = ours.special_ids
    assert [special.cls, *ours.encode(text), special.sep] == theirs(text)["input_ids"]


def test_a_chinese_albert_with_vocab_txt(tmp_path: Path) -> None:
  sizes = SIZES | {"vocab_size": len(PIECES), "embedding_size": 12, "hidden_act": "gelu_new"}
  directory = save_theirs(tmp_path / "albert", "AlbertForPreTraining", transformers.AlbertConfig(**sizes))
  assert_same_states(directory, "AlbertForPreTraining")
  assert_same_ids(directory)
  convert(str(directory), str(tmp_path / "ours"), "albert")
  convert(str(tmp_path / "ours"), str(tmp_path / "back"), "huggingface")
  before, after = read_tensors(directory), read_tensors(tmp_path / "back")
  assert {name: value.tobytes() for name, value in after.items()} == {
    name: value.tobytes() for name, value in before.items() if not name.startswith("predictions.decoder.")
  }
  assert_same_states(tmp_path / "back", "AlbertForPreTraining")
  assert_same_ids(tmp_path / "back")


@pytest.mark.slow
def test_weights_with_the_shapes_of_bert_base_uncased(tmp_path: Path) -> None:
  directory = save_theirs(tmp_path / "bert", "BertForPreTraining", transformers.BertConfig(), scale=0.02)
  with_old_names(directory)
  assert read_tensors(directory)["bert.embeddings.word_embeddings.weight"].shape == (30522, 768)
  config = assert_same_states(directory, "BertForPreTraining")
  assert config == dataclasses.replace(MODELS["bert_base"], vocab_size=30522, hidden_act="gelu_erf")
