"""Formats the results of bench_engines.py as Markdown, and puts the table into a guide."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence

from albert.errors import UserError
from benchmarks.engines.client import EngineProcess
from benchmarks.engines.registry import CALLS, EIGHT_128, MIXED, REFERENCE

# Largest accepted difference of a probability from the SavedModel's, for engines that compute in float32.
TOLERANCE = 1e-3
_BEGIN, _END = "<!-- table of bench_engines.py -->", "<!-- end of the table -->"
_BATCHES_OF_EIGHT = (EIGHT_128, MIXED)
_LEGEND = (
  "1 x 16, 1 x 128 and 1 x 512: one text of so many tokens, milliseconds of a call. 8 x 128 and 8 mixed: 8 texts in a "
  "call, texts per second; the mixed ones have {lengths} tokens and are padded to the longest. import: seconds until "
  "the library is imported; load: seconds from then to the first answer. memory: peak memory of the engine's process. "
  "disk: size of the model. difference: largest difference of a probability from the first row."
)


def format_table(processes: Mapping[str, EngineProcess], sizes: Mapping[str, int]) -> list[str]:
  """The table of all engines.

  Args:
    processes: the measured engines by name. REFERENCE is one of them.
    sizes: bytes of the model of each engine.
  Returns: the lines of the table. An engine that has failed has a row with the reason.
  """
  columns = [f"{name}, {'texts/s' if name in _BATCHES_OF_EIGHT else 'ms'}" for name in CALLS]
  columns += ["import, s", "load, s", "memory, MiB", "disk, MB", "difference"]
  lines = ["| engine | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
  for name, process in processes.items():
    cells = _measured_cells(process, sizes[name], processes[REFERENCE]) if not process.failure else []
    if not cells:
      cells = [f"failed: {process.failure}".replace("|", "/"), *[""] * (len(columns) - 1)]
    lines.append(f"| {process.engine.title} | " + " | ".join(cells) + " |")
  return lines


def _measured_cells(process: EngineProcess, size: int, reference: EngineProcess) -> list[str]:
  """The cells of an engine's row, without its title."""
  cells = []
  for name in CALLS:
    seconds = process.median(name).seconds
    cells.append(f"{8 / seconds:.2f}" if name in _BATCHES_OF_EIGHT else f"{1e3 * seconds:.1f}")
  cells += [f"{process.start['import']:.1f}", f"{process.start['load']:.1f}", f"{process.memory:.0f}"]
  cells.append(f"{size / 1e6:.1f}")
  return [*cells, "not compared" if reference.failure else f"{process.largest_difference(reference):.1e}"]


def format_spread(processes: Mapping[str, EngineProcess]) -> list[str]:
  """A table of the fastest and the slowest round, and of the processor time of a call, in milliseconds."""
  lines = ["| engine | " + " | ".join(CALLS) + " |", "|---|" + "---|" * len(CALLS)]
  for process in processes.values():
    if not process.failure:
      cells = []
      for name, turns in process.turns.items():
        seconds = [turn.seconds for turn in turns]
        fastest, slowest, processor = (1e3 * s for s in (min(seconds), max(seconds), process.median(name).processor))
        cells.append(f"{fastest:.1f} to {slowest:.1f}; {processor:.0f}")
      lines.append(f"| {process.engine.title} | " + " | ".join(cells) + " |")
  return lines


def format_report(
  processes: Mapping[str, EngineProcess],
  sizes: Mapping[str, int],
  *,
  title: str,
  setup: str,
  command: str,
  mixed_lengths: Sequence[int],
) -> str:
  """The whole file of results.

  Args:
    processes, sizes: see format_table.
    title: the headline.
    setup: sentences about the machine, the model and the rounds.
    command: the command line.
    mixed_lengths: the lengths of the texts of the batch MIXED.
  """
  lines = [f"# {title}", "", setup, "", "```", command, "```", "", *format_table(processes, sizes), ""]
  lines += [_LEGEND.format(lengths=", ".join(map(str, mixed_lengths))), ""]
  lines += ["Milliseconds of a call in the fastest and in the slowest round; processor time of a call, of all threads:"]
  return "\n".join([*lines, "", *format_spread(processes), ""])


def wrong_answers(processes: Mapping[str, EngineProcess]) -> list[str]:
  """A line for each engine whose answers differ too much from the SavedModel's."""
  reference = processes[REFERENCE]
  if reference.failure:
    return []
  lines = []
  for process in processes.values():
    if not process.failure and not process.engine.is_approximate:
      difference = process.largest_difference(reference)
      if not difference <= TOLERANCE:  # also if it is NaN
        lines.append(f"{process.engine.title}: a probability differs by {difference:.2g} from the SavedModel's")
  return lines


def library_versions(packages: Sequence[str]) -> str:
  """The versions of installed packages, such as "torch 2.13.0, openvino 2026.4.1"."""
  return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)


def replace_table(guide: str, table: Sequence[str], path: str) -> str:
  """Replaces the table in a guide.

  Args:
    guide: the text of the guide.
    table: the new lines.
    path: path of the guide, for the error message.
  Raises:
    UserError: the guide has no table that this program may replace.
  """
  before, begin, rest = guide.partition(_BEGIN)
  _, end, after = rest.partition(_END)
  if not (begin and end):
    raise UserError(f"--guide={path}: has no lines {_BEGIN!r} and {_END!r}, between which the table belongs")
  return "\n".join([before + _BEGIN, "", *table, "", _END + after])
