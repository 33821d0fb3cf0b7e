"""Damages the files of checkpoints, shards, features, runs, weights and exported models, one at a time, and reads them.

A damaged file is named in one line, or it does not matter: then the result is that of the undamaged files, bit by bit.
Nothing else in the directory may change or vanish, and nothing may hang.
"""

from __future__ import annotations

import builtins
import errno
import functools
import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.torture import outputs
from tests.torture.campaign import Case, Context

# What a reading gives: lines that tell what was damaged and skipped, and a result to compare; or it raises an error.
Reading = Callable[[Path], tuple[list[str], Any]]
_SECONDS = 60.0


# ---- damages ---------------------------------------------------------------------------------------------


def _empty(path: Path, rng: random.Random) -> None:
  path.write_bytes(b"")


def _halve(path: Path, rng: random.Random) -> None:
  data = path.read_bytes()
  path.write_bytes(data[: len(data) // 2])


def _flip(path: Path, rng: random.Random) -> None:
  data = bytearray(path.read_bytes())
  bit = rng.randrange(8 * len(data))
  data[bit // 8] ^= 1 << bit % 8
  path.write_bytes(bytes(data))


def _delete(path: Path, rng: random.Random) -> None:
  path.unlink()


def _directory(path: Path, rng: random.Random) -> None:
  path.unlink()
  path.mkdir()


def _pipe(path: Path, rng: random.Random) -> None:
  path.unlink()
  os.mkfifo(path)


def _dangling(path: Path, rng: random.Random) -> None:
  path.unlink()
  path.symlink_to("gone")


def _loop(path: Path, rng: random.Random) -> None:
  path.unlink()
  path.symlink_to(path.name)


def _unreadable(path: Path, rng: random.Random) -> None:
  refuse([str(path)])


def _edit(path: Path, rng: random.Random) -> None:
  """Changes, removes or retypes a field of JSON, or swaps, drops or changes a line or a byte of anything else."""
  data = path.read_bytes()
  try:
    values = json.loads(data)
  except ValueError:
    lines = data.split(b"\n")
    index = rng.randrange(len(lines))
    change = rng.choice(("drop", "double", "change"))
    lines[index : index + 1] = {"drop": [], "double": [lines[index]] * 2, "change": [b"x" + lines[index]]}[change]
    path.write_bytes(b"\n".join(lines))
    return
  places = [(values, key) for key in values]
  for inner in (value for value in values.values() if isinstance(value, dict)):
    places += [(inner, key) for key in inner]
  holder, key = rng.choice(places)
  if rng.random() < 0.3:
    del holder[key]
  else:
    holder[key] = rng.choice([None, [], {}, -1, 10**30, "x", True, 0.5, {"a": 1}])
  path.write_text(json.dumps(values))


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
  "emptied": _empty,
  "halved": _halve,
  "a bit flipped": _flip,
  "deleted": _delete,
  "a directory in its place": _directory,
  "a pipe in its place": _pipe,
  "a dangling link in its place": _dangling,
  "a link to itself in its place": _loop,
  "unreadable": _unreadable,
  "edited": _edit,
}
# A full campaign draws so many bits and edits of every file.
_REPEATED = {"a bit flipped": 4, "edited": 4}

_refused: set[str] = set()
_originals: dict[str, Any] = {}


def refuse(paths: Sequence[str]) -> None:
  """Opening one of these files fails as for a user without the right to, in this process; root may open any file."""
  if not _originals:
    _originals.update(os_open=os.open, open=builtins.open)

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
      def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.path.abspath(path) in _refused:
          raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return original(path, *args, **kwargs)

      return opened

    os.open, builtins.open = guarded(os.open), guarded(builtins.open)  # type: ignore[assignment]
  _refused.update(map(os.path.abspath, paths))


# ---- the check -------------------------------------------------------------------------------------------


def _snapshot(root: Path, but: Path) -> dict[str, str]:
  """Name -> hash of every file below `root`, except what lies at `but`."""
  found = {}
  for path in root.rglob("*"):
    is_kept = path.name != "shard_hashes.json"  # a cache may be written anew
    if is_kept and path.is_file() and path != but and not path.is_symlink():
      found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
  return found


def _in_time(read: Reading, root: Path) -> tuple[list[str], Any]:
  """What the reading gives; an error of the project's as a line. TimeoutError where it hangs."""
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


def _try(
  context: Context,
  source: Path,
  name: str,
  damage: str,
  number: int,
  read: Reading,
  names: Sequence[str],
  others: Sequence[Any],
) -> str | None:
  """Damages one file of a copy, reads it, and says what is wrong with the answer; None if nothing is.

  Args:
    context: of the campaign.
    source: an undamaged directory.
    name: of the file below it.
    damage: which of DAMAGES.
    number: of the draw.
    read: the reading.
    names: words, one of which a line about the damage must have.
    others: results besides the undamaged one that are right if a line names the damage.
  """
  root = context.new_directory("damage") / "copy"
  shutil.copytree(source, root)
  expected = _expected(read, source)
  path = root / name
  DAMAGES[damage](path, context.rng(str(source), name, damage, number))
  before = _snapshot(root, path)
  try:
    lines, result = _in_time(read, root)
  finally:
    _refused.discard(os.path.abspath(path))
  changed = [key for key, value in before.items() if _snapshot(root, path).get(key) != value]
  shutil.rmtree(root.parent)
  if changed:
    return f"other files were changed or deleted: {changed}"
  is_named = any(any(word in line for word in names) for line in lines)
  if any("\n" in line for line in lines):
    return f"more than one line: {lines}"
  if result is None:
    return None if is_named else f"the line does not name the file: {lines}"
  if result == expected or (is_named and result in others):
    return None
  return f"silently another result (lines: {lines})"


_results: dict[tuple[str, str], Any] = {}
_results_lock = threading.Lock()


def _expected(read: Reading, source: Path) -> Any:
  key = (repr(read), str(source))
  with _results_lock:
    if key not in _results:
      lines, result = read(source)
      if lines or result is None:
        raise AssertionError(f"undamaged files are complained of: {lines}")
      _results[key] = result
    return _results[key]


def _each(
  context: Context,
  group: str,
  source: Path,
  files: Sequence[str],
  read: Reading,
  *,
  names: Sequence[str] = (),
  others: Callable[[], Sequence[Any]] = tuple,
  leave_out: Sequence[str] = (),
) -> Iterator[Case]:
  """A case for each file and each damage."""
  for name in files:
    for damage in DAMAGES:
      if damage in leave_out:
        continue
      for number in range(context.count(_REPEATED.get(damage, 1))):

        def run(name: str = name, damage: str = damage, number: int = number) -> str | None:
          words = [Path(name).name, *names]
          return _try(context, source, name, damage, number, read, words, others())

        yield Case(group, f"{name}: {damage} ({number})", run)


# ---- readings --------------------------------------------------------------------------------------------


def _read_checkpoint(run: Path) -> tuple[list[str], Any]:
  """What a resumed run starts from: the step and its tensors."""
  import tensorflow as tf

  from albert.weights.checkpoints import CheckpointManager
  from tests.synthetic import TINY_MODEL

  manager = CheckpointManager(str(run / "checkpoints"), keep=5, model_config=TINY_MODEL)
  newest, skipped = manager.latest_to_resume(start_over=False)
  assert newest is not None
  reader = tf.train.load_checkpoint(newest.prefix)
  tensors = {name: reader.get_tensor(name).tobytes() for name in sorted(reader.get_variable_to_shape_map())}
  return skipped, (newest.step, hashlib.sha256(repr(tensors).encode()).hexdigest())


def _older_checkpoints(run: Path) -> list[Any]:
  """What _read_checkpoint may give if the newest checkpoint is damaged."""
  import tensorflow as tf

  newest, second = sorted((int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")), reverse=True)[:2]
  del newest
  reader = tf.train.load_checkpoint(str(run / "checkpoints" / f"step-{second}" / "weights"))
  tensors = {name: reader.get_tensor(name).tobytes() for name in sorted(reader.get_variable_to_shape_map())}
  return [(second, hashlib.sha256(repr(tensors).encode()).hexdigest())]


def _read_best(run: Path) -> tuple[list[str], Any]:
  """The checkpoint that is evaluated with --select_checkpoint=best. A line says which, so another one is not silent."""
  from albert.weights.checkpoints import CheckpointManager
  from tests.synthetic import TINY_MODEL

  manager = CheckpointManager(str(run / "checkpoints"), keep=5, model_config=TINY_MODEL)
  chosen, skipped = manager.best_or_latest()
  assert chosen is not None
  return skipped, chosen.path.replace(str(run), "")


def _read_shards(directory: Path) -> tuple[list[str], Any]:
  """All batches of the shards; and the hash of the data, by which a resumed run knows them again."""
  import tensorflow as tf

  from albert.data import pipeline
  from albert.data.schema import pretraining_features
  from albert.data.shards import count_and_hash_shards, stat_shards
  from tests.synthetic import PREDICTIONS, SEQ_LENGTH, VOCAB_SIZE

  pattern = f"{directory}/*.tfrecord"
  stats = stat_shards(pattern, flag="--input_file")
  shards = count_and_hash_shards(list(stats), stats=stats, globs=pattern, cache_dir=str(directory / "cache"))
  features = pretraining_features(SEQ_LENGTH, PREDICTIONS, VOCAB_SIZE, 2)
  digest = hashlib.sha256()
  try:
    for batch in pipeline.evaluation_batches(shards, features, batch_size=8).as_numpy_iterator():
      for name in sorted(batch):
        digest.update(batch[name].tobytes())
  except tf.errors.OpError:
    pipeline.explain_failure(shards, features)
    raise
  return [], (shards.content.sha256, digest.hexdigest())


def _read_shards_or_know_them_apart(expected: tuple[str, str], directory: Path) -> tuple[list[str], Any]:
  """As _read_shards, for shards without a manifest: a resumed run refuses data of another hash, and names the file."""
  lines, (content, batches) = _read_shards(directory)
  return (lines, (content, batches)) if content == expected[0] else (["a resumed run refuses the shards"], None)


def _featurize(raw: Sequence[int]) -> Any:
  import numpy as np

  from albert.data.examples import TokenizedExamples

  ids = np.array([token for value in raw for token in (2, value % 50 + 5, 3)], np.int32)
  ones = np.ones(len(raw), np.int32)
  return TokenizedExamples(ids, 3 * ones, ones, {"label_ids": np.array(raw, np.int32) % 2})


def _read_features(directory: Path) -> tuple[list[str], Any]:
  """Features from the cache, or made again: then the cache is mended for the next start."""
  from albert.data.feature_cache import make_examples

  first, again = (
    make_examples(range(700), _featurize, name="toy", key={"a": 1}, cache_dir=str(directory), num_processes=1)
    for _ in range(2)
  )
  parts = (first.input_ids, first.labels["label_ids"], again.input_ids, again.labels["label_ids"])
  return [], [part.tobytes() for part in parts]


def _read_weights(directory: Path) -> tuple[list[str], Any]:
  """All weights of a directory, as --init_checkpoint gives them, with the vocabulary's hash."""
  from albert.weights.files import open_weights

  weights = open_weights(str(directory))
  config = weights.config()
  if config is None:  # as a command says it that needs one
    return ["there is no config.json"], None
  values = {name: weights.read(name).tobytes() for name in sorted(weights.names)}
  return [], (hashlib.sha256(repr(values).encode()).hexdigest(), config)


def _read_exported(directory: Path) -> tuple[list[str], Any]:
  """What albert.predict checks before it loads an exported model."""
  from albert.export import file_hashes
  from albert.export.formats import DESCRIPTION
  from albert.predict.exported_model import read_description

  path = str(directory / DESCRIPTION)
  values = read_description(path)
  file_hashes.check_hashes(str(directory), path, values, "export it again")
  return [], values


def _read_vocabulary(run: Path) -> tuple[list[str], Any]:
  """The vocabulary beside a run's weights, as a later command takes it: compared with the hash in config.json."""
  from albert.tokenization.tokenizer import Tokenizer
  from albert.weights.files import open_weights

  weights = open_weights(str(run))
  vocabulary = weights.vocabulary
  if vocabulary is None:
    return [f"there is no {Path('spiece.model')}"], None
  tokenizer = Tokenizer(vocabulary)
  weights.check_vocabulary(tokenizer.sha256, f"--spm_model_file={vocabulary}")
  return [], tokenizer.encode("the captain sold 1,234 letters")


def _read_logs(run: Path) -> tuple[list[str], Any]:
  """The logs of a run, as the report and a resumed run read them. What a log says is its own: any value is right."""
  from albert.runs import log_lines, output_files

  for name in (output_files.METRICS, output_files.EVALUATIONS):
    log_lines.read(str(run / name))
  return [], True


# ---- whole commands --------------------------------------------------------------------------------------


def _resume(context: Context, run: Path, damage: Callable[[Path], None], names: Sequence[str]) -> str | None:
  """Resumes a damaged copy of a finished pretraining run that lost its newest steps: the same bits."""
  places = context.places
  copy = context.new_directory("resume") / "run"
  shutil.copytree(run, copy)
  damage(copy)
  finished = places.run(places.pretraining(copy))
  if wrong := finished.wrong():
    return wrong
  if not any(name in finished.stderr for name in names):
    return f"the damage is not named: {finished.stderr[-400:]!r}"
  kept = list((copy / "checkpoints").glob("*.damaged"))
  if not kept:
    return "the damaged checkpoint was not kept"
  for path in kept:
    shutil.rmtree(path)
  there, expected = outputs.tensors_of(copy), outputs.tensors_of(run)
  steps = [step for step in expected if there.get(step) != expected[step]]
  shutil.rmtree(copy.parent)
  return f"other tensors than an undisturbed run: {steps}" if steps else None


def _command(context: Context, run: Path, name: str, damage: str, number: int) -> str | None:
  """Gives the command of a finished classifier run again, with one of the run's files damaged."""
  places = context.places
  copy = context.new_directory("command") / "run"
  shutil.copytree(run, copy)
  path = copy / name
  prelude = None
  if damage == "unreadable":
    prelude = (__name__, "refuse", {"paths": [str(path)]})
  else:
    DAMAGES[damage](path, context.rng(name, damage, number))
  before = outputs.tensors_of(copy)
  finished = places.run(places.classifier(copy), prelude=prelude)
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


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  places = context.places
  run, classified = places.pretrained, places.classified
  newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:])).name
  names = sorted(path.name for path in (run / "checkpoints" / newest).iterdir())
  files = [f"checkpoints/{newest}/{name}" for name in names]
  older = functools.cache(lambda: _older_checkpoints(run))
  yield from _each(context, "checkpoint", run, files, _read_checkpoint, names=[newest], others=older)
  best = next(iter(classified.glob("checkpoints/best.json")), None)
  if best is not None:
    yield from _each(
      context, "best.json", classified, ["checkpoints/best.json"], _read_best, names=["the best"], others=older,
      leave_out=["edited", "a bit flipped", "deleted", "a dangling link in its place", "a link to itself in its place"],
    )  # fmt: skip
  for compress in (False, True):
    kind = "GZIP shards" if compress else "shards"
    with_manifest = _write_shards(context, f"manifest-{compress}", compress=compress, manifest=True)
    shard_files = ["part-01.tfrecord", "manifest.json"]
    yield from _each(context, f"{kind} with a manifest", with_manifest, shard_files, _read_shards)
    bare = _write_shards(context, f"bare-{compress}", compress=compress, manifest=False)
    read = functools.partial(_read_shards_or_know_them_apart, _read_shards(bare)[1])
    shutil.rmtree(bare / "cache", ignore_errors=True)
    _read_shards(bare)  # makes the file of kept hashes
    bare_files = ["part-01.tfrecord", "cache/shard_hashes.json"]
    yield from _each(context, f"{kind} without a manifest", bare, bare_files, read, names=["a resumed run refuses"])
  features = context.directory / "features"
  features.mkdir()
  _read_features(features)
  yield from _each(context, "feature cache", features, [path.name for path in features.iterdir()], _read_features)
  logs = [name for name in ("metrics.jsonl", "eval_metrics.jsonl") if (classified / name).exists()]
  yield from _each(context, "logs of a run", classified, logs, _read_logs)
  yield from _each(context, "vocabulary of a run", classified, ["spiece.model"], _read_vocabulary)
  converted = context.directory / "converted"
  finished = places.run(places.convert(run, converted))
  if finished.code:
    raise RuntimeError(finished.stderr)
  yield from _each(context, "converted weights", converted, ["model.safetensors"], _read_weights)
  no_flips = ["a bit flipped", "edited"]  # config.json has no checksum: what it says is believed
  yield from _each(context, "converted weights", converted, ["config.json"], _read_weights, leave_out=no_flips,
                   names=["converted", "copy"])  # fmt: skip
  exported = places.exported_classifier
  loaded = [path for path in exported.rglob("*") if path.is_file() and path.parent.name in ("variables", "assets")]
  files = ["saved_model.pb", "assets.extra/servable.json", *sorted(str(path.relative_to(exported)) for path in loaded)]
  yield from _each(context, "exported model", exported, files, _read_exported)
  yield from _commands(context, run, classified, newest)


def _commands(context: Context, run: Path, classified: Path, newest: str) -> Iterator[Case]:
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
