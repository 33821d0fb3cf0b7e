"""Commands that are killed, stopped or started twice, each with a comparison of its output with an undisturbed run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.torture import outputs
from tests.torture.campaign import Context

POINTS = "tests.torture.points"


def _difference_of_names(a: Path, b: Path) -> str | None:
  """Compares only the names of files, for commands whose files hold times. Returns None, or what differs."""
  if leftover_names := outputs.leftovers(a):
    return f"left over: {leftover_names}"
  names_a, names_b = _file_names(a), _file_names(b)
  return None if names_a == names_b else f"files {names_a} instead of {names_b}"


def _file_names(directory: Path) -> list[str]:
  return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


class Reference(NamedTuple):
  """An undisturbed run: its output directory, how many seconds it took, and how often it entered each phase."""

  output: Path
  seconds: float
  phase_counts: dict[str, int]


class Command:
  """A command that is disturbed.

  Args:
    context: the context of the part.
    name: its name in the table.
    argv: returns the command's arguments for an output directory.
    difference: compares an output directory with that of an undisturbed run. Returns None, or what differs.
    num_tries: how often it is stopped by a signal in the full campaign.
    prints: whether it writes to standard output.
  """

  def __init__(
    self,
    context: Context,
    name: str,
    argv: Callable[[Path], list[str]],
    difference: Callable[[Path, Path], str | None],
    num_tries: int = 0,
    prints: bool = True,
  ):
    self.context, self.name, self.argv, self.difference = context, name, argv, difference
    self.num_tries, self.prints = num_tries, prints
    self._lock = threading.Lock()
    self._reference: Reference | None = None

  def reference(self) -> Reference:
    with self._lock:
      if self._reference is None:
        output = self.context.new_directory("reference") / "output"
        output.mkdir()
        counts = output.with_name("counts.json")
        started = time.monotonic()
        finished = self.context.workplace.run(self.argv(output), prelude=(POINTS, "count", {"path": str(counts)}))
        seconds = time.monotonic() - started
        if wrong := finished.unexpected_end():
          raise RuntimeError(f"the undisturbed {self.name}: {wrong}")
        if bool(finished.stdout) != self.prints:
          raise RuntimeError(f"the undisturbed {self.name} printed {finished.stdout!r}")
        self._reference = Reference(output, seconds, json.loads(counts.read_text(encoding="utf-8")))
      return self._reference


def all_commands(context: Context) -> list[Command]:
  """The commands, and how often each is stopped by a signal."""
  workplace, runs, files = context.workplace, outputs.difference_of_runs, outputs.difference_of_files

  def export(output: Path) -> list[str]:
    return workplace.export_command(workplace.classifier_run, output)

  def convert(output: Path) -> list[str]:
    return workplace.convert_command(workplace.pretraining_run, output)

  def report(output: Path) -> list[str]:
    return ["-m", "albert.report", str(workplace.pretraining_run), f"--output_file={output / 'page.html'}"]

  def ensemble(output: Path) -> list[str]:
    inputs = f"--inputs={workplace.classifier_run},{workplace.copied_classifier_run}"
    return ["-m", "albert.ensemble", inputs, f"--output_dir={output}"]

  def predict(output: Path) -> list[str]:
    model = f"--model={workplace.exported_classifier}"
    return ["-m", "albert.predict", model, f"--input_file={workplace.pairs_to_predict}"]

  def question_texts(output: Path) -> list[str]:
    module = "data_prep.question_texts"
    return ["-m", module, f"--squad_file={workplace.squad_dev_file}", f"--output_file={output / 'text.txt'}"]

  def sample_corpus(output: Path) -> list[str]:
    packages = f"--packages_dir={Path(json.__file__).parent}"
    return ["-m", "data_prep.sample_corpus", packages, f"--output_dir={output}", "--num_processes=1"]

  return [
    Command(context, "pretraining", workplace.pretraining_command, runs, 18),
    Command(context, "classifier", workplace.classifier_command, runs, 12),
    Command(context, "SQuAD", workplace.squad_command, runs, 8),
    Command(context, "RACE", workplace.race_command, runs, 8),
    Command(context, "data preparation", workplace.data_prep_command, files, 12),
    Command(context, "vocabulary", workplace.train_vocab_command, files, 6),
    Command(context, "export", export, outputs.difference_of_models, 6),
    Command(context, "convert", convert, files, 6),
    Command(context, "report", report, _difference_of_names, 4),
    Command(context, "ensemble", ensemble, files, 4),
    Command(context, "predict", predict, files, 6),
    Command(context, "question texts", question_texts, files, 3, prints=False),
    Command(context, "sample corpus", sample_corpus, files, 3),
  ]
