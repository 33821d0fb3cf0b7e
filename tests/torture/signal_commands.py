"""The commands that the part "signals" stops, each with a comparison of its output with that of an undisturbed run."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from tests.torture import outputs
from tests.torture.workplace import Workplace


def _difference_of_names(a: Path, b: Path) -> str | None:
  """Compares only the names of files, for commands whose files hold times. Returns None, or what differs."""
  if leftover_names := outputs.leftovers(a):
    return f"left over: {leftover_names}"
  names_a, names_b = _file_names(a), _file_names(b)
  return None if names_a == names_b else f"files {names_a} instead of {names_b}"


def _file_names(directory: Path) -> list[str]:
  return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def _difference_of_versions(a: Path, b: Path) -> str | None:
  """Compares the names of the files in exported models: each version in `a` with the one version in `b`."""
  if leftover_names := outputs.leftovers(a):
    return f"left over: {leftover_names}"
  (reference,) = b.glob("*/*")
  versions = sorted(a.glob("*/*"))
  differences = ((version.name, _difference_of_names(version, reference)) for version in versions)
  messages = [f"version {name}: {difference}" for name, difference in differences if difference]
  return "; ".join(messages) or (None if versions else "no version")


@dataclasses.dataclass(frozen=True)
class Command:
  """A command that is stopped.

  Attributes:
    name: its name in the table.
    argv: returns the command's arguments for a workplace and an output directory.
    difference: compares two output directories. Returns None, or what differs.
    num_tries: how often it is stopped by a signal in the full campaign.
    prints: whether it writes to standard output.
  """

  name: str
  argv: Callable[[Workplace, Path], list[str]]
  difference: Callable[[Path, Path], str | None]
  num_tries: int
  prints: bool = True


def _export(workplace: Workplace, output: Path) -> list[str]:
  return workplace.export_command(workplace.classifier_run, output)


def _convert(workplace: Workplace, output: Path) -> list[str]:
  return workplace.convert_command(workplace.pretraining_run, output)


def _report(workplace: Workplace, output: Path) -> list[str]:
  return ["-m", "albert.report", str(workplace.pretraining_run), f"--output_file={output / 'page.html'}"]


def _predict(workplace: Workplace, output: Path) -> list[str]:
  return [
    "-m",
    "albert.predict",
    f"--model={workplace.exported_classifier}",
    f"--input_file={_pairs_to_predict(workplace)}",
  ]


def _pairs_to_predict(workplace: Workplace) -> Path:
  """Returns a file with 200 pairs of texts to predict. Writes it first if it doesn't exist."""
  path = workplace.directory / "pairs_to_predict.tsv"
  if not path.exists():
    # Other threads may do the same. Each writes a file of its own, and renames it.
    staging = path.with_name(f"{path.name}.{threading.get_ident()}")
    lines = [f"word {number} of a text\tanother text {number}\n" for number in range(200)]
    staging.write_text("".join(lines), encoding="utf-8")
    staging.replace(path)
  return path


def _ensemble(workplace: Workplace, output: Path) -> list[str]:
  other = workplace.directory / "classified_again"  # a copy, in place of a run with another seed
  if not other.exists():
    shutil.copytree(workplace.classifier_run, other, dirs_exist_ok=True)
  return ["-m", "albert.ensemble", f"--inputs={workplace.classifier_run},{other}", f"--output_dir={output}"]


def _question_texts(workplace: Workplace, output: Path) -> list[str]:
  module = "data_prep.question_texts"
  return ["-m", module, f"--squad_file={workplace.squad_dev_file}", f"--output_file={output / 'text.txt'}"]


def _sample_corpus(workplace: Workplace, output: Path) -> list[str]:
  packages = f"--packages_dir={Path(json.__file__).parent}"
  return ["-m", "data_prep.sample_corpus", packages, f"--output_dir={output}", "--num_processes=1"]


# Name, command, comparison, number of signals.
COMMANDS = (
  Command("pretraining", Workplace.pretraining_command, outputs.difference_of_runs, 18),
  Command("classifier", Workplace.classifier_command, outputs.difference_of_runs, 12),
  Command("SQuAD", Workplace.squad_command, outputs.difference_of_runs, 8),
  Command("RACE", Workplace.race_command, outputs.difference_of_runs, 8),
  Command("data preparation", Workplace.data_prep_command, outputs.difference_of_files, 12),
  Command("vocabulary", Workplace.train_vocab_command, outputs.difference_of_files, 6),
  Command("export", _export, _difference_of_versions, 6),
  Command("convert", _convert, outputs.difference_of_files, 6),
  Command("report", _report, _difference_of_names, 4),
  Command("ensemble", _ensemble, outputs.difference_of_files, 4),
  Command("predict", _predict, outputs.difference_of_files, 6),
  Command("question texts", _question_texts, outputs.difference_of_files, 3, prints=False),
  Command("sample corpus", _sample_corpus, outputs.difference_of_files, 3),
)
