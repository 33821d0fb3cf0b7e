"""The log of metrics and the log of evaluations. A resumed run continues both logs at its checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tensorflow as tf

from albert.config.run import TrainConfig
from albert.runs.logs import EvaluationLog, MetricsLog, read_metrics
from tests.file_limits import file_size_limit


def test_resuming_drops_the_lines_after_the_checkpoint(tmp_path: Path):
  log = MetricsLog(str(tmp_path), first_step=0, train=TrainConfig(num_train_steps=40))
  for step in (10, 20, 30):
    log.write(step, {"loss": 1.0 / step})
  log.close()
  with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
    file.write('{"step": 40, "lo')  # the process was killed while it wrote the line
  log = MetricsLog(str(tmp_path), first_step=20, train=TrainConfig(num_train_steps=40))
  log.write(30, {"loss": 7.0})
  log.close()
  assert read_metrics(str(tmp_path)) == [
    {"step": 10, "loss": 0.1},
    {"step": 20, "loss": 0.05},
    {"step": 30, "loss": 7.0},
  ]


def test_the_progress_shows_the_loss_of_the_step_that_it_names(tmp_path: Path, capsys, monkeypatch):
  monkeypatch.setattr("albert.io.progress._interval", lambda seconds: 0.0)
  log = MetricsLog(str(tmp_path), first_step=0, train=TrainConfig(num_train_steps=3))
  for step in (1, 2, 3):
    log.write(step, {"loss": step / 4})
  log.close()
  words = [line.split() for line in capsys.readouterr().err.splitlines()]
  assert [(line[2], line[-1]) for line in words] == [("1", "0.25"), ("2", "0.5"), ("3", "0.75")]


def test_a_run_continues_with_a_warning_if_tensorboards_events_cannot_be_written(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
  metrics = {f"loss_{number}": 0.5 for number in range(20)}
  with file_size_limit(900):  # more than two lines of metrics.jsonl, less than the events of two steps
    log = MetricsLog(str(tmp_path), first_step=0, train=TrainConfig(num_train_steps=3))
    log.write(1, metrics)
    log.write(2, metrics)
    log.close()
  warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
  assert [line.partition(")")[0] for line in warnings] == [
    f"warning: {tmp_path}/tensorboard: cannot write TensorBoard's events (File too large"
  ]
  assert read_metrics(str(tmp_path)) == [{"step": step, **metrics} for step in (1, 2)]


def test_evaluations_are_written_to_tensorboard_as_a_run_of_their_own(tmp_path: Path):
  log = MetricsLog(str(tmp_path), first_step=0, train=TrainConfig(num_train_steps=2))
  log.write(1, {"loss": 2.0})
  log.write_evaluation(2, {"accuracy": 0.75})
  log.close()
  (path,) = (tmp_path / "tensorboard" / "eval").iterdir()
  events = [event for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value]
  (event,) = events
  (value,) = event.summary.value
  assert (event.step, value.tag, float(tf.make_ndarray(value.tensor))) == (2, "accuracy", 0.75)


def test_numbers_that_are_not_finite_are_written_as_null_and_read_as_none(tmp_path: Path):
  """NaN and Infinity are not JSON, but earlier versions wrote them, so they can be read."""
  log = MetricsLog(str(tmp_path), first_step=0, train=TrainConfig(num_train_steps=3))
  log.write(1, {"loss": 2.0})
  log.write(2, {"loss": math.nan})
  log.close()
  assert (tmp_path / "metrics.jsonl").read_text().splitlines()[1] == '{"step": 2, "loss": null}'
  with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
    file.write('{"step": 3, "loss": -Infinity}\n')
  assert [line["loss"] for line in read_metrics(str(tmp_path))] == [2.0, None, None]


def test_an_evaluation_whose_metric_is_not_a_number_ranks_last(tmp_path: Path):
  log = EvaluationLog(str(tmp_path), first_step=0, metric="loss", higher_is_better=False)
  # Each loss, and the number of evaluations since the best one that results.
  losses_and_counts = [(2.0, 0), (math.nan, 1), (1.0, 0), (math.nan, 1), (math.nan, 2)]
  for step, (loss, evaluations_since_best) in enumerate(losses_and_counts):
    log.add(step, {"loss": loss})
    assert log.evaluations_since_best == evaluations_since_best
  reopened = EvaluationLog(str(tmp_path), first_step=9, metric="loss", higher_is_better=False)
  assert reopened.evaluations_since_best == 2
