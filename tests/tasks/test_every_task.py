"""The contract of every registered task: it trains, resumes to the same bits, evaluates, predicts and exports.

A task that is added to albert.tasks.registry.TASKS needs a dataset in tests/tasks/small_datasets.py. Without a dataset
its tests fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from albert.config.base import Config, from_dict
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError
from albert.estimator import Estimator
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.checks import QualityCheck, array_function
from albert.export.export_model import export_model
from albert.export.registry import FORMS
from albert.export.served_model import tokens_function
from albert.tasks import registry
from albert.weights.checkpoints import CheckpointManager
from tests.conftest import eager_functions
from tests.run_outputs import assert_equal_bits, read_checkpoint, read_json, read_json_lines
from tests.synthetic import TINY_MODEL
from tests.tasks.small_datasets import SMALL_DATASETS, SmallDataset

STEPS = 4


@dataclasses.dataclass(frozen=True)
class TrainedTask:
  """A task, the small dataset that it was trained on, and its finished run in `directory`."""

  name: str
  dataset: SmallDataset
  model_config: ModelConfig
  task_config: Config
  directory: Path
  metrics: dict[str, float]
  prediction_files: list[str]


def _make_estimator(name: str, model_config: ModelConfig, task_config: Config, directory: Path) -> Estimator:
  config = RunConfig(
    output_dir=str(directory),
    from_scratch=True,
    optimizer=OptimizerConfig(optimizer="adamw", learning_rate=0.003, num_warmup_steps=1),
    train=TrainConfig(
      train_batch_size=4,
      eval_batch_size=8,
      num_train_steps=STEPS,
      log_every_steps=2,
      save_checkpoints_steps=1,
      keep_checkpoints=STEPS,
      eval_every_steps=2,
      precision="float32",  # as in an export, so that their metrics are equal
    ),
  )
  return Estimator(registry.make_task(name, model_config, task_config), config)


def _no_dataset_message(task: str) -> str:
  return (
    f"the task {task!r} is registered in albert.tasks.registry.TASKS, but tests/tasks/small_datasets.py has no "
    f"dataset for it: add a function that writes a small one to SMALL_DATASETS[{task!r}]"
  )


# (name of the task, name of its dataset)
TASK_DATASETS = [(task, dataset) for task in registry.TASKS for dataset in SMALL_DATASETS.get(task, ["no dataset"])]
# Commands trace the training steps, which takes seconds. `make test` traces them for this dataset only.
TRACED_BY_MAKE_TEST = ("classifier", "classes")
# `make test` exports the models of these tasks only; test_servables.py compares the answers of every export form.
EXPORTED_BY_MAKE_TEST = ("pretraining", "classifier")


def _parameters(tasks_of_make_test: Collection[str]) -> list[Any]:
  """Returns the parameters of the fixture `trained`: (task, dataset, mode), where the mode is "eager" or "traced".

  `make test` runs the first dataset of each of `tasks_of_make_test`: TRACED_BY_MAKE_TEST traced, the others eagerly.
  `make test-slow` traces these others, and `make test-thorough` runs the rest, so every dataset is traced once.
  """
  parameters = []
  tasks_before = set()
  for task, dataset in TASK_DATASETS:
    is_first_of_task = task not in tasks_before
    tasks_before.add(task)
    modes = ["eager", "traced"] if is_first_of_task and (task, dataset) != TRACED_BY_MAKE_TEST else ["traced"]
    for mode in modes:
      is_in_make_test = is_first_of_task and mode == modes[0] and task in tasks_of_make_test
      markers = () if is_in_make_test else pytest.mark.thorough if mode == modes[0] else pytest.mark.slow
      parameters.append(pytest.param((task, dataset, mode), id=f"{task}-{dataset}-{mode}", marks=markers))
  return parameters


@pytest.fixture(scope="module", params=_parameters(registry.TASKS))
def trained(
  request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spm_model: str
) -> Iterator[TrainedTask]:
  """Each registered task on each of its datasets, after training, evaluation and prediction."""
  task, dataset_name, mode = request.param
  with eager_functions() if mode == "eager" else contextlib.nullcontext():
    yield _train(task, dataset_name, tmp_path_factory, spm_model)


def _train(task: str, dataset_name: str, tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> TrainedTask:
  if task not in SMALL_DATASETS:
    pytest.fail(_no_dataset_message(task))
  dataset = SMALL_DATASETS[task][dataset_name]
  directory = tmp_path_factory.mktemp(f"{task}-{dataset_name}")
  model_config = dataclasses.replace(
    TINY_MODEL,
    vocab_size=sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size(),
    max_position_embeddings=64,
    num_hidden_layers=1,
    hidden_dropout_prob=0.1,
  )
  (directory / "dataset").mkdir()
  config_class = registry.TASKS[task].config_class
  values: dict[str, Any] = {"spm_model_file": spm_model, **dataset.write(directory / "dataset")}
  task_config = config_class(**values)
  estimator = _make_estimator(task, model_config, task_config, directory / "run")
  estimator.train()
  metrics = estimator.evaluate()
  prediction_files = estimator.write_predictions()
  return TrainedTask(task, dataset, model_config, task_config, directory / "run", metrics, prediction_files)


def test_the_config_round_trips_through_json(trained: TrainedTask) -> None:
  fields = json.loads(json.dumps(trained.task_config.to_dict()))
  assert from_dict(type(trained.task_config), fields, source="test") == trained.task_config


def test_training_changes_the_weights_and_logs_finite_losses(trained: TrainedTask) -> None:
  first_checkpoint = read_checkpoint(trained.directory, step=1)
  last_checkpoint = read_checkpoint(trained.directory, step=STEPS)
  assert first_checkpoint.keys() == last_checkpoint.keys()
  word_embeddings = "bert/embeddings/word_embeddings"
  assert np.abs(last_checkpoint[word_embeddings] - first_checkpoint[word_embeddings]).max() > 0
  lines = read_json_lines(trained.directory / "metrics.jsonl")
  assert [line["step"] for line in lines] == [2, 4]
  assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)


def test_evaluation_computes_the_metric_by_which_checkpoints_are_compared(trained: TrainedTask) -> None:
  task = registry.make_task(trained.name, trained.model_config, trained.task_config)
  assert all(math.isfinite(value) for value in trained.metrics.values())
  assert read_json(trained.directory / "eval_results.json") == {"step": STEPS, **trained.metrics}
  evaluations = read_json_lines(trained.directory / "eval_metrics.jsonl")
  assert [line["step"] for line in evaluations] == [2, 4]
  for metric in ("loss", task.best_metric):
    assert evaluations[-1][metric] == pytest.approx(trained.metrics[metric], rel=1e-5)


def test_predictions_are_written(trained: TrainedTask) -> None:
  assert trained.prediction_files
  assert all(Path(path).stat().st_size > 0 for path in trained.prediction_files)


def test_a_run_killed_after_step_2_resumes_and_ends_in_the_same_bits(
  trained: TrainedTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  # A copy of the run, without what it wrote after step 2.
  resumed = tmp_path / "run"
  shutil.copytree(trained.directory, resumed)
  best_file = resumed / "checkpoints" / "best.json"
  if read_json(best_file)["step"] > 2:
    best_file.unlink()
  for step in range(3, STEPS + 1):
    shutil.rmtree(resumed / "checkpoints" / f"step-{step}")
  prediction_names = [str(Path(path).relative_to(trained.directory)) for path in trained.prediction_files]
  for name in prediction_names:
    (resumed / name).unlink()

  estimator = _make_estimator(trained.name, trained.model_config, trained.task_config, resumed)
  estimator.train()
  assert f"resumed from {resumed}/checkpoints/step-2" in capsys.readouterr().err
  assert estimator.evaluate() == trained.metrics
  assert estimator.write_predictions() == [str(resumed / name) for name in prediction_names]
  expected = read_checkpoint(trained.directory, STEPS)
  assert any(name.endswith("/adam_v") for name in expected)
  assert_equal_bits(read_checkpoint(resumed, STEPS), expected)
  for name in (*prediction_names, "eval_metrics.jsonl", "checkpoints/best.json"):
    assert (resumed / name).read_bytes() == (trained.directory / name).read_bytes(), name


def test_the_checkpoint_of_the_last_step_verifies(trained: TrainedTask) -> None:
  manager = CheckpointManager(str(trained.directory / "checkpoints"), keep=STEPS, model_config=trained.model_config)
  newest = manager.latest()
  assert newest is not None
  assert newest.step == STEPS  # the newest of all, so none was skipped


# The parameters are those of the fixture, in the same order, so that pytest makes each run once.
@pytest.mark.parametrize("trained", _parameters(EXPORTED_BY_MAKE_TEST), indirect=True, scope="module")
def test_an_exported_model_gives_the_recorded_answers_to_its_example_requests(
  trained: TrainedTask, tmp_path: Path
) -> None:
  _assert_recorded_answers(trained, trained.dataset.exports[0], tmp_path)


@pytest.mark.slow
def test_the_other_export_forms_give_the_recorded_answers_to_their_example_requests(
  trained: TrainedTask, tmp_path: Path
) -> None:
  for form in trained.dataset.exports[1:]:
    _assert_recorded_answers(trained, form, tmp_path)


def _assert_recorded_answers(trained: TrainedTask, form: str, output_dir: Path) -> None:
  """Exports a form of the model, and compares the served answers with those in the directory of the export."""
  directory = Path(export_model(str(trained.directory), str(output_dir), task=form))
  assert directory.name == "1"
  requests = read_json(directory / "examples" / "serving_default.json")["instances"]
  recorded_answers = read_json(directory / "examples" / "serving_default.answer.json")["predictions"]
  serve = tf.saved_model.load(str(directory)).signatures["serving_default"]
  outputs = serve(**{name: tf.constant([request[name] for request in requests]) for name in requests[0]})
  for name, output in outputs.items():
    for served, recorded in zip(output.numpy(), recorded_answers, strict=True):
      # TensorFlow Serving's JSON leaves out the name of a single output.
      expected = recorded[name] if isinstance(recorded, dict) else recorded
      values = np.asarray(served)
      if values.dtype.kind in "OS":
        decode_each = np.vectorize(lambda text: text.decode(), otypes=[object])
        assert decode_each(values).tolist() == expected, (form, name)
      else:
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5, err_msg=f"{form}: {name}")


# Form -> greatest difference between the metric of the export and that of the run's evaluation.
_METRIC_TOLERANCES = {
  # The export puts [MASK] at all masked positions, a fifth of which have other tokens in the shards.
  "fill_mask": 0.2,
  # After four steps the predicted numbers differ by 1e-5, so rounding to float32 changes their correlation by 1e-3.
  "regression": 0.01,
}


@pytest.mark.parametrize("trained", _parameters(["classifier"]), indirect=True, scope="module")
def test_the_export_measures_the_metrics_that_the_evaluation_of_the_run_computed(trained: TrainedTask) -> None:
  checkpoint = open_checkpoint(str(trained.directory))
  for name in trained.dataset.exports:
    form = select_form(checkpoint, name, {})
    eval_file = trained.dataset.eval_file(trained.task_config)
    if not form.model_class.head:
      with pytest.raises(UserError, match=f"--task={name} has no metric to measure: leave --eval_file out"):
        QualityCheck(form, checkpoint, eval_file)
      continue
    check = QualityCheck(form, checkpoint, eval_file)
    metrics = check.compute_metrics(array_function(tokens_function(form.model_class(checkpoint, form))))
    for metric in check.metric_names:
      expected = pytest.approx(trained.metrics[metric], abs=_METRIC_TOLERANCES.get(name, 1e-6))
      assert metrics[metric] == expected, (name, metric)


@pytest.mark.parametrize("task", registry.TASKS)
def test_the_datasets_of_a_task_cover_all_its_export_forms(task: str) -> None:
  assert task in SMALL_DATASETS, _no_dataset_message(task)
  forms = [form for dataset in SMALL_DATASETS[task].values() for form in dataset.exports]
  assert sorted(set(forms)) == sorted(name for name, form in FORMS.items() if form.task == task)
