"""Tests of exported models on disk: without our code, in other formats, with bad input, and through albert.predict."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.companion_files import DESCRIPTION
from albert.export.export_model import WARMUP_FILE, _rename_staging, export_model, graph_ops
from albert.export.registry import TFLITE
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import AUTO, RequestParser, answer_batches
from tests.export.pipelines import FORMS, STEP, Run, write_run
from tests.export.requests import english_like_texts, make_requests
from tests.export.served_runs import assert_close_without_padding, assert_same_plain_answers
from tests.file_limits import file_size_limit
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config, write_hub

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5
MEGABYTE = 1 << 20
# Runs a script in a process that cannot import this project.
RUN_WITHOUT_PROJECT = """
import runpy, sys
class Refusal:
  def find_spec(self, name, path=None, target=None):
    if name.split(".")[0] in ("albert", "data_prep"):
      raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refusal())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclasses.dataclass(frozen=True)
class Exported:
  """An exported model: the run that it was made from, the directory of its version, and the loaded SavedModel."""

  run: Run
  directory: Path
  saved_model: Any

  def answer(self, requests: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The answers of serving_default. If a field is a list, all requests must have equally many texts in it."""
    inputs = {name: tf.constant([request[name] for request in requests]) for name in requests[0]}
    return {name: value.numpy() for name, value in self.saved_model.signatures["serving_default"](**inputs).items()}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> dict[str, Exported]:
  """Form -> an exported model of this form."""
  models = {}
  directory = tmp_path_factory.mktemp("exports")
  for name, form in FORMS.items():
    run = write_run(directory / "runs" / name, form, spm_model)
    task = name if form.task == "pretraining" else ""
    path = export_model(run.directory, str(directory / "models"), task=task, name=f"my_{name}")
    models[name] = Exported(run, Path(path), tf.saved_model.load(path))
  return models


def make_requests_of_four_options(name: str, texts: list[str]) -> list[dict[str, Any]]:
  """Makes requests of a form. Multiple-choice requests get four options each, so that they fit into one tensor."""
  requests = make_requests(name, texts)
  for request in requests:
    if "options" in request:
      request["options"] = (request["options"] * 2)[:4]
  return requests


@pytest.mark.slow
def test_a_process_without_our_code_gives_the_python_pipelines_answers(
  exported: dict[str, Exported], tmp_path: Path
) -> None:
  copied_directories = []
  for name, model in exported.items():
    shutil.copytree(model.directory, tmp_path / name)
    copied_directories.append(str(tmp_path / name))
  command = [sys.executable, "-I", "-c", RUN_WITHOUT_PROJECT, str(ROOT / "examples" / "ask.py"), *copied_directories]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert result.returncode == 0, result.stderr
  print(result.stdout)
  lines = [json.loads(line) for line in result.stdout.splitlines()]
  assert len(lines) == 2 * len(FORMS)  # each model has two example requests
  for name, model in exported.items():
    model_lines = [line for line in lines if Path(line["model"]).name == name]
    requests = [dict(line["request"]) for line in model_lines]
    for request in requests:
      if "options" in request:  # "" pads shorter lists
        request["options"] = [option for option in request["options"] if option]
    for answer_name, expected_values in model.run.expected_answers(requests).items():
      for line, expected in zip(model_lines, expected_values, strict=True):
        value = line["answer"][answer_name]
        if answer_name == "labels" or isinstance(expected, str):
          assert value == expected, (name, answer_name)
        else:
          assert_close_without_padding(np.array(value), np.array(expected), err_msg=name)


@pytest.mark.slow
def test_run_without_project_refuses_imports_of_this_project(tmp_path: Path) -> None:
  script = tmp_path / "script.py"
  script.write_text("import albert")
  command = [sys.executable, "-I", "-c", RUN_WITHOUT_PROJECT, str(script)]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert "albert is not to be imported here" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_bad_input_gives_an_answer_or_an_error_and_does_not_harm_the_model(
  exported: dict[str, Exported], name: str
) -> None:
  model = exported[name]
  serve = model.saved_model.signatures["serving_default"]
  requests = make_requests_of_four_options(name, english_like_texts(3))
  expected = model.answer(requests)
  fields = {field: tf.constant([request[field] for request in requests]) for field in requests[0]}
  long_text = " ".join(english_like_texts(40)) + " "
  long_text *= MEGABYTE // len(long_text) + 1
  for text in ("", " \n\t", "\0", "[MASK]", b"\xff\xfe\x80 caf\xc3 \xed\xa0\x80", "東" * 100_000, long_text):
    num_rows = 1 if len(text) > 1000 else len(requests)
    answers = serve(**{field: tf.fill(tf.shape(value[:num_rows]), text) for field, value in fields.items()})
    for answer_name, values in answers.items():
      assert values.shape[0] == num_rows
      assert values.dtype == tf.string or np.isfinite(values.numpy().astype(np.float64)).all(), answer_name
  first_field, *other_fields = fields
  with pytest.raises(TypeError, match=first_field):
    serve(**{field: fields[field] for field in other_fields})
  with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError), match=r"string|type|dtype"):
    serve(**fields | {first_field: tf.zeros(fields[first_field].shape, tf.int32)})
  empty = {field: tf.zeros([0, *value.shape[1:]], tf.string) for field, value in fields.items()}
  assert {values.shape[0] for values in serve(**empty).values()} == {0}
  if len(fields) > 1:
    with pytest.raises(tf.errors.InvalidArgumentError):
      serve(**fields | {first_field: fields[first_field][:2]})
    with pytest.raises(tf.errors.InvalidArgumentError):
      serve(**fields | {field: fields[field][:1] for field in other_fields})
  for answer_name, values in model.answer(requests).items():
    np.testing.assert_array_equal(values, expected[answer_name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_too_many_tokens_are_refused_and_an_empty_batch_is_answered(exported: dict[str, Exported], name: str) -> None:
  model = exported[name]
  serve = model.saved_model.signatures["tokens"]
  rank = 3 if name == "race" else 2
  too_long = tf.ones([2] * (rank - 1) + [model.run.config.max_position_embeddings + 1], tf.int32)
  message = f"{model.run.config.max_position_embeddings} tokens at most"
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    serve(input_ids=too_long, input_mask=too_long, segment_ids=too_long)
  no_rows = tf.zeros([0, *too_long.shape[1:]], tf.int32)
  answers = serve(input_ids=no_rows, input_mask=no_rows, segment_ids=no_rows)
  assert {values.shape[0] for values in answers.values()} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_an_export_has_vocabulary_description_card_and_examples(exported: dict[str, Exported], name: str) -> None:
  model = exported[name]
  assert model.directory.parts[-2:] == (f"my_{name}", "1")
  vocabulary = model.directory / "assets" / "spiece.model"
  assert vocabulary.read_bytes() == Path(model.run.directory, "spiece.model").read_bytes()
  description = json.loads((model.directory / DESCRIPTION).read_text())
  assert description["task"] == name
  assert description["checkpoint"]["step"] == STEP
  labels = model.directory / "assets" / "labels.txt"
  assert labels.exists() == bool(description["labels"])
  if labels.exists():
    assert labels.read_text().splitlines() == description["labels"]
  card = (model.directory / "README.md").read_text()
  assert f"/v1/models/my_{name}:predict" in card
  assert "| loss | 1.25 |" in card
  code = card.partition("```python\n")[2].partition("```")[0]
  exec(code.replace("DIRECTORY OF THIS FILE", str(model.directory)), {})
  serve = model.saved_model.signatures["serving_default"]
  assert set(serve.structured_outputs) == set(description["answers"])
  instances = json.loads((model.directory / "examples" / "serving_default.json").read_text())["instances"]
  expected = json.loads((model.directory / "examples" / "serving_default.answer.json").read_text())["predictions"]
  assert len(instances) == len(expected) == 2
  assert "PyFunc" not in graph_ops(str(model.directory))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_the_model_answers_the_warmup_requests(exported: dict[str, Exported], name: str) -> None:
  """TensorFlow Serving's own classes parse the file of warmup requests."""
  prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
  model = exported[name]
  path = model.directory / WARMUP_FILE
  records = tf.data.TFRecordDataset(str(path))
  logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
  assert [log.predict_log.request.model_spec.signature_name for log in logs] == ["serving_default", "tokens"]
  for log in logs:
    request = log.predict_log.request
    assert request.model_spec.name == f"my_{name}"
    inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
    answers = model.saved_model.signatures[request.model_spec.signature_name](**inputs)
    assert all(len(values) for values in answers.values())


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["serving_default", "tokens"])
@pytest.mark.parametrize("name", FORMS)
def test_requests_and_answers_fit_into_tensorflow_servings_messages(
  exported: dict[str, Exported], name: str, signature: str
) -> None:
  """They are converted to TensorFlow Serving's messages, then to bytes and back."""
  predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
  model = exported[name]
  examples = model.directory / "examples"
  instances = json.loads((examples / f"{signature}.json").read_text())["instances"]
  request = predict_pb2.PredictRequest()
  request.model_spec.name, request.model_spec.signature_name = f"my_{name}", signature
  for key in instances[0]:
    request.inputs[key].CopyFrom(tf.make_tensor_proto([instance[key] for instance in instances]))
  request = predict_pb2.PredictRequest.FromString(request.SerializeToString())
  serve = model.saved_model.signatures[request.model_spec.signature_name]
  _, specs = serve.structured_input_signature  # positional arguments, of which there are none, and named ones
  inputs = {key: tf.constant(tf.make_ndarray(value), specs[key].dtype) for key, value in request.inputs.items()}
  response = predict_pb2.PredictResponse()
  for key, tensor in serve(**inputs).items():
    response.outputs[key].CopyFrom(tf.make_tensor_proto(tensor))
  response = predict_pb2.PredictResponse.FromString(response.SerializeToString())
  predictions = json.loads((examples / f"{signature}.answer.json").read_text())["predictions"]
  for key, tensor in response.outputs.items():
    for value, prediction in zip(tf.make_ndarray(tensor), predictions, strict=True):
      expected = np.array(prediction[key] if isinstance(prediction, dict) else prediction)
      if np.asarray(value).dtype.kind in "OS":
        assert np.array_equal(np.vectorize(bytes.decode, otypes=[object])(value), expected)
      else:
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_albert_predict_gives_the_python_pipelines_answers(exported: dict[str, Exported], name: str) -> None:
  exported_model = exported[name]
  requests = make_requests(name, english_like_texts(21))
  lines = [json.dumps({"number": i, **request}) for i, request in enumerate(requests)]
  model = ExportedModel(str(exported_model.directory.parent))
  parser = RequestParser(model.description.fields, AUTO, "input", model.description.answers)
  batches = answer_batches(model, parser, io.BytesIO("\n".join(lines).encode()), batch_size=4)
  answers = [answer for batch in batches for answer in batch]
  assert [answer["number"] for answer in answers] == list(range(len(requests)))
  assert_same_plain_answers(answers, exported_model.run.expected_answers(requests))
  if name == "race":
    assert [len(answer["probabilities"]) for answer in answers] == [len(request["options"]) for request in requests]


