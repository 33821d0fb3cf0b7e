"""from_pretrained of the encoder and of all task models: from every kind of weights, or an error that says why not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.models.classifier import ClassifierModel
from albert.models.encoder import Encoder
from albert.models.heads import PretrainingModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import SquadV1Model, SquadV2Model
from albert.tokenization.tokenizer import Tokenizer
from tests.convert.files_of_weights import without_pooler
from tests.golden.make_tiny_albert import random_weights
from tests.reference.albert import Reference
from tests.small_downloads import STEP, small_config, write_google, write_hub, write_run

WRITERS: dict[str, Callable[..., str]] = {"google": write_google, "huggingface": write_hub, "run": write_run}


@pytest.fixture
def config(spm_model: str) -> ModelConfig:
  return small_config(spm_model)


def loaded(model: Encoder | PretrainingModel) -> dict[str, np.ndarray]:
  return {name: variable.numpy() for name, variable in model.named_weights().items()}


@pytest.mark.parametrize("kind", WRITERS)
def test_the_encoder_and_the_pretraining_model(tmp_path: Path, config, spm_model, kind, capsys):
  weights = random_weights(config, 4)
  path = WRITERS[kind](tmp_path / "x", config, weights, spm_model)
  encoder = Encoder.from_pretrained(path, name="mine")
  assert encoder.name == "mine"
  assert encoder.config.hidden_size == config.hidden_size
  texts = ["the captain sold the garden", "nobody"]
  batch = Tokenizer.from_pretrained(path)(texts)
  expected, _ = Reference(config, weights).encode(*(batch[n] for n in ("input_ids", "input_mask", "segment_ids")))
  np.testing.assert_allclose(encoder(batch).pooled_output, expected.pooled_output, atol=1e-5)
  model = PretrainingModel.from_pretrained(path + "/")
  for name, value in loaded(model).items():
    np.testing.assert_array_equal(value, weights[name])
  assert "newly initialized" not in capsys.readouterr().err


def test_other_places_of_a_run_and_an_archive(tmp_path: Path, config, spm_model):
  weights = random_weights(config, 4)
  run = write_run(tmp_path / "run", config, weights, spm_model)
  google = write_google(tmp_path / "google", config, weights, spm_model)
  (tmp_path / "several").mkdir()
  (tmp_path / "run").rename(tmp_path / "several" / "run-5")
  runs = {"seeds": [5], "best_run": "run-5", "metrics": {}}
  (tmp_path / "several" / "runs.json").write_text(json.dumps(runs))
  run = str(tmp_path / "several" / "run-5")
  for path in (f"{run}/checkpoints/step-{STEP}", str(tmp_path / "several"), f"{google}/model.ckpt-best"):
    np.testing.assert_array_equal(
      loaded(Encoder.from_pretrained(path))["bert/pooler/dense/kernel"], weights["bert/pooler/dense/kernel"]
    )
    assert Tokenizer.from_pretrained(path).vocab_size == config.vocab_size


@pytest.mark.parametrize(
  ("make", "head"),
  [
    (lambda path: ClassifierModel.from_pretrained(path, num_classes=4), "classifier"),
    (MultipleChoiceModel.from_pretrained, "classifier"),
    (SquadV1Model.from_pretrained, "squad"),
    (SquadV2Model.from_pretrained, "squad_v2"),
  ],
)
def test_a_missing_head_is_initialized_and_logged(tmp_path: Path, config, spm_model, make, head, capsys):
  weights = random_weights(config, 4)
  model = make(write_google(tmp_path / "x", config, weights, spm_model))
  assert f"newly initialized, so to be trained before use: {head} head" in capsys.readouterr().err
  values = loaded(model)
  assert set(weights) & set(values) == {name for name in weights if name.startswith("bert/")}
  for name in set(weights) & set(values):
    np.testing.assert_array_equal(values[name], weights[name])


def test_a_head_is_taken_over_with_its_number_of_classes(tmp_path: Path, config, spm_model, capsys):
  weights = random_weights(config, 4, with_heads=("classifier",), num_classes=3)
  path = write_run(tmp_path / "x", config, weights, spm_model)
  model = ClassifierModel.from_pretrained(path)
  assert model.num_classes == 3
  for name, value in loaded(model).items():
    np.testing.assert_array_equal(value, weights[name])
  with pytest.raises(UserError, match="its classifier has 3 classes, not 5: give new_heads=True"):
    ClassifierModel.from_pretrained(path, num_classes=5)
  with pytest.raises(UserError, match=r"another shape for 2 weights: output_bias \[3\] instead of \[1\].*new_heads"):
    MultipleChoiceModel.from_pretrained(path)
  assert not capsys.readouterr().err
  model = ClassifierModel.from_pretrained(path, num_classes=5, new_heads=True)
  assert model.head.output_weights.shape == (5, config.hidden_size)
  assert "classifier head" in capsys.readouterr().err
  for cls in (ClassifierModel.from_pretrained, lambda path: ClassifierModel.from_pretrained(path, new_heads=True)):
    with pytest.raises(UserError, match="has no classifier to take over: give num_classes"):
      cls(write_google(tmp_path / f"y{id(cls)}", config, random_weights(config, 4), spm_model))


def test_weights_without_a_pooler(tmp_path: Path, config, spm_model, capsys):
  weights = without_pooler(random_weights(config, 4))
  path = write_hub(tmp_path / "x", config, weights, spm_model)
  Encoder.from_pretrained(path)
  assert "newly initialized, so to be trained before use: pooler" in capsys.readouterr().err
  with pytest.raises(UserError, match="has no pooler"):
    ClassifierModel.from_pretrained(path, num_classes=2)
  model = SquadV1Model.from_pretrained(path)
  assert not np.any(model.encoder.pooler.kernel)


def test_weights_that_do_not_match(tmp_path: Path, config, spm_model):
  weights = random_weights(config, 4)
  bias = "bert/encoder/embedding_hidden_mapping_in/bias"
  wrong = {
    f"lacks 1 weights: {bias}; give the config": (Encoder, {n: v for n, v in weights.items() if n != bias}),
    "has unknown 1 weights: bert/extra; give": (Encoder, weights | {"bert/extra": weights[bias]}),
    "lacks 1 weights: cls/predictions/output_bias; give new_heads": (
      PretrainingModel,
      {n: v for n, v in weights.items() if n != "cls/predictions/output_bias"},
    ),
  }
  for number, (message, (cls, values)) in enumerate(wrong.items()):
    path = write_google(tmp_path / str(number), config, values, spm_model)
    with pytest.raises(UserError, match=message):
      cls.from_pretrained(path)
  with pytest.raises(UserError, match=r"weights=.*nowhere: no checkpoint there"):
    Encoder.from_pretrained(str(tmp_path / "nowhere"))


def test_a_config_that_is_given(tmp_path: Path, config, spm_model):
  path = write_google(tmp_path / "x", config, random_weights(config, 4), spm_model)
  dropout = dataclasses.replace(config, hidden_dropout_prob=0.2)
  assert Encoder.from_pretrained(path, config=dropout).config == dropout
  with pytest.raises(UserError, match=r"has another shape for \d+ weights: .*instead of.*give the config of these"):
    Encoder.from_pretrained(path, config=dataclasses.replace(config, intermediate_size=44))
  with pytest.raises(UserError, match=r"albert_config\.json has num_hidden_layers 2, the given config has 3"):
    Encoder.from_pretrained(path, config=dataclasses.replace(config, num_hidden_layers=3))
  (tmp_path / "x" / "albert_config.json").unlink()
  with pytest.raises(UserError, match=r"has no albert_config\.json beside it: give the model's config"):
    Encoder.from_pretrained(path)
  assert Encoder.from_pretrained(path, config=config).config == config


def test_a_directory_of_several_checkpoints(tmp_path: Path, config, spm_model):
  path = write_google(tmp_path / "x", config, random_weights(config, 4), spm_model)
  (tmp_path / "x" / "other.index").write_bytes(b"")
  with pytest.raises(UserError, match=r"has several checkpoints \(model.ckpt-best.index, other.index\): give the path"):
    Encoder.from_pretrained(path)


def test_the_settings_of_the_tokenizer(tmp_path: Path, config, spm_model):
  weights = {"bert/pooler/dense/bias": tf.zeros([3]).numpy()}
  google = write_google(tmp_path / "google", config, weights, spm_model)
  run = write_run(tmp_path / "run", config, weights, spm_model)
  settings = {}
  for path in (google, write_hub(tmp_path / "hub", config, weights, spm_model), run, spm_model):
    tokenizer_config = Tokenizer.from_pretrained(path).config
    settings[Path(path).name] = (tokenizer_config.do_lower_case, tokenizer_config.convert_quotes)
  expected = {"google": (True, False), "hub": (False, False), "run": (False, True), Path(spm_model).name: (True, False)}
  assert settings == expected
  assert Tokenizer.from_pretrained(f"{run}/checkpoints/step-{STEP}").config.convert_quotes
  assert Tokenizer.from_pretrained(f"{run}/spiece.model").config.convert_quotes
  changed = Tokenizer.from_pretrained(run, do_lower_case=True, convert_quotes=False).config
  assert (changed.do_lower_case, changed.convert_quotes) == (True, False)
  with pytest.raises(UserError, match=r"no vocabulary there \(spiece.model or 30k-clean.model\)"):
    Tokenizer.from_pretrained(str(tmp_path))
