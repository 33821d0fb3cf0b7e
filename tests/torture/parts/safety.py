"""Attacks with files: no content of a file may be run, or lead to a file outside its directory."""

from __future__ import annotations

import contextlib
import pickle
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from albert.data.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files
from tests.torture import hostile, outside_names
from tests.torture.campaign import Case, Context
from tests.torture.outside_names import OutsideFile
from tests.torture.workplace import ROOT

if TYPE_CHECKING:
  from albert.weights.checkpoints import CheckpointManager
  from tests.torture.readers import FileReader

# Modules that import TensorFlow are imported only when a case needs them.


def source_files() -> list[Path]:
  """Returns all source files of the project, without its tests."""
  return sorted([*ROOT.glob("albert/**/*.py"), *ROOT.glob("data_prep/**/*.py"), *ROOT.glob("run_*.py")])


def check_source(path: Path) -> str | None:
  """Checks that a source file has no call that could run the content of a file, except those that are allowed."""
  allowed_names = hostile.ALLOWED.get(path.relative_to(ROOT).as_posix(), ())
  violations = hostile.find_violations(path.read_text(encoding="utf-8"))
  return "; ".join(f"line {line}: {name}" for line, name in violations if name not in allowed_names) or None


# Lines of source code that hostile.find_violations must find.
_FORBIDDEN_LINES = (
  "import pickle", "from pickle import loads", "import yaml", "import marshal as m",
  "from shelve import open", "import torch", "import joblib", "import h5py", "x = eval('1')",
  "exec(open(p).read())", "__import__(name)", "compile(text, '', 'exec')", "np.load(path)",
  "numpy.load(path, allow_pickle=True)", "np.lib.format.read_array(f, allow_pickle=True)",
  "f(allow_pickle=flag)", "os.system(text)", "subprocess.run(text, shell=True)",
  "subprocess.Popen(c, shell=is_shell)", "keras.models.load_model(path)", "keras.layers.deserialize(config)",
  "Layer.from_config(config)", "archive.extractall(d)", "tf.saved_model.load(path)",
  "importlib.import_module(name)", "model.load_weights(path)", "pd.read_pickle(p)", "from os import system",
  "tf.py_function(f, [], [])", "import tarfile", "load_model(p, safe_mode=False)",
)  # fmt: skip


def _check_is_found(source: str) -> str | None:
  return None if list(hostile.find_violations(source)) else "the check does not find it"


def _check_watch(pickled: bytes) -> str | None:
  """Checks the campaign itself: Watch must record the code that a pickle runs."""
  with hostile.Watch() as watch:
    pickle.loads(pickled)
  return None if any(event.startswith("exec") for event in watch.run_events) else f"the watch saw {watch.run_events}"


def _read_hostile(context: Context, reader: FileReader, payload_name: str) -> str | None:
  """Gives a reader a file with a payload. Nothing may run, and an error must be a UserError or RunError."""
  directory = context.new_directory("files")
  canary = directory / "canary"
  reader.prepare(directory)
  path = directory / reader.name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(hostile.payloads(canary)[payload_name])
  with hostile.Watch() as watch, contextlib.suppress(UserError, RunError):
    reader.read(path)
  was_made = canary.exists()
  shutil.rmtree(directory)
  if watch.run_events:
    return f"ran code: {watch.run_events}"
  return f"{canary} was made" if was_made else None


# ---- names of files outside ----------------------------------------------------------------------------------


def _name_file_outside(context: Context, read: Callable[[Path, str, OutsideFile], None], form: str) -> str | None:
  """Lets a manifest name a file outside, and reads the manifest. The file must be neither opened nor changed."""
  root = context.new_directory("outside")
  path, directory = root / "private" / "config.json", root / "a" / "run"  # the file outside, the manifest's directory
  (path.parent / "checkpoints").mkdir(parents=True)  # so that path.parent looks like a run
  directory.mkdir(parents=True)
  path.write_text('{"task": "private"}')
  outside = OutsideFile(path, path.stat().st_size, file_sha256(str(path)))
  with hostile.Watch() as watch, contextlib.suppress(UserError, RunError):
    read(directory, form, outside)
  if str(path) in watch.touched_paths:
    return f"{form} led to {path}"
  if file_sha256(str(path)) != outside.sha256 or len(list(path.parent.rglob("*"))) != 2:
    return f"{form} changed a file outside"
  shutil.rmtree(root)
  return None


