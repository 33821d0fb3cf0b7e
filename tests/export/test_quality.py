"""Tests of the formats of an export, and of --eval_file and --max_metric_drop, which judge their quality."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.errors import UserError
from albert.export import other_formats
from albert.export.checkpoint import find_checkpoint, open_checkpoint, select_form
from albert.export.checks import Candidate, QualityCheck
from albert.export.companion_files import DESCRIPTION
from albert.export.export_model import export_model
from albert.export.registry import EXTRA_FORMATS, FORMAT_FILES, ONNX, ONNX_INT8, TFLITE, TFLITE_INT8
from albert.export.served_model import portable_function
from albert.tasks.glue.results import ChosenThresholds
from albert.tokenization.tokenizer import Tokenizer
from albert.weights.checkpoints import CheckpointManager
from tests.export.pipelines import FORMS, STEP, Run, write_run
from tests.export.requests import english_like_texts
from tests.tasks.squad.question_files import make_qa, write_squad

# Largest accepted difference from the float32 answers to the examples, for weights that are as hard to round as random
# ones: absolute for answers up to 1, else relative.
MAX_DIFFERENCES = {"tflite": 1e-3, "tflite_float16": 0.01, "tflite_int8": 0.2, "onnx": 1e-3, "onnx_int8": 0.2}


def labeled_file(run: Run, path: Path, num_rows: int = 60) -> str:
  """Writes texts with the labels that the float32 model of a run gives them, so that its accuracy is 1."""
  texts = english_like_texts(num_rows)
  labels = run.expected_answers([{"text": text} for text in texts])["label"]
  assert len(set(labels)) > 1
  rows = [f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)]
  path.write_text("".join(["review\tlabel\n", *rows]))
  return str(path)


def ruin_for_int8(run: Run) -> None:
  """Changes the weights of a run so that an int8 model loses the output of the feed-forward layer.

  One unit has an activation of 10,000, which the next matrix ignores. An int8 number that can hold it has a step of 40
  or 80, so all other activations are rounded to 0.
  """
  block = "bert/encoder/transformer/group_0/inner_group_0/ffn_1/intermediate"
  bias, kernel = run.weights[f"{block}/dense/bias"].copy(), 8 * run.weights[f"{block}/output/dense/kernel"]
  bias[0], kernel[0] = 1e4, 0.0
  run.weights.update({f"{block}/dense/bias": bias, f"{block}/output/dense/kernel": kernel})
  balance_labels(run)


def balance_labels(run: Run) -> None:
  """Changes the bias of a classifier, so that it predicts all labels, and saves a checkpoint."""
  probabilities = run.expected_answers([{"text": text} for text in english_like_texts(60)])["probabilities"]
  run.weights["output_bias"] = run.weights["output_bias"] - np.log(probabilities).mean(axis=0).astype(np.float32)
  manager = CheckpointManager(f"{run.directory}/checkpoints", keep=1, model_config=run.config)
  manager.save(manager.steps()[-1] + 1, run.weights)


@pytest.fixture
def classifier(tmp_path: Path, spm_model: str) -> Run:
  """The run of a classifier with random weights, which predicts all labels."""
  # The converter of TFLite quantizes only matrices of 1,024 or more elements.
  run = write_run(tmp_path / "run", FORMS["classifier"], spm_model, hidden_size=48, intermediate_size=64)
  balance_labels(run)
  return run


def constant_answers(probabilities: np.ndarray) -> Any:
  """A model that gives all rows the same probabilities."""
  return lambda inputs: {"probabilities": np.tile(probabilities, [len(inputs["input_ids"]), 1])}


def quality_check(run: Run, eval_file: str, max_metric_drop: float | None = None) -> QualityCheck:
  checkpoint = open_checkpoint(run.directory)
  return QualityCheck(select_form(checkpoint, "", {}), checkpoint, eval_file, max_metric_drop)


def test_models_are_compared_by_the_metric_of_the_task(classifier: Run, tmp_path: Path) -> None:
  path = tmp_path / "dev.tsv"
  path.write_text("review\tlabel\n" + "a letter\tbad\n" * 30 + "the river\tgood\n" * 10)
  check = quality_check(classifier, str(path), 0.5)
  always_bad = Candidate("saved_model", 3_000_000, constant_answers(np.array([0.6, 0.1, 0.3])))
  always_good = Candidate("onnx_int8", 1_000_000, constant_answers(np.array([0.2, 0.2, 0.6])))
  report = check.measure([always_bad, always_good])
  assert (report["num_examples"], report["metric_names"][0]) == (40, "accuracy")
  assert report["num_tokens"] > 3
  report_of_bad, report_of_good = report["models"]  # 30 of the 40 labels are bad, 10 are good
  assert (report_of_bad["metrics"]["accuracy"], report_of_good["metrics"]["accuracy"]) == (0.75, 0.25)
  assert (report_of_bad["drop"], report_of_good["drop"]) == (0.0, 0.5)
  assert report_of_good["num_bytes"] == 1_000_000
  with pytest.raises(UserError) as error:
    quality_check(classifier, str(path), 0.49).measure([always_bad, always_good])
  assert str(error.value) == (
    f"--eval_file={path}: the accuracy drops from 0.75 (float32) with onnx_int8 to 0.25 (by 0.5), more than "
    "--max_metric_drop=0.49: leave this format out, or accept a larger drop"
  )
  quality_check(classifier, str(path), 0.0).measure([always_good, always_bad])  # a better metric is no drop


def test_the_thresholds_of_several_labels_are_those_of_the_run(
  tmp_path: Path, spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  settings = FORMS["multi_label"].data_settings | {"thresholds": "per_label"}
  run = write_run(tmp_path / "run", dataclasses.replace(FORMS["multi_label"], data_settings=settings), spm_model)
  ChosenThresholds("per_label", "eval", "hash", {"bad": 0.3, "fair": 0.5, "good": 0.5}).write(run.directory)
  weights_without_run = shutil.copytree(f"{run.directory}/checkpoints/step-{STEP}", tmp_path / "weights")
  monkeypatch.chdir(run.directory)
  answers = constant_answers(np.array([0.4, 0.4, 0.6]))
  for path, labels in ((run.directory, "bad,good"), (str(weights_without_run), "good")):
    eval_file = tmp_path / "dev.tsv"
    eval_file.write_text("review\tlabel\n" + f"a letter\t{labels}\n" * 3)
    checkpoint = open_checkpoint(find_checkpoint(path, spm_model_file=spm_model))
    form = select_form(checkpoint, "multi_label", settings)
    check = QualityCheck(form, checkpoint, str(eval_file))
    assert check.compute_metrics(answers)["micro_f1"] == 1.0


def test_bad_arguments_are_refused_before_the_model_is_built(
  classifier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr("albert.export.export_model.tf.saved_model.save", lambda *args, **kwargs: pytest.fail("built"))
  wrong_columns = tmp_path / "wrong.tsv"
  wrong_columns.write_text("text\tlabel\nfine\tgood\n")
  wrong_label = tmp_path / "label.tsv"
  wrong_label.write_text("review\tlabel\nfine\tgreat\n")
  models = str(tmp_path / "models")
  for arguments, message in (
    ({"eval_file": "absent.tsv"}, "^--eval_file=absent.tsv: no such file$"),
    ({"eval_file": str(wrong_columns)}, rf"^{wrong_columns}, line 1: no column 'review'"),
    ({"eval_file": str(wrong_label)}, rf"^{wrong_label}, line 2: .*great"),
    ({"max_metric_drop": 0.1}, "^--max_metric_drop=0.1 has an effect only with --eval_file"),
  ):
    with pytest.raises(UserError, match=message):
      export_model(classifier.directory, models, **arguments)
  assert not Path(models).exists()


@pytest.mark.serving
def test_the_card_says_whether_the_quality_was_measured(classifier: Run, tmp_path: Path) -> None:
  directory = Path(export_model(classifier.directory, str(tmp_path), formats=("tflite_float16",)))
  assert "The quality of these formats was not measured" in (directory / "README.md").read_text()
  assert json.loads((directory / DESCRIPTION).read_text())["quality"] is None
  eval_file = labeled_file(classifier, tmp_path / "dev.tsv")
  directory = Path(
    export_model(
      classifier.directory, str(tmp_path), formats=("tflite_float16",), eval_file=eval_file, max_metric_drop=0.1
    )
  )
  card = (directory / "README.md").read_text()
  assert "was not measured" not in card
  assert "| model | accuracy | matthews_corrcoef | macro_f1 | change of accuracy | MB | ms |" in card
  assert (
    f"Measured at the export on {eval_file} (60 examples; batches of 16). A drop of accuracy by more than 0.1 " in card
  )
  quality = json.loads((directory / DESCRIPTION).read_text())["quality"]
  saved_model, float16 = quality["models"]
  assert (saved_model["name"], saved_model["metrics"]["accuracy"]) == ("saved_model", 1.0)
  assert float16["name"] == "tflite_float16"
  assert float16["num_bytes"] == (directory / "model_float16.tflite").stat().st_size
  assert 0 < float16["latency_ms"] < 10_000


@pytest.mark.parametrize("form", ["squad_v1", "squad_v2"])
def test_spans_are_scored_as_answers(tmp_path: Path, spm_model: str, form: str) -> None:
  """The model of this test marks the words "the river" in every window, the answer to the first question alone."""
  run = write_run(tmp_path / "run", FORMS[form], spm_model)
  context = "The teacher watched the river. Nobody sold a letter."
  qas = [make_qa("q0", "what was watched?", context, "the river"), make_qa("q1", "who?", context, "Nobody")]
  if form == "squad_v2":
    qas = [qa | {"is_impossible": False} for qa in qas] + [make_qa("q2", "when?", context, is_impossible=True)]
  path = write_squad(tmp_path / "dev.json", [(context, qas)], version="2.0" if form == "squad_v2" else "1.1")
  check = quality_check(run, path, 0.0)
  tokenizer = Tokenizer(spm_model)
  tokens = tokenizer.encode_with_offsets(context)
  begin, end = context.index("the river"), context.index("the river") + len("the river")
  is_answer = (np.asarray(tokens.ends) > begin) & (np.asarray(tokens.starts) < end)

  def mark_the_river(inputs: Any) -> dict[str, np.ndarray]:
    first_tokens = (inputs["segment_ids"] > 0).argmax(axis=1)  # of the context in each window
    positions = np.flatnonzero(is_answer)
    ones = np.ones(len(first_tokens), np.float32)
    return {
      "start": (first_tokens + positions[0]).astype(np.int32),
      "end": (first_tokens + positions[-1]).astype(np.int32),
      "score": ones,
      "no_answer_probability": 0.1 * ones,
    }

  model = Candidate("saved_model", 1, mark_the_river)
  assert check.num_examples == len(qas)  # one window each
  metrics = check.measure([model])["models"][0]["metrics"]
  assert metrics["exact"] == metrics["f1"] == pytest.approx(100 / len(qas))


@pytest.mark.thorough
def test_a_bfloat16_model_is_compared_with_the_float32_model(classifier: Run, tmp_path: Path) -> None:
  eval_file = labeled_file(classifier, tmp_path / "dev.tsv")
  directory = Path(
    export_model(classifier.directory, str(tmp_path), precision="bfloat16", eval_file=eval_file, max_metric_drop=0.3)
  )
  float32, saved_model = json.loads((directory / DESCRIPTION).read_text())["quality"]["models"]
  assert (float32["name"], float32["num_bytes"], float32["metrics"]["accuracy"]) == ("float32", 0, 1.0)
  assert saved_model["name"] == "saved_model"
  assert 0.7 <= saved_model["metrics"]["accuracy"] == 1.0 - saved_model["drop"]
  assert "| float32 | 1 | " in (directory / "README.md").read_text()
  assert "| not exported | " in (directory / "README.md").read_text()


@pytest.mark.serving
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_exported_in_every_format(tmp_path: Path, spm_model: str, form: str) -> None:
  """The export itself compares the answers with the SavedModel's, and fails if they differ by too much."""
  run = write_run(tmp_path / "run", FORMS[form], spm_model)
  task = form if FORMS[form].task == "pretraining" else ""
  directory = Path(export_model(run.directory, str(tmp_path), task=task, formats=EXTRA_FORMATS))
  card_lines = (directory / "README.md").read_text().splitlines()
  for name, file_name in FORMAT_FILES.items():
    assert (directory / file_name).stat().st_size > 10_000
    note = next(line for line in card_lines if f"`{file_name}`" in line)
    difference = float(note.rpartition("at most ")[2].split()[0])
    assert difference < MAX_DIFFERENCES[name], name
    assert difference > 0 or name in (TFLITE, ONNX), name


