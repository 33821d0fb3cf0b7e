"""The log of metrics, the curves and the log of evaluations. A resumed run continues both logs at its checkpoint."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import tensorflow as tf

from albert.runs import curves
from albert.runs.logs import EvaluationLog, MetricsLog, read_metrics
from tests.file_limits import file_size_limit


def test_resuming_drops_the_lines_after_the_checkpoint(tmp_path: Path):
  log = MetricsLog(str(tmp_path), first_step=0, total_steps=40)
  for step in (10, 20, 30):
    log.write(step, {"loss": 1.0 / step})
  log.close()
  with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
    file.write('{"step": 40, "lo')  # the process was killed while it wrote the line
  log = MetricsLog(str(tmp_path), first_step=20, total_steps=40)
  log.write(30, {"loss": 7.0})
  log.close()
  assert read_metrics(str(tmp_path)) == [
    {"step": 10, "loss": 0.1},
    {"step": 20, "loss": 0.05},
    {"step": 30, "loss": 7.0},
  ]


def test_a_run_continues_with_a_warning_if_tensorboards_events_cannot_be_written(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
  metrics = {f"loss_{number}": 0.5 for number in range(20)}
  with file_size_limit(900):  # more than two lines of metrics.jsonl, less than the events of two steps
    log = MetricsLog(str(tmp_path), first_step=0, total_steps=3)
    log.write(1, metrics)
    log.write(2, metrics)
    log.close()
  warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
  assert [line.partition(")")[0] for line in warnings] == [
    f"warning: {tmp_path}/tensorboard: cannot write TensorBoard's events (File too large"
  ]
  assert read_metrics(str(tmp_path)) == [{"step": step, **metrics} for step in (1, 2)]


@pytest.mark.usefixtures("rendered_pictures")
def test_draw_curves_writes_a_png(tmp_path: Path):
  log = MetricsLog(str(tmp_path), first_step=0, total_steps=3)
  for step in (1, 2, 3):
    log.write(step, {"masked_lm_loss": 3.0 - step, "masked_lm_accuracy": 0.1 * step, "learning_rate": 0.1})
  log.close()
  path = curves.draw_curves(str(tmp_path))
  assert path is not None
  assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_curves_of_evaluations_are_drawn_beside_those_of_training_and_guessing_dashed(tmp_path: Path):
  lines = [{"step": step, "loss": 1.0 / step, "grad_norm": 2.0, "learning_rate": 0.1} for step in (1, 2, 3)]
  guesses = {"guessing_loss": 0.69, "majority_accuracy": 0.5}
  evaluations = [
    {"step": step, "loss": 0.5 / step, "accuracy": 0.25 * step, "f1": 0.125 * step, "macro_recall": 0.1, **guesses}
    for step in (2, 3)
  ]
  panels = curves.collect_panels(lines, evaluations)
  assert panels == {
    "loss": [
      curves.Curve("loss", "-", (1, 2, 3), (1.0, 0.5, 1 / 3)),
      curves.Curve("loss (evaluation)", ".-", (2, 3), (0.25, 0.5 / 3)),
      curves.Curve("guessing loss", "--", (), (0.69,)),
    ],
    "accuracy": [
      curves.Curve("accuracy (evaluation)", ".-", (2, 3), (0.5, 0.75)),
      curves.Curve("majority accuracy", "--", (), (0.5,)),
    ],
    "scores": [curves.Curve("f1 (evaluation)", ".-", (2, 3), (0.25, 0.375))],
    "learning rate": [curves.Curve("learning_rate", "-", (1, 2, 3), (0.1, 0.1, 0.1))],
    "gradient norm": [curves.Curve("grad_norm", "-", (1, 2, 3), (2.0, 2.0, 2.0))],
  }


@pytest.mark.parametrize("name", ["guessing_accuracy", "dev_guessing_accuracy", "masked_lm_baseline_accuracy"])
def test_every_accuracy_of_guessing_is_a_horizontal_dashed_line(name: str):
  panels = curves.collect_panels([{"step": 1}], [{"step": 1, name: 0.25}, {"step": 2, name: 0.25}])
  assert panels == {"accuracy": [curves.Curve(name.replace("_", " "), "--", (), (0.25,))]}


@pytest.mark.usefixtures("rendered_pictures")
def test_a_figure_with_guessing_is_drawn(tmp_path: Path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
  (tmp_path / "eval_metrics.jsonl").write_text('{"step": 2, "loss": 1.5, "guessing_loss": 0.7, "f1": null}\n')
  path = curves.draw_curves(str(tmp_path))
  assert path is not None
  assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_evaluations_are_written_to_tensorboard_as_a_run_of_their_own(tmp_path: Path):
  log = MetricsLog(str(tmp_path), first_step=0, total_steps=2)
  log.write(1, {"loss": 2.0})
  log.write_evaluation(2, {"accuracy": 0.75})
  log.close()
  (path,) = (tmp_path / "tensorboard" / "eval").iterdir()
  events = [event for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value]
  (event,) = events
  (value,) = event.summary.value
  assert (event.step, value.tag, float(tf.make_ndarray(value.tensor))) == (2, "accuracy", 0.75)


def test_curves_are_outdated_if_they_are_missing_or_older_than_the_metrics(tmp_path: Path):
  assert not curves.are_outdated(str(tmp_path))  # nothing to draw
  (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
  assert curves.are_outdated(str(tmp_path))
  picture = curves.draw_curves(str(tmp_path))
  assert picture is not None
  assert not curves.are_outdated(str(tmp_path))
  os.utime(picture, ns=(1, 1))
  assert curves.are_outdated(str(tmp_path))


def test_without_metrics_no_curves_are_drawn(tmp_path: Path):
  assert curves.draw_curves(str(tmp_path)) is None


def test_numbers_that_are_not_finite_are_written_as_null_and_read_as_none(tmp_path: Path):
  """NaN and Infinity are not JSON, but earlier versions wrote them, so they can be read."""
  log = MetricsLog(str(tmp_path), first_step=0, total_steps=3)
  log.write(1, {"loss": 2.0})
  log.write(2, {"loss": math.nan})
  log.close()
  assert (tmp_path / "metrics.jsonl").read_text().splitlines()[1] == '{"step": 2, "loss": null}'
  with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
    file.write('{"step": 3, "loss": -Infinity}\n')
  assert [line["loss"] for line in read_metrics(str(tmp_path))] == [2.0, None, None]
  assert curves.draw_curves(str(tmp_path)) is not None


def test_an_evaluation_whose_metric_is_not_a_number_ranks_last(tmp_path: Path):
  log = EvaluationLog(str(tmp_path), first_step=0, metric="loss", higher_is_better=False)
  # Each loss, and the number of evaluations since the best one that results.
  losses_and_counts = [(2.0, 0), (math.nan, 1), (1.0, 0), (math.nan, 1), (math.nan, 2)]
  for step, (loss, evaluations_since_best) in enumerate(losses_and_counts):
    log.add(step, {"loss": loss})
    assert log.evaluations_since_best == evaluations_since_best
  reopened = EvaluationLog(str(tmp_path), first_step=9, metric="loss", higher_is_better=False)
  assert reopened.evaluations_since_best == 2
