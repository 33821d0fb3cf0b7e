"""The example server under load, with wrong requests, with a full queue, and when it is stopped."""

from __future__ import annotations

import gzip
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.server_load import SERVER, Reply, RunningServer, call_alone, encode, send_load, table
from tests.export.requests import english_like_texts, make_requests

pytestmark = pytest.mark.serving

TEXT = {"text": "The captain sold a letter from Paris."}
# More tokens than the model has positions (48).
LONG_IDS = {"input_ids": [5] * 60, "input_mask": [1] * 60, "segment_ids": [0] * 60}


def load_model(models: Path, name: str) -> Any:
  """Loads an exported model. The caller must keep it, since its signatures don't keep its variables."""
  return tf.saved_model.load(str(models / name / "1"))


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[RunningServer]:
  with RunningServer(models / "cola") as running:
    yield running


def assert_equal_predictions(predictions: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
  """Compares predictions in JSON with arrays of the SavedModel: texts exactly, numbers within 1e-5.

  The answers of fill_mask are padded to the largest number of masks in a batch; the padding is not compared.
  """
  for prediction, arrays in zip(predictions, expected, strict=True):
    assert prediction.keys() == arrays.keys()
    num_masks = prediction.get("num_masks")
    for name, array in arrays.items():
      values = np.array(prediction[name], object)
      if num_masks is not None and values.ndim:
        values = values[:num_masks]
      if isinstance(array, bytes) or array.dtype == object:
        assert values.tolist() == np.char.decode(np.asarray(array, bytes), "utf-8").tolist(), name
      else:
        np.testing.assert_allclose(values.astype(np.float64), array, rtol=1e-5, atol=1e-5, err_msg=name)


def assert_refused(reply: Reply, status: int, *parts: str) -> None:
  """Checks that the body is one sentence with these parts, as an error of TensorFlow Serving."""
  assert reply.status == status, reply
  assert list(reply.json) == ["error"]
  message = reply.json["error"]
  assert "\n" not in message
  assert 10 < len(message) < 200
  assert [part for part in parts if part not in message] == []


def in_parallel(calls: Sequence[Callable[[], Any]]) -> list[Any]:
  """Calls functions at the same time, each in a thread, and returns their results."""
  with ThreadPoolExecutor(len(calls)) as threads:
    return [future.result() for future in [threads.submit(call) for call in calls]]


def test_answers_under_load_are_those_of_the_saved_model(
  server: RunningServer, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  instances = [{"text": text} for text in english_like_texts(256)]
  model = load_model(models, "cola")
  loads = [call_alone(model.signatures["serving_default"], instances)]
  for num_clients in (1, 8, 64):
    load = send_load(server, instances, num_clients)
    loads.append(load)
    assert {reply.status for reply in load.replies} == {200}
    predictions = [reply.json["predictions"] for reply in load.replies]
    assert_equal_predictions([prediction for (prediction,) in predictions], loads[0].replies)
    assert load.seconds < 60
  with capsys.disabled():
    print(f"\n{table(loads)}")
  assert loads[1].batch_size == 1
  assert loads[3].batch_size > max(2, loads[2].batch_size)


@pytest.mark.parametrize("name", ["squad", "fill_mask", "race"])
def test_every_form_is_served(models: Path, name: str) -> None:
  """Requests of several instances and of single ones, at the same time, and the examples of the export."""
  form = "squad_v2" if name == "squad" else name
  instances = make_requests(form, english_like_texts(24))
  model = load_model(models, name)
  expected = call_alone(model.signatures["serving_default"], instances).replies
  parts = [instances[:10], *([instance] for instance in instances[10:])]
  with RunningServer(models / name, max_wait_ms=100) as running:
    replies = in_parallel([lambda part=part: running.post({"instances": part}) for part in parts])
    assert_equal_predictions([row for reply in replies for row in reply.json["predictions"]], expected)
    for signature in ("serving_default", "tokens"):
      examples = models / name / "1" / "examples"
      reply = running.post((examples / f"{signature}.json").read_bytes())
      example = json.loads((examples / f"{signature}.answer.json").read_text(encoding="utf-8"))
      for row, answer in zip(reply.json["predictions"], example["predictions"], strict=True):
        arrays = {key: np.array(value, object if "'" in repr(value) else None) for key, value in answer.items()}
        assert {key: np.shape(value) for key, value in row.items()} == {key: x.shape for key, x in arrays.items()}


def ids_request(**changes: Any) -> dict[str, Any]:
  """A request to the signature tokens with one instance: LONG_IDS with some fields changed."""
  return {"signature_name": "tokens", "instances": [LONG_IDS | changes]}


# Body (bytes, or a value that is sent as JSON), and parts of the message.
WRONG_BODIES: dict[str, tuple[Any, ...]] = {
  "nothing": (b"", "Invalid JSON"),
  "no JSON": (b"text=They+drank", "Invalid JSON"),
  "not UTF-8": (b'{"instances": [{"text": "\xff"}]}', "Invalid JSON"),
  "nested": (b'{"instances": ' + b"[" * 100_000, "Invalid JSON"),
  "half of a surrogate pair": (rb'{"instances": [{"text": "\ud800"}]}', "Invalid JSON"),
  "a list": ([TEXT], "object"),
  "no instances": ({"signature_name": "serving_default"}, "instances: Field required"),
  "an empty list": ({"instances": []}, "instances: ", "at least 1"),
  "too many instances": ({"instances": [TEXT] * 257}, "instances: ", "at most 256", "257"),
  "a number as text": ({"instances": [TEXT, {"text": 1}]}, "instances: 1: text: ", "string"),
  "a missing field": ({"instances": [TEXT, {}]}, "instances: 1: text: Field required"),
  "an unknown field": ({"instances": [TEXT | {"texts": "b"}]}, "instances: 0: texts: ", "not permitted"),
  "an unknown key": ({"instances": [TEXT], "signature": "tokens"}, "signature: ", "not permitted"),
  "an unknown signature": ({"instances": [TEXT], "signature_name": "text"}, "serving_default|tokens"),
  "texts as ids": (ids_request(input_ids=["a"]), "instances: 0: input_ids: 0", "integer"),
  "a fraction as id": (ids_request(input_ids=[1.5]), "instances: 0: input_ids: 0", "integer"),
  "a huge id": (ids_request(input_ids=[2**40] * 60), "cannot compute"),
  "no ids": (ids_request(input_ids=[], input_mask=[], segment_ids=[]), "cannot compute"),
  "too many ids": (ids_request(), "input_ids: the model takes 48 tokens at most"),
}  # fmt: skip


@pytest.mark.parametrize("body", WRONG_BODIES)
def test_a_wrong_request_is_refused_in_one_sentence(server: RunningServer, body: str) -> None:
  content, *parts = WRONG_BODIES[body]
  assert_refused(server.post(content if isinstance(content, bytes) else json.dumps(content)), 400, *parts)
  assert server.post({"instances": [TEXT]}).status == 200


@pytest.mark.parametrize("size", [(4 << 20) + 1, 64 << 20])
def test_a_large_body_is_refused(server: RunningServer, size: int) -> None:
  assert_refused(server.post(b"x" * size), 413, "at most 4194304 bytes")
  largest = encode({"instances": [TEXT]}).ljust(4 << 20)
  assert server.post(largest).status == 200


def test_a_body_in_another_encoding_is_read_and_gzip_is_refused(server: RunningServer) -> None:
  text = json.dumps({"instances": [TEXT]})
  expected = server.post(text).json
  for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
    assert server.post(text.encode(encoding)).json == expected, encoding
  connection = server.connect()
  connection.request("POST", f"{server.path}:predict", gzip.compress(text.encode()), {"Content-Encoding": "gzip"})
  response = connection.getresponse()
  assert (response.status, json.loads(response.read())) == (
    415,
    {"error": "send the body without the Content-Encoding gzip"},
  )


def test_a_body_of_unknown_size_is_refused(server: RunningServer) -> None:
  connection = server.connect()
  connection.request("POST", f"{server.path}:predict", iter([b"{", b"}"]))  # in chunks
  assert connection.getresponse().status == 413


def test_an_unknown_path_or_method_is_refused(server: RunningServer) -> None:
  body = {"instances": [TEXT]}
  assert_refused(server.post(body, "/v1/models/squad:predict"), 404, "/v1/models/cola")
  assert_refused(server.post(body, "/v1/models/cola:classify"), 404, "/v1/models/cola")
  assert_refused(server.get("/v1/models/squad"), 404, "/v1/models/cola")
  assert_refused(server.get("/v1/models/cola:predict"), 405, "/v1/models/cola")


def test_a_client_that_goes_away_leaves_no_trace(server: RunningServer) -> None:
  log = server.log()
  head = f"POST {server.path}:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode()
  with socket.create_connection(("127.0.0.1", server.port)) as client:
    client.sendall(head + b'{"instances": ')
  assert server.post({"instances": [TEXT]}).status == 200
  assert server.log() == log


def test_status_health_and_metrics(server: RunningServer) -> None:
  for path in ("/v1/models/cola", "/v1/models/cola/versions/1"):
    (version,) = server.get(path).json["model_version_status"]
    assert (version["version"], version["state"]) == ("1", "AVAILABLE")
    assert server.post({"instances": [TEXT]}, f"{path}:predict").status == 200
    metadata = server.get(f"{path}/metadata").json
    assert metadata["model_spec"] == {"name": "cola", "signature_name": "", "version": "1"}
    inputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert (inputs["text"]["dtype"], inputs["text"]["tensor_shape"]) == ("DT_STRING", {"dim": [{"size": "-1"}]})
  assert [server.get(path).status for path in ("/healthz", "/readyz")] == [200, 200]
  before = server.metrics()
  assert server.post({"instances": [TEXT] * 3}).status == 200
  assert server.post(b"{").status == 400
  after = server.metrics()
  increase = {name: value - before.get(name, 0) for name, value in after.items()}
  assert increase['serve_requests_total{status="200"}'] == 1
  assert increase['serve_requests_total{status="400"}'] == 1
  assert increase["serve_request_seconds_count"] == 2
  assert (increase["serve_batch_size_count"], increase["serve_batch_size_sum"]) == (1, 3)
  assert after["serve_queue_length"] == 0


def test_a_wrong_instance_does_not_change_the_answers_to_other_requests(models: Path) -> None:
  """Requests that wait for half a second are computed together; one of them has too many tokens."""
  model = load_model(models, "cola")
  instances = json.loads((models / "cola" / "1" / "examples" / "tokens.json").read_text())["instances"]
  expected = call_alone(model.signatures["tokens"], instances).replies
  parts = [[LONG_IDS], *([instance] for instance in instances), [instances[0], LONG_IDS]]
  with RunningServer(models / "cola", max_wait_ms=500) as running:
    calls = [lambda part=part: running.post({"signature_name": "tokens", "instances": part}) for part in parts]
    first, *right, last = in_parallel(calls)
    assert_refused(first, 400, "48 tokens")
    assert_refused(last, 400, "48 tokens")
    assert_equal_predictions([reply.json["predictions"][0] for reply in right], expected)


def wait_for_queue(running: RunningServer, length: int) -> None:
  """Waits until this number of instances are in the queue."""
  deadline = time.monotonic() + 60
  while running.metrics()["serve_queue_length"] < length:
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_a_full_queue_refuses_requests_at_once(models: Path) -> None:
  """Four instances wait for others for eight seconds. Meanwhile there is no room for more."""
  with RunningServer(models / "cola", max_queue=4, max_wait_ms=8000) as running, ThreadPoolExecutor(4) as threads:
    accepted = [threads.submit(running.post, {"instances": [TEXT]}) for _ in range(4)]
    wait_for_queue(running, 4)
    start = time.monotonic()
    refused = [running.post({"instances": [TEXT]}) for _ in range(8)]
    assert time.monotonic() - start < 4
    for reply in refused:
      assert_refused(reply, 503, "try again later")
      assert int(reply.headers["retry-after"]) >= 1
    assert running.get("/readyz").status == 503
    assert running.get("/healthz").status == 200
    assert [future.result().status for future in accepted] == [200] * 4
    assert running.get("/readyz").status == 200
    assert running.post({"instances": [TEXT]}).status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_requests_are_answered_before_the_server_ends(models: Path, number: signal.Signals) -> None:
  with RunningServer(models / "cola", max_wait_ms=2000) as running, ThreadPoolExecutor(16) as threads:
    waiting = [threads.submit(running.post, {"instances": [TEXT]}) for _ in range(16)]
    wait_for_queue(running, 16)
    exit_code = running.stop(number)
    replies = [future.result() for future in waiting]
    assert [reply.status for reply in replies] == [200] * 16
    assert all(reply.json["predictions"] == replies[0].json["predictions"] for reply in replies)
    with pytest.raises(ConnectionRefusedError):
      running.post({"instances": [TEXT]})
    assert exit_code == (-number if number == signal.SIGTERM else 0)
    assert "Traceback" not in running.log()


def test_nothing_is_answered_by_halves_when_the_server_is_stopped_under_load(models: Path) -> None:
  instances = [{"text": text} for text in english_like_texts(8)]
  answered: list[tuple[int, Any]] = []
  refused: list[str] = []
  halves: list[str] = []

  def send_until_refused(running: RunningServer, instance: Mapping[str, Any]) -> None:
    connection = running.connect()
    for _ in range(100_000):
      response = None
      try:
        connection.request("POST", f"{running.path}:predict", encode({"instances": [instance]}))
        response = connection.getresponse()
        answered.append((response.status, json.loads(response.read())))
      except (OSError, ValueError, http.client.HTTPException) as error:
        # RemoteDisconnected and ConnectionResetError before the first byte: the request has not been accepted.
        is_refusal = response is None and isinstance(error, ConnectionError)
        (refused if is_refusal else halves).append(repr(error))
        return

  with RunningServer(models / "cola") as running:
    clients = [threading.Thread(target=send_until_refused, args=[running, instances[i % 8]]) for i in range(32)]
    for client in clients:
      client.start()
    while len(answered) < 200:
      time.sleep(0.01)
    assert running.stop() == -signal.SIGTERM
    for client in clients:
      client.join(60)
    assert "Traceback" not in running.log()
  assert halves == []
  assert len(refused) == len(clients)
  assert {status for status, _ in answered} == {200}
  assert all(len(reply["predictions"]) == 1 for _, reply in answered)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
  command = [sys.executable, str(SERVER), f"--model={tmp_path}"]
  result = subprocess.run(command, capture_output=True, text=True, check=False)
  assert result.returncode == 2
  assert result.stderr.splitlines()[-1].endswith(
    f"error: no model in {tmp_path}: give a directory that albert.export wrote, such as models/NAME"
  )
  assert "oneDNN" not in result.stderr  # TensorFlow, which prints its own lines, is not imported


def test_a_missing_library_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
  code = f"import runpy, sys; sys.modules['fastapi'] = None; runpy.run_path({str(SERVER)!r}, run_name='__main__')"
  result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert result.returncode == 1
  assert "fastapi" in result.stderr.splitlines()[-1]
  assert "pip install 'fastapi" in result.stderr.splitlines()[-1]
