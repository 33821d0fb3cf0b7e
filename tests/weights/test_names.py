"""Names and shapes of weights, compared with the built model, and their translation to Hugging Face's names."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from albert.config.model import MODELS
from albert.weights.names import encoder_shapes, from_huggingface, heads, num_parameters, to_huggingface
from tests.convert.files_of_weights import CONFIG
from tests.models.build_models import build_pretraining_model
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
    ("bert/embeddings/word_embeddings", "albert.embeddings.word_embeddings.weight", False),
    ("bert/embeddings/LayerNorm/gamma", "albert.embeddings.LayerNorm.weight", False),
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
    ("cls/seq_relationship/output_weights", "sop_classifier.classifier.weight", False),
    ("cls/squad/output_bias", "qa_outputs.bias", False),
    ("output_weights", "classifier.weight", False),
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
