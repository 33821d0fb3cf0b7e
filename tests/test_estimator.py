"""The Estimator on classification and regression: data in memory give the results of the same rows in files."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import sentencepiece
import tensorflow as tf
import tf_keras

from albert import tasks
from albert.errors import UserError
from albert.estimator import Estimator
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest
from albert.weights import checkpoints
from tests.conftest import english_like_documents
from tests.synthetic import TINY_MODEL

pytestmark = pytest.mark.usefixtures("all_steps_eager")

TEXTS = [sentence for document in english_like_documents(6, seed=4) for sentence in document][:20]
LABELS = [index % 2 for index in range(len(TEXTS))]  # in the column "kind"
NUM_TRAIN = 14  # the other texts are for evaluation


@pytest.fixture(scope="module")
def settings(spm_model: str) -> dict[str, Any]:
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  return {
    "model": dataclasses.replace(TINY_MODEL, vocab_size=vocab_size, hidden_dropout_prob=0.1),
    "spm_model_file": spm_model,
    "from_scratch": True,
    "max_seq_length": 32,
    "num_train_steps": 4,
    "train_batch_size": 4,
    "learning_rate": 0.003,
    "num_warmup_steps": 1,
    "eval_every_steps": 4,
    "pad_to_max_length": True,
    "log_every_steps": 2,
    "precision": "float32",
  }


def saved_weights(output_dir: str | Path, step: int = 4) -> dict[str, np.ndarray]:
  """Name -> array, for all variables in a checkpoint of a run."""
  reader = tf.train.load_checkpoint(f"{output_dir}/checkpoints/step-{step}/weights")
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def train_frame() -> pandas.DataFrame:
  return pandas.DataFrame({"comment": TEXTS[:NUM_TRAIN], "kind": LABELS[:NUM_TRAIN], "unused": None})


def classification(**changes: Any) -> tasks.Classification:
  """A task that trains on a data frame and evaluates on a dict of columns. `changes` replaces some arguments."""
  held_out = {"comment": TEXTS[NUM_TRAIN:], "kind": np.array(LABELS[NUM_TRAIN:])}
  arguments: dict[str, Any] = {"train": train_frame(), "eval": held_out, "text": "comment", "label": "kind"}
  return tasks.Classification(**arguments | changes)


@pytest.fixture(scope="module")
def trained(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Estimator:
  """A classifier that was trained on data in memory."""
  estimator = Estimator(classification(), output_dir=tmp_path_factory.mktemp("memory") / "run", **settings)
  calls: list[tuple[int, dict[str, float]]] = []
  result = estimator.train(callbacks=[lambda step, metrics: calls.append((step, metrics))])
  assert (result.step, [line["step"] for line in result.history]) == (4, [2, 4])
  assert result.metrics["loss"] == result.history[-1]["loss"] > 0
  assert [line["step"] for line in result.evaluations] == [4]
  expected = [{"step": step, **metrics} for step, metrics in calls]
  assert expected[:-1] == list(result.history)
  assert expected[-1] == {name if name == "step" else f"eval_{name}": v for name, v in result.evaluations[0].items()}
  return estimator


def test_the_last_evaluation_of_a_training_is_not_repeated(
  settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  estimator = Estimator(classification(), output_dir=tmp_path / "run", **settings)
  (expected,) = estimator.train().evaluations
  with monkeypatch.context() as patch:
    patch.setattr(estimator.evaluator, "run", None)
    assert {"step": 4, **estimator.evaluate()} == expected
  (tmp_path / "run" / "predictions_dev.tsv").unlink()
  assert {"step": 4, **estimator.evaluate()} == expected
  assert (tmp_path / "run" / "predictions_dev.tsv").exists()


def test_an_exception_in_a_callback_ends_the_training(settings: dict[str, Any]) -> None:
  estimator = Estimator(classification(), **settings)
  with pytest.raises(ZeroDivisionError):
    estimator.train(callbacks=[lambda step, metrics: 1 // (step - 2)])


@pytest.mark.parametrize("callbacks", [print, [tf_keras.callbacks.EarlyStopping()], [lambda step: None]])
def test_callbacks_that_are_not_a_list_of_functions_are_refused(callbacks: Any, settings: dict[str, Any]) -> None:
  with pytest.raises(UserError, match="functions of"):
    Estimator(classification(), **settings).train(callbacks=callbacks)


def write_csv(path: Path, rows: Sequence[Sequence[Any]]) -> str:
  with path.open("w", newline="") as file:
    csv.writer(file).writerows([["comment", "kind"], *rows])
  return str(path)


def test_rows_in_memory_give_the_bits_and_metrics_of_the_same_rows_in_a_file(
  trained: Estimator, settings: dict[str, Any], tmp_path: Path
) -> None:
  rows = list(zip(TEXTS, LABELS, strict=True))
  files = {
    "train": write_csv(tmp_path / "train.csv", rows[:NUM_TRAIN]),
    "eval": write_csv(tmp_path / "eval.csv", rows[NUM_TRAIN:]),
  }
  from_files = Estimator(classification(**files), output_dir=tmp_path / "run", **settings)
  from_files.train()
  expected, weights = saved_weights(tmp_path / "run"), saved_weights(trained.config.output_dir)
  assert expected.keys() == weights.keys()
  for name, value in expected.items():
    assert value.tobytes() == weights[name].tobytes(), name
  assert trained.evaluate() == from_files.evaluate()


def test_predict_returns_the_rows_of_the_predictions_file_for_every_form_of_data(
  trained: Estimator, settings: dict[str, Any], tmp_path: Path
) -> None:
  test = write_csv(tmp_path / "test.csv", [(text, "") for text in TEXTS[:5]])
  run = trained.config.output_dir
  estimator = Estimator(classification(test=test), output_dir=run, **settings)
  answers = estimator.predict()
  lines = Path(run, "predictions_test.tsv").read_text().splitlines()
  assert lines[0].split("\t") == ["id", "prediction", "probability_0", "probability_1"]
  for row_number, (line, answer) in enumerate(zip(lines[1:], answers, strict=True)):
    probabilities = [f"{answer.probabilities[label]:.9g}" for label in (0, 1)]
    assert line.split("\t") == [str(row_number), str(answer.label), *probabilities]
    assert answer.label in (0, 1)
    assert answer.probability == max(answer.probabilities.values())
  frame = train_frame()[:5]
  for data in (
    TEXTS[:5],
    {"comment": TEXTS[:5]},
    [{"comment": text} for text in TEXTS[:5]],
    test,
    frame,
    frame["comment"],
  ):
    assert trained.predict(data) == answers
  assert trained.predict([]) == []


def test_predict_of_one_text_computes_one_text_and_loads_no_weights_again(
  trained: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
  answers = trained.predict(TEXTS[:1])
  batch_sizes: set[int] = set()
  gather = trained.strategy.gather

  def record(value: tf.Tensor, axis: int) -> tf.Tensor:
    batch_sizes.add(int(value.shape[0]))
    return gather(value, axis=axis)

  def fail(*unused: object) -> None:
    raise AssertionError("the weights have not changed")

  monkeypatch.setattr(trained.strategy, "gather", record)
  with monkeypatch.context() as patch:
    patch.setattr(checkpoints, "restore", fail)
    patch.setattr(checkpoints, "find_damage", fail)
    assert trained.predict(TEXTS[:1]) == answers
  assert batch_sizes == {1}
  index = Path(trained.config.output_dir, "checkpoints", "step-4", "weights.index")
  content = index.read_bytes()
  index.write_bytes(content + b"x")
  with pytest.raises(UserError, match="holds no intact checkpoint any more"):
    trained.predict(TEXTS[:1])
  index.write_bytes(content)
  assert trained.predict(TEXTS[:1]) == answers


@pytest.mark.thorough
def test_an_export_answers_like_predict(trained: Estimator, tmp_path: Path) -> None:
  directory = trained.export(tmp_path / "models" / "kind")
  assert directory == str(tmp_path / "models" / "kind" / "1")
  exported = ExportedModel(directory)
  requests = [PredictRequest(number, {"text": text.encode()}) for number, text in enumerate(TEXTS[:3])]
  for row, answer in zip(exported.answer(requests), trained.predict(TEXTS[:3]), strict=True):
    assert row["label"] == str(answer.label)
    for label, probability in answer.probabilities.items():
      assert row["probabilities"][str(label)] == pytest.approx(probability, abs=1e-5)


def test_train_continues_a_run_of_the_same_data_and_refuses_other_data(
  trained: Estimator, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
  run = trained.config.output_dir
  resumed = Estimator(classification(), output_dir=run, **settings)
  assert resumed.train().step == 4
  assert "nothing to train" in capsys.readouterr().err
  changed_frame = train_frame()
  changed_frame.loc[3, "kind"] = 0  # it was 1
  with pytest.raises(UserError, match=r"trained on other data .*1 of its 1 files changed: file 1 is train"):
    Estimator(classification(train=changed_frame), output_dir=run, **settings).train()


def test_from_run_opens_a_run_for_predictions(trained: Estimator, tmp_path: Path) -> None:
  """The labels become texts, since config.json doesn't hold their type."""
  opened = Estimator.from_run(trained.config.output_dir)
  for answer, expected in zip(opened.predict(TEXTS[:2]), trained.predict(TEXTS[:2]), strict=True):
    assert answer.label == str(expected.label)
    assert list(answer.probabilities.values()) == list(expected.probabilities.values())
  assert opened.predict("a string is one text") == opened.predict(["a string is one text"])
  with pytest.raises(UserError, match=r"^eval_file is missing: the dev set"):
    opened.evaluate()
  path = write_csv(tmp_path / "dev.csv", list(zip(TEXTS, LABELS, strict=True)))
  assert Estimator.from_run(trained.config.output_dir, eval_file=path).evaluate().keys() == trained.evaluate().keys()
  with pytest.raises(UserError, match=r"^nowhere: holds no run: give the output_dir of a run"):
    Estimator.from_run("nowhere")


