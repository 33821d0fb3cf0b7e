"""Tests of --multi_label: losses and thresholds compared with NumPy and scikit-learn, files, answers and bad flags."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import tensorflow as tf
from sklearn.metrics import f1_score

import albert
from albert.data.tables import read_table
from albert.errors import UserError
from albert.tasks.glue.files import TextData, find_labels, read_text_table, rows_of_table, warn_of_combined_label
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.results import ChosenThresholds, average_runs, choose_thresholds, read_thresholds
from albert.tasks.glue.specs import make_spec
from albert.tasks.predictions import Predictions, read_predictions, write_predictions
from tests.tasks.glue.conftest import MakeTask

ROWS = [("a river", "b;a"), ("a boat", ""), ("a letter", "c"), ("an old letter", " c ; a "), ("nobody", "a")]
MATRIX = [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 0, 0]]


@pytest.fixture
def rows_file(tmp_path: Path) -> str:
  path = tmp_path / "rows.tsv"
  path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS))
  return str(path)


@pytest.fixture
def make_multi_label_task(make_task: MakeTask, rows_file: str) -> MakeTask:
  """Returns a function that makes a task of ROWS; its keywords are further flags."""
  files = dict.fromkeys(("train_file", "eval_file", "predict_file"), rows_file)
  return functools.partial(make_task, **files, multi_label=True, label_separator=";")


def read_matrix(source: Any, **flags: Any) -> np.ndarray:
  spec = make_spec(ClassifierConfig(**{"task_name": "custom", "text_columns": "text", "multi_label": True, **flags}))
  assert spec.train is not None
  return rows_of_table(read_text_table(source, spec.train, spec), spec.train, spec).labels


def outputs_of(scores: np.ndarray) -> dict[str, np.ndarray]:
  return {"logits": np.log(scores) - np.log(1 - scores), "example_index": np.arange(len(scores))}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("choice", ["one", "per_label"])
def test_the_thresholds_have_the_highest_f1_of_all(choice: str, seed: int) -> None:
  rng = np.random.default_rng(seed)
  scores = np.round(rng.random([37, 3]), 2)  # with equal probabilities
  labels = (rng.random([37, 3]) < 0.2 + 0.6 * scores).astype(int)

  def f1_of(thresholds: Any) -> Any:
    average = "micro" if choice == "one" else None
    return f1_score(labels, (scores >= thresholds).astype(int), average=average, zero_division=0.0)

  chosen = choose_thresholds(choice, labels, scores)
  best = np.max([f1_of(candidate) for candidate in np.linspace(0.005, 1.005, 101)], axis=0)
  np.testing.assert_allclose(f1_of(chosen), best, rtol=1e-12)
  assert (len(set(chosen)) == 1) == (choice == "one")


def test_a_label_without_rows_has_the_threshold_one_half() -> None:
  labels, scores = np.array([[0, 1], [0, 0]]), np.array([[0.9, 0.3], [0.2, 0.1]])
  np.testing.assert_allclose(choose_thresholds("per_label", labels, scores), [0.5, 0.2])


@pytest.mark.parametrize("extension", ["tsv", "csv", "lists.csv", "jsonl"])
def test_labels_are_read_as_a_matrix(extension: str, tmp_path: Path) -> None:
  path = tmp_path / f"rows.{extension}"
  lists = [[part.strip() for part in label.split(";") if part] for _, label in ROWS]
  if extension == "jsonl":
    lines = [json.dumps({"text": text, "label": labels}) for (text, _), labels in zip(ROWS, lists, strict=True)]
  elif extension == "lists.csv":
    lines = ["text,label", *(f'{text},"{[*labels, ""]}"' for (text, _), labels in zip(ROWS, lists, strict=True))]
  else:
    separator = {"tsv": "\t", "csv": ","}[extension]
    lines = [separator.join(row) for row in [("text", "label"), *ROWS]]
  path.write_text("\n".join(lines) + "\n")
  assert find_labels(read_table(str(path), ["label"], list_columns={"label": ";"}), "label", ";") == ["a", "b", "c"]
  np.testing.assert_array_equal(read_matrix(str(path), labels="a,b,c", label_separator=";"), MATRIX)


@pytest.mark.parametrize("one", [1, 1.0, True])
def test_a_list_of_0_and_1_stands_for_the_labels_that_are_given(one: Any) -> None:
  vectors = [[one * number for number in row] for row in MATRIX]
  data = {"text": [text for text, _ in ROWS], "label": vectors}
  task = albert.tasks.Classification(train=data, labels=["a", "b", "c"], multi_label=True, eval_share=0)
  np.testing.assert_array_equal(read_matrix(task.rows["train"], **task.settings), MATRIX)


@pytest.mark.parametrize(
  ("labels", "message"),
  [
    ([[2, 3], [1, 0, 1]], "train: row 1: label has the label '1' twice: give it once; if these are 0 or 1 for each"),
    ([[0, 1], [1, 0]], "train: row 0: label is 0 and 1, and all rows have these two: if these are 0 or 1 for each"),
    (["a", "b,a,b"], "train: row 1: label has the label 'b' twice"),
  ],
)
def test_a_label_that_a_row_has_twice_is_refused(labels: list[Any], message: str) -> None:
  with pytest.raises(UserError, match=message):
    albert.tasks.Classification(train={"text": ["x", "y"], "label": labels}, multi_label=True)


def test_a_list_with_the_separator_in_a_label_is_refused(tmp_path: Path) -> None:
  path = tmp_path / "rows.jsonl"
  path.write_text('{"label": ["a", "b;c"]}\n')
  with pytest.raises(UserError, match=r"rows.jsonl, line 1: label .b;c. contains the separator of labels, ';'"):
    read_table(str(path), ["label"], list_columns={"label": ";"})
  path = tmp_path / "rows.csv"
  path.write_text("text,label\nx,\"['a', 'b;c']\"\n")
  with pytest.raises(UserError, match=r"rows.csv, line 2: a label in label contains --label_separator=;: give another"):
    find_labels(read_table(str(path), ["label"]), "label", ";")


def test_an_unknown_label_is_refused_with_its_line(rows_file: str) -> None:
  with pytest.raises(UserError, match=r"rows.tsv, line 4: label 'c' is not a label of this task: a, b"):
    read_matrix(rows_file, labels="a,b", label_separator=";")


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"task_name": "CoLA"}, "--multi_label is for --task_name=custom: a row of CoLA has one label"),
    ({"regression": True}, "--multi_label and --regression are both given"),
    ({"label_separator": "; "}, "--label_separator='; ': give a text without whitespace at its ends"),
    ({"labels": '["a,b", "c"]'}, "--labels: the label 'a,b' contains --label_separator=,: give another separator"),
    ({"thresholds": "best"}, "--thresholds=best: give one, per_label, or a number between 0 and 1"),
    ({"thresholds": "1"}, "--thresholds=1: give one, per_label, or a number"),
    ({"positive_label": "a"}, "--positive_label=a: with --multi_label, classes_dev.tsv has the F1 of each label"),
    ({"best_metric": "f1"}, "--best_metric=f1: custom has micro_f1, macro_f1, accuracy, micro_precision"),
  ],
)
def test_bad_flags_are_refused(flags: dict[str, Any], message: str) -> None:
  fields: dict[str, Any] = {"task_name": "custom", "text_columns": "text", "labels": "a,b", "multi_label": True}
  with pytest.raises(UserError, match=message):
    make_spec(ClassifierConfig(**{**fields, **flags}))


def test_labels_that_consist_of_labels_are_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  for labels in (["a", "b", "a,x"], ["a,x", "b,y", "a", "b"]):  # x and y occur only once
    warn_of_combined_label("rows", labels)
    assert not capsys.readouterr().err
  warn_of_combined_label("rows", ["a,x", "b,x", "a"])  # x is a part of another label
  assert "rows: the label 'a,x' consists of the labels 'a', 'x', and" in capsys.readouterr().err
  warn_of_combined_label("rows", ["['x', 'y']", '["z"]'])
  assert """rows: the label "['x', 'y']" consists of the labels 'x', 'y', and""" in capsys.readouterr().err
  warn_of_combined_label("rows", ["a", "b", "b; a"])
  assert capsys.readouterr().err == (
    "warning: rows: the label 'b; a' consists of the labels 'b', 'a', and is learned as a class of its own: give "
    "--multi_label --label_separator=';' if a row may have several labels\n"
  )
  path = tmp_path / "rows.tsv"
  path.write_text("text\tlabel\none\ta\ntwo\tb\nthree\ta,b\n")
  config = ClassifierConfig(task_name="custom", text_columns="text", train_file=str(path))
  multi_label = dataclasses.replace(config, multi_label=True, label_separator=";")
  for settings, remedy in ((config, "--multi_label"), (multi_label, "--label_separator=','")):
    TextData(settings).read(train=True, evaluate=False, predict=False)
    messages = capsys.readouterr().err
    assert messages.count(f"warning: {path}: the label 'a,b' consists of the labels 'a', 'b'") == 1
    assert f": give {remedy} if a row" in messages
  path.write_text("text\tlabel\none\ta\ntwo\tb\nthree\ta,b\nfour\t\n")
  with pytest.raises(UserError, match="line 5: column 'label' is empty"):
    TextData(config).read(train=True, evaluate=False, predict=False)
  assert ": give --multi_label if a row" in capsys.readouterr().err
  path.write_text("text\tlabel\none\t1\ntwo\t0\n")
  TextData(multi_label).read(train=True, evaluate=False, predict=False)
  assert f"warning: {path}: only 0 and 1 in the label column become two labels" in capsys.readouterr().err


@pytest.mark.parametrize("class_weights", ["", "balanced"])
def test_the_loss_is_the_mean_of_binary_cross_entropies(class_weights: str, make_multi_label_task: MakeTask) -> None:
  task = make_multi_label_task(class_weights=class_weights)
  batch = next(iter(task.training_data().evaluation_batches(batch_size=7)))  # the last two rows are padding
  assert sorted(batch["label_ids"].numpy()[:5].tolist()) == sorted(MATRIX)  # the batch is sorted by length
  logits = np.random.default_rng(0).normal(size=[7, 3]).astype(np.float32)
  matrix, p = batch["label_ids"].numpy()[:5], 1 / (1 + np.exp(-logits[:5].astype(np.float64)))
  # Labels a, b and c are in 3, 1 and 2 of the 5 rows.
  positive_weights = np.array([2 / 3, 4, 3 / 2]) if class_weights else np.ones(3)
  expected = -(positive_weights * matrix * np.log(p) + (1 - matrix) * np.log(1 - p)).mean(axis=1).sum()

  def model(inputs: Any, training: bool, seed: Any) -> tf.Tensor:
    del inputs, training, seed
    return tf.constant(logits)

  sums = task.forward(model, batch, training=True).sums["loss"]
  assert float(sums.total) == pytest.approx(expected, rel=1e-5)
  assert float(sums.weight) == 5
  evaluation = task.forward(model, batch, training=False).sums["loss"]
  expected = -(matrix * np.log(p) + (1 - matrix) * np.log(1 - p)).mean(axis=1).sum()
  assert float(evaluation.total) == pytest.approx(expected, rel=1e-5)


def test_thresholds_are_stored_with_the_run_and_used_for_other_data(
  make_multi_label_task: MakeTask, rows_file: str, tmp_path: Path
) -> None:
  run = tmp_path / "run"
  run.mkdir()
  task = make_multi_label_task()
  assert task.best_metric == "micro_f1"
  scores = np.array([[0.4, 0.4, 0.1], [0.1, 0.1, 0.2], [0.1, 0.1, 0.4], [0.4, 0.1, 0.4], [0.4, 0.2, 0.1]])
  assert task.evaluation_metrics("dev", outputs_of(scores)) == pytest.approx(
    {
      **dict.fromkeys(("micro_f1", "macro_f1", "accuracy"), 1.0),
      **{f"{average}_{name}": 1.0 for average in ("micro", "macro") for name in ("precision", "recall")},
      "majority_accuracy": 0.2,
      # Labels a, b and c are in 3, 1 and 2 of the 5 rows.
      "guessing_loss": -(2 * (0.6 * np.log(0.6) + 0.4 * np.log(0.4)) + 0.2 * np.log(0.2) + 0.8 * np.log(0.8)) / 3,
    }
  )
  task.write_evaluation("dev", outputs_of(scores), str(run))
  stored = read_thresholds(str(run), ["a", "b", "c"])
  assert stored is not None
  assert (stored.choice, stored.split) == ("one", "dev")
  assert stored.thresholds == pytest.approx(dict.fromkeys("abc", 0.3))
  header, *rows = [line.split("\t") for line in (run / "classes_dev.tsv").read_text().splitlines()]
  assert header[-2:] == ["calibration_error", "threshold"]
  # Label b is in the first row only. Its probabilities 0.4, 0.1, 0.1, 0.1 and 0.2 are in three intervals.
  assert float(rows[1][-2]) == pytest.approx((0.6 + 3 * 0.1 + 0.2) / 5, abs=1e-6)
  assert [row[:1] + row[-1:] for row in rows] == [[label, "0.3"] for label in "abc"]
  predictions = read_predictions(str(run / "predictions_dev.tsv"), ";")
  np.testing.assert_array_equal(predictions.labels, MATRIX)
  assert (run / "predictions_dev.tsv").read_text().splitlines()[1].split("\t")[1:3] == ["a;b", "a;b"]
  assert (run / "confusion_matrix_dev.png").exists()

  # Another file is evaluated and predicted with the stored thresholds.
  other = Path(rows_file).with_name("other.tsv")
  other.write_text("text\tlabel\nno\ta\nnone\tb\n")
  later_task = make_multi_label_task().with_data("dev", str(other))
  later_task.read_run(str(run))
  split_predictions = later_task.predictions("dev", outputs_of(np.array([[0.31, 0.2, 0.1], [0.1, 0.29, 0.1]])))
  np.testing.assert_allclose(np.asarray(split_predictions.thresholds), 0.3)
  np.testing.assert_array_equal(split_predictions.predicted, [[1, 0, 0], [0, 0, 0]])
  later_task.write_evaluation("dev", outputs_of(np.array([[0.31, 0.2, 0.1], [0.1, 0.29, 0.1]])), str(tmp_path))
  assert not (tmp_path / "thresholds.json").exists()
  fixed_task = make_multi_label_task(thresholds="0.2")
  assert fixed_task.predictions("dev", outputs_of(scores)).thresholds == pytest.approx([0.2] * 3)
  (run / "thresholds.json").write_text('{"choice": "one", "split": "dev", "data_sha256": "", "thresholds": {"x": 0.5}}')
  message = r"thresholds.json: its labels are not those of the task: delete it, and evaluate"
  with pytest.raises(UserError, match=message):
    later_task.read_run(str(run))


@pytest.mark.thorough
def test_the_python_api_takes_lists_and_answers_labels(spm_model: str, tmp_path: Path) -> None:
  texts = ["a river", "a boat", "a letter", "an old letter"]
  data = {"text": texts * 4, "label": [[1, 2], [], [3], [2]] * 4}
  task = albert.tasks.Classification(train=data, eval=data, multi_label=True, class_weights="balanced")
  assert (task.settings["labels"], task.settings["multi_label"]) == ("1,2,3", True)
  estimator = albert.Estimator(
    task,
    model="albert_tiny",
    from_scratch=True,
    spm_model_file=spm_model,
    output_dir=tmp_path / "run",
    num_train_steps=1,
    train_batch_size=4,
    max_seq_length=16,
    thresholds="per_label",
  )
  estimator.train()
  results = estimator.evaluate()
  assert {"micro_f1", "macro_f1", "accuracy", "majority_accuracy"} <= results.keys()
  stored = json.loads((tmp_path / "run" / "thresholds.json").read_text())
  answer = estimator.predict(["the boat"])[0]
  assert answer.probabilities.keys() == {1, 2, 3}
  assert answer.thresholds == {int(label): value for label, value in stored["thresholds"].items()}
  expected = {label for label, value in answer.probabilities.items() if value >= answer.thresholds[label]}
  assert set(answer.labels) == expected
  reopened = albert.Estimator.from_run(tmp_path / "run").predict(["the boat"])[0]
  assert set(reopened.labels) == {str(label) for label in expected}


def test_an_ensemble_chooses_its_own_thresholds(make_multi_label_task: MakeTask, tmp_path: Path) -> None:
  task = make_multi_label_task()
  rng = np.random.default_rng(0)
  run_dirs, all_scores = [str(tmp_path / "a"), str(tmp_path / "b")], np.clip(rng.random([2, 5, 3]), 0.01, 0.99)
  for directory, scores in zip(run_dirs, all_scores, strict=True):
    Path(directory).mkdir()
    task.write_evaluation("dev", outputs_of(scores), directory)
  output_dir = tmp_path / "ensemble"
  output_dir.mkdir()
  metrics = average_runs(run_dirs, [task.all_settings()] * 2, str(output_dir))
  mean = all_scores.mean(axis=0)
  thresholds = choose_thresholds("one", np.array(MATRIX), mean)
  predicted = (mean >= thresholds).astype(int)
  assert metrics["micro_f1"] == pytest.approx(f1_score(MATRIX, predicted, average="micro"))
  rows = [line.split("\t") for line in (output_dir / "predictions_dev.tsv").read_text().splitlines()[1:]]
  assert [row[2] for row in rows] == [";".join(np.array(list("abc"))[row == 1]) for row in predicted]


def test_an_ensemble_without_labels_uses_the_mean_of_the_thresholds_of_the_runs(tmp_path: Path) -> None:
  run_dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
  for directory, threshold in zip(run_dirs, (0.3, 0.5), strict=True):
    Path(directory).mkdir()
    scores = np.array([[0.35, 0.45], [0.2, 0.8]])
    predictions = Predictions(["0", "1"], ("a", "b"), scores, thresholds=np.full(2, threshold))
    write_predictions(f"{directory}/predictions_test.tsv", predictions)
    ChosenThresholds("one", "dev", "", {"a": threshold, "b": threshold}).write(directory)
  settings = {"task_name": "custom", "text_columns": "text", "labels": "a,b", "multi_label": True}
  average_runs(run_dirs, [settings] * 2, str(tmp_path))
  rows = [line.split("\t") for line in (tmp_path / "predictions_test.tsv").read_text().splitlines()[1:]]
  assert [row[1] for row in rows] == ["b", "b"]


@pytest.mark.parametrize("header", ["", "toxic,text,sure,insult\n"])
def test_columns_of_0_and_1_are_several_labels_of_csv_and_of_frames(tmp_path: Path, header: str) -> None:
  path = tmp_path / "train.csv"
  path.write_text(f"{header}1,one,x,0\n0,two,x,0\n1,three,x,1\n")
  names = "" if header else "toxic,text,sure,insult"
  columns = {"text_columns": "text", "label_column": "toxic,insult", "column_names": names}
  flags: dict[str, Any] = {"task_name": "custom", **columns}
  data = TextData(ClassifierConfig(train_file=str(path), **flags))
  np.testing.assert_array_equal(data.rows("train").labels, [[1, 0], [0, 0], [1, 1]])
  assert (data.config.labels, data.config.multi_label) == ("toxic,insult", True)
  again = TextData(dataclasses.replace(data.config, multi_label=False))  # a later command has the labels of the run
  assert again.spec == data.spec
  frame = pandas.DataFrame({"text": ["one", "two", "three"], "toxic": [1, 0, 1], "insult": [0.0, 0.0, 1.0]})
  task = albert.tasks.Classification(train=frame, label=["toxic", "insult"], eval_share=0)
  in_memory = TextData(ClassifierConfig(**task.settings)).with_source("train", task.rows["train"])
  np.testing.assert_array_equal(in_memory.rows("train").labels, data.rows("train").labels)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"labels": "toxic"}, r"--labels=toxic: give at least 2"),
    ({"labels": "toxic,rude"}, r"--labels=toxic,rude: the labels are the names in --label_column: leave"),
    ({"label_column": "toxic,text"}, r"name a column twice: text, toxic, text"),
    ({"regression": True}, r"--multi_label and --regression are both given \(several columns in"),
    (
      {"column_names": "toxic,text,insult"},
      r"train\.csv, line 1: 4 columns instead of 3 \('toxic', 'text', 'insult'\)",
    ),
    ({"separator": "tab"}, r"train\.csv, line 1: no column 'text'; there are: 'toxic,text,sure,insult'"),
    ({"separator": "&"}, r"^--separator=&: give tab, "),
  ],
)
def test_wrong_columns_of_labels_are_refused(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
  path = tmp_path / "train.csv"
  path.write_text("toxic,text,sure,insult\n1,one,x,0\n")
  given = {"task_name": "custom", "text_columns": "text", "label_column": "toxic,insult", "train_file": str(path)}
  with pytest.raises(UserError, match=message):
    TextData(ClassifierConfig(**{**given, **flags})).rows("train")
