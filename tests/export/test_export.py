"""Exports on disk: in a process without our code, in other formats, with bad input, and through albert.predict."""

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
from albert.export import warmup
from albert.export.checkpoint import open_checkpoint
from albert.export.export_model import _rename_staging, export_model
from albert.export.formats import DESCRIPTION, ONNX, TFLITE, TFLITE_INT8
from albert.export.ops import graph_ops
from albert.predict import answers as predict_answers
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import AUTO, RequestParser
from tests.export.pipelines import FORMS, STEP, Run, write_run
from tests.export.requests import english_like_texts, make_requests
from tests.file_limits import file_size_limit

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5
MEGABYTE = 1 << 20
# A finder that lets nothing of this project be imported, in front of a script.
CLEAN = """
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
  """A run, the directory of its export, and the loaded SavedModel."""

  run: Run
  directory: Path
  model: Any

  def ask(self, requests: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The answers of serving_default to requests whose lists are equally long."""
    inputs = {name: tf.constant([request[name] for request in requests]) for name in requests[0]}
    return {name: value.numpy() for name, value in self.model.signatures["serving_default"](**inputs).items()}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> dict[str, Exported]:
  """Every form, by its name."""
  found = {}
  directory = tmp_path_factory.mktemp("exports")
  for name, form in FORMS.items():
    run = write_run(directory / "runs" / name, form, spm_model)
    task = name if form.task == "pretraining" else ""
    path = export_model(run.directory, str(directory / "models"), task=task, name=f"my_{name}")
    found[name] = Exported(run, Path(path), tf.saved_model.load(path))
  return found


def rectangular(name: str, texts: list[str]) -> list[dict[str, Any]]:
  """Requests with as many options in each."""
  requests = make_requests(name, texts)
  for request in requests:
    if "options" in request:
      request["options"] = (request["options"] * 2)[:4]
  return requests


