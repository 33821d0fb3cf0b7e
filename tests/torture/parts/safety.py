"""Attacks with files: no content of a file may be run, become markup, or lead to a file outside its directory."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from albert.data.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files
from albert.report.page import make_page
from albert.report.records import read_runs
from tests.report.run_files import make_seeds
from tests.report.skeleton import Skeleton
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
  """Lets a manifest name a file outside, and reads the manifest. The file must be neither opened nor changed.

  Args:
    context: the context of the part.
    read: a function of outside_names.READERS.
    form: a key of hostile.names_outside.
  """
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


# ---- the report ----------------------------------------------------------------------------------------------

# Texts that may be dangerous in HTML, JavaScript, URLs, JSON or a terminal.
_TOKENS = (
  "<", ">", "&", '"', "'", "`", "=", "/", "</", "<!--", "-->", "<![CDATA[", "]]>", "<?", "<script>",
  "</script>", "</SCRIPT ", "<img src=x ", "onerror=alert(1)", "</style>", "</title>", "</textarea>",
  "</svg>", "<svg/onload=alert(1)>", "<a href=javascript:alert(1)>", "\\", "\\u003c/script>", "{{", "}}",
  "${", "&lt;", "&#60;", "&#x3c", "\u2028", "\u2029", "\u202e", "\ufeff", "\ud800", "\udfff", "\x00", "\x0b",
  "\x0c", "\x1b[31m", "\x7f", "\x85", "\ufffe", "\r", "\n", "\t", " ", "%3Cscript%3E", "javascript:",
  "data:text/html,", "x", "9", "1e5", "nan", "\U0001f600", "é",
)  # fmt: skip


def _random_hostile_text(rng: random.Random) -> str:
  return "".join(rng.choice(_TOKENS) for _ in range(rng.randrange(1, 9)))


def _write_seeds(directory: Path, make_text: Callable[[str], str], make_file_text: Callable[[str], str]) -> Path:
  """Writes the runs of two seeds.

  Args:
    directory: where to write them.
    make_text: makes the text to write for the field of a given name.
    make_file_text: the same, for a part of a file name.

  Returns:
    The directory of the two runs.
  """
  seeds = make_seeds(directory)
  for run in sorted(seeds.glob("run-*")):

    def field(name: str, run: Path = run) -> str:
      return make_text(f"{run.name} {name}")

    section = {make_text("setting"): [field("item"), 1], "num_train_steps": 5}
    (run / "config.json").write_text(
      json.dumps({"task": field("task"), make_text("section"): {"a": make_text("a")}, "train": section})
    )
    (run / "environment.json").write_text(json.dumps({make_text("variable"): field("value")}))
    (run / "eval_results.json").write_text(json.dumps({make_text("metric"): field("result"), make_text("null"): None}))
    for name in ("metrics.jsonl", "eval_metrics.jsonl"):
      lines = [
        {"step": step, make_text("curve"): step * 0.5, "loss": 1.0 / step, make_text("no curve"): field("no number")}
        for step in (1, 2, 3)
      ]
      (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "mistakes_dev.tsv").write_bytes(_table_of(make_text).encode("utf-8", "replace"))
    (run / "predictions_dev.json").write_text(
      json.dumps({make_text("id"): make_text("answer"), make_text("id 2"): [make_text("list")]})
    )
    (run / "confusion_matrix_dev.png").rename(run / f"confusion_matrix_{make_file_text('picture')}.png")
  numbers = {"median": 0.8, "mean": 0.8, "standard_deviation": 0.0, "minimum": 0.8, "maximum": 0.8}
  summary = {"seeds": [1, 2], "best_run": "run-1", "metrics": {make_text("metric of all"): numbers}}
  (seeds / "runs.json").write_text(json.dumps(summary))
  return seeds


def _table_of(make_text: Callable[[str], str]) -> str:
  """Returns three rows of three cells in the format TSV, without the characters that separate cells and rows."""
  without_separators = str.maketrans("\t\n\r", "   ")
  rows = [[make_text(f"{row} {column}").translate(without_separators) for column in range(3)] for row in range(3)]
  return "\n".join("\t".join(row) for row in rows)


def _check_report_of_hostile_texts(context: Context, number: int) -> str | None:
  """Makes a report of runs with hostile texts, and one with harmless texts. Their elements must be the same."""
  rng = context.rng("report", number)
  texts: dict[str, str] = {}

  def hostile_text(name: str) -> str:
    # The number makes all texts different. Equal names would share a column of a table.
    return texts.setdefault(name, f"{_random_hostile_text(rng)}{len(texts)}")

  def hostile_file_text(name: str) -> str:
    allowed_in_file_names = hostile_text(name).replace("/", "").replace("\0", "")
    return allowed_in_file_names.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")

  root = context.new_directory("report")
  harmless = _make_report(root / "harmless", lambda name: f"harmless {name}", lambda name: "harmless")
  report = _make_report(root / "hostile", hostile_text, hostile_file_text)
  shutil.rmtree(root)
  return _difference_of_reports(harmless, report)


def _make_report(directory: Path, make_text: Callable[[str], str], make_file_text: Callable[[str], str]) -> Skeleton:
  """Makes a report of runs with the given texts (see _write_seeds)."""
  directory.mkdir()
  seeds = _write_seeds(directory / make_file_text("directory"), make_text, make_file_text)
  page = make_page(make_text("title"), *read_runs([str(seeds)], num_examples=3))
  page.encode("utf-8")
  return Skeleton(page)


def _difference_of_reports(harmless: Skeleton, report: Skeleton) -> str | None:
  """Compares the elements and scripts of two reports. Returns None, or what differs."""
  elements = [_without_class(element) for element in report.elements]
  expected_elements = [_without_class(element) for element in harmless.elements]
  if elements != expected_elements:
    pairs = zip([*elements, "the end"], [*expected_elements, "the end"], strict=False)
    different_pairs = [(element, expected) for element, expected in pairs if element != expected]
    return f"other elements: {different_pairs[0]}"
  *data_scripts, program = report.scripts  # the data as JSON, then the code of the page
  if program != harmless.scripts[-1] or any("<" in data for data in data_scripts):
    return "another script, or '<' in the data of one"
  for data in data_scripts:
    json.loads(data)
  if not all(address.startswith("data:image/png;base64,") for address in report.addresses):
    return f"other addresses: {report.addresses}"
  return None


def _without_class(element: tuple[str, ...]) -> tuple[str, ...]:
  """Removes the attribute "class" from a table cell, because only cells with numbers have it."""
  return tuple(name for name in element if name != "class") if element[0] == "td" else element


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  case = partial(Case, in_process=True)
  for path in source_files():
    yield case(
      "sources: nothing runs the content of a file", path.relative_to(ROOT).as_posix(), partial(check_source, path)
    )
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
  for number in range(context.count(100)):
    yield case("report: texts stay texts", f"page {number}", partial(_check_report_of_hostile_texts, context, number))
