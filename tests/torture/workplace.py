"""Starts commands for the campaign's cases and waits for their ends."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.torture.runs import Runs

ROOT = Path(__file__).resolve().parents[2]
# The time after which a command counts as hanging. Every command of the campaign takes far less.
SECONDS = 240.0


class Overdue(Exception):
  """A process did not end in time."""


@dataclasses.dataclass(frozen=True)
class Finished:
  """A process that has ended: what it printed, and its exit code (-9 if signal 9 ended it)."""

  code: int
  stdout: str
  stderr: str

  @property
  def error(self) -> str:
    lines = self.stderr.rstrip().splitlines()
    return lines[-1] if lines else ""

  def unexpected_end(self, code: int = 0) -> str | None:
    """Returns None if the process ended properly with exit code `code`, else one line that says what is wrong."""
    if self.code != code:
      return f"exit code {self.code} instead of {code}: {self.error!r}"
    if "Traceback" in self.stderr:
      return f"exit code {code}, but a traceback: {self.error!r}"
    errors = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
    if code in (1, 2) and (len(errors) != 1 or self.error != errors[0]):
      return f"exit code {code} with {len(errors)} error lines; the last line of stderr is {self.error!r}"
    return None


class Running:
  """A started process. It is the leader of a process group of its own.

  Args:
    pid: its process id.
    source: where the exit code comes from: a child process, or a socket on which the server of forked processes
      (tests.torture.forks) writes it.
    stdout, stderr: the files that the process prints to.
  """

  def __init__(self, pid: int, source: subprocess.Popen[bytes] | socket.socket, stdout: Path, stderr: Path):
    self.pid = pid
    self.stdout, self.stderr = stdout, stderr
    self._source = source
    self._code: int | None = None
    self._lock = threading.Lock()

  def poll(self) -> int | None:
    """Returns the exit code, or None while the process runs. -9 means that signal 9 ended it."""
    return self._poll(0.0)

  def _poll(self, seconds: float) -> int | None:
    """Waits for the exit code for at most so many seconds. Returns None if the process still runs."""
    with self._lock:
      if self._code is None and isinstance(self._source, subprocess.Popen):
        with contextlib.suppress(subprocess.TimeoutExpired):
          self._code = self._source.wait(seconds)
      elif self._code is None and isinstance(self._source, socket.socket):
        self._source.settimeout(max(seconds, 1e-4))
        with contextlib.suppress(TimeoutError):
          line = self._source.recv(64)
          if not line:
            raise RuntimeError("the server of forked processes has ended")
          self._code = int(line)
          self._source.close()
      return self._code

  def wait(self, timeout: float = SECONDS) -> int:
    """Waits for the exit code. After `timeout` seconds the process is killed, and Overdue is raised."""
    deadline = time.monotonic() + timeout
    while (code := self._poll(min(0.5, max(0.0, deadline - time.monotonic())))) is None:
      if time.monotonic() > deadline:
        self.kill_group()
        raise Overdue(f"process {self.pid} had not ended after {timeout:.0f} seconds; stderr: {self._tail()!r}")
    return code

  def finish(self, timeout: float = SECONDS) -> Finished:
    """Waits for the end, and reads what the process printed."""
    code = self.wait(timeout)
    return Finished(code, self._read(self.stdout), self._read(self.stderr))

  def send_signal(self, number: int, *, group: bool = False) -> None:
    """Sends a signal to the process, or to its group as a terminal does. Does nothing if the process has ended."""
    if self.poll() is None:
      with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(self.pid, number)

  def kill_group(self) -> None:
    with contextlib.suppress(OSError):
      os.killpg(self.pid, signal.SIGKILL)
    with contextlib.suppress(OSError, RuntimeError):
      self._poll(10.0)

  def _tail(self) -> str:
    return self._read(self.stderr)[-300:]

  def _read(self, path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


# (module, function, arguments) of a call, see Workplace.start.
Prelude = tuple[str, str, dict[str, Any]]


def _environment(changes: dict[str, str | None], prelude: Prelude | None) -> dict[str, str]:
  """Returns the environment for a process: this process's environment with `changes`. None removes a variable."""
  environment = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
  paths = [str(ROOT)]
  if prelude:
    environment["TORTURE_PRELUDE"] = json.dumps(prelude)
    paths.append(str(Path(__file__).with_name("site")))  # Python imports sitecustomize.py, which makes the call
  environment["PYTHONPATH"] = os.pathsep.join(paths)
  for name, value in changes.items():
    environment.pop(name, None)
    if value is not None:
      environment[name] = value
  return environment