@pytest.mark.serving
@pytest.mark.parametrize("name", [TFLITE_INT8, ONNX_INT8])
def test_a_drop_of_the_metric_is_refused_and_leaves_nothing(classifier: Run, tmp_path: Path, name: str) -> None:
  ruin_for_int8(classifier)
  eval_file = labeled_file(classifier, tmp_path / "dev.tsv")
  models = tmp_path / "models"
  with pytest.raises(UserError, match=rf"the accuracy drops from 1 \(float32\) with {name} to 0\.") as error:
    export_model(classifier.directory, str(models), formats=(name,), eval_file=eval_file)
  assert str(error.value).endswith("more than --max_metric_drop=0.01: leave this format out, or accept a larger drop")
  assert not [path for path in models.rglob("*") if path.is_file()]
  directory = Path(
    export_model(classifier.directory, str(models), formats=(name,), eval_file=eval_file, max_metric_drop=1.0)
  )
  assert (directory / FORMAT_FILES[name]).exists()


@pytest.mark.serving
def test_the_metric_of_a_model_without_outliers_is_kept(classifier: Run, tmp_path: Path) -> None:
  """The probabilities of the labels differ so little that some change with int8. A ruined model has less than half."""
  eval_file = labeled_file(classifier, tmp_path / "dev.tsv")
  formats = tuple(EXTRA_FORMATS)
  directory = Path(
    export_model(classifier.directory, str(tmp_path), formats=formats, eval_file=eval_file, max_metric_drop=0.3)
  )
  quality = json.loads((directory / DESCRIPTION).read_text())["quality"]
  assert [model["name"] for model in quality["models"]] == ["saved_model", *formats]
  accuracies = {model["name"]: model["metrics"]["accuracy"] for model in quality["models"]}
  assert accuracies["saved_model"] == accuracies[ONNX] == accuracies[TFLITE] == 1.0