def test_eval_share_holds_out_the_same_rows_of_a_file_and_of_memory(settings: dict[str, Any], tmp_path: Path) -> None:
  rows = list(zip(TEXTS, LABELS, strict=True))
  held_out = {}
  for name, train in (("file", write_csv(tmp_path / "train.csv", rows)), ("memory", rows)):
    task = tasks.Classification(train=train, text="comment", label="kind", eval_share=0.2)
    estimator = Estimator(task, output_dir=tmp_path / name, **settings | {"num_train_steps": 1, "eval_every_steps": 0})
    estimator.train()
    assert estimator.evaluate()["majority_accuracy"] == 0.5  # two rows of each label
    record = json.loads((tmp_path / name / "eval_split.json").read_text())
    held_out[name] = record["lines" if name == "file" else "rows"]
  assert len(held_out["memory"]) == 4
  assert held_out["file"] == [
    row + 2 for row in held_out["memory"]
  ]  # lines are counted from 1, and the first is the header


def test_an_estimator_without_output_dir_uses_a_temporary_directory(trained: Estimator) -> None:
  rows = [{"text": text, "label": label} for text, label in zip(TEXTS[:4], LABELS[:4], strict=True)]
  task = tasks.Classification(train=rows, eval=rows)
  # The model and the vocabulary are found beside the weights.
  estimator = Estimator(task, init_checkpoint=trained.config.output_dir, max_seq_length=32, pad_to_max_length=True)
  directory = Path(estimator.config.output_dir)
  results = estimator.evaluate()
  assert results["accuracy"] in (0, 0.25, 0.5, 0.75, 1)
  assert json.loads((directory / "eval_results.json").read_text()) == {"step": 0, **results}
  process = os.fork()
  if not process:  # a worker of a server, which ends and drops its objects
    del estimator
    os._exit(0)
  os.waitpid(process, 0)
  assert directory.exists()
  del estimator
  assert not directory.exists()


