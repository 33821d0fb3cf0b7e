"""Damages the files of checkpoints, shards, features, runs, weights and exported models, one at a time, and reads them.

Either one line names the damaged file, or the result is the same as for undamaged files, bit by bit. No other file may
change, and no command may hang.
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
  Reading,
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

_SECONDS = 60.0


# Damage that is drawn at random -> how often a full campaign draws it for each file.
_REPEATED = {"a bit flipped": 4, "edited": 4}


# ---- the check -------------------------------------------------------------------------------------------


def _hash_files(root: Path, excluded: Path) -> dict[str, str]:
  """Returns the hash of every file below `root` except `excluded`, by the file's path in it."""
  hashes = {}
  for path in root.rglob("*"):
    is_cache = path.name == "shard_hashes.json"  # which may be written again
    if path.is_file() and not path.is_symlink() and path != excluded and not is_cache:
      hashes[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
  return hashes


def _read_in_time(read: Reading, root: Path) -> tuple[list[str], Any]:
  """Calls `read`. The project's errors are returned as messages. Raises TimeoutError if the function hangs."""
  from albert.errors import RunError, UserError

  answer: list[Any] = []

  def run() -> None:
    try:
      answer.append(read(root))
    except (UserError, RunError) as error:
      answer.append(([str(error)], None))
    except BaseException as error:
      answer.append(error)

  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  thread.join(_SECONDS)
  if not answer:
    raise TimeoutError(f"no answer after {_SECONDS:.0f} seconds")
  if isinstance(answer[0], BaseException):
    raise answer[0]
  return answer[0]


def _check_damaged_file(
  context: Context,
  source: Path,
  name: str,
  damage: str,
  number: int,
  read: Reading,
  names: Sequence[str],
  other_results: Sequence[Any],
) -> str | None:
  """Damages one file in a copy of a directory, and reads the copy.

  Args:
    context: the context of the campaign.
    source: an undamaged directory.
    name: the path of the file in it.
    damage: a key of DAMAGES.
    number: the number of the draw, for damage that is drawn at random.
    read: reads the directory.
    names: words; a message that names the damaged file contains one of them.
    other_results: results besides the undamaged one that are right if a message names the damaged file.

  Returns:
    What is wrong with the messages or the result; None if nothing is.
  """
  root = context.new_directory("damage") / "copy"
  shutil.copytree(source, root)
  expected = _expected(read, source)
  path = root / name
  DAMAGES[damage](path, context.rng(str(source), name, damage, number))
  hashes = _hash_files(root, path)
  try:
    lines, result = _read_in_time(read, root)
  finally:
    refused_paths.discard(os.path.abspath(path))
  new_hashes = _hash_files(root, path)
  changed = [file for file, sha256 in hashes.items() if new_hashes.get(file) != sha256]
  shutil.rmtree(root.parent)
  if changed:
    return f"other files were changed or deleted: {changed}"
  is_named = any(any(word in line for word in names) for line in lines)
  if any("\n" in line for line in lines):
    return f"more than one line: {lines}"
  if result is None:
    return None if is_named else f"the line does not name the file: {lines}"
  if result == expected or (is_named and result in other_results):
    return None
  return f"silently another result (lines: {lines})"


_results: dict[tuple[str, str], Any] = {}
_results_lock = threading.Lock()


def _expected(read: Reading, source: Path) -> Any:
  """Returns the result for an undamaged directory, which is read once."""
  key = (repr(read), str(source))
  with _results_lock:
    if key not in _results:
      lines, result = read(source)
      if lines or result is None:
        raise AssertionError(f"messages about undamaged files: {lines}")
      _results[key] = result
    return _results[key]


def _cases_of_files(
  context: Context,
  group: str,
  source: Path,
  files: Sequence[str],
  read: Reading,
  *,
  names: Sequence[str] = (),
  other_results: Callable[[], Sequence[Any]] = tuple,
  leave_out: Sequence[str] = (),
) -> Iterator[Case]:
  """Yields a case for each file and each damage that is not in `leave_out`. See `_check_damaged_file`."""
  for name in files:
    for damage in DAMAGES:
      if damage in leave_out:
        continue
      for number in range(context.count(_REPEATED.get(damage, 1))):

        def run(name: str = name, damage: str = damage, number: int = number) -> str | None:
          words = [Path(name).name, *names]
          return _check_damaged_file(context, source, name, damage, number, read, words, other_results())

        yield Case(group, f"{name}: {damage} ({number})", run)


# ---- whole commands --------------------------------------------------------------------------------------


def _resume(context: Context, run: Path, damage: Callable[[Path], None], names: Sequence[str]) -> str | None:
  """Damages the newest checkpoint of a finished pretraining run, resumes the run, and compares all bits."""
  workplace = context.workplace
  copy = context.new_directory("resume") / "run"
  shutil.copytree(run, copy)
  damage(copy)
  finished = workplace.run(workplace.pretraining_command(copy))
  if wrong := finished.wrong():
    return wrong
  if not any(name in finished.stderr for name in names):
    return f"the damage is not named: {finished.stderr[-400:]!r}"
  kept = list((copy / "checkpoints").glob("*.damaged"))
  if not kept:
    return "the damaged checkpoint was not kept"
  for path in kept:
    shutil.rmtree(path)
  tensors, expected = outputs.tensors_of(copy), outputs.tensors_of(run)
  steps = [step for step in expected if tensors.get(step) != expected[step]]
  shutil.rmtree(copy.parent)
  return f"other tensors than an undisturbed run: {steps}" if steps else None


def _command(context: Context, run: Path, name: str, damage: str, number: int) -> str | None:
  """Gives the command of a finished classifier run again, with one of the run's files damaged."""
  workplace = context.workplace
  copy = context.new_directory("command") / "run"
  shutil.copytree(run, copy)
  path = copy / name
  prelude = None
  if damage == "unreadable":
    prelude = (file_damages.__name__, "refuse", {"paths": [str(path)]})
  else:
    DAMAGES[damage](path, context.rng(name, damage, number))
  before = outputs.tensors_of(copy)
  finished = workplace.run(workplace.classifier_command(copy), prelude=prelude)
  if wrong := finished.wrong(finished.code if finished.code in (0, 1, 2) else 0):
    return wrong
  if outputs.tensors_of(copy) != before:
    return "the checkpoints changed"
  is_named = Path(name).name in finished.error or "predict" in finished.error
  if finished.code:
    return None if is_named else f"the line does not name the file: {finished.error!r}"
  for result in ("eval_results.json", "test_results.tsv", "predictions.tsv"):
    is_there = (run / result).exists() and (copy / result).is_file() and damage != "unreadable"
    if is_there and (run / result).read_bytes() != (copy / result).read_bytes():
      return f"silently another {result}"
  shutil.rmtree(copy.parent)
  return None


def _write_shards(context: Context, name: str, *, compress: bool, manifest: bool) -> Path:
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
  yield from _cases_of_files(context, "checkpoint", run, files, read_checkpoint, names=[newest], other_results=older)
  if (classified / "checkpoints" / "best.json").exists():
    leave_out = ["edited", "a bit flipped", "deleted", "a dangling link in its place", "a link to itself in its place"]
    yield from _cases_of_files(
      context,
      "best.json",
      classified,
      ["checkpoints/best.json"],
      read_best,
      names=["the best"],
      other_results=older,
      leave_out=leave_out,
    )


def _shard_cases(context: Context) -> Iterator[Case]:
  for compress in (False, True):
    kind = "GZIP shards" if compress else "shards"
    with_manifest = _write_shards(context, f"manifest-{compress}", compress=compress, manifest=True)
    files = ["part-01.tfrecord", "manifest.json"]
    yield from _cases_of_files(context, f"{kind} with a manifest", with_manifest, files, read_shards)
    bare = _write_shards(context, f"bare-{compress}", compress=compress, manifest=False)
    read = functools.partial(read_shards_without_manifest, read_shards(bare)[1])
    shutil.rmtree(bare / "cache", ignore_errors=True)
    read_shards(bare)  # writes cache/shard_hashes.json
    files, names = ["part-01.tfrecord", "cache/shard_hashes.json"], ["a resumed run refuses"]
    yield from _cases_of_files(context, f"{kind} without a manifest", bare, files, read, names=names)


def _run_cases(context: Context, classified: Path) -> Iterator[Case]:
  features = context.directory / "features"
  features.mkdir()
  read_features(features)
  files = [path.name for path in features.iterdir()]
  yield from _cases_of_files(context, "feature cache", features, files, read_features)
  logs = [name for name in ("metrics.jsonl", "eval_metrics.jsonl") if (classified / name).exists()]
  yield from _cases_of_files(context, "logs of a run", classified, logs, read_logs)
  yield from _cases_of_files(context, "vocabulary of a run", classified, ["spiece.model"], read_vocabulary)


def _export_cases(context: Context, run: Path) -> Iterator[Case]:
  workplace = context.workplace
  converted = context.directory / "converted"
  finished = workplace.run(workplace.convert_command(run, converted))
  if finished.code:
    raise RuntimeError(finished.stderr)
  group = "converted weights"
  yield from _cases_of_files(context, group, converted, ["model.safetensors"], read_weights)
  # config.json has no checksum, so changed values cannot be detected.
  names, leave_out = ["converted", "copy"], ["a bit flipped", "edited"]
  yield from _cases_of_files(context, group, converted, ["config.json"], read_weights, names=names, leave_out=leave_out)
  exported = workplace.exported_classifier
  loaded = [path for path in exported.rglob("*") if path.is_file() and path.parent.name in ("variables", "assets")]
  files = ["saved_model.pb", "assets.extra/servable.json", *sorted(str(path.relative_to(exported)) for path in loaded)]
  yield from _cases_of_files(context, "exported model", exported, files, read_exported)


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  run, classified = context.workplace.pretraining_run, context.workplace.classifier_run
  newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:])).name
  yield from _checkpoint_cases(context, run, classified, newest)
  yield from _shard_cases(context)
  yield from _run_cases(context, classified)
  yield from _export_cases(context, run)
  yield from _command_cases(context, run, classified, newest)