@pytest.mark.serving
@pytest.mark.parametrize("name", [ONNX_INT8, TFLITE_INT8])
def test_layers_that_share_matrices_store_them_once(tmp_path: Path, spm_model: str, name: str) -> None:
  hidden_size, intermediate_size = 96, 384
  num_bytes = {}  # number of layers -> size of the file
  for num_layers in (3, 6):
    run = write_run(
      tmp_path / f"run{num_layers}",
      FORMS["classifier"],
      spm_model,
      hidden_size=hidden_size,
      intermediate_size=intermediate_size,
      num_hidden_layers=num_layers,
    )
    checkpoint = open_checkpoint(run.directory)
    form = select_form(checkpoint, "", {})
    model = form.model_class(checkpoint, form)
    function = portable_function(model)
    if name == ONNX_INT8:
      content = other_formats.quantize_onnx(other_formats.convert_to_onnx(function), model.hidden_size**2)
    else:
      content = other_formats.to_tflite(function, model, name)
    num_bytes[num_layers] = len(content)
  # One byte for each weight of a layer: query, key and value; the output of attention; the two feed-forward matrices.
  matrix_bytes = hidden_size * (3 * hidden_size + hidden_size + 2 * intermediate_size)
  # The operations of three more layers take some bytes, but far fewer than the matrices of even one.
  assert num_bytes[6] - num_bytes[3] < matrix_bytes / 3
