"""The names of BERT's weights in transformers. tests/parity/test_bert.py compares whole models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.model import ModelConfig
from albert.convert.convert_checkpoint import convert
from albert.errors import UserError
from albert.weights.bert_names import from_bert, has_bert_names, to_bert
from albert.weights.names import from_huggingface
from tests.convert.files_of_weights import CONFIG, write_tf1
from tests.golden.make_tiny_albert import random_weights

# A name in transformers -> the name in the original ALBERT of a model with a group of weights for each layer.
NAMES = {
  "bert.embeddings.word_embeddings.weight": "bert/embeddings/word_embeddings",
  "bert.embeddings.LayerNorm.bias": "bert/embeddings/LayerNorm/beta",
  "bert.encoder.layer.11.attention.self.key.weight":
    "bert/encoder/transformer/group_11/inner_group_0/attention_1/self/key/kernel",
  "bert.encoder.layer.0.attention.output.dense.bias":
    "bert/encoder/transformer/group_0/inner_group_0/attention_1/output/dense/bias",
  "bert.encoder.layer.0.attention.output.LayerNorm.weight":
    "bert/encoder/transformer/group_0/inner_group_0/LayerNorm/gamma",
  "bert.encoder.layer.3.intermediate.dense.weight":
    "bert/encoder/transformer/group_3/inner_group_0/ffn_1/intermediate/dense/kernel",
  "bert.encoder.layer.3.output.dense.weight":
    "bert/encoder/transformer/group_3/inner_group_0/ffn_1/intermediate/output/dense/kernel",
  "bert.encoder.layer.3.output.LayerNorm.bias": "bert/encoder/transformer/group_3/inner_group_0/LayerNorm_1/beta",
  "bert.pooler.dense.weight": "bert/pooler/dense/kernel",
  "cls.predictions.transform.LayerNorm.weight": "cls/predictions/transform/LayerNorm/gamma",
  "cls.predictions.bias": "cls/predictions/output_bias",
  "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
  "classifier.weight": "output_weights",
  "qa_outputs.bias": "cls/squad/output_bias",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_translated_and_back(name: str) -> None:
  albert_name = from_bert(name)
  translated = from_huggingface(albert_name)
  assert translated is not None
  assert translated.name == NAMES[name]
  assert to_bert(albert_name) == name
  assert from_bert(name.removeprefix("bert.")) == albert_name
  if "LayerNorm" in name:  # the file of bert-base-uncased has these names
    assert from_bert(name.replace(".weight", ".gamma").replace(".bias", ".beta")) == albert_name


def test_the_names_of_albert_are_not_those_of_bert() -> None:
  assert has_bert_names(["bert.pooler.dense.bias"])
  assert has_bert_names(["embeddings.LayerNorm.bias", "encoder.layer.0.output.dense.bias"])
  assert not has_bert_names(["albert.pooler.weight", "encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"])
  assert not has_bert_names(["roberta.encoder.layer.0.output.dense.bias"])


@pytest.mark.parametrize(
  "changes", [{"inner_group_num": 1}, {"embedding_size": 20}]
)  # CONFIG has E = 6 and H = 20, and 2 blocks in a layer
def test_a_model_that_is_no_bert_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
  config = dataclasses.replace(CONFIG, **changes)
  source = write_tf1(tmp_path / "tf1", config, random_weights(config, 3, with_heads=()))
  with pytest.raises(UserError, match=r"--architecture=BertModel: the model has embeddings of size .*a BERT has"):
    convert(source, str(tmp_path / "bert"), "huggingface", architecture="BertModel")
  assert not (tmp_path / "bert").exists()


def test_shared_weights_are_copied_for_each_layer_of_a_bert(tmp_path: Path) -> None:
  from safetensors.numpy import load_file

  config: ModelConfig = dataclasses.replace(CONFIG, inner_group_num=1, embedding_size=20)  # 4 layers in 2 groups
  weights = random_weights(config, 3, with_heads=())
  convert(write_tf1(tmp_path / "tf1", config, weights), str(tmp_path / "bert"), "huggingface", architecture="BertModel")
  tensors = load_file(tmp_path / "bert" / "model.safetensors")
  for layer, group in enumerate((0, 0, 1, 1)):
    expected = weights[f"bert/encoder/transformer/group_{group}/inner_group_0/attention_1/self/query/kernel"].T
    np.testing.assert_array_equal(tensors[f"bert.encoder.layer.{layer}.attention.self.query.weight"], expected)
