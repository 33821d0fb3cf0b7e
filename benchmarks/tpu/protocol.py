"""Requests to worker processes and their answers: one JSON object on each line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from albert.errors import RunError

ROOT = Path(__file__).resolve().parents[2]
# Without these settings, libtpu asks the cloud's metadata server for the type of the machine and waits for minutes. It
# also refuses to be loaded by two processes, since on a machine with a TPU only one process can use it.
ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v3-8",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  "TF_CPP_MIN_LOG_LEVEL": "3",
}


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
  """Answers the requests on stdin until stdin ends. All other output of the process goes to stderr.

  Args:
    answer: returns the answer to a request. If it raises an exception, the answer is {"error": message}.
  """
  replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
  os.dup2(2, 1)  # libraries print to stdout, too
  for line in sys.stdin:
    try:
      reply = answer(json.loads(line))
    except Exception as error:  # the process that sent the request reports it
      reply = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), file=replies, flush=True)


def peak_memory() -> int:
  """Returns the largest number of bytes that this process had in memory so far, from Linux's /proc/self/status."""
  status = Path("/proc/self/status").read_text(encoding="utf-8")
  kibibytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
  return int(kibibytes) << 10


class RequestFailed(RuntimeError):
  """A worker process could not carry out a request. The message is the worker's."""


class Worker:
  """A process that runs a module and answers requests. The first request starts it.

  Args:
    module: the name of the module; it calls `serve`.
  """

  def __init__(self, module: str):
    self.module = module
    self._process: subprocess.Popen[str] | None = None
    self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with the process

  def ask(self, request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request.

    Raises:
      RequestFailed: the worker could not carry out the request.
      RunError: the worker process ended.
    """
    if self._process is None:
      self._process = subprocess.Popen(
        [sys.executable, "-m", self.module],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=self._log,
        text=True,
      )
    assert self._process.stdin is not None
    assert self._process.stdout is not None
    self._process.stdin.write(json.dumps(request) + "\n")
    self._process.stdin.flush()
    line = self._process.stdout.readline()
    if not line:
      code = self._process.wait()
      self._log.seek(0)
      last_line = (self._log.read().strip().splitlines() or ["without a message"])[-1]
      raise RunError(f"{self.module} ended with code {code}: {last_line[:500]}")
    reply = json.loads(line)
    if "error" in reply:
      raise RequestFailed(reply["error"])
    return dict(reply)

  def close(self) -> None:
    """Ends the process. The next request starts a new one."""
    if self._process is not None:
      assert self._process.stdin is not None
      self._process.stdin.close()
      self._process.wait()
      self._process = None
