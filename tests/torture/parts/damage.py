"""Damages one file of a checkpoint, of shards, features, a run, weights or an exported model, and reads the files.

Either a message of one line names the damaged file, or the result is the same as for undamaged files, bit by bit. No
other file may change, and no command may hang.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.torture import file_damages, outputs
from tests.torture.campaign import Case, Context
from tests.torture.file_damages import DAMAGES, refused_paths
from tests.torture.file_readings import (
  ReadFunction,
  ReadOutcome,
  older_checkpoints,
  read_best,
  read_checkpoint,
  read_exported,
  read_features,
  read_logs,
  read_shards,
  read_shards_without_manifest,
  read_vocabulary,
  read_weights,
)

# The time after which reading counts as hanging.
_SECONDS = 60.0


# Damage with a random position or value -> how often a full campaign draws it for each file. Other damage is done once.
_NUM_DRAWS = {"a bit flipped": 4, "edited": 4}


# ---- the check -------------------------------------------------------------------------------------------


def _hash_files(root: Path, excluded: Path) -> dict[str, str]:
  """Returns the hash of every file below `root` except `excluded`, by the file's path in it."""
  hashes = {}
  for path in root.rglob("*"):
    is_cache = path.name == "shard_hashes.json"  # reading may renew it
    if path.is_file() and not path.is_symlink() and path != excluded and not is_cache:
      hashes[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
  return hashes


def _read_in_time(read: ReadFunction, root: Path) -> ReadOutcome:
  """Calls `read`. An error of the project is returned as a message. Raises TimeoutError if `read` hangs."""
  from albert.errors import RunError, UserError

  outcomes: list[ReadOutcome | BaseException] = []  # what `read` returned, or the error that it raised

  def run() -> None:
    try:
      outcomes.append(read(root))
    except (UserError, RunError) as error:
      outcomes.append(ReadOutcome([str(error)], None))
    except BaseException as error:
      outcomes.append(error)

  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  thread.join(_SECONDS)
  if not outcomes:
    raise TimeoutError(f"no answer after {_SECONDS:.0f} seconds")
  (outcome,) = outcomes
  if isinstance(outcome, BaseException):
    raise outcome
  return outcome


def _check_damaged_file(
  context: Context,
  source: Path,
  name: str,
  damage: str,
  number: int,
  read: ReadFunction,
  words: Sequence[str],
  other_results: Callable[[], Sequence[Any]],
) -> str | None:
  root = context.new_directory("damage") / "copy"
  shutil.copytree(source, root)
  expected = _expected(read, source)
  path = root / name
  DAMAGES[damage](path, context.rng(str(source), name, damage, number))
  hashes = _hash_files(root, path)
  try:
    messages, result = _read_in_time(read, root)
  finally:
    refused_paths.discard(os.path.abspath(path))
  new_hashes = _hash_files(root, path)
  changed = [file for file, sha256 in hashes.items() if new_hashes.get(file) != sha256]
  shutil.rmtree(root.parent)
  if changed:
    return f"other files were changed or deleted: {changed}"
  is_named = any(word in message for word in words for message in messages)
  if any("\n" in message for message in messages):
    return f"more than one line: {messages}"
  if result is None:
    return None if is_named else f"no message names the file: {messages}"
  if result == expected or (is_named and result in other_results()):
    return None
  return f"silently another result (messages: {messages})"


# (function that reads, directory) -> result, see `_expected`.
_results: dict[tuple[str, str], Any] = {}
_results_lock = threading.Lock()


def _expected(read: ReadFunction, source: Path) -> Any:
  """Returns the result for an undamaged directory, which is read once."""
  key = (repr(read), str(source))
  with _results_lock:
    if key not in _results:
      messages, result = read(source)
      if messages or result is None:
        raise AssertionError(f"messages about undamaged files: {messages}")
      _results[key] = result
    return _results[key]


def _file_cases(
  context: Context,
  group: str,
  source: Path,
  files: Sequence[str],
  read: ReadFunction,
  *,
  more_words: Sequence[str] = (),
  other_results: Callable[[], Sequence[Any]] = tuple,  # which returns ()
  leave_out: Sequence[str] = (),
) -> Iterator[Case]:
  """Yields cases for each file of `files` and each damage that is not in `leave_out`."""
  for name in files:
    for damage in DAMAGES:
      if damage in leave_out:
        continue
      for number in range(context.count(_NUM_DRAWS.get(damage, 1))):
        words = [Path(name).name, *more_words]
        check = functools.partial(
          _check_damaged_file, context, source, name, damage, number, read, words, other_results
        )
        yield Case(group, f"{name}: {damage} ({number})", check)


# ---- whole commands --------------------------------------------------------------------------------------


def _check_resumed_run(context: Context, run: Path, newest: str, name: str, damage: str) -> str | None:
  """Damages the newest checkpoint of a finished pretraining run, resumes the run, and compares the checkpoints."""
  workplace = context.workplace
  copy = context.new_directory("resume") / "run"
  shutil.copytree(run, copy)
  DAMAGES[damage](copy / "checkpoints" / newest / name, context.rng("resume", name, damage))
  finished = workplace.run(workplace.pretraining_command(copy))
  if wrong := finished.unexpected_end():
    return wrong
  if newest not in finished.stderr:
    return f"the damage is not reported: {finished.stderr[-400:]!r}"
  set_aside = list((copy / "checkpoints").glob("*.damaged"))
  if not set_aside:
    return "the damaged checkpoint was not kept"
  for path in set_aside:
    shutil.rmtree(path)
  tensors, expected = outputs.tensors_of(copy), outputs.tensors_of(run)
  steps = [step for step in expected if tensors.get(step) != expected[step]]
  shutil.rmtree(copy.parent)
  return f"other tensors than an undisturbed run: {steps}" if steps else None


def _check_repeated_command(context: Context, run: Path, name: str, damage: str) -> str | None:
  workplace = context.workplace
  copy = context.new_directory("command") / "run"
  shutil.copytree(run, copy)
  path = copy / name
  prelude = None
  if damage == "unreadable":
    prelude = (file_damages.__name__, "refuse", {"paths": [str(path)]})
  else:
    DAMAGES[damage](path, context.rng(name, damage))
  checkpoints_before = outputs.tensors_of(copy)
  finished = workplace.run(workplace.classifier_command(copy), prelude=prelude)
  allowed_code = finished.code if finished.code in (0, 1, 2) else 0
  if wrong := finished.unexpected_end(allowed_code):
    return wrong
  if outputs.tensors_of(copy) != checkpoints_before:
    return "the checkpoints changed"
  if finished.code:
    is_named = Path(name).name in finished.error or "predict" in finished.error
    return None if is_named else f"the error does not name the file: {finished.error!r}"
  for result_name in ("eval_results.json", "test_results.tsv", "predictions.tsv"):
    exist = (run / result_name).exists() and (copy / result_name).is_file()
    if exist and damage != "unreadable" and (run / result_name).read_bytes() != (copy / result_name).read_bytes():
      return f"silently another {result_name}"
  shutil.rmtree(copy.parent)
  return None


def _write_shards(context: Context, name: str, *, compress: bool, manifest: bool) -> Path:
  """Writes three shards with 9, 7 and 8 examples, and returns their directory."""
  from tests.synthetic import write_manifest, write_shards

  directory, sizes = context.directory / name, [9, 7, 8]
  paths = write_shards(directory, sizes, compress=compress)
  if manifest:
    write_manifest(directory, paths, sizes, settings={"compress": compress})
  return directory


def _checkpoint_cases(context: Context, run: Path, classified: Path, newest: str) -> Iterator[Case]:
  names = sorted(path.name for path in (run / "checkpoints" / newest).iterdir())
  files = [f"checkpoints/{newest}/{name}" for name in names]
  older = functools.cache(lambda: older_checkpoints(run))
  yield from _file_cases(context, "checkpoint", run, files, read_checkpoint, more_words=[newest], other_results=older)
  if (classified / "checkpoints" / "best.json").exists():
    # best.json has no checksum, and a run without a best evaluation has no such file.
    leave_out = ["edited", "a bit flipped", "deleted", "a dangling link in its place", "a link to itself in its place"]
    yield from _file_cases(
      context,
      "best.json",
      classified,
      ["checkpoints/best.json"],
      read_best,
      more_words=["the best"],
      other_results=older,
      leave_out=leave_out,
    )


def _shard_cases(context: Context) -> Iterator[Case]:
  for compress in (False, True):
    kind = "GZIP shards" if compress else "shards"
    with_manifest = _write_shards(context, f"manifest-{compress}", compress=compress, manifest=True)
    files = ["part-01.tfrecord", "manifest.json"]
    yield from _file_cases(context, f"{kind} with a manifest", with_manifest, files, read_shards)
    bare = _write_shards(context, f"bare-{compress}", compress=compress, manifest=False)
    read = functools.partial(read_shards_without_manifest, read_shards(bare).result)
    shutil.rmtree(bare / "cache", ignore_errors=True)
    read_shards(bare)  # writes cache/shard_hashes.json
    files, words = ["part-01.tfrecord", "cache/shard_hashes.json"], ["a resumed run refuses"]
    yield from _file_cases(context, f"{kind} without a manifest", bare, files, read, more_words=words)


def _classifier_cases(context: Context, classified: Path) -> Iterator[Case]:
  features = context.directory / "features"
  features.mkdir()
  read_features(features)
  files = [path.name for path in features.iterdir()]
  yield from _file_cases(context, "feature cache", features, files, read_features)
  logs = [name for name in ("metrics.jsonl", "eval_metrics.jsonl") if (classified / name).exists()]
  yield from _file_cases(context, "logs of a run", classified, logs, read_logs)
  yield from _file_cases(context, "vocabulary of a run", classified, ["spiece.model"], read_vocabulary)


def _export_cases(context: Context, run: Path) -> Iterator[Case]:
  workplace = context.workplace
  converted = context.directory / "converted"
  finished = workplace.run(workplace.convert_command(run, converted))
  if finished.code:
    raise RuntimeError(finished.stderr)
  group = "converted weights"
  yield from _file_cases(context, group, converted, ["model.safetensors"], read_weights)
  # config.json has no checksum, so a changed value in it cannot be detected.
  words, leave_out = ["converted", "copy"], ["a bit flipped", "edited"]  # a message may name only the directory
  yield from _file_cases(
    context, group, converted, ["config.json"], read_weights, more_words=words, leave_out=leave_out
  )
  exported = workplace.exported_classifier
  loaded_paths = [
    path for path in exported.rglob("*") if path.is_file() and path.parent.name in ("variables", "assets")
  ]
  files = [
    "saved_model.pb",
    "assets.extra/servable.json",
    *sorted(str(path.relative_to(exported)) for path in loaded_paths),
  ]
  yield from _file_cases(context, "exported model", exported, files, read_exported)


def cases(context: Context) -> Iterator[Case]:
  run, classified = context.workplace.pretraining_run, context.workplace.classifier_run
  newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-"))).name
  yield from _checkpoint_cases(context, run, classified, newest)
  yield from _shard_cases(context)
  yield from _classifier_cases(context, classified)
  yield from _export_cases(context, run)
  yield from _command_cases(context, run, classified, newest)


def _command_cases(context: Context, run: Path, classified: Path, newest: str) -> Iterator[Case]:
  for name, damage in _CHECKPOINT_DAMAGES[: context.count(len(_CHECKPOINT_DAMAGES))]:
    check = functools.partial(_check_resumed_run, context, run, newest, name, damage)
    yield Case("resumed pretraining", f"{newest}/{name}: {damage}", check)
  rng = context.rng("commands")
  for name in sorted(path.name for path in classified.iterdir() if path.is_file()):
    if name == "curves.png":
      continue  # no command reads it
    for damage in rng.sample(list(DAMAGES), context.count(4)):
      check = functools.partial(_check_repeated_command, context, classified, name, damage)
      yield Case("finished classifier run", f"{name}: {damage}", check)


# (file of the newest checkpoint, damage) of the pretraining runs that are resumed.
_CHECKPOINT_DAMAGES = (
  ("weights.data-00000-of-00001", "a bit flipped"),
  ("weights.data-00000-of-00001", "halved"),
  ("weights.index", "emptied"),
  ("manifest.json", "deleted"),
  ("manifest.json", "a pipe in its place"),
  ("albert_config.json", "edited"),
  ("weights.index", "a directory in its place"),
  ("weights.data-00000-of-00001", "a dangling link in its place"),
)