# ---- symbolic links ------------------------------------------------------------------------------------------

_TENSORS = {"x": np.ones(3, np.float32)}


def _make_manager(directory: Path) -> CheckpointManager:
  from albert.config.model import ModelConfig
  from albert.weights.checkpoints import CheckpointManager

  return CheckpointManager(str(directory), keep=1, model_config=ModelConfig())


# Each of these functions makes a symbolic link in `directory` to the directory `outside`, and deletes or replaces it.


def _remove_staging_files(directory: Path, outside: Path) -> None:
  Path(files.staging_path(str(directory / "step-7"))).symlink_to(outside)
  _make_manager(directory).remove_leftovers()
  files.remove_leftovers(str(directory))


def _remove_directory(directory: Path, outside: Path) -> None:
  (directory / "link").symlink_to(outside)
  files.remove_tree(str(directory / "link"))


def _replace_file(directory: Path, outside: Path) -> None:
  (directory / "link.json").symlink_to(outside / "file")
  files.write_json(str(directory / "link.json"), {"a": 1})


def _replace_checkpoint(directory: Path, outside: Path) -> None:
  (directory / "step-5").symlink_to(outside)
  _make_manager(directory).save(5, _TENSORS)


_LINK_ATTACKS: dict[str, Callable[[Path, Path], None]] = {
  "staging files are removed": _remove_staging_files,
  "a directory is removed": _remove_directory,
  "a file is replaced": _replace_file,
  "a checkpoint is replaced": _replace_checkpoint,
}


def _check_file_behind_link(context: Context, attack: Callable[[Path, Path], None]) -> str | None:
  root = context.new_directory("links")
  directory, outside = root / "run", root / "outside"
  directory.mkdir()
  outside.mkdir()
  (outside / "file").write_text("x")
  attack(directory, outside)
  return None if (outside / "file").read_text() == "x" else "the file that the link led to is gone"


def _check_moved_checkpoint(context: Context) -> str | None:
  """Moves a checkpoint to another directory and links to it. When it is outdated, only the link must be deleted."""
  root = context.new_directory("links")
  directory, moved = root / "run", root / "moved"
  directory.mkdir()
  manager = _make_manager(directory)
  shutil.move(manager.save(1, _TENSORS), moved)
  (directory / "step-1").symlink_to(moved)
  manager.save(2, _TENSORS)
  manager.save(3, _TENSORS)
  moved_files = sorted(path.name for path in moved.iterdir())
  checkpoints = sorted(path.name for path in directory.iterdir())
  are_expected = "manifest.json" in moved_files and checkpoints == ["step-3"]
  return None if are_expected else f"files of the moved checkpoint: {moved_files}, checkpoints: {checkpoints}"


def cases(context: Context) -> Iterator[Case]:
  case = partial(Case, in_process=True)
  for source in _FORBIDDEN_LINES:
    yield case("sources: the check finds forbidden code", source, partial(_check_is_found, source))
  from tests.torture.readers import READERS

  canary = context.directory / "canary"
  payloads = hostile.payloads(canary)
  for name, payload in payloads.items():
    if name.startswith("pickle, protocol"):
      yield case("hostile files: the watch sees code that runs", name, partial(_check_watch, payload))
  attacks = [(number, payload_name) for number in range(len(READERS)) for payload_name in payloads]
  sample = context.rng("attacks").sample(attacks, min(len(attacks), context.count(len(attacks))))
  for number, payload_name in sorted(sample):
    reader = READERS[number]
    run = partial(_read_hostile, context, reader, payload_name)
    yield case("hostile files: nothing runs", f"{payload_name} as {reader.name}", run)
  forms = hostile.names_outside(Path("/a/b"), Path("/c"))
  for manifest_name, read in outside_names.READERS.items():
    for form in forms:
      run = partial(_name_file_outside, context, read, form)
      yield case("names of files outside the directory", f"{form} in {manifest_name}", run)
  group = "links: the files behind them stay"
  yield case(group, "an outdated checkpoint is deleted", partial(_check_moved_checkpoint, context))
  for attack_name, attack in _LINK_ATTACKS.items():
    yield case(group, attack_name, partial(_check_file_behind_link, context, attack))