class Workplace(Runs):
  """Starts commands, and has the files and runs that parts share (see tests.torture.runs).

  A command is the list of arguments after `python`: ["run_pretraining.py", "--do_train"] or ["-m", "albert.export"].

  Args:
    directory: a directory for the shared files and for what commands print. It is made.
  """

  def __init__(self, directory: Path):
    directory.mkdir(parents=True, exist_ok=True)
    self.directory = directory
    self._outputs = directory / "printed"
    self._outputs.mkdir(exist_ok=True)
    self._output_numbers = itertools.count()
    self._lock = threading.RLock()
    self._thread_state = threading.local()  # `started`: the processes to kill, see killing_processes
    self._servers: list[subprocess.Popen[bytes]] = []

  def __enter__(self) -> Workplace:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    for server in self._servers:
      assert server.stdin is not None
      server.stdin.close()  # the server then ends, and with it all processes that it has forked
      server.wait()

  @contextlib.contextmanager
  def killing_processes(self) -> Iterator[None]:
    """A context at whose end the processes that this thread has started in it are killed."""
    started_outside = getattr(self._thread_state, "started", None)
    started_inside: list[Running] = []
    self._thread_state.started = started_inside
    try:
      yield
    finally:
      self._thread_state.started = started_outside
      for process in started_inside:
        process.kill_group()

  def start(
    self,
    argv: Sequence[str],
    *,
    cwd: Path | str | None = None,
    env: dict[str, str | None] | None = None,
    stdout: Path | str | None = None,
    stderr: Path | str | None = None,
    prelude: Prelude | None = None,
    new_interpreter: bool = False,
  ) -> Running:
    number = next(self._output_numbers)
    out = Path(stdout or self._outputs / f"{number}.stdout")
    err = Path(stderr or self._outputs / f"{number}.stderr")
    start = self._start_interpreter if new_interpreter else self._start_fork
    process = start(argv, Path(cwd or ROOT), _environment(env or {}, prelude), out, err)
    started = getattr(self._thread_state, "started", None)
    if started is not None:
      started.append(process)
    return process

  def _start_interpreter(
    self, argv: Sequence[str], cwd: Path, environment: dict[str, str], out: Path, err: Path
  ) -> Running:
    with out.open("ab") as out_file, err.open("ab") as err_file:
      process = subprocess.Popen(
        [sys.executable, *argv], cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file,
        start_new_session=True,
      )  # fmt: skip
    return Running(process.pid, process, out, err)

  def _start_fork(self, argv: Sequence[str], cwd: Path, environment: dict[str, str], out: Path, err: Path) -> Running:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{self._server}")
    request = {"argv": list(argv), "cwd": str(cwd), "env": environment, "stdout": str(out), "stderr": str(err)}
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb", buffering=0) as answers:
      pid = int(answers.readline())
    return Running(pid, connection, out, err)

  def run(self, argv: Sequence[str], *, timeout: float = SECONDS, **options: Any) -> Finished:
    """Starts a command (see `start`) and waits for its end."""
    return self.start(argv, **options).finish(timeout)

  @cached_property
  def _server_address(self) -> str:
    return f"albert-torture-{os.getpid()}-{secrets.token_hex(4)}"

  @property
  def _server(self) -> str:
    """The address of the server of forked processes (tests.torture.forks). The first use starts the server."""
    with self._lock:
      if not self._servers:
        # The server must have only one thread, because a fork copies only one. So OpenBLAS must not start threads, nor
        # the memory allocator of pyarrow, which pandas imports.
        no_threads = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
        environment = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"} | no_threads
        server = subprocess.Popen(
          [sys.executable, "-m", "tests.torture.forks", self._server_address],
          cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
          raise RuntimeError("the server of forked processes did not start")
        self._servers.append(server)
      return self._server_address
