"""A server that starts commands quickly: it has imported TensorFlow, and forks a process for each command.

`python -m tests.torture.forks ADDRESS` listens on a Unix socket of the abstract namespace. A client sends one line of
JSON on each connection: {"argv": [...], "cwd": "...", "env": {...}, "stdout": "...", "stderr": "..."}. It gets back the
process's id, and at the end its exit code. A forked process leaves the server's loop and ends like any program.
(Python's own forkserver would end it with os._exit, which skips exit handlers.)

Some variables are read only when an interpreter starts or a library is imported (LANG, PYTHONHASHSEED,
TF_CPP_MIN_LOG_LEVEL). They keep the server's values. A command that depends on one of them needs a new interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

# The modules that the server imports. None may start a thread (see `main`), because a fork has only one thread.
PRELOADED = (
  "albert",  # first: it chooses TensorFlow's kernels
  "tensorflow",
  "tf_keras",
  "tensorflow_text",
  "scipy.stats",
  "sklearn.metrics",
  "sentencepiece",
  "albert.cli",
  "albert.convert.convert_checkpoint",
  "albert.export.export_model",
  "albert.predict.requests",
  "albert.multi_seed",
  "albert.tasks.glue.model",
  "albert.tasks.pretraining.model",
  "albert.tasks.race.model",
  "albert.tasks.squad.model",
  "matplotlib.figure",
  "data_prep.create_pretraining_data",
)


def serve(address: str) -> dict[str, Any]:
  listener = socket.socket(socket.AF_UNIX)
  listener.bind(f"\0{address}")
  listener.listen(64)
  print("ready", flush=True)
  # Each SIGCHLD writes a byte to this pipe, so that the selector notices that a process has ended.
  wakeup_reader, wakeup_writer = os.pipe()
  os.set_blocking(wakeup_reader, False)
  os.set_blocking(wakeup_writer, False)
  signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing is written
  signal.set_wakeup_fd(wakeup_writer)
  clients: dict[int, socket.socket] = {}  # process id -> connection to the client
  selector = selectors.DefaultSelector()
  for source in (listener, wakeup_reader, sys.stdin.fileno()):
    selector.register(source, selectors.EVENT_READ)
  while True:
    for key, _ in selector.select():
      if key.fileobj is listener:
        client, _ = listener.accept()
        request: dict[str, Any] = json.loads(client.makefile("rb").readline())
        pid = os.fork()
        if pid == 0:
          selector.close()
          _leave_server((listener, client, *clients.values()), (wakeup_reader, wakeup_writer))
          return request
        clients[pid] = client
        _send_number(client, pid)
      elif key.fileobj == wakeup_reader:
        os.read(wakeup_reader, 1 << 16)
        _report_ended_processes(clients)
      else:  # standard input was closed: the campaign has ended
        for pid in clients:
          with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        os._exit(0)


def _leave_server(connections: Iterable[socket.socket], pipe: tuple[int, int]) -> None:
  """Undoes in a forked process what the server has set up."""
  signal.set_wakeup_fd(-1)
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  for connection in connections:
    connection.close()
  for descriptor in pipe:
    os.close(descriptor)


def _send_number(client: socket.socket, number: int) -> None:
  with contextlib.suppress(OSError):  # the client has gone
    client.sendall(b"%d\n" % number)


def _report_ended_processes(clients: dict[int, socket.socket]) -> None:
  """Sends the exit codes of all processes that have ended to their clients, and removes them from `clients`."""
  while clients:
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid == 0:
      return
    client = clients.pop(pid)
    _send_number(client, os.waitstatus_to_exitcode(status))
    client.close()


def become(request: dict[str, Any]) -> None:
  """Turns this forked process into the command of the request, and runs it."""
  os.setsid()
  os.chdir(request["cwd"])
  os.environ.clear()
  os.environ.update(request["env"])

  append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
  streams = ((0, os.devnull, os.O_RDONLY), (1, request["stdout"], append), (2, request["stderr"], append))
  for descriptor, path, flags in streams:
    opened_descriptor = os.open(path, flags, 0o666)
    os.dup2(opened_descriptor, descriptor)
    os.close(opened_descriptor)
  argv = request["argv"]
  python_path = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
  if argv[0] == "-m":
    sys.argv, sys.path[0] = argv[1:], os.getcwd()
  else:
    sys.argv, sys.path[0] = list(argv), os.path.dirname(os.path.abspath(argv[0]))
  sys.path[1:1] = python_path
  call_prelude()
  if argv[0] == "-m":
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
  else:
    runpy.run_path(argv[0], run_name="__main__")


def call_prelude() -> None:
  """Makes the call that the variable TORTURE_PRELUDE describes, if it is set: [module, function, {argument: value}]."""
  text = os.environ.get("TORTURE_PRELUDE")
  if text:
    module, function, arguments = json.loads(text)
    getattr(importlib.import_module(module), function)(**arguments)


def main() -> None:
  address = sys.argv[1]
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # as a command does at its start
  gc.disable()  # imports leave no garbage
  for name in PRELOADED:
    importlib.import_module(name)
  if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
    sys.exit("error: an import has started a thread, so a fork of this process is not safe")
  gc.freeze()  # otherwise garbage collection in a forked process would write to all pages, and so copy them
  gc.enable()
  become(serve(address))


if __name__ == "__main__":
  main()
