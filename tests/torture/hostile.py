"""Attacks through files, for the part "safety": contents that would run code, and names that lead out of a directory.

Each payload makes a file, the canary, if anything runs it. `Watch` also listens to Python's audit events: Python raises
one before it runs code, or opens or deletes a file. `find_violations` finds calls in source code that could run the
content of a file.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import marshal
import os
import pickle
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np


class _Bomb:
  """Runs code when it is unpickled."""

  def __init__(self, code: str):
    self.code = code

  def __reduce__(self) -> tuple[Any, ...]:
    """Tells pickle to call exec(code)."""
    return (exec, (self.code,))


def payloads(canary: Path) -> dict[str, bytes]:
  """Returns payloads by name: file contents that make the file `canary` if a library runs them."""
  code = f"open({str(canary)!r}, 'w').close()"
  bomb = _Bomb(code)
  shell_command = f"touch {canary}"
  npy_file, npz_file, torch_file = io.BytesIO(), io.BytesIO(), io.BytesIO()
  np.save(npy_file, np.array([bomb], dtype=object), allow_pickle=True)
  np.savez(npz_file, **{"bert/pooler/dense/kernel": np.array([bomb], dtype=object)})  # type: ignore[arg-type]
  with zipfile.ZipFile(torch_file, "w") as archive:
    archive.writestr("archive/data.pkl", pickle.dumps(bomb))
    archive.writestr("archive/version", "3\n")
  pickles = {f"pickle, protocol {protocol}": pickle.dumps(bomb, protocol) for protocol in range(6)}
  return pickles | {
    "pickle, gzip": gzip.compress(pickle.dumps(bomb)),
    "pickle after a line": b"id\tlabel\n" + pickle.dumps(bomb, 0) + b"\n",
    "npy of objects": npy_file.getvalue(),
    "npz of objects": npz_file.getvalue(),
    "torch archive": torch_file.getvalue(),
    "marshalled code": marshal.dumps(compile(code, "payload", "exec")),
    "Python source": f"__import__('os').system({shell_command!r})\n".encode(),
    "expression": f'[exec("{code}")]'.encode(),
    "YAML": f"!!python/object/apply:os.system ['{shell_command}']\n".encode(),
    "jsonpickle": json.dumps({"py/reduce": [{"py/function": "os.system"}, {"py/tuple": [shell_command]}]}).encode(),
    "Keras Lambda": json.dumps(
      {"class_name": "Lambda", "module": "builtins", "config": {"function": [code, None, None]}}
    ).encode(),
    "shell in values": json.dumps(
      {"task": f"$({shell_command})", "model": f"`{shell_command}`", "step": f"; {shell_command}"}
    ).encode(),
    "template": json.dumps(
      {"task": f"{{{{ {code} }}}}", "data": f"${{{code}}}", "x": f"{{0.__class__}}{code}"}
    ).encode(),
  }


# Audit events that must not be raised while a file is read.
_FORBIDDEN_EVENTS = {
  "pickle.find_class",
  "os.system",
  "os.exec",
  "os.posix_spawn",
  "subprocess.Popen",
  "ctypes.dlopen",
  "code.__new__",
}
# Audit events that change files -> how many of their first arguments are paths.
_FILE_EVENTS = {
  "os.remove": 1,
  "os.rename": 2,
  "os.rmdir": 1,
  "os.truncate": 1,
  "os.chmod": 1,
  "os.link": 2,
  "os.symlink": 2,
}

# The module in which msgspec evaluates annotations.
_MSGSPEC_UTILS = msgspec._utils.__file__


class Watch:
  """A context that records what this thread runs and opens in it."""

  _active: Watch | None = None
  _is_installed = False

  def __init__(self) -> None:
    self.run_events: list[str] = []
    self.touched_paths: set[str] = set()
    self._thread = threading.get_ident()

  def __enter__(self) -> Watch:
    if not Watch._is_installed:
      sys.addaudithook(_audit_hook)
      Watch._is_installed = True
    Watch._active = self
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    Watch._active = None

  def record(self, event: str, arguments: tuple[Any, ...]) -> None:
    """Records an audit event if it runs code, or opens or changes a file."""
    if event in _FORBIDDEN_EVENTS or event in ("exec", "marshal.loads"):
      if not _is_import():
        self.run_events.append(f"{event} {str(arguments)[:80]}")
    elif event == "open" and isinstance(arguments[0], str | bytes):
      self.touched_paths.add(os.path.realpath(os.fsdecode(arguments[0])))
    elif event in _FILE_EVENTS:
      paths = arguments[: _FILE_EVENTS[event]]
      self.touched_paths |= {os.path.realpath(os.fsdecode(path)) for path in paths if isinstance(path, str | bytes)}


def _audit_hook(event: str, arguments: tuple[Any, ...]) -> None:
  watch = Watch._active
  if watch is not None and watch._thread == threading.get_ident():
    watch.record(event, arguments)


def _is_import() -> bool:
  """Whether the current event was raised by an import, or by msgspec, which evaluates the annotations of schemas."""
  frame = sys._getframe()
  while frame is not None:
    if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_filename == _MSGSPEC_UTILS:
      return True
    frame = frame.f_back  # type: ignore[assignment]
  return False


def names_outside(directory: Path, target: Path) -> dict[str, str]:
  """Returns names that a manifest in `directory` could use for the file `target` outside: {form of the name: name}."""
  up = os.path.relpath(target, directory)
  return {
    "../": up,
    "./../": f"./{up}",
    "absolute": str(target),
    "down and up": f"sub/../{up}",
    "file://": f"file://{target}",
    "backslashes": up.replace("/", "\\"),
    "its own name, up": f"../{directory.name}/{up}",
    "NUL": f"{up}\0.tfrecord",
    "no text": "",
    ".": ".",
    "..": "..",
  }


# ---- source code -------------------------------------------------------------------------------------------

_FORBIDDEN_MODULES = {
  "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "ruamel",
  "jsonpickle", "h5py", "torch", "code", "codeop", "runpy", "pty", "tarfile", "imp", "xmlrpc", "ctypes",
  "cffi",
}  # fmt: skip
_FORBIDDEN_BUILT_INS = {"eval", "exec", "compile", "__import__", "execfile", "input"}
# Of any object.
_FORBIDDEN_ATTRIBUTES = {
  "system", "popen", "extractall", "unpack_archive", "import_module", "load_model", "model_from_json",
  "from_config", "model_from_yaml", "load_weights", "enable_unsafe_deserialization", "py_function",
  "numpy_function", "py_func", "read_pickle", "import_meta_graph", "load_library", "load_op_library",
  "literal_eval", "spawnlp", "execv", "execve", "execvp", "getstatusoutput", "fromfile", "resolve_name",
}  # fmt: skip
# Functions whose last name alone would be allowed.
_FORBIDDEN_QUALIFIED_NAMES = {
  "np.load", "numpy.load", "tf.saved_model.load", "keras.layers.deserialize", "subprocess.getoutput",
}  # fmt: skip
# File -> the forbidden names that it may use. A comment gives the reason.
ALLOWED = {
  "albert/data/dynamic_masking.py": {"numpy_function"},  # calls a function of this project
  "albert/data/examples.py": {"np.load"},  # without allow_pickle, which refuses arrays that are pickled
  "albert/weights/torch_files.py": {"pickle"},  # its Unpickler finds only the names that tensors need
  "albert/startup.py": {"execv", "import_module"},  # starts the same command again; imports a command of setup.py
  # These import modules that are listed in the same file.
  "albert/__init__.py": {"import_module"},
  "albert/export/checkpoint.py": {"resolve_name"},
  "albert/tasks/__init__.py": {"import_module"},
  "albert/tasks/registry.py": {"resolve_name"},
  "data_prep/create_pretraining_data.py": {"import_module"},
  # A parameter and an attribute are named eval. They are not called.
  "albert/tasks/definitions.py": {"eval"},
  # Loads the SentencePiece ops of the installed package tensorflow_text. An exported model is a program that the user
  # chose to run: see docs/reliability.md.
  "albert/predict/exported_model.py": {"load_op_library", "tf.saved_model.load"},
  # Tokenizer.from_config takes a TokenizerConfig. The function of Keras with this name makes objects of any class.
  "albert/export/served_model.py": {"from_config"},
  "albert/tokenization/graph.py": {"from_config"},
  "albert/tokenization/tokenizer.py": {"from_config", "resolve_name"},
  # Tries whether CUDA's libraries can be opened, as TensorFlow does.
  "albert/training/distribution.py": {"ctypes"},
}


def find_violations(source: str) -> Iterator[tuple[int, str]]:
  """Yields (line number, name) of each module, function or attribute that could run the content of a file."""
  tree = ast.parse(source)
  called_nodes = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in _FORBIDDEN_MODULES)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
      if (node.module or "").split(".")[0] in _FORBIDDEN_MODULES:
        yield node.lineno, node.module or ""
      yield from ((node.lineno, alias.name) for alias in node.names if alias.name in _FORBIDDEN_ATTRIBUTES)
    elif isinstance(node, ast.Name) and node.id in _FORBIDDEN_BUILT_INS:
      yield node.lineno, f"{node.id}()" if id(node) in called_nodes else node.id
    elif isinstance(node, ast.Attribute):
      text = ast.unparse(node)
      if text in _FORBIDDEN_QUALIFIED_NAMES:
        yield node.lineno, text
      elif node.attr in _FORBIDDEN_ATTRIBUTES:
        yield node.lineno, node.attr
    elif isinstance(node, ast.Call):
      yield from _unsafe_arguments(node)


def _unsafe_arguments(call: ast.Call) -> Iterator[tuple[int, str]]:
  """Yields (line number, argument) of arguments that allow a function to run code of a file."""
  for keyword in call.keywords:
    is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    if keyword.arg in ("shell", "allow_pickle") and not is_false:
      yield call.lineno, f"{keyword.arg}={ast.unparse(keyword.value)}"
    if keyword.arg == "safe_mode":
      yield call.lineno, "safe_mode"