def test_an_estimator_does_not_answer_with_initial_weights_once_its_checkpoints_are_gone(
  trained: Estimator, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  changes = {"model": None, "from_scratch": None, "init_checkpoint": trained.config.output_dir, "num_train_steps": 1}
  estimator = Estimator(classification(), output_dir="run", **settings | changes)
  estimator.train()
  (tmp_path / "elsewhere").mkdir()
  monkeypatch.chdir(tmp_path / "elsewhere")
  assert estimator.train().step == 1
  metrics = estimator.evaluate()
  assert list(Path().iterdir()) == []
  shutil.rmtree(tmp_path / "run")
  for action in (estimator.evaluate, lambda: estimator.predict(TEXTS[:1]), lambda: estimator.export("models/x")):
    with pytest.raises(UserError, match=r"run/checkpoints: holds no intact checkpoint any more: restore it"):
      action()
  assert estimator.train().step == 1
  assert estimator.evaluate() == metrics


def test_an_estimator_exports_no_other_head_of_its_initial_weights(
  trained: Estimator, settings: dict[str, Any], tmp_path: Path
) -> None:
  changes = {"model": None, "from_scratch": None, "init_checkpoint": trained.config.output_dir}
  estimator = Estimator(
    tasks.Tagging([([word], ["B-X"]) for word in "abc"]), output_dir=tmp_path / "run", **settings | changes
  )
  with pytest.raises(UserError, match="has another shape for 2 weights"):
    estimator.export(tmp_path / "models" / "tags")


# Arguments of Classification, and the error that they raise.
BAD_DATA: dict[str, tuple[dict[str, Any], str]] = {
  "label": (
    {"eval": {"comment": ["a", "b"], "kind": [1, 7]}},
    r"^eval: row 1: kind '7' is not a label of this task: 0, 1: correct it, or train with this label$",
  ),
  "number": ({"train": [("a", 1.0), ("b", 2.5)]}, r"^train: row 1: kind 2.5 is not a class: use albert.tasks.Reg"),
  "lengths": ({"train": {"comment": ["a"], "kind": [1, 0]}}, r"^train: its columns have different lengths \(comment 1"),
  "row": ({"train": [("a", 1), "b"]}, r"^train: row 1 is 'b': give 2 values \('comment', 'kind'\)"),
  "key": (
    {"train": [{"comment": "a", "kind": 1}, {"comment": "b"}]},
    r"^train: row 1 has no 'kind'; it has: 'comment'",
  ),
  "file": ({"train": "none.csv"}, r"^train=none.csv: no such file; give data in memory as"),
  "spaces": ({"text": " a"}, r"^the column ' a' is empty, has spaces at its ends, or is not a text: rename it"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_an_error_in_the_data_names_its_row_and_column(case: str, settings: dict[str, Any]) -> None:
  changes, message = BAD_DATA[case]
  with pytest.raises(UserError, match=message):
    Estimator(classification(**{"eval_share": 0} | changes), **settings)


def test_an_error_in_a_setting_names_the_argument(settings: dict[str, Any], tmp_path: Path) -> None:
  task = classification()
  for changes, message in (
    ({"lerning_rate": 0.1}, r"^lerning_rate=0.1: no such setting; is learning_rate meant\?"),
    ({"epochs": 3}, r"^epochs=3: no such setting; is num_train_epochs meant\?"),
    ({"learning_rate": "fast"}, r"^Estimator: learning_rate must be of type float, got 'fast'"),
    ({"task_name": "MRPC"}, r"^task_name='MRPC': the task gives this setting"),
    ({"from_scratch": False}, r"^train\(\) needs init_checkpoint, the weights to start from; .* give from_scratch"),
    ({"init_checkpoint": tmp_path, "from_scratch": None}, rf"^init_checkpoint={tmp_path}: no checkpoint there"),
    ({"num_train_epochs": 2}, r"^num_train_.*are both given: give one"),
  ):
    with pytest.raises(UserError, match=message):
      Estimator(task, **settings | changes)
  with pytest.raises(UserError, match=r"^predict=new text\.csv: no such file"):
    Estimator(task, **settings).predict("new text.csv")


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_is_refused_instead_of_waiting_forever(trained: Estimator) -> None:
  reader, writer = os.pipe()
  parent = os.getpid()
  child = os.fork()
  if not child:
    try:
      trained.predict(["new text"])
    except UserError as error:
      os.write(writer, str(error).encode())
    finally:
      os._exit(0)
  os.close(writer)
  os.waitpid(child, 0)
  with os.fdopen(reader) as message:
    assert message.read().startswith(
      f"the Estimator was made in process {parent}, of which process {child} is a fork; there TensorFlow would wait"
    )


def test_evaluate_returns_the_metrics_and_prints_nothing(
  trained: Estimator, capsys: pytest.CaptureFixture[str]
) -> None:
  trained.evaluate()  # a warning that the model has not learned is printed once
  capsys.readouterr()
  results = trained.evaluate()
  assert capsys.readouterr() == ("", "")
  assert json.loads(Path(trained.config.output_dir, "eval_results.json").read_text()) == {"step": 4, **results}


def test_regression_on_pairs_of_texts_predicts_numbers(settings: dict[str, Any], tmp_path: Path) -> None:
  pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
  rows = [(*pair, 0.5 * number) for number, pair in enumerate(pairs)]
  task = tasks.Regression(train=rows, text=("first", "second"), label="score", eval_share=0.1)
  estimator = Estimator(task, output_dir=tmp_path / "run", **settings | {"num_train_steps": 2, "eval_every_steps": 0})
  estimator.train()
  assert -1 <= estimator.evaluate()["pearson"] <= 1
  answers = estimator.predict(pairs[:3])
  assert [type(answer) for answer in answers] == [float] * 3
  with pytest.raises(UserError, match=r"the data to predict: row 0 is 'one': give 2 values \('first', 'second'\)"):
    estimator.predict(["one"])
  bad_task = tasks.Regression(train=[("a", 1), ("b", "high")], text="text", label="score", eval_share=0.5)
  with pytest.raises(UserError, match=r"^train: row 1: score 'high' is not a number"):
    Estimator(bad_task, **settings)
