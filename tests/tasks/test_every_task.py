"""The contract of every registered task: it trains, resumes to the same bits, evaluates, predicts and exports.

A task that is added to TASKS is tested here as soon as tests/tasks/small_datasets.py has a dataset for it, and fails
here until then.
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
from albert.estimator import Estimator
from albert.export.export_model import export_model
from albert.export.registry import FORMS
from albert.tasks import registry
from albert.weights.checkpoints import CheckpointManager
from tests.conftest import eager_functions
from tests.synthetic import TINY_MODEL
from tests.tasks.small_datasets import SMALL_DATASETS, SmallDataset

STEPS = 4


@dataclasses.dataclass(frozen=True)
class TrainedTask:
  """A task with a finished run.

  Attributes:
    name: the name in albert.tasks.registry.TASKS.
    dataset: the dataset that it was trained on.
    model_config: the model's config.
    task_config: the task's config.
    directory: the output_dir of the run.
    metrics: the results of the evaluation.
    predictions: paths of the predictions.
  """

  name: str
  dataset: SmallDataset
  model_config: ModelConfig
  task_config: Config
  directory: Path
  metrics: dict[str, float]
  predictions: list[str]

  def estimator(self, directory: Path) -> Estimator:
    """Makes a new estimator of the same task with the same settings."""
    return _make_estimator(self.name, self.model_config, self.task_config, directory)


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
    ),
  )
  return Estimator(registry.make_task(name, model_config, task_config), config)


def _no_dataset_message(task: str) -> str:
  return (
    f"the task {task!r} is registered in albert.tasks.registry.TASKS, but tests/tasks/small_datasets.py has no "
    f"dataset for it: add a function that writes a small one to SMALL_DATASETS[{task!r}]"
  )


CASES = [(task, case) for task in registry.TASKS for case in SMALL_DATASETS.get(task, {"no dataset": None})]
# Commands trace the steps, which takes seconds. `make test` does so for this case only.
TRACED_BY_MAKE_TEST = ("classifier", "classes")
# It exports only these; test_servables.py compares the answers of every form.
EXPORTED_BY_MAKE_TEST = ("pretraining", "classifier")


def _runs(tasks_of_make_test: Collection[str]) -> Iterator[Any]:
  """(task, case, mode): the first case of each task for `make test`, and all cases with traced steps."""
  first_cases = list(dict(reversed(CASES)).items())
  for task, case in CASES:
    is_first = (task, case) in first_cases
    modes = ("traced",) if (task, case) == TRACED_BY_MAKE_TEST else ("eager", "traced") if is_first else ("traced",)
    for mode in modes:
      is_fast = is_first and mode == modes[0] and task in tasks_of_make_test
      yield pytest.param((task, case, mode), id=f"{task}-{case}-{mode}", marks=() if is_fast else pytest.mark.thorough)


@pytest.fixture(scope="module", params=_runs(registry.TASKS))
def trained(
  request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spm_model: str
) -> Iterator[TrainedTask]:
  """The datasets of each registered task, after training, evaluation and prediction."""
  task, case, mode = request.param
  with eager_functions() if mode == "eager" else contextlib.nullcontext():
    yield _train(task, case, tmp_path_factory, spm_model)


def _train(task: str, case: str, tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> TrainedTask:
  if task not in SMALL_DATASETS:
    pytest.fail(_no_dataset_message(task))
  dataset = SMALL_DATASETS[task][case]
  directory = tmp_path_factory.mktemp(f"{task}-{case}")
  model_config = dataclasses.replace(
    TINY_MODEL,
    vocab_size=sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size(),
    max_position_embeddings=64,
    num_hidden_layers=1,
    hidden_dropout_prob=0.1,
  )
  (directory / "dataset").mkdir()
  config_class = registry.TASKS[task].config_class
  task_config = config_class(spm_model_file=spm_model, **dataset.write(directory / "dataset"))
  estimator = _make_estimator(task, model_config, task_config, directory / "run")
  estimator.train()
  metrics = estimator.evaluate()
  predictions = estimator.write_predictions()
  return TrainedTask(task, dataset, model_config, task_config, directory / "run", metrics, predictions)


def read_tensors(run: Path, step: int) -> dict[str, np.ndarray]:
  """Reads all tensors of a checkpoint: weights, optimizer state and step."""
  reader = tf.train.load_checkpoint(str(run / "checkpoints" / f"step-{step}" / "weights"))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_the_config_round_trips_through_json(trained: TrainedTask) -> None:
  values = json.loads(json.dumps(trained.task_config.to_dict()))
  assert from_dict(type(trained.task_config), values, source="test") == trained.task_config


def test_training_changes_the_weights_and_logs_finite_losses(trained: TrainedTask) -> None:
  first, last = read_tensors(trained.directory, 1), read_tensors(trained.directory, STEPS)
  assert first.keys() == last.keys()
  word_embeddings = "bert/embeddings/word_embeddings"
  assert np.abs(last[word_embeddings] - first[word_embeddings]).max() > 0
  lines = [json.loads(line) for line in (trained.directory / "metrics.jsonl").read_text().splitlines()]
  assert [line["step"] for line in lines] == [2, 4]
  assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)


def test_evaluation_computes_the_metric_by_which_checkpoints_are_compared(trained: TrainedTask) -> None:
  task = registry.make_task(trained.name, trained.model_config, trained.task_config)
  assert all(math.isfinite(value) for value in trained.metrics.values())
  results = json.loads((trained.directory / "eval_results.json").read_text())
  assert results == {"step": STEPS, **trained.metrics}
  evaluations = [json.loads(line) for line in (trained.directory / "eval_metrics.jsonl").read_text().splitlines()]
  assert [line["step"] for line in evaluations] == [2, 4]
  for metric in ("loss", task.best_metric):
    assert evaluations[-1][metric] == pytest.approx(trained.metrics[metric], rel=1e-5)


def test_predictions_are_written(trained: TrainedTask) -> None:
  assert trained.predictions
  assert all(Path(path).stat().st_size > 0 for path in trained.predictions)


def test_a_run_killed_after_step_2_resumes_and_ends_in_the_same_bits(
  trained: TrainedTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  resumed = tmp_path / "run"
  shutil.copytree(trained.directory, resumed)
  best_file = resumed / "checkpoints" / "best.json"
  if json.loads(best_file.read_text())["step"] > 2:
    best_file.unlink()
  for step in range(3, STEPS + 1):
    shutil.rmtree(resumed / "checkpoints" / f"step-{step}")
  for path in trained.predictions:
    (resumed / Path(path).relative_to(trained.directory)).unlink()
  estimator = trained.estimator(resumed)
  estimator.train()
  assert f"resumed from {resumed}/checkpoints/step-2" in capsys.readouterr().err
  assert estimator.evaluate() == trained.metrics
  predictions = estimator.write_predictions()
  expected, resumed_tensors = read_tensors(trained.directory, STEPS), read_tensors(resumed, STEPS)
  assert any(name.endswith("/adam_v") for name in expected)
  assert expected.keys() == resumed_tensors.keys()
  for name, value in expected.items():
    assert value.tobytes() == resumed_tensors[name].tobytes(), name
  files = [str(Path(path).relative_to(resumed)) for path in predictions]
  assert files == [str(Path(path).relative_to(trained.directory)) for path in trained.predictions]
  for name in (*files, "eval_metrics.jsonl", "checkpoints/best.json"):
    assert (resumed / name).read_bytes() == (trained.directory / name).read_bytes(), name


def test_the_checkpoint_of_the_last_step_verifies(trained: TrainedTask) -> None:
  manager = CheckpointManager(str(trained.directory / "checkpoints"), keep=STEPS, model_config=trained.model_config)
  newest, warnings = manager.latest()
  assert newest is not None
  assert (newest.step, warnings) == (STEPS, [])


# The parameters are those of the fixture, in the same order, so that pytest makes each run once.
@pytest.mark.parametrize("trained", _runs(EXPORTED_BY_MAKE_TEST), indirect=True, scope="module")
def test_an_exported_model_gives_the_answers_of_its_examples(trained: TrainedTask, tmp_path: Path) -> None:
  _assert_export_answers(trained, trained.dataset.exports[0], tmp_path)


@pytest.mark.thorough
def test_the_other_forms_of_an_export_give_the_answers_of_their_examples(trained: TrainedTask, tmp_path: Path) -> None:
  for form in trained.dataset.exports[1:]:
    _assert_export_answers(trained, form, tmp_path)


def _assert_export_answers(trained: TrainedTask, form: str, tmp_path: Path) -> None:
  directory = Path(export_model(str(trained.directory), str(tmp_path), task=form))
  assert directory.name == "1"
  examples = directory / "examples"
  requests = json.loads((examples / "serving_default.json").read_text())["instances"]
  expected = json.loads((examples / "serving_default.answer.json").read_text())["predictions"]
  serve = tf.saved_model.load(str(directory)).signatures["serving_default"]
  answers = serve(**{name: tf.constant([request[name] for request in requests]) for name in requests[0]})
  for name, values in answers.items():
    for value, row in zip(values.numpy(), expected, strict=True):
      _assert_equal(value, row[name] if isinstance(row, dict) else row, f"{form}: {name}")


def _assert_equal(value: Any, expected: Any, where: str) -> None:
  value = np.asarray(value)
  if value.dtype.kind in "OS":
    assert np.vectorize(lambda text: text.decode(), otypes=[object])(value).tolist() == expected, where
  else:
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg=where)


@pytest.mark.parametrize("task", registry.TASKS)
def test_every_served_form_has_a_dataset(task: str) -> None:
  assert task in SMALL_DATASETS, _no_dataset_message(task)
  forms = [form for dataset in SMALL_DATASETS[task].values() for form in dataset.exports]
  assert sorted(forms) == sorted(name for name, form in FORMS.items() if form.task == task)
