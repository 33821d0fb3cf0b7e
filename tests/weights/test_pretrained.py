"""from_pretrained of the encoder, the task models and the tokenizer, for every kind of weights, and its errors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.models.classifier import ClassifierModel
from albert.models.encoder import Encoder
from albert.models.heads import EncoderModel, PretrainingModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import SquadV1Model, SquadV2Model
from albert.tokenization.tokenizer import Tokenizer
from tests.convert.files_of_weights import without_pooler
from tests.golden.make_tiny_albert import random_weights
from tests.reference.albert import Reference
from tests.small_downloads import STEP, small_config, write_google, write_hub, write_run

# Kind of weights -> a function that writes such weights into a directory, and returns their path.
WRITERS: dict[str, Callable[..., str]] = {"google": write_google, "huggingface": write_hub, "run": write_run}


@pytest.fixture
def config(spm_model: str) -> ModelConfig:
  return small_config(spm_model)


def read_weights(model: EncoderModel | Encoder) -> dict[str, np.ndarray]:
  return {name: variable.numpy() for name, variable in model.named_weights().items()}


@pytest.mark.parametrize("kind", WRITERS)
def test_the_encoder_and_the_pretraining_model_are_loaded(tmp_path: Path, config, spm_model, kind, capsys):
  weights = random_weights(config, 4)
  path = WRITERS[kind](tmp_path / "x", config, weights, spm_model)
  encoder = Encoder.from_pretrained(path, name="mine")
  assert encoder.name == "mine"
  assert encoder.config.hidden_size == config.hidden_size
  texts = ["the captain sold the garden", "nobody"]
  batch = Tokenizer.from_pretrained(path)(texts)
  expected, _ = Reference(config, weights).encode(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
  np.testing.assert_allclose(encoder(batch).pooled_output, expected.pooled_output, atol=1e-5)
  model = PretrainingModel.from_pretrained(path + "/")
  for name, weight in read_weights(model).items():
    np.testing.assert_array_equal(weight, weights[name])
  assert "newly initialized" not in capsys.readouterr().err


def test_a_path_may_name_a_checkpoint_or_the_directory_of_several_runs(tmp_path: Path, config, spm_model):
  weights = random_weights(config, 4)
  google = write_google(tmp_path / "google", config, weights, spm_model)
  several_runs = tmp_path / "several"
  several_runs.mkdir()
  run = write_run(several_runs / "run-5", config, weights, spm_model)
  (several_runs / "runs.json").write_text(json.dumps({"seeds": [5], "best_run": "run-5", "metrics": {}}))
  for path in (f"{run}/checkpoints/step-{STEP}", str(several_runs), f"{google}/model.ckpt-best"):
    kernel = read_weights(Encoder.from_pretrained(path))["bert/pooler/dense/kernel"]
    np.testing.assert_array_equal(kernel, weights["bert/pooler/dense/kernel"])
    tokenizer = Tokenizer.from_pretrained(path)
    assert tokenizer.vocab_size == config.vocab_size
    is_lower_cased = path.startswith(google)  # config.json of the run says that it is cased and has converted quotes
    assert (tokenizer.config.do_lower_case, tokenizer.config.convert_quotes) == (is_lower_cased, not is_lower_cased)


@pytest.mark.parametrize(
  ("load", "head"),
  [
    (lambda path: ClassifierModel.from_pretrained(path, num_classes=4), "classifier"),
    (MultipleChoiceModel.from_pretrained, "classifier"),
    (SquadV1Model.from_pretrained, "squad"),
    (SquadV2Model.from_pretrained, "squad_v2"),
  ],
)
def test_a_missing_head_is_initialized_and_logged(tmp_path: Path, config, spm_model, load, head, capsys):
  written = random_weights(config, 4)
  model = load(write_google(tmp_path / "x", config, written, spm_model))
  assert f"newly initialized, so to be trained before use: {head} head" in capsys.readouterr().err
  loaded = read_weights(model)
  names_in_both = set(written) & set(loaded)
  assert names_in_both == {name for name in written if name.startswith("bert/")}
  for name in names_in_both:
    np.testing.assert_array_equal(loaded[name], written[name])


def test_a_classifier_head_is_loaded_with_its_number_of_classes(tmp_path: Path, config, spm_model, capsys):
  weights = random_weights(config, 4, with_heads=("classifier",), num_classes=3)
  path = write_run(tmp_path / "x", config, weights, spm_model)
  model = ClassifierModel.from_pretrained(path)
  assert model.num_classes == 3
  for name, weight in read_weights(model).items():
    np.testing.assert_array_equal(weight, weights[name])
  with pytest.raises(UserError, match="its classifier has 3 classes, not 5: give new_heads=True"):
    ClassifierModel.from_pretrained(path, num_classes=5)
  with pytest.raises(UserError, match=r"another shape for 2 weights: output_bias \[3\] instead of \[1\].*new_heads"):
    MultipleChoiceModel.from_pretrained(path)
  assert not capsys.readouterr().err
  model = ClassifierModel.from_pretrained(path, num_classes=5, new_heads=True)
  assert model.head.output_weights.shape == (5, config.hidden_size)
  assert "classifier head" in capsys.readouterr().err


@pytest.mark.parametrize("new_heads", [False, True])
def test_the_number_of_classes_must_be_given_if_the_weights_have_no_classifier(
  tmp_path: Path, config, spm_model, new_heads
):
  path = write_google(tmp_path / "x", config, random_weights(config, 4), spm_model)
  with pytest.raises(UserError, match="no classifier is loaded from it: give num_classes"):
    ClassifierModel.from_pretrained(path, new_heads=new_heads)


def test_weights_without_a_pooler_are_loaded_where_the_task_does_not_need_it(tmp_path: Path, config, spm_model, capsys):
  weights = without_pooler(random_weights(config, 4))
  path = write_hub(tmp_path / "x", config, weights, spm_model)
  Encoder.from_pretrained(path)
  assert "newly initialized, so to be trained before use: pooler" in capsys.readouterr().err
  with pytest.raises(UserError, match="has no pooler"):
    ClassifierModel.from_pretrained(path, num_classes=2)
  model = SquadV1Model.from_pretrained(path)
  assert not np.any(model.encoder.pooler.kernel)


def test_missing_and_unknown_weights_are_refused(tmp_path: Path, config, spm_model):
  weights = random_weights(config, 4)
  bias, head_bias = "bert/encoder/embedding_hidden_mapping_in/bias", "cls/predictions/output_bias"
  without_bias = {name: weight for name, weight in weights.items() if name != bias}
  without_head_bias = {name: weight for name, weight in weights.items() if name != head_bias}
  with_unknown_name = weights | {"bert/extra": weights[bias]}
  cases: list[tuple[type[Encoder | PretrainingModel], dict[str, np.ndarray], str]]
  cases = [
    (Encoder, without_bias, f"lacks 1 weight: {bias}; give the config"),
    (Encoder, with_unknown_name, "has unknown 1 weight: bert/extra; give"),
    (PretrainingModel, without_head_bias, f"lacks 1 weight: {head_bias}; give new_heads"),
  ]
  for index, (model_class, bad_weights, message) in enumerate(cases):
    path = write_google(tmp_path / str(index), config, bad_weights, spm_model)
    with pytest.raises(UserError, match=message):
      model_class.from_pretrained(path)
  with pytest.raises(UserError, match=r"weights=.*nowhere: no checkpoint there"):
    Encoder.from_pretrained(str(tmp_path / "nowhere"))


def test_a_given_config_may_change_only_what_the_weights_do_not_determine(tmp_path: Path, config, spm_model):
  path = write_google(tmp_path / "x", config, random_weights(config, 4), spm_model)
  config_with_dropout = dataclasses.replace(config, hidden_dropout_prob=0.2)
  assert Encoder.from_pretrained(path, config=config_with_dropout).config == config_with_dropout
  with pytest.raises(UserError, match=r"has another shape for \d+ weights: .*instead of.*give the config of these"):
    Encoder.from_pretrained(path, config=dataclasses.replace(config, intermediate_size=44))
  message = r"albert_config\.json has num_hidden_layers 2, this model has 3; give that config"
  with pytest.raises(UserError, match=message):
    Encoder.from_pretrained(path, config=dataclasses.replace(config, num_hidden_layers=3))
  (tmp_path / "x" / "albert_config.json").unlink()
  with pytest.raises(UserError, match=r"has no albert_config\.json beside it: give the model's config"):
    Encoder.from_pretrained(path)
  assert Encoder.from_pretrained(path, config=config).config == config


def test_a_directory_of_several_checkpoints_is_refused(tmp_path: Path, config, spm_model):
  path = write_google(tmp_path / "x", config, random_weights(config, 4), spm_model)
  (tmp_path / "x" / "other.index").write_bytes(b"")
  with pytest.raises(UserError, match=r"has several checkpoints \(model.ckpt-best.index, other.index\): give the path"):
    Encoder.from_pretrained(path)
