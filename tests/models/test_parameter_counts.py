"""The number of parameters of every named model, exactly."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf

from albert.config.model import MODELS, ModelConfig, named_model
from albert.models.heads import PretrainingModel
from tests.thorough import thorough_except


def parameters(config: ModelConfig) -> dict[str, int]:
  """Name -> number of elements. Built as a graph, which allocates nothing, so xxlarge is no trouble."""
  with tf.Graph().as_default():
    model = PretrainingModel(config)
    named = model.named_weights()
    assert {id(v) for v in named.values()} == {id(v) for v in model.trainable_variables}
    return {name: math.prod(variable.shape) for name, variable in named.items()}


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("albert_base", 11_683_584),
    ("albert_large", 17_683_968),
    ("albert_xlarge", 58_724_864),
    ("albert_xxlarge", 222_595_584),
  ],
)
def test_encoder_and_pooler_have_the_papers_parameters(name, expected):
  counts = parameters(named_model(name))
  assert sum(count for key, count in counts.items() if key.startswith("bert/")) == expected


def closed_form(config: ModelConfig) -> int:
  """Encoder, pooler and heads, by arithmetic."""
  v, e, h, f = config.vocab_size, config.embedding_size, config.hidden_size, config.intermediate_size
  embeddings = (v + config.max_position_embeddings + config.type_vocab_size) * e + 2 * e
  projection = 0 if e == h else e * h + h
  attention = (4 * (h * h + h) + 2 * h) * config.num_attention_groups * config.inner_group_num
  feed_forward = (h * f + f + f * h + h + 2 * h) * config.num_ffn_groups * config.inner_group_num
  pooler = h * h + h
  heads = (h * e + e + 2 * e + v) + (2 * h + 2)
  return embeddings + projection + attention + feed_forward + pooler + heads


# Without sharing every layer has variables of its own, which take long to make.
_MANY_VARIABLES = {"bert_base", "bert_large", "bert_xlarge"}


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.thorough) if name in _MANY_VARIABLES else name
    for name in MODELS
    if not name.endswith(("_v1", "_v2"))
  ],
)
def test_named_models_agree_with_the_closed_form(name):
  config = named_model(name)
  assert sum(parameters(config).values()) == closed_form(config)


@pytest.mark.parametrize("sharing", thorough_except(["ffn"], ["all", "attention", "ffn", "none"]))
def test_sharing_and_groups_agree_with_the_closed_form(sharing):
  config = ModelConfig(
    vocab_size=97,
    embedding_size=10,
    hidden_size=24,
    num_hidden_layers=6,
    num_hidden_groups=2,
    inner_group_num=3,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=32,
    sharing=sharing,
  )
  assert sum(parameters(config).values()) == closed_form(config)