@pytest.mark.slow
def test_a_process_without_our_code_gives_the_python_pipelines_answers(
  exported: dict[str, Exported], tmp_path: Path
) -> None:
  copies = []
  for name, made in exported.items():  # at another place, the original gone
    shutil.copytree(made.directory, tmp_path / name)
    copies.append(str(tmp_path / name))
  command = [sys.executable, "-I", "-c", CLEAN, str(ROOT / "examples" / "ask.py"), *copies]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert result.returncode == 0, result.stderr
  print(result.stdout)
  lines = [json.loads(line) for line in result.stdout.splitlines()]
  assert len(lines) == 2 * len(FORMS)
  for name, made in exported.items():
    own = [line for line in lines if Path(line["model"]).name == name]
    requests = [dict(line["request"]) for line in own]
    for request in requests:
      if "options" in request:  # "" fills up shorter lists
        request["options"] = [option for option in request["options"] if option]
    expected = made.run.answer(requests)
    for answer, wanted in expected.items():
      for row, line in enumerate(own):
        found, value = line["answer"][answer], wanted[row]
        if isinstance(value, str):
          assert found == value, (name, answer)
        else:
          found = np.array(found)
          rest = tuple(slice(size) for size in found.shape)  # without what fills up the other request's answer
          np.testing.assert_allclose(found, np.array(value)[rest], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.mark.slow
def test_the_refusal_of_our_code_works(tmp_path: Path) -> None:
  script = tmp_path / "script.py"
  script.write_text("import albert")
  command = [sys.executable, "-I", "-c", CLEAN, str(script)]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert "albert is not to be imported here" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_bad_input(exported: dict[str, Exported], name: str) -> None:
  """An answer or an error, and the model answers afterwards as before."""
  made = exported[name]
  serve = made.model.signatures["serving_default"]
  good = rectangular(name, english_like_texts(3))
  before = made.ask(good)
  fields = {field: tf.constant([request[field] for request in good]) for field in good[0]}
  long = " ".join(english_like_texts(40)) + " "
  long *= MEGABYTE // len(long) + 1
  for strange in ("", " \n\t", "\0", "[MASK]", b"\xff\xfe\x80 caf\xc3 \xed\xa0\x80", "東" * 100_000, long):
    rows = 1 if len(strange) > 1000 else len(good)
    found = serve(**{field: tf.fill(tf.shape(value[:rows]), strange) for field, value in fields.items()})
    for answer, values in found.items():
      assert values.shape[0] == rows
      assert values.dtype == tf.string or np.isfinite(values.numpy().astype(np.float64)).all(), answer
  missing = dict(list(fields.items())[1:])
  with pytest.raises(TypeError, match=next(iter(fields))):
    serve(**missing)
  first = next(iter(fields))
  with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError), match=r"string|type|dtype"):
    serve(**fields | {first: tf.zeros(fields[first].shape, tf.int32)})
  empty = {field: tf.zeros([0, *value.shape[1:]], tf.string) for field, value in fields.items()}
  assert {values.shape[0] for values in serve(**empty).values()} == {0}
  if len(fields) > 1:
    with pytest.raises(tf.errors.InvalidArgumentError):
      serve(**fields | {first: fields[first][:2]})
    with pytest.raises(tf.errors.InvalidArgumentError):
      serve(**fields | {other: fields[other][:1] for other in fields if other != first})
  for answer, values in made.ask(good).items():
    np.testing.assert_array_equal(values, before[answer])


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_bad_ids(exported: dict[str, Exported], name: str) -> None:
  made = exported[name]
  serve = made.model.signatures["tokens"]
  rank = 3 if name == "race" else 2
  too_long = tf.ones([2] * (rank - 1) + [made.run.config.max_position_embeddings + 1], tf.int32)
  with pytest.raises(tf.errors.InvalidArgumentError, match="48 tokens at most"):
    serve(input_ids=too_long, input_mask=too_long, segment_ids=too_long)
  nothing = tf.zeros([0, *too_long.shape[1:]], tf.int32)
  found = serve(input_ids=nothing, input_mask=nothing, segment_ids=nothing)
  assert {values.shape[0] for values in found.values()} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_what_an_export_holds(exported: dict[str, Exported], name: str) -> None:
  made = exported[name]
  assert made.directory.parts[-2:] == (f"my_{name}", "1")
  vocabulary = made.directory / "assets" / "spiece.model"
  assert vocabulary.read_bytes() == Path(made.run.directory, "spiece.model").read_bytes()
  description = json.loads((made.directory / DESCRIPTION).read_text())
  assert description["task"] == name
  assert description["checkpoint"]["step"] == STEP
  labels = made.directory / "assets" / "labels.txt"
  assert labels.exists() == bool(description["labels"])
  if labels.exists():
    assert labels.read_text().splitlines() == description["labels"]
  card = (made.directory / "README.md").read_text()
  assert f"/v1/models/my_{name}:predict" in card
  assert "| loss | 1.25 |" in card
  code = card.partition("```python\n")[2].partition("```")[0]
  exec(code.replace("DIRECTORY OF THIS FILE", str(made.directory)), {})
  serve = made.model.signatures["serving_default"]
  assert set(serve.structured_outputs) == set(description["answers"])
  instances = json.loads((made.directory / "examples" / "serving_default.json").read_text())["instances"]
  expected = json.loads((made.directory / "examples" / "serving_default.answer.json").read_text())["predictions"]
  assert len(instances) == len(expected) == 2
  assert "PyFunc" not in graph_ops(str(made.directory))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_warm_up_requests(exported: dict[str, Exported], name: str) -> None:
  """The file parses with TensorFlow Serving's own messages, and its requests can be answered."""
  prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
  made = exported[name]
  path = made.directory / warmup.WARMUP_DIRECTORY / warmup.WARMUP_FILE
  logs = [prediction_log_pb2.PredictionLog.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
  assert [log.predict_log.request.model_spec.signature_name for log in logs] == ["serving_default", "tokens"]
  for log in logs:
    request = log.predict_log.request
    assert request.model_spec.name == f"my_{name}"
    inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
    found = made.model.signatures[request.model_spec.signature_name](**inputs)
    assert all(len(values) for values in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["serving_default", "tokens"])
@pytest.mark.parametrize("name", FORMS)
def test_requests_and_answers_of_tensorflow_serving(exported: dict[str, Exported], name: str, signature: str) -> None:
  """A client's PredictRequest, from the example for REST, and a server's PredictResponse, through their bytes."""
  predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
  made = exported[name]
  examples = made.directory / "examples"
  instances = json.loads((examples / f"{signature}.json").read_text())["instances"]
  sent = predict_pb2.PredictRequest()
  sent.model_spec.name, sent.model_spec.signature_name = f"my_{name}", signature
  for key in instances[0]:
    sent.inputs[key].CopyFrom(tf.make_tensor_proto([instance[key] for instance in instances]))
  received = predict_pb2.PredictRequest.FromString(sent.SerializeToString())
  serve = made.model.signatures[received.model_spec.signature_name]
  kinds = serve.structured_input_signature[1]
  inputs = {key: tf.constant(tf.make_ndarray(value), kinds[key].dtype) for key, value in received.inputs.items()}
  response = predict_pb2.PredictResponse()
  for key, tensor in serve(**inputs).items():
    response.outputs[key].CopyFrom(tf.make_tensor_proto(tensor))
  response = predict_pb2.PredictResponse.FromString(response.SerializeToString())
  predictions = json.loads((examples / f"{signature}.answer.json").read_text())["predictions"]
  for key, value in response.outputs.items():
    for found, row in zip(tf.make_ndarray(value), predictions, strict=True):
      wanted = np.array(row[key] if isinstance(row, dict) else row)
      if np.asarray(found).dtype.kind in "OS":
        assert np.array_equal(np.vectorize(bytes.decode, otypes=[object])(found), wanted)
      else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("form", [TFLITE, TFLITE_INT8, ONNX])
@pytest.mark.parametrize("name", FORMS)
def test_other_formats(tmp_path: Path, spm_model: str, name: str, form: str) -> None:
  """The export itself compares their answers with the SavedModel's."""
  if form == ONNX:
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
  run = write_run(tmp_path / "run", FORMS[name], spm_model)
  task = name if FORMS[name].task == "pretraining" else ""
  directory = Path(export_model(run.directory, str(tmp_path), task=task, formats=(form,)))
  (file,) = directory.glob("model*.*")
  assert file.stat().st_size > 10_000
  assert f"`{file.name}`" in (directory / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_predict_answers_line_by_line(exported: dict[str, Exported], name: str) -> None:
  made = exported[name]
  requests = make_requests(name, english_like_texts(21))
  lines = [json.dumps({"number": i, **request}) for i, request in enumerate(requests)]
  model = ExportedModel(str(made.directory.parent))
  parser = RequestParser(model.fields, AUTO, "it", model.description["answers"])
  windows = predict_answers.answer_batches(model, parser, io.BytesIO("\n".join(lines).encode()), batch_size=4)
  rows = [row for window in windows for row in window]
  assert [row["number"] for row in rows] == list(range(len(requests)))
  expected = made.run.answer(requests)
  for answer, wanted in expected.items():
    for row, value in zip(rows, wanted, strict=True):
      found = row[answer]
      if isinstance(value, str):
        assert found == value, answer
        continue
      found = np.array(list(found.values()) if isinstance(found, dict) else found)
      if not found.size:  # the mask was cut off
        continue
      rest = tuple(slice(size) for size in found.shape)
      np.testing.assert_allclose(found, np.array(value)[rest], rtol=1e-4, atol=TOLERANCE, err_msg=answer)
  if name == "race":
    assert [len(row["probabilities"]) for row in rows] == [len(request["options"]) for request in requests]


@pytest.mark.slow
def test_predict_as_a_command_loses_no_field(exported: dict[str, Exported], tmp_path: Path) -> None:
  """A gold label, an id that is no Unicode, blank lines; and what answers is said."""
  made = exported["classifier"]
  path = tmp_path / "lines.jsonl"
  path.write_text('\n{"id": "\\ud800", "text": "a \\ud800 b", "label": "gold"}\n\n{"text": ""}\n\n')
  command = [sys.executable, "-m", "albert.predict", f"--model={made.directory.parent}", f"--input_file={path}"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
  assert result.returncode == 0, result.stderr
  first, second = (json.loads(line) for line in result.stdout.splitlines())
  expected = made.run.answer([{"text": "a \ufffd b"}, {"text": ""}])
  assert (first["id"], first["input_label"], first["label"]) == ("\ud800", "gold", expected["label"][0])
  assert set(second) == {"label", "probabilities"}
  for row, wanted in zip((first, second), expected["probabilities"], strict=True):
    np.testing.assert_allclose(list(row["probabilities"].values()), wanted, atol=TOLERANCE)
  said = result.stderr.decode().splitlines()[0]
  assert said.startswith(f"answers from {made.directory}: classifier, made from {made.run.directory}")
  assert said.endswith(f"(step {STEP})")


@pytest.mark.slow
def test_a_version_that_another_process_took_meanwhile(tmp_path: Path) -> None:
  for name in ("staging", "model/1"):
    (tmp_path / name / "variables").mkdir(parents=True)
  with pytest.raises(UserError, match=r"--version=1: .* exists"):
    _rename_staging(str(tmp_path / "staging"), f"{tmp_path}/model/1", str(tmp_path), "model", 1)
  assert (
    _rename_staging(str(tmp_path / "staging"), f"{tmp_path}/model/1", str(tmp_path), "model", 0)
    == f"{tmp_path}/model/2"
  )
  assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["1", "2"]


def test_versions_and_refusals(tmp_path: Path, spm_model: str) -> None:
  run = write_run(tmp_path / "run", FORMS["classifier"], spm_model)
  models = str(tmp_path / "models")
  assert export_model(run.directory, models, version=5) == f"{models}/classifier/5"
  assert export_model(run.directory, models, precision="bfloat16") == f"{models}/classifier/6"
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
  disk_full = rf"^{models}/classifier/7: cannot write it \(File too large\): run the same command again"
  with file_size_limit(300_000), pytest.raises(RunError, match=disk_full):
    export_model(run.directory, models)
  assert sorted(path.name for path in Path(models, "classifier").iterdir()) == ["5", "6"]
  exact, rough = (
    tf.saved_model.load(f"{models}/classifier/{version}").signatures["serving_default"](
      text=tf.constant(english_like_texts(8))
    )
    for version in (5, 6)
  )
  difference = np.abs(exact["probabilities"] - rough["probabilities"]).max()
  assert 0 < difference < 0.05
  assert open_checkpoint(run.directory).step == STEP
