"""Tests of predictions: their files, averages of several runs, submissions to GLUE, lists of mistakes and pictures."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from albert.errors import UserError
from albert.tasks import predictions
from albert.tasks.glue import results as glue_evaluation
from albert.tasks.glue.specs import SPECS
from albert.tasks.predictions import Predictions, label_losses, write_mistakes
from tests.tasks.glue.archive import read_tsv_rows

# Of two classes, with labels. The predictions for a and d are right, those for b and c are wrong.
CLASS_PREDICTIONS = Predictions(
  ids=["a", "b", "c", "d"],
  label_names=("no", "yes"),
  scores=np.array([[0.25, 0.75], [0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]),
  labels=np.array([1, 1, 0, 0], np.int32),
)
REGRESSION_PREDICTIONS = Predictions(
  ids=["7", "8"], label_names=(), scores=np.array([-0.25, 5.5], np.float32), labels=np.array([0.1, 4.0], np.float32)
)
# Of multiple choice, without labels. The question q1 has only two options.
CHOICE_PREDICTIONS = Predictions(
  ids=["q1", "q2"], label_names=("A", "B", "C"), scores=np.array([[0.2, 0.8, np.nan], [0.1, 0.2, 0.7]])
)


@pytest.mark.parametrize(
  "written",
  [
    CLASS_PREDICTIONS,
    REGRESSION_PREDICTIONS,
    CHOICE_PREDICTIONS,
    dataclasses.replace(REGRESSION_PREDICTIONS, labels=None),
  ],
)
def test_predictions_are_read_as_they_were_written(tmp_path: Path, written: Predictions) -> None:
  path = str(tmp_path / "predictions_dev.tsv")
  predictions.write_predictions(path, written)
  read = predictions.read_predictions(path)
  assert (list(read.ids), read.label_names) == (written.ids, written.label_names)
  np.testing.assert_allclose(read.scores, written.scores, rtol=1e-7)
  if written.labels is None:
    assert read.labels is None
  else:
    np.testing.assert_array_equal(read.labels, written.labels)


def test_a_predictions_file_has_the_label_the_prediction_and_the_probabilities(tmp_path: Path) -> None:
  path = tmp_path / "predictions.tsv"
  predictions.write_predictions(str(path), CLASS_PREDICTIONS)
  rows = read_tsv_rows(path)
  assert rows[0] == ["id", "label", "prediction", "probability_no", "probability_yes"]
  assert rows[1] == ["a", "yes", "yes", "0.25", "0.75"]
  assert rows[4][:3] == ["d", "no", "no"]  # the first of two equally probable classes
  predictions.write_predictions(str(path), CHOICE_PREDICTIONS)
  rows = read_tsv_rows(path)
  assert rows[1] == ["q1", "B", "0.2", "0.8", ""]  # no label, and no third option


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("index\tprediction\n0\t1\n", r"p\.tsv, line 1: not a predictions file: its columns are 'index', 'prediction'"),
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


def test_mistakes_are_sorted_by_loss_or_by_error(tmp_path: Path) -> None:
  text_columns = [("text", ['one "', "two\twords", "three", "four"])]
  rows = read_tsv_rows(Path(write_mistakes(str(tmp_path), "dev", CLASS_PREDICTIONS, text_columns)))
  assert rows == [
    ["id", "label", "prediction", "loss", "probability", "text"],
    ["b", "yes", "no", "2.3026", "0.9000", "two words"],  # -log(0.1)
    ["c", "no", "yes", "0.9163", "0.6000", "three"],  # -log(0.4)
  ]
  # With three classes the order by the loss is not that by the probability of the prediction. A probability of 0 counts
  # as 1e-30; options that a question lacks have none.
  scores = np.array([[0.6, 0.3, 0.1], [0.5, 0.04, 0.46], [0.0, 1.0, np.nan], [0.4, 0.25, 0.35]])
  three_classes = Predictions(["p", "q", "r", "s"], ("A", "B", "C"), scores, np.array([1, 1, 0, 0], np.int32))
  rows = read_tsv_rows(Path(write_mistakes(str(tmp_path), "dev", three_classes, [])))
  assert [(row[0], row[3]) for row in rows[1:]] == [("r", "69.0776"), ("q", "3.2189"), ("p", "1.2040")]
  rows = read_tsv_rows(Path(write_mistakes(str(tmp_path), "dev", REGRESSION_PREDICTIONS, [])))
  assert [row[0] for row in rows] == ["id", "8", "7"]
  assert rows[1][3] == "1.5000"  # the error of 8: 5.5 - 4.0


def test_the_least_sure_predictions_come_first_in_a_csv_file(tmp_path: Path) -> None:
  texts = {"text": ['one "', "two\nlines", "three, 3", "four"]}
  predictions.write_least_sure(str(tmp_path / "unsure_new.tsv"), CLASS_PREDICTIONS, texts)
  with (tmp_path / "unsure_new.csv").open(newline="", encoding="utf-8") as file:
    assert list(csv.reader(file)) == [
      ["id", "text", "prediction", "margin"],
      ["d", "four", "no", "0.0000"],
      ["c", "three, 3", "yes", "0.2000"],
      ["a", 'one "', "yes", "0.5000"],
      ["b", "two\nlines", "no", "0.8000"],
    ]
  scores = np.array([[0.9, 0.45], [0.31, 0.1], [0.2, 0.51]])
  several = Predictions(["p", "q", "r"], ("x", "y"), scores, thresholds=np.array([0.3, 0.5]))
  predictions.write_least_sure(str(tmp_path / "unsure_x"), several, {})
  assert (tmp_path / "unsure_x.csv").read_text().split() == [
    "id,prediction,margin",
    "q,x,0.0100",
    "r,y,0.0100",
    "p,x,0.0500",
  ]


def test_the_mistakes_of_several_labels_are_sorted_by_the_mean_binary_cross_entropy(tmp_path: Path) -> None:
  rng = np.random.default_rng(3)
  labels, scores = rng.integers(0, 2, [7, 3]), rng.random([7, 3])
  written = Predictions(list("abcdefg"), ("x", "y", "z"), scores, labels, np.array([0.3, 0.5, 0.7]))
  expected = [
    np.mean([metrics.log_loss([label], [score], labels=[0, 1]) for label, score in zip(*row, strict=True)])
    for row in zip(labels, scores, strict=True)
  ]
  np.testing.assert_allclose(label_losses(written), expected)
  rows = read_tsv_rows(Path(write_mistakes(str(tmp_path), "dev", written, [])))
  wrong = [i for i in range(7) if any((scores[i] >= [0.3, 0.5, 0.7]) != labels[i])]
  assert len(wrong) > 1
  assert rows[0] == ["id", "label", "prediction", "loss"]
  assert [row[0] for row in rows[1:]] == [written.ids[i] for i in sorted(wrong, key=lambda i: -expected[i])]


@pytest.mark.usefixtures("rendered_pictures")
def test_predictions_are_drawn_as_a_confusion_matrix_or_as_a_scatter_plot(tmp_path: Path) -> None:
  assert predictions.confusion_counts(CLASS_PREDICTIONS).tolist() == [[1, 1], [1, 1]]
  # One "yes" and three "no", so that rows (labels) and columns (predictions) differ.
  skewed = dataclasses.replace(CLASS_PREDICTIONS, labels=np.array([1, 0, 0, 0], np.int32))
  assert predictions.confusion_counts(skewed).tolist() == [[2, 1], [0, 1]]
  for drawn, name in ((skewed, "confusion_matrix_dev.png"), (REGRESSION_PREDICTIONS, "scatter_dev.png")):
    path = Path(predictions.draw_predictions(str(tmp_path), "dev", drawn))
    assert path.name == name
    assert path.read_bytes().startswith(b"\x89PNG")


def test_submissions_hold_indices_with_label_names_or_with_scores_from_0_to_5(tmp_path: Path) -> None:
  spec = SPECS["STS-B"]
  path = tmp_path / "submission.tsv"
  glue_evaluation.write_submission(str(path), spec, REGRESSION_PREDICTIONS)
  assert path.read_text() == "index\tprediction\n7\t0.000000\n8\t5.000000\n"
  spec = SPECS["MNLI"]
  mnli_predictions = Predictions(["0", "1"], spec.labels, np.array([[0.1, 0.8, 0.1], [0.5, 0.2, 0.3]]))
  glue_evaluation.write_submission(str(path), spec, mnli_predictions)
  assert path.read_text() == "index\tprediction\n0\tentailment\n1\tcontradiction\n"


def test_probabilities_and_regression_scores_are_averaged(tmp_path: Path) -> None:
  other_classes = dataclasses.replace(
    CLASS_PREDICTIONS, scores=np.array([[0.95, 0.05], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
  )
  average = predictions.average_predictions([CLASS_PREDICTIONS, other_classes], ["x", "y"])
  np.testing.assert_allclose(average.scores[:, 1], [0.4, 0.45, 0.5, 0.6])
  assert average.predicted.tolist() == [0, 0, 0, 1]
  other_regression = dataclasses.replace(REGRESSION_PREDICTIONS, scores=np.array([0.75, 4.5], np.float32))
  average = predictions.average_predictions([REGRESSION_PREDICTIONS, other_regression], ["x", "y"])
  assert average.scores.tolist() == [0.25, 5.0]


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"ids": ["a", "c", "b", "d"]}, "y: its ids are not those of x"),
    ({"label_names": ("yes", "no")}, "y: its labels are yes, no; those of x are no, yes"),
    ({"labels": np.array([1, 1, 0, 1])}, "y: its column 'label' is not that of x"),
    ({"labels": None}, "y: its column 'label' is not that of x"),
  ],
)
def test_predictions_with_other_ids_or_labels_are_not_averaged(change: dict[str, object], message: str) -> None:
  with pytest.raises(UserError, match=message):
    predictions.average_predictions([CLASS_PREDICTIONS, dataclasses.replace(CLASS_PREDICTIONS, **change)], ["x", "y"])  # type: ignore[arg-type]


def test_runs_without_common_predictions_are_not_averaged(tmp_path: Path) -> None:
  for name in ("dev", "test"):
    (tmp_path / name).mkdir()
    predictions.write_predictions(f"{tmp_path}/{name}/predictions_{name}.tsv", CLASS_PREDICTIONS)
  with pytest.raises(UserError, match=r"have no predictions_\*\.tsv in common"):
    predictions.average_predictions_files([f"{tmp_path}/dev", f"{tmp_path}/test"], str(tmp_path), {})


@pytest.mark.parametrize(
  ("predict_file", "name"),
  [
    ("new.v2.csv", "new.v2"),
    ("a,b.jsonl", "a,b"),
    ("test", "test"),
    ("a.jsonl,new.v2.csv", "test"),  # several files
    ("*.csv", "test"),
    ("", "test"),
  ],
)
def test_predictions_are_named_after_the_file_to_predict(tmp_path: Path, predict_file: str, name: str) -> None:
  for existing in ("new.v2.csv", "a,b.jsonl"):
    (tmp_path / existing).write_text("")
  (tmp_path / "test").mkdir()
  assert predictions.predictions_name(str(tmp_path / predict_file) if predict_file else "") == name


def test_files_beside_a_predictions_file_are_named_after_it() -> None:
  assert predictions.companion_path("out/answers.json", "null_odds") == "out/null_odds_answers.json"
  # Not nbest_predictions_new.json, which belongs to the predictions that have no name of their own.
  assert predictions.companion_path("out/predictions_new.json", "nbest") == "out/nbest_new.json"


def test_a_lone_surrogate_becomes_a_replacement_character(tmp_path: Path) -> None:
  """A label name from a command line that is not UTF-8 contains lone surrogates, which UTF-8 cannot encode."""
  written = Predictions(["1"], ("a\udcff", "b"), np.array([[0.25, 0.75]]), np.array([0]))
  path = write_mistakes(str(tmp_path), "dev", written, [("text", ["x\ud800\t\ny"])])
  assert "x\ufffd  y" in Path(path).read_text(encoding="utf-8")
  predictions.write_predictions(path, written)
  read = predictions.read_predictions(path)
  assert read.label_names == ("a\ufffd", "b")
