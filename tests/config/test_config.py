"""Tests of the configs: ranges of their fields, reading and writing JSON, and the named models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.config.base import from_dict
from albert.config.model import MODELS, ModelConfig, load_model_config, named_model
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError


@pytest.mark.parametrize("name", MODELS)
def test_named_models_round_trip_through_json(name):
  config = named_model(name)
  assert from_dict(ModelConfig, json.loads(json.dumps(config.to_dict())), source="test") == config


@pytest.mark.parametrize(
  ("name", "layers", "hidden", "heads", "ffn", "embedding", "sharing", "dropout"),
  [
    ("albert_base", 12, 768, 12, 3072, 128, "all", 0.0),
    ("albert_base_v1", 12, 768, 12, 3072, 128, "all", 0.1),
    ("albert_base_v2", 12, 768, 12, 3072, 128, "all", 0.0),
    ("albert_large_v1", 24, 1024, 16, 4096, 128, "all", 0.1),
    ("albert_xlarge", 24, 2048, 16, 8192, 128, "all", 0.0),
    ("albert_xxlarge_v1", 12, 4096, 64, 16384, 128, "all", 0.0),
    ("bert_large", 24, 1024, 16, 4096, 1024, "none", 0.1),
    ("bert_xlarge", 24, 2048, 32, 8192, 2048, "none", 0.1),
  ],
)
def test_named_models_have_the_sizes_of_the_papers(name, layers, hidden, heads, ffn, embedding, sharing, dropout):
  config = named_model(name)
  sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
  assert sizes == (layers, hidden, heads, ffn)
  assert (config.embedding_size, config.sharing) == (embedding, sharing)
  assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == dropout


def test_the_error_for_an_unknown_model_lists_the_known_ones():
  with pytest.raises(UserError, match="--model=albert_huge: unknown model; known: albert_tiny"):
    named_model("albert_huge")
  message = r"nothing is downloaded: .*huggingface.co/albert-base-v2/.* as --init_checkpoint or"
  with pytest.raises(UserError, match=message):
    named_model("albert-base-v2")


@pytest.mark.parametrize(
  ("make_config", "message"),
  [
    (lambda: OptimizerConfig(learning_rate=0.0), "learning_rate must be above 0, got 0.0"),
    (lambda: OptimizerConfig(learning_rate=float("nan")), "learning_rate must be a finite number in float32, got nan"),
    (
      lambda: TrainConfig(num_train_epochs=float("inf")),
      "num_train_epochs must be a finite number in float32, got inf",
    ),
    (
      lambda: from_dict(OptimizerConfig, {"learning_rate": 10**400}, source="a.json"),
      "learning_rate must be a finite n",
    ),
    (lambda: OptimizerConfig(learning_rate=1e308), "learning_rate must be a finite number in float32, got 1e[+]308"),
    (lambda: OptimizerConfig(epsilon=1e-50), "epsilon must be above 0 in float32, got 1e-50"),
    (lambda: OptimizerConfig(beta_2=1 - 1e-12), "beta_2 must be below 1 in float32, got 0.999999999999"),
    (lambda: ModelConfig(hidden_size=2**31), "hidden_size must be at most 2147483647, got 2147483648"),
    (lambda: RunConfig(output_dir=" "), "output_dir must be more than white space, got ' '"),
    (lambda: OptimizerConfig(beta_1=1.0), "beta_1 must be below 1, got 1.0"),
    (lambda: OptimizerConfig(optimizer="sgd"), "optimizer must be one of lamb, adamw, tfa_lamb, got 'sgd'"),
    (lambda: TrainConfig(train_batch_size=0), "train_batch_size must be at least 1, got 0"),
    (lambda: TrainConfig(tpu="x", distribution_strategy="mirrored"), "--tpu=x needs --distribution_strategy=tpu"),
    (lambda: ModelConfig(hidden_size=100), r"hidden_size must be a multiple of num_attention_heads \(12\), got 100"),
    (lambda: ModelConfig(num_hidden_groups=13), r"num_hidden_groups must be at most num_hidden_layers \(12\)"),
    (lambda: ModelConfig(hidden_act="swish"), "hidden_act must be one of gelu, gelu_erf, relu, silu"),
  ],
)
def test_the_error_for_a_value_out_of_range_names_the_field_the_value_and_the_range(make_config, message):
  with pytest.raises(UserError, match=message):
    make_config()


@pytest.mark.parametrize(
  ("huggingface_name", "our_name"),
  [("gelu", "gelu_erf"), ("gelu_new", "gelu"), ("gelu_pytorch_tanh", "gelu"), ("swish", "silu"), (None, "gelu")],
)
def test_the_activation_of_a_hugging_face_config_is_renamed(
  tmp_path: Path, huggingface_name: str | None, our_name: str
):
  """In transformers "gelu" means the exact GELU. In the original code it means the tanh approximation."""
  path = tmp_path / "config.json"
  fields: dict[str, Any] = {"model_type": "albert", "num_attention_heads": 8}
  if huggingface_name is not None:
    fields["hidden_act"] = huggingface_name
  path.write_text(json.dumps(fields))
  config = load_model_config(str(path))
  assert (config.hidden_act, config.num_attention_heads) == (our_name, 8)
  assert (config.hidden_size, config.intermediate_size) == (4096, 16384)  # the defaults of transformers


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"model_type": "roberta"}, r"config\.json: model_type is 'roberta', not 'albert' or 'bert'"),
    ({"model_type": "bert", "is_decoder": True}, r"config\.json: is_decoder is true, but ALBERT's is False"),
    ({"layer_norm_eps": 0}, r"config\.json: layer_norm_eps must be above 0, got 0"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"hidden_act": "gelu_10"}, "hidden_act must be one of gelu, gelu_erf, relu, silu, got 'gelu_10'"),
  ],
)
def test_a_hugging_face_config_of_another_model_is_an_error(tmp_path: Path, fields: dict[str, object], message: str):
  path = tmp_path / "config.json"
  path.write_text(json.dumps({"model_type": "albert", **fields}))
  with pytest.raises(UserError, match=message):
    load_model_config(str(path))


def test_the_originals_config_with_its_unknown_keys_is_accepted(tmp_path: Path):
  path = tmp_path / "albert_config.json"
  path.write_text(json.dumps({"hidden_size": 48, "num_attention_heads": 4, "net_structure_type": 0, "gap_size": 0}))
  config = load_model_config(str(path))
  path.write_text(json.dumps({"train": {}, "model": config.to_dict()}))  # config.json of a run
  assert load_model_config(str(path)) == config
  assert (config.hidden_size, config.vocab_size) == (48, 30000)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ('{\n"hidden_size": }', "line 2: not JSON"),
    ('{"hidden_size": "big"}', "hidden_size must be of type int, got 'big'"),
    ('{"hidden_size": 1%s}' % ("0" * 400), r"holds a number that is too long: '1000"),
    ('{"initializer_range": 1%s}' % ("0" * 400), r"holds a number that is too long"),
    ('{"hidden_size": 7.5}', "hidden_size must be of type int, got 7.5"),
    ("[1]", r"must hold a JSON object, holds \[1\]"),
    ('{"max_position": 5}', "has no hidden_size: give the config of a model"),
    ('{"hidden_size": 64, "hidden_dropout_prob": 1}', "hidden_dropout_prob must be below 1, got 1.0"),
  ],
)
def test_the_error_for_a_bad_config_file_names_the_file(tmp_path: Path, text, message):
  path = tmp_path / "albert_config.json"
  path.write_text(text)
  with pytest.raises(UserError, match=message) as caught:
    load_model_config(str(path))
  assert str(path) in str(caught.value)


def test_training_settings_leave_out_fields_that_do_not_affect_training():
  config = TrainConfig(log_every_steps=7, save_checkpoints_steps=9)
  assert config.training_settings() == TrainConfig().training_settings()
  assert TrainConfig(seed=7).training_settings() != TrainConfig().training_settings()
