"""Names and shapes of weights, compared with the built model, and their translation to the names of transformers.

tests/parity/test_bert.py compares whole models.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.model import MODELS, ModelConfig
from albert.convert.convert_checkpoint import convert
from albert.errors import UserError
from albert.weights.names import (
  encoder_shapes,
  from_bert,
  from_huggingface,
  has_bert_names,
  heads,
  num_parameters,
  to_bert,
  to_huggingface,
)
from tests.convert.files_of_weights import CONFIG, write_tf1
from tests.golden.make_tiny_albert import random_weights
from tests.models.build_models import TASK_MODELS, build_pretraining_model
from tests.thorough import thorough_except


@pytest.mark.parametrize(
  ("sharing", "embedding_size"),
  thorough_except([("all", 6), ("attention", 20)], itertools.product(["all", "attention", "ffn", "none"], [6, 20])),
)
def test_shapes_are_those_of_the_built_model(sharing, embedding_size):
  config = dataclasses.replace(CONFIG, sharing=sharing, embedding_size=embedding_size)
  all_heads = heads(config)
  expected = encoder_shapes(config) | all_heads["masked_lm"].shapes | all_heads["sentence"].shapes
  variables = build_pretraining_model(config).named_weights()
  assert {name: tuple(variable.shape) for name, variable in variables.items()} == expected


@pytest.mark.parametrize("name", TASK_MODELS)
def test_a_task_model_has_the_weights_of_the_encoder_and_its_heads(name):
  model_class, arguments = TASK_MODELS[name]
  model = model_class(CONFIG, *arguments)
  expected: dict[str, tuple[int | None, ...]] = {**encoder_shapes(CONFIG)}
  for head in model.head_names:
    expected |= heads(CONFIG)[head].shapes
  for weight, variable in model.named_weights().items():
    shape = expected.pop(weight)
    assert [size or model.num_classes for size in shape] == variable.shape, weight
  assert not expected


@pytest.mark.parametrize(
  ("name", "count"),
  [
    ("albert_base", 11_683_584),
    ("albert_large", 17_683_968),
    ("albert_xlarge", 58_724_864),
    ("albert_xxlarge", 222_595_584),
  ],
)
def test_encoder_and_pooler_have_the_papers_number_of_parameters(name, count):
  assert num_parameters(encoder_shapes(MODELS[name])) == count


def test_translating_to_hugging_face_and_back_gives_the_same_name():
  names = [*encoder_shapes(CONFIG), *(name for head in heads(CONFIG).values() for name in head.shapes)]
  translated_names: set[str] = set()
  for name in names:
    translated = to_huggingface(name)
    assert translated is not None
    translated_names.add(translated.name)
    assert from_huggingface(translated.name) == (name, translated.is_transposed)
  assert len(translated_names) == len(names)


@pytest.mark.parametrize(
  ("original", "huggingface", "is_transposed"),
  [
    (
      "bert/encoder/embedding_hidden_mapping_in/kernel",
      "albert.encoder.embedding_hidden_mapping_in.weight",
      True,
    ),
    (
      "bert/encoder/transformer/group_3/inner_group_1/attention_1/output/dense/kernel",
      "albert.encoder.albert_layer_groups.3.albert_layers.1.attention.dense.weight",
      True,
    ),
    (
      "bert/encoder/transformer/group_0/inner_group_0/LayerNorm_1/beta",
      "albert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.bias",
      False,
    ),
    ("end_logits/LayerNorm/gamma", "end_logits.LayerNorm.weight", False),
    ("answer_class/dense_1/kernel", "answer_class.dense_1.weight", True),
  ],
)
def test_a_name_has_its_translation(original, huggingface, is_transposed):
  assert to_huggingface(original) == (huggingface, is_transposed)


@pytest.mark.parametrize(
  "name", ["global_step", "bert/pooler/dense/moment", "x/kernel", "bert/pooler/dense/kernel/adam_m"]
)
def test_names_that_are_no_weights_have_no_translation(name):
  assert to_huggingface(name) is None


@pytest.mark.parametrize("name", ["albert.embeddings.position_ids", "lm_head.weight", "predictions.decoder.weight"])
def test_other_names_in_files_of_hugging_face_have_no_translation(name):
  assert from_huggingface(name) is None


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
