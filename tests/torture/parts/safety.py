"""Attacks with files: nothing that a file holds is run, becomes markup, or names a file outside its directory."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from albert.data import manifest
from albert.data.manifest import Manifest, ShardInfo, file_sha256
from albert.errors import RunError, UserError
from albert.report.page import make_page
from albert.report.records import read_runs
from tests.report.run_files import make_seeds
from tests.report.skeleton import Skeleton
from tests.torture import hostile
from tests.torture.campaign import Case, Context
from tests.torture.workplace import ROOT

if TYPE_CHECKING:
  from tests.torture.readers import FileReader

# Modules that import TensorFlow are imported only when a case needs them.


def _sources() -> list[Path]:
  return sorted([*ROOT.glob("albert/**/*.py"), *ROOT.glob("data_prep/**/*.py"), *ROOT.glob("run_*.py")])


def _check_source(path: Path) -> str | None:
  allowed = hostile.ALLOWED.get(path.relative_to(ROOT).as_posix(), ())
  violations = hostile.violations(path.read_text(encoding="utf-8"))
  return "; ".join(f"line {line}: {name}" for line, name in violations if name not in allowed) or None


_FORBIDDEN_SOURCES = (
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


def _check_finds(source: str) -> str | None:
  return None if list(hostile.violations(source)) else "the check does not find it"


def _watch_sees(data: bytes) -> str | None:
  """Checks the campaign itself: Watch must see the code that a pickle runs."""
  with hostile.Watch() as watch:
    pickle.loads(data)
  return None if any(event.startswith("exec") for event in watch.ran) else f"the watch saw {watch.ran}"


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
  failure = f"ran code: {watch.ran}" if watch.ran else f"{canary} was made" if canary.exists() else None
  shutil.rmtree(directory)
  return failure


# ---- names of files outside ----------------------------------------------------------------------------------


class OutsideFile(NamedTuple):
  """A file outside the directory of a manifest, which nothing may open or change."""

  path: Path
  num_bytes: int
  sha256: str

  def name_from(self, directory: Path, form: str) -> str:
    """Returns a name for the file that a manifest in `directory` could use, in a form of hostile.names_outside."""
    return hostile.names_outside(directory, self.path)[form]


# Each of these functions writes a manifest that names `outside`, and reads it. It raises AssertionError if the name is
# accepted, and UserError or RunError if it is refused.


def _read_shards(directory: Path, form: str, outside: OutsideFile) -> None:
  name = outside.name_from(directory, form)
  shard = ShardInfo(name, 1, outside.num_bytes, outside.sha256)
  values: dict[str, Any] = {"vocab_sha256": "0" * 64, "vocab_size": 9, "num_documents": 1, "num_tokens": 9}
  Manifest(kind="pretraining", settings={}, shards=(shard,), **values).save(str(directory))
  loaded = Manifest.load(str(directory))
  assert loaded is not None
  for listed in loaded.shards:
    if manifest.shard_is_intact(str(directory), listed):
      raise AssertionError("a file outside passes for a shard")


def _read_checkpoint(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.config.model import ModelConfig
  from albert.weights.checkpoints import CheckpointManager

  manager = CheckpointManager(str(directory), keep=1, model_config=ModelConfig())
  step = Path(manager.save(1, {"x": np.ones(3, np.float32)}))
  values = json.loads((step / "manifest.json").read_text())
  values["files"][outside.name_from(step, form)] = {"bytes": outside.num_bytes, "sha256": outside.sha256}
  (step / "manifest.json").write_text(json.dumps(values))
  if manager.latest()[0] is not None:
    raise AssertionError("the checkpoint verifies")


def _read_safetensors_index(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.weights.files import open_weights

  name = outside.name_from(directory, form)
  (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
  open_weights(str(directory))
  raise AssertionError("the index is taken")


def _read_best_run(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.export.checkpoint import open_checkpoint

  name = outside.name_from(directory, form)
  values = {"seeds": [1], "best_run": str(Path(name).parent) if name not in ("", ".", "..") else name, "metrics": {}}
  (directory / "runs.json").write_text(json.dumps(values))
  open_checkpoint(str(directory))
  raise AssertionError("the best run is taken")


def _read_seeds(directory: Path, form: str, outside: OutsideFile) -> None:
  name = outside.name_from(directory, form)
  (directory / "runs.json").write_text(json.dumps({"seeds": [name], "best_run": "run-1", "metrics": {}}))
  read_runs([str(directory)], num_examples=1)
  raise AssertionError("the seed is taken")


def _read_best_step(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.config.model import ModelConfig
  from albert.weights.checkpoints import CheckpointManager

  name = outside.name_from(directory, form)
  manager = CheckpointManager(str(directory), keep=1, model_config=ModelConfig())
  (directory / "best.json").write_text(json.dumps({"step": name, "metric": "loss", "value": 1.0}))
  manager.best_or_latest()
  raise AssertionError("the step is taken")


def _read_prediction_sources(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.training.prediction_sources import PredictionSource, PredictionSources

  name = outside.name_from(directory, form)
  entry = {"checkpoint": name, "step": 1, "weights_sha256": "0", "inputs": {name: "0" * 64}}
  (directory / "prediction_sources.json").write_text(json.dumps({name: entry, "predictions_dev.tsv": entry}))
  sources = PredictionSources(str(directory), [str(directory / "predictions_dev.tsv")], {name: "0" * 64})
  sources.are_complete()
  sources.check()
  sources.check_before_training()
  sources.write(PredictionSource(name, 1, "0", {name: "0" * 64}))


def _read_exported_model(directory: Path, form: str, outside: OutsideFile) -> None:
  from albert.export.formats import DESCRIPTION
  from albert.predict.exported_model import ExportedModel

  name = outside.name_from(directory, form)
  (directory / DESCRIPTION).parent.mkdir(parents=True)
  text = {"name": name, "is_list": False, "meaning": name}
  values = {
    "task": name,
    "fields": [text],
    "answers": [name],
    "labels": [name],
    "counted_by": name,
    "checkpoint": {"path": name},
  }
  (directory / DESCRIPTION).write_text(json.dumps(values))
  (directory / "saved_model.pb").write_bytes(b"")
  ExportedModel(str(directory))
  raise AssertionError("the model is taken")


_MANIFESTS: dict[str, Callable[[Path, str, OutsideFile], None]] = {
  "manifest of shards": _read_shards,
  "manifest of a checkpoint": _read_checkpoint,
  "index of safetensors": _read_safetensors_index,
  "runs.json, best run": _read_best_run,
  "runs.json, seeds": _read_seeds,
  "best.json": _read_best_step,
  "prediction_sources.json": _read_prediction_sources,
  "description of an export": _read_exported_model,
}


def _name_file_outside(context: Context, read: Callable[[Path, str, OutsideFile], None], form: str) -> str | None:
  root = context.new_directory("outside")
  path, directory = root / "private" / "config.json", root / "a" / "run"
  (path.parent / "checkpoints").mkdir(parents=True)  # so that path.parent looks like a run
  directory.mkdir(parents=True)
  path.write_text('{"task": "private"}')
  outside = OutsideFile(path, path.stat().st_size, file_sha256(str(path)))
  with hostile.Watch() as watch, contextlib.suppress(UserError, RunError):
    read(directory, form, outside)
  if str(path) in watch.opened:
    return f"{form} led to {path}"
  if file_sha256(str(path)) != outside.sha256 or len(list(path.parent.rglob("*"))) != 2:
    return f"{form} changed what is outside"
  shutil.rmtree(root)
  return None


def _links_are_not_followed(context: Context, number: int) -> str | None:
  """Deletes or replaces a symbolic link in one of five ways. The file or directory that it points to must stay."""
  from albert.config.model import ModelConfig
  from albert.io import files
  from albert.weights.checkpoints import CheckpointManager

  root = context.new_directory("links")
  outside, directory = root / "outside", root / "run"
  directory.mkdir()
  manager = CheckpointManager(str(directory), keep=1, model_config=ModelConfig())
  tensors = {"x": np.ones(3, np.float32)}
  if number == 0:  # a checkpoint that was moved to another disk
    shutil.move(manager.save(1, tensors), outside)
    (directory / "step-1").symlink_to(outside)
    manager.save(2, tensors)
    manager.save(3, tensors)
    kept = sorted(path.name for path in outside.iterdir())
    left = sorted(path.name for path in directory.iterdir())
    return None if "manifest.json" in kept and left == ["step-3"] else f"left: {kept} and {left}"
  outside.mkdir()
  (outside / "file").write_text("x")
  if number == 1:
    staging = files.staging_path(str(directory / "step-7"))
    Path(staging).symlink_to(outside)
    manager.remove_leftovers()
    files.remove_leftovers(str(directory))
  elif number == 2:
    (directory / "link").symlink_to(outside)
    files.remove_tree(str(directory / "link"))
  elif number == 3:
    (directory / "link.json").symlink_to(outside / "file")
    files.write_json(str(directory / "link.json"), {"a": 1})
  elif number == 4:
    (directory / "step-5").symlink_to(outside)
    manager.save(5, tensors)
  return None if (outside / "file").read_text() == "x" else "what a link led to is gone"


# ---- the report ----------------------------------------------------------------------------------------------

_TOKENS = (
  "<", ">", "&", '"', "'", "`", "=", "/", "</", "<!--", "-->", "<![CDATA[", "]]>", "<?", "<script>",
  "</script>", "</SCRIPT ", "<img src=x ", "onerror=alert(1)", "</style>", "</title>", "</textarea>",
  "</svg>", "<svg/onload=alert(1)>", "<a href=javascript:alert(1)>", "\\", "\\u003c/script>", "{{", "}}",
  "${", "&lt;", "&#60;", "&#x3c", "\u2028", "\u2029", "\u202e", "\ufeff", "\ud800", "\udfff", "\x00", "\x0b",
  "\x0c", "\x1b[31m", "\x7f", "\x85", "\ufffe", "\r", "\n", "\t", " ", "%3Cscript%3E", "javascript:",
  "data:text/html,", "x", "9", "1e5", "nan", "\U0001f600", "é",
)  # fmt: skip


def _hostile_text(rng: random.Random) -> str:
  return "".join(rng.choice(_TOKENS) for _ in range(rng.randrange(1, 9)))


def _write_seeds(directory: Path, text: Callable[[str], str], file_text: Callable[[str], str]) -> Path:
  """Writes the runs of two seeds.

  Args:
    directory: where to write them.
    text: returns the text to write for the field of a given name.
    file_text: the same, for a part of a file name.

  Returns:
    The directory of the two runs.
  """
  seeds = make_seeds(directory)
  for run in sorted(seeds.glob("run-*")):

    def field(name: str, run: Path = run) -> str:
      return text(f"{run.name} {name}")

    section = {text("setting"): [field("item"), 1], "num_train_steps": 5}
    (run / "config.json").write_text(
      json.dumps({"task": field("task"), text("section"): {"a": text("a")}, "train": section})
    )
    (run / "environment.json").write_text(json.dumps({text("variable"): field("value")}))
    (run / "eval_results.json").write_text(json.dumps({text("metric"): field("result"), text("null"): None}))
    for name in ("metrics.jsonl", "eval_metrics.jsonl"):
      lines = [
        {"step": n, text("curve"): n * 0.5, "loss": 1.0 / n, text("no curve"): field("no number")} for n in (1, 2, 3)
      ]
      (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    cells = [[text(f"{row} {column}") for column in range(3)] for row in range(3)]
    flat = ["\t".join(cell.translate({9: " ", 10: " ", 13: " "}) for cell in row) for row in cells]
    (run / "mistakes_dev.tsv").write_bytes("\n".join(flat).encode("utf-8", "replace"))
    (run / "predictions_dev.json").write_text(json.dumps({text("id"): text("answer"), text("id 2"): [text("list")]}))
    (run / "confusion_matrix_dev.png").rename(run / f"confusion_matrix_{file_text('picture')}.png")
  numbers = {"median": 0.8, "mean": 0.8, "standard_deviation": 0.0, "minimum": 0.8, "maximum": 0.8}
  summary = {"seeds": [1, 2], "best_run": "run-1", "metrics": {text("metric of all"): numbers}}
  (seeds / "runs.json").write_text(json.dumps(summary))
  return seeds


def _report_escapes(context: Context, number: int) -> str | None:
  """Makes a report of runs with hostile texts. It must have the elements and scripts of one with harmless texts."""
  rng = context.rng("report", number)
  texts: dict[str, str] = {}

  def hostile_text(name: str) -> str:
    # The number makes all texts different: equal ones would share one column of a table.
    return texts.setdefault(name, f"{_hostile_text(rng)}{len(texts)}")

  def hostile_file_text(name: str) -> str:
    possible = hostile_text(name).replace("/", "").replace("\0", "")
    return possible.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")

  root = context.new_directory("report")
  harmless = _make_report(root / "harmless", lambda name: f"harmless {name}", lambda name: "harmless")
  report = _make_report(root / "hostile", hostile_text, hostile_file_text)
  shutil.rmtree(root)
  return _difference_of_reports(harmless, report)


def _make_report(directory: Path, text: Callable[[str], str], file_text: Callable[[str], str]) -> Skeleton:
  """Makes a report of runs with the given texts (see _write_seeds)."""
  directory.mkdir()
  seeds = _write_seeds(directory / file_text("directory"), text, file_text)
  page = make_page(text("title"), *read_runs([str(seeds)], num_examples=3))
  page.encode("utf-8")
  return Skeleton(page)


def _difference_of_reports(harmless: Skeleton, report: Skeleton) -> str | None:
  elements, expected = ([_without_class(element) for element in page.elements] for page in (report, harmless))
  if elements != expected:
    pairs = zip([*elements, "the end"], [*expected, "the end"], strict=False)
    return f"other elements: {next((a, b) for a, b in pairs if a != b)}"
  *data_scripts, program = report.scripts
  if program != harmless.scripts[-1] or any("<" in data for data in data_scripts):
    return "another script, or '<' in the data of one"
  for data in data_scripts:
    json.loads(data)
  if not all(address.startswith("data:image/png;base64,") for address in report.addresses):
    return f"other addresses: {report.addresses}"
  return None


def _without_class(element: tuple[str, ...]) -> tuple[str, ...]:
  """Removes "class" from a table cell, because only cells with numbers have a class."""
  return tuple(part for part in element if part != "class") if element[0] == "td" else element


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  case = partial(Case, in_process=True)
  for path in _sources():
    yield case(
      "sources: nothing runs what a file holds", path.relative_to(ROOT).as_posix(), partial(_check_source, path)
    )
  for source in _FORBIDDEN_SOURCES:
    yield case("sources: the check finds what is forbidden", source, partial(_check_finds, source))
  from tests.torture.readers import READERS

  canary = context.directory / "canary"
  payloads = hostile.payloads(canary)
  for name, payload in payloads.items():
    if name.startswith("pickle, protocol"):
      yield case("hostile files: the watch sees what runs", name, partial(_watch_sees, payload))
  attacks = [(number, payload_name) for number in range(len(READERS)) for payload_name in payloads]
  sample = context.rng("attacks").sample(attacks, min(len(attacks), context.count(len(attacks))))
  for number, payload_name in sorted(sample):
    reader = READERS[number]
    run = partial(_read_hostile, context, reader, payload_name)
    yield case("hostile files: nothing runs, one line at most", f"{payload_name} as {reader.name}", run)
  forms = hostile.names_outside(Path("/a/b"), Path("/c"))
  for manifest_name, read in _MANIFESTS.items():
    for form in forms:
      run = partial(_name_file_outside, context, read, form)
      yield case("names of files outside the directory", f"{form} in {manifest_name}", run)
  for number in range(5):
    yield case("links: what they lead to stays", f"way {number}", partial(_links_are_not_followed, context, number))
  for number in range(context.count(100)):
    yield case("report: texts stay texts", f"page {number}", partial(_report_escapes, context, number))
