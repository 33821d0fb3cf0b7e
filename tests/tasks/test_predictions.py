"""Tests of predictions files (written, read and averaged), submissions, mistakes and pictures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from albert.errors import UserError
from albert.tasks import predictions
from albert.tasks.glue import evaluation as glue_evaluation
from albert.tasks.glue.specs import SPECS
from albert.tasks.predictions import Predictions
from tests.tasks.glue.archive import rows_of

CLASSES = Predictions(
  ["a", "b", "c", "d"],
  ("no", "yes"),
  np.array([[0.25, 0.75], [0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]),
  np.array([1, 1, 0, 0], np.int32),
)
NUMBERS = Predictions(["7", "8"], (), np.array([-0.25, 5.5], np.float32), np.array([0.1, 4.0], np.float32))
OPTIONS = Predictions(["q1", "q2"], ("A", "B", "C"), np.array([[0.2, 0.8, np.nan], [0.1, 0.2, 0.7]]))


@pytest.mark.parametrize("result", [CLASSES, NUMBERS, OPTIONS, dataclasses.replace(NUMBERS, labels=None)])
def test_predictions_are_read_as_they_were_written(tmp_path: Path, result: Predictions) -> None:
  path = predictions.write_predictions(str(tmp_path), "dev", result)
  assert path == str(tmp_path / "predictions_dev.tsv")
  read_result = predictions.read_predictions(path)
  assert (list(read_result.ids), read_result.label_names) == (result.ids, result.label_names)
  np.testing.assert_allclose(read_result.scores, result.scores, rtol=1e-7)
  if result.labels is None:
    assert read_result.labels is None
  else:
    np.testing.assert_array_equal(read_result.labels, result.labels)  # type: ignore[arg-type]


def test_columns_of_a_predictions_file(tmp_path: Path) -> None:
  rows = rows_of(Path(predictions.write_predictions(str(tmp_path), "dev", CLASSES)))
  assert rows[0] == ["id", "label", "prediction", "probability_no", "probability_yes"]
  assert rows[1] == ["a", "yes", "yes", "0.25", "0.75"]
  assert rows[4][:3] == ["d", "no", "no"]  # the first of two equally probable classes
  rows = rows_of(Path(predictions.write_predictions(str(tmp_path), "test", OPTIONS)))
  assert rows[1] == ["q1", "B", "0.2", "0.8", ""]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("index\tprediction\n0\t1\n", r"p\.tsv, line 1: not a predictions file: its columns are index, prediction"),
    ("id\tprediction\tprobability_a\n0\ta\tx\n", r"p\.tsv, line 2: probability_a 'x' is not a number"),
    ("id\tprediction\tprobability_a\n0\ta\t1.5\n", r"p\.tsv, line 2: probability_a 1\.5 is not between"),
    ("id\tprediction\tprobability_a\tprobability_b\n0\ta\t\t\n", r"p\.tsv, line 2: all probabilities are empty"),
    ("id\tprediction\n0\t1\n0\t1\n", r"p\.tsv, line 3: id '0' is already used in line 2"),
  ],
)
def test_files_without_valid_predictions_are_refused(tmp_path: Path, text: str, message: str) -> None:
  (tmp_path / "p.tsv").write_text(text, encoding="utf-8")
  with pytest.raises(UserError, match=message):
    predictions.read_predictions(str(tmp_path / "p.tsv"))


def test_mistakes_are_sorted_by_probability(tmp_path: Path) -> None:
  texts = [("text", ['one "', "two\tparts", "three", "four"])]
  rows = rows_of(Path(predictions.write_mistakes(str(tmp_path), "dev", CLASSES, texts)))
  assert rows == [
    ["id", "label", "prediction", "probability", "text"],
    ["b", "yes", "no", "0.9000", "two parts"],
    ["c", "no", "yes", "0.6000", "three"],
  ]
  rows = rows_of(Path(predictions.write_mistakes(str(tmp_path), "dev", NUMBERS, [])))
  assert [row[0] for row in rows] == ["id", "8", "7"]
  assert rows[1][3] == "1.5000"


@pytest.mark.usefixtures("rendered_pictures")
def test_the_confusion_matrix(tmp_path: Path) -> None:
  assert predictions.confusion_counts(CLASSES).tolist() == [[1, 1], [1, 1]]
  skewed = dataclasses.replace(CLASSES, labels=np.array([1, 0, 0, 0], np.int32))
  assert predictions.confusion_counts(skewed).tolist() == [[2, 1], [0, 1]]
  for result, name in ((skewed, "confusion_matrix_dev.png"), (NUMBERS, "scatter_dev.png")):
    path = Path(predictions.draw_predictions(str(tmp_path), "dev", result))
    assert path.name == name
    assert path.read_bytes().startswith(b"\x89PNG")


def test_content_of_submissions(tmp_path: Path) -> None:
  spec = SPECS["STS-B"]
  path = glue_evaluation.write_submission(str(tmp_path), spec, spec.submissions["test"], NUMBERS)
  assert Path(path).read_text() == "index\tprediction\n7\t0.000000\n8\t5.000000\n"
  spec = SPECS["MNLI"]
  result = Predictions(["0", "1"], spec.labels, np.array([[0.1, 0.8, 0.1], [0.5, 0.2, 0.3]]))
  path = glue_evaluation.write_submission(str(tmp_path), spec, spec.submissions["diagnostic"], result)
  assert path.endswith("AX.tsv")
  assert Path(path).read_text() == "index\tprediction\n0\tentailment\n1\tcontradiction\n"


def test_probabilities_and_numbers_are_averaged(tmp_path: Path) -> None:
  other = dataclasses.replace(CLASSES, scores=np.array([[0.95, 0.05], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]))
  mean = predictions.average_predictions([CLASSES, other], ["x", "y"])
  np.testing.assert_allclose(mean.scores[:, 1], [0.4, 0.45, 0.5, 0.6])
  assert mean.predicted.tolist() == [0, 0, 0, 1]
  numbers = dataclasses.replace(NUMBERS, scores=np.array([0.75, 4.5], np.float32))
  assert predictions.average_predictions([NUMBERS, numbers], ["x", "y"]).scores.tolist() == [0.25, 5.0]


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"ids": ["a", "c", "b", "d"]}, "y: its ids are not those of x"),
    ({"label_names": ("yes", "no")}, "y: its labels are yes, no; those of x are no, yes"),
    ({"labels": np.array([1, 1, 0, 1])}, "y: its column 'label' is not that of x"),
    ({"labels": None}, "y: its column 'label' is not that of x"),
  ],
)
def test_only_runs_on_the_same_data_are_averaged(change: dict[str, object], message: str) -> None:
  with pytest.raises(UserError, match=message):
    predictions.average_predictions([CLASSES, dataclasses.replace(CLASSES, **change)], ["x", "y"])  # type: ignore[arg-type]


@pytest.mark.usefixtures("rendered_pictures")
def test_runs_of_the_classifier_are_averaged(tmp_path: Path) -> None:
  for name, yes in (("one", 0.25), ("two", 0.875)):
    (tmp_path / name).mkdir()
    scores = np.array([[1 - yes, yes], [0.8, 0.2]])
    result = Predictions(["0", "1"], ("0", "1"), scores, np.array([1, 0], np.int32))
    predictions.write_predictions(str(tmp_path / name), "dev", result)
    predictions.write_predictions(str(tmp_path / name), "test", dataclasses.replace(result, labels=None))
  directories = [str(tmp_path / "one"), str(tmp_path / "two")]
  output = tmp_path / "both"
  output.mkdir()
  metrics = glue_evaluation.average_runs(directories, {"task_name": "SST-2", "unknown": 3}, str(output))
  assert metrics == {"accuracy": 1.0, "majority_accuracy": 0.5}
  assert (output / "SST-2.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"
  assert rows_of(output / "predictions_dev.tsv")[1] == ["0", "1", "1", "0.4375", "0.5625"]
  assert (output / "confusion_matrix_dev.png").exists()
  with pytest.raises(UserError, match=r"have no predictions_\*\.tsv in common"):
    predictions.average_predictions_files([directories[0], str(tmp_path)], str(output), {})


def test_a_lone_surrogate_becomes_a_replacement_character(tmp_path: Path) -> None:
  """A flag of bytes that are not UTF-8 gives such characters, but the written file must be UTF-8."""
  result = Predictions(["1"], ("a\udcff", "b"), np.array([[0.25, 0.75]]), np.array([0]))
  path = predictions.write_mistakes(str(tmp_path), "dev", result, [("text", ["x\ud800\t\ny"])])
  assert "x\ufffd  y" in Path(path).read_text(encoding="utf-8")
  read_result = predictions.read_predictions(predictions.write_predictions(str(tmp_path), "dev", result))
  assert read_result.label_names == ("a\ufffd", "b")