@pytest.mark.slow
def test_the_predict_command_keeps_other_fields_and_names_the_model(
  exported: dict[str, Exported], tmp_path: Path
) -> None:
  """The input has a gold label, an id that is not valid Unicode, and blank lines."""
  model = exported["classifier"]
  path = tmp_path / "lines.jsonl"
  path.write_text('\n{"id": "\\ud800", "text": "a \\ud800 b", "label": "gold"}\n\n{"text": ""}\n\n')
  command = [sys.executable, "-m", "albert.predict", f"--model={model.directory.parent}", f"--input_file={path}"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
  assert result.returncode == 0, result.stderr
  first, second = (json.loads(line) for line in result.stdout.splitlines())
  expected = model.run.expected_answers([{"text": "a \ufffd b"}, {"text": ""}])
  assert (first["id"], first["input_label"], first["label"]) == ("\ud800", "gold", expected["label"][0])
  assert set(second) == {"label", "probabilities"}
  for row, probabilities in zip((first, second), expected["probabilities"], strict=True):
    np.testing.assert_allclose(list(row["probabilities"].values()), probabilities, atol=TOLERANCE)
  first_line = result.stderr.decode().splitlines()[0]
  assert first_line.startswith(f"answers from {model.directory}: classifier, made from {model.run.directory}")
  assert first_line.endswith(f"(step {STEP})")


@pytest.mark.slow
def test_a_version_that_another_process_has_created_meanwhile_is_not_replaced(tmp_path: Path) -> None:
  for name in ("staging", "model/1"):
    (tmp_path / name / "variables").mkdir(parents=True)
  with pytest.raises(UserError, match=r"--version=1: .* exists"):
    _rename_staging(str(tmp_path / "staging"), f"{tmp_path}/model/1", str(tmp_path), "model", 1)
  # Version 0 means the next free one.
  path = _rename_staging(str(tmp_path / "staging"), f"{tmp_path}/model/1", str(tmp_path), "model", 0)
  assert path == f"{tmp_path}/model/2"
  assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["1", "2"]


def test_the_case_is_that_of_the_vocabulary_and_a_flag_that_contradicts_it_is_refused(
  tmp_path: Path, spm_model: str
) -> None:
  config = small_config(spm_model)
  checkpoint = open_checkpoint(write_hub(tmp_path / "hub", config, random_weights(config, seed=3), spm_model))
  assert not select_form(checkpoint, "embeddings", {}).tokenizer_config.do_lower_case
  with pytest.raises(UserError, match=r"do_lower_case=true is given, but .*tokenizer_config\.json"):
    select_form(checkpoint, "embeddings", {"do_lower_case": True})


def test_a_custom_classification_whose_labels_were_not_recorded_needs_them(tmp_path: Path, spm_model: str) -> None:
  settings = {"task_name": "custom", "text_columns": "review", "train_file": __file__}
  run = write_run(tmp_path / "run", dataclasses.replace(FORMS["classifier"], data_settings=settings), spm_model)
  checkpoint = open_checkpoint(run.directory)
  with pytest.raises(UserError, match=r"^--checkpoint=.*: records no labels: give --labels, in the order of training$"):
    select_form(checkpoint, "", {})
  assert select_form(checkpoint, "", {"labels": "bad,fair,good"}).name == "classifier"


def test_versions_are_counted_up_and_a_failed_export_leaves_no_version(tmp_path: Path, spm_model: str) -> None:
  run = write_run(tmp_path / "run", FORMS["classifier"], spm_model)
  models = str(tmp_path / "models")
  Path(models, "classifier", "4").mkdir(parents=True)
  assert export_model(run.directory, models) == f"{models}/classifier/5"
  with pytest.raises(UserError, match=r"--version=5: .* exists"):
    export_model(run.directory, models, version=5)
  with pytest.raises(UserError, match="a plain name"):
    export_model(run.directory, models, name="a/b")
  with pytest.raises(UserError, match=r"--task=squad_v2: .* no squad_v2 head"):
    export_model(run.directory, models, task="squad_v2")
  with pytest.raises(UserError, match=r"^--formats=tflite with --precision=bfloat16: give --precision=float32$"):
    export_model(run.directory, models, precision="bfloat16", formats=(TFLITE,))
  with pytest.raises(UserError, match="48 positions"):
    export_model(run.directory, models, settings={"max_seq_length": 64})
  assert sorted(path.name for path in Path(models, "classifier").iterdir()) == ["4", "5"]
  assert open_checkpoint(run.directory).step == STEP


@pytest.mark.slow
def test_a_given_version_a_full_disk_and_bfloat16(tmp_path: Path, spm_model: str) -> None:
  run = write_run(tmp_path / "run", FORMS["classifier"], spm_model)
  models = str(tmp_path / "models")
  assert export_model(run.directory, models, version=5) == f"{models}/classifier/5"
  assert export_model(run.directory, models, precision="bfloat16") == f"{models}/classifier/6"
  error_of_full_disk = rf"^{models}/classifier/7: cannot write it \(File too large\): run the same command again"
  with file_size_limit(300_000), pytest.raises(RunError, match=error_of_full_disk):
    export_model(run.directory, models)
  assert sorted(path.name for path in Path(models, "classifier").iterdir()) == ["5", "6"]

  def probabilities(version: int) -> np.ndarray:
    serve = tf.saved_model.load(f"{models}/classifier/{version}").signatures["serving_default"]
    return serve(text=tf.constant(english_like_texts(8)))["probabilities"].numpy()

  difference = np.abs(probabilities(5) - probabilities(6)).max()  # of float32 (5) and bfloat16 (6)
  assert 0 < difference < 0.05
