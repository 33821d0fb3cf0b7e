"""Starts examples/serve.py and sends it requests from many clients, for bench_server.py and the tests of the server."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from albert.io.text import counted

SERVER = Path(__file__).resolve().parent.parent / "examples" / "serve.py"
# Loading TensorFlow and a model takes seconds, and longer on a busy machine.
_START_SECONDS = 240
_ANSWER_SECONDS = 120


class Reply(NamedTuple):
  """A response of the server: its status, its headers with names in lower case, and its body."""

  status: int
  headers: Mapping[str, str]
  body: bytes

  @property
  def json(self) -> Any:
    """The value of the body."""
    return json.loads(self.body)


class RunningServer:
  """A process of examples/serve.py, in a `with` block. It has begun to listen when the block begins.

  Args:
    model: the directory of the model.
    **flags: other flags by name, such as max_queue=4.

  Attributes:
    process: the process.
    port: the port that it listens on.
    path: the path of the model, /v1/models/NAME.
  """

  port: int

  def __init__(self, model: str | Path, **flags: int):
    self._log = tempfile.NamedTemporaryFile("w", suffix=".log")  # noqa: SIM115 - closed in __exit__
    command = [sys.executable, str(SERVER), f"--model={model}", "--port=0"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    directory = Path(model).resolve()
    self.path = f"/v1/models/{directory.parent.name if directory.name.isdigit() else directory.name}"
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, text=True, env=environment)

  def __enter__(self) -> RunningServer:
    deadline = time.monotonic() + _START_SECONDS
    while not (match := re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log())):
      if self.process.poll() is not None or time.monotonic() > deadline:
        reason = self.log()
        self.__exit__(None, None, None)
        raise RuntimeError(f"the server did not start: {reason}")
      time.sleep(0.1)
    self.port = int(match[1])
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    if self.process.poll() is None:
      self.process.kill()
    self.process.wait()
    self._log.close()

  def log(self) -> str:
    """What the server has printed."""
    return Path(self._log.name).read_text(encoding="utf-8")

  def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
    """Sends a signal, waits for the end of the process, and returns its exit code."""
    self.process.send_signal(number)
    return self.process.wait(_ANSWER_SECONDS)

  def connect(self) -> http.client.HTTPConnection:
    """Makes a connection. It is opened by its first request and serves several requests."""
    return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)

  def get(self, path: str) -> Reply:
    """Sends a GET request."""
    return exchange(self.connect(), "GET", path)

  def post(self, body: bytes | str | Mapping[str, Any], path: str = "") -> Reply:
    """Sends a POST request for predictions. A mapping becomes JSON. The default path is that of the model."""
    return exchange(self.connect(), "POST", path or f"{self.path}:predict", encode(body))

  def metrics(self) -> dict[str, float]:
    """The metrics of the server: name with labels -> value."""
    lines = self.get("/metrics").body.decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def encode(body: bytes | str | Mapping[str, Any]) -> bytes:
  """Converts the body of a request to bytes."""
  if isinstance(body, bytes):
    return body
  return (body if isinstance(body, str) else json.dumps(body)).encode()


def exchange(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> Reply:
  """Sends a request and reads the whole response. http.client raises an error if the response is not complete."""
  connection.request(method, path, body)
  response = connection.getresponse()
  return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


@dataclasses.dataclass(frozen=True)
class Load:
  """What clients saw.

  Attributes:
    num_clients: clients that sent requests at the same time, each one after the other; 0 for calls in this process.
    seconds: time from the first request to the last response.
    latencies: seconds of each request.
    replies: the responses, in the order of the instances.
    batch_size: mean number of instances in a call of the model.
  """

  num_clients: int
  seconds: float
  latencies: Sequence[float]
  replies: Sequence[Any]
  batch_size: float

  def percentile(self, percent: int) -> float:
    """A percentile of the latencies in milliseconds."""
    return 1000 * statistics.quantiles(self.latencies, n=100, method="inclusive")[percent - 1]

  def table_row(self) -> str:
    """A row of the table that `table` makes."""
    who = counted(self.num_clients, "client") if self.num_clients else "calls in one process"
    values = [f"{len(self.latencies) / self.seconds:,.1f}"]
    values += [f"{self.percentile(percent):,.1f}" for percent in (50, 95, 99)]
    return f"| {' | '.join([who, str(len(self.latencies)), *values, f'{self.batch_size:.1f}'])} |"


def table(loads: Sequence[Load]) -> str:
  """Makes a Markdown table of measurements."""
  header = (
    "| | requests | requests/s | p50 ms | p95 ms | p99 ms | instances per batch |\n|---|---|---|---|---|---|---|\n"
  )
  return header + "".join(f"{load.table_row()}\n" for load in loads)


def send_load(server: RunningServer, instances: Sequence[Mapping[str, Any]], num_clients: int) -> Load:
  """Sends each instance in a request of its own.

  Args:
    server: the server.
    instances: the instances.
    num_clients: number of threads, each with a connection of its own.
  """
  bodies = [encode({"instances": [instance]}) for instance in instances]
  replies: list[Reply | None] = [None] * len(bodies)
  latencies = [0.0] * len(bodies)

  def run_client(first: int) -> None:
    connection = server.connect()
    for index in range(first, len(bodies), num_clients):
      start = time.perf_counter()
      replies[index] = exchange(connection, "POST", f"{server.path}:predict", bodies[index])
      latencies[index] = time.perf_counter() - start

  before, start = server.metrics(), time.perf_counter()
  clients = [threading.Thread(target=run_client, args=[first]) for first in range(num_clients)]
  for client in clients:
    client.start()
  for client in clients:
    client.join()
  seconds, after = time.perf_counter() - start, server.metrics()
  num_batches = after["serve_batch_size_count"] - before["serve_batch_size_count"]
  return Load(num_clients, seconds, latencies, replies, len(bodies) / num_batches)


def call_alone(signature: Any, instances: Sequence[Mapping[str, Any]]) -> Load:
  """Calls a signature of a SavedModel in this process, with one instance after the other."""
  import tensorflow as tf

  replies, latencies, start = [], [], time.perf_counter()
  for instance in instances:
    call_start = time.perf_counter()
    outputs = signature(**{name: tf.constant([value]) for name, value in instance.items()})
    replies.append({name: values.numpy()[0] for name, values in outputs.items()})
    latencies.append(time.perf_counter() - call_start)
  return Load(0, time.perf_counter() - start, latencies, replies, 1.0)
