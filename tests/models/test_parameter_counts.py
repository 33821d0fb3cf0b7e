"""The number of parameters of every named model equals the paper's and that of a closed form."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf

from albert.config.model import MODELS, ModelConfig, named_model
from albert.models.heads import PretrainingModel
from tests.thorough import thorough_except


def count_parameters(config: ModelConfig) -> dict[str, int]:
  """Returns the number of elements of each weight.

  The model is built in a graph, which allocates no memory for its weights. So even xxlarge can be built.
  """
  with tf.Graph().as_default():
    model = PretrainingModel(config)
    variables = model.named_weights()
    assert {id(variable) for variable in variables.values()} == {id(variable) for variable in model.trainable_variables}
    return {name: math.prod(variable.shape) for name, variable in variables.items()}


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("albert_base", 11_683_584),
    ("albert_large", 17_683_968),
    ("albert_xlarge", 58_724_864),
    ("albert_xxlarge", 222_595_584),
  ],
)
def test_encoder_and_pooler_have_the_papers_number_of_parameters(name, expected):
  counts = count_parameters(named_model(name))
  assert sum(count for weight, count in counts.items() if weight.startswith("bert/")) == expected


def closed_form(config: ModelConfig) -> int:
  """Computes the number of parameters of the encoder, the pooler and the heads from the sizes of the model."""
  v, e, h, f = config.vocab_size, config.embedding_size, config.hidden_size, config.intermediate_size
  # A dense layer from x to y has x * y + y parameters, and a LayerNorm of x has 2 * x.
  embeddings = (v + config.max_position_embeddings + config.type_vocab_size) * e + 2 * e
  projection = 0 if e == h else e * h + h
  attention = (4 * (h * h + h) + 2 * h) * config.num_attention_groups * config.inner_group_num
  feed_forward = (h * f + f + f * h + h + 2 * h) * config.num_ffn_groups * config.inner_group_num
  pooler = h * h + h
  masked_lm_head = h * e + e + 2 * e + v  # the output matrix is that of the embeddings; v is its bias
  sentence_head = 2 * h + 2
  return embeddings + projection + attention + feed_forward + pooler + masked_lm_head + sentence_head


# These models share no weights. So each layer has its own variables, which take long to make.
_MODELS_WITH_MANY_VARIABLES = {"bert_base", "bert_large", "bert_xlarge"}


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.thorough) if name in _MODELS_WITH_MANY_VARIABLES else name
    for name in MODELS
    if not name.endswith(("_v1", "_v2"))
  ],
)
def test_named_models_agree_with_the_closed_form(name):
  config = named_model(name)
  assert sum(count_parameters(config).values()) == closed_form(config)


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
  assert sum(count_parameters(config).values()) == closed_form(config)