def _command_cases(context: Context, run: Path, classified: Path, newest: str) -> Iterator[Case]:
  def damaged(name: str, damage: str) -> Callable[[Path], None]:
    return lambda copy: DAMAGES[damage](copy / "checkpoints" / newest / name, context.rng("resume", name, damage))

  resumed = [(f"{newest}/{name}: {damage}", damaged(name, damage)) for name, damage in _RESUMED]
  for title, damage in resumed[: context.count(len(resumed))]:

    def resume(damage: Callable[[Path], None] = damage) -> str | None:
      return _resume(context, run, damage, [newest])

    yield Case("resumed pretraining", title, resume)
  rng = context.rng("commands")
  for name in sorted(path.name for path in classified.iterdir() if path.is_file()):
    if name == "curves.png":
      continue
    for damage in rng.sample(list(DAMAGES), context.count(4)):

      def command(name: str = name, damage: str = damage) -> str | None:
        return _command(context, classified, name, damage, 0)

      yield Case("finished classifier run", f"{name}: {damage}", command)


_RESUMED = (
  ("weights.data-00000-of-00001", "a bit flipped"),
  ("weights.data-00000-of-00001", "halved"),
  ("weights.index", "emptied"),
  ("manifest.json", "deleted"),
  ("manifest.json", "a pipe in its place"),
  ("albert_config.json", "edited"),
  ("weights.index", "a directory in its place"),
  ("weights.data-00000-of-00001", "a dangling link in its place"),
)
