"""Compares exported training steps with Hugging Face's transformers on the same device, in one run.

  python -m benchmarks.gpu.compare PACKAGE... --output_file=table.md

It needs JAX, PyTorch and transformers, and neither TensorFlow nor this project's library. Every measurement is a
process of its own, which gets the whole memory of the device. All batch sizes of a package are tried, and the table has
the fastest one of each library.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import devices
from benchmarks.gpu.step_package import Manifest
from benchmarks.gpu.timing import Measurement

# Name in the table -> the module that is run.
LIBRARIES = {"exported step (JAX)": "jax_step", "transformers (PyTorch)": "transformers_step"}
_COLUMNS = (
  "model",
  "length",
  "precision",
  "library",
  "batch",
  "sequences/s, median (range)",
  "share of peak",
  "memory GiB",
  "first step s",
  "loss, first step and last round",
)
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut ?[Oo]f ?[Mm]emory")


@dataclasses.dataclass(frozen=True)
class Trial:
  """A measurement of one library with one batch size, or the reason why there is none."""

  batch_size: int
  measurement: Measurement | None
  problem: str = ""

  @property
  def speed(self) -> float:
    """Sequences per second; 0 without a measurement."""
    return self.measurement.sequences_per_second(self.batch_size) if self.measurement else 0.0


def run(module: str, package: Path, batch_size: int, arguments: Sequence[str]) -> Trial:
  """Runs one measurement in a process.

  Args:
    module: a value of LIBRARIES.
    package: the package.
    batch_size: one of its batch sizes.
    arguments: further arguments of the process.
  """
  command = [sys.executable, "-m", f"benchmarks.gpu.{module}", str(package), f"--batch_size={batch_size}", *arguments]
  result = subprocess.run(command, capture_output=True, text=True, check=False)
  if result.returncode:
    out_of_memory = _OUT_OF_MEMORY.search(result.stderr)
    last_line = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
    return Trial(batch_size, None, "out of memory" if out_of_memory else last_line[:200])
  return Trial(batch_size, Measurement(**json.loads(result.stdout.splitlines()[-1])))


def format_row(manifest: Manifest, library: str, trials: Sequence[Trial], peak: float | None) -> str:
  """Formats the row of the table for one library.

  Args:
    manifest: the package's manifest.
    library: a key of LIBRARIES.
    trials: one for each batch size.
    peak: the device's peak operations per second; None if it is not known.
  """
  cells = [manifest.model_name, str(manifest.length), manifest.precision, library]
  best = max(trials, key=lambda trial: trial.speed)
  if best.measurement is None:
    problems = "; ".join(f"{trial.batch_size}: {trial.problem}" for trial in trials)
    return _format_cells([*cells, problems.replace("|", "/"), *[""] * (len(_COLUMNS) - len(cells) - 1)])
  speeds = [best.batch_size / seconds for seconds in best.measurement.seconds_per_step]
  share = f"{manifest.flops_per_sequence * best.speed / peak:.1%}" if peak else ""
  memory = best.measurement.memory
  cells += [
    str(best.batch_size),
    f"{best.speed:.1f} ({min(speeds):.1f} to {max(speeds):.1f})",
    share,
    f"{memory / 2**30:.1f}" if memory else "",
    f"{best.measurement.first_step_seconds:.0f}",
    f"{best.measurement.losses[0]:.3f}, {best.measurement.losses[-1]:.3f}",
  ]
  return _format_cells(cells)


def format_public_figures() -> str:
  """Formats the public figures as a table."""
  rows = [("model", "length", "measured on", "sequences/s", "source"), ("---",) * 5, *devices.PUBLIC_FIGURES]
  return "".join(_format_cells([str(cell) for cell in row]) for row in rows)


def _format_cells(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |\n"


def format_report(rows: Sequence[str], device: str, versions: dict[str, str], peak: float | None) -> str:
  """Formats the page: what was measured, the table, and the public figures.

  Args:
    rows: results of format_row.
    device: the device's name.
    versions: package -> version.
    peak: the device's peak operations per second; None if it is not known.
  """
  packages = ", ".join(f"{name} {version}" for name, version in versions.items())
  share = (
    f"Share of peak is of {peak / 1e12:g} TFLOP/s, counting the matrix products of the model and no recomputation."
    if peak
    else "There is no share of peak, because the device's peak is not known here: give --peak_tflops."
  )
  return (
    f"# Pretraining steps on a GPU, {datetime.date.today().isoformat()}\n\n"
    f"{device or 'No device'}; {packages or 'no measurement'}. Made by `python -m benchmarks.gpu.compare`.\n\n"
    "- The exported step has LAMB, transformers has PyTorch's fused AdamW, torch.compile and fused attention.\n"
    f"- {share}\n"
    "- Of all batch sizes that were tried, the table has the fastest.\n\n"
    + _format_cells(_COLUMNS)
    + _format_cells(["---"] * len(_COLUMNS))
    + "".join(rows)
    + "\nPublic figures of others, on other devices:\n\n"
    + format_public_figures()
  )


def main() -> None:
  """Measures all packages and writes the table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("packages", type=Path, nargs="+", help="directories that benchmarks/gpu_step.py wrote")
  parser.add_argument("--output_file", type=Path, required=True, help="the table, in Markdown")
  parser.add_argument("--peak_tflops", type=float, help="peak TFLOP/s of the device, if it is not in devices.py")
  options, others = parser.parse_known_args()  # the others are those of timing.make_parser
  rows, versions, device, peak = [], dict[str, str](), "", None
  for package in options.packages:
    manifest = Manifest.read(package)
    for library, module in LIBRARIES.items():
      trials = [run(module, package, batch_size, others) for batch_size in manifest.batch_sizes]
      for trial in trials:
        print(f"{manifest.model_name} {manifest.length} {library} {trial.batch_size}: {trial}", flush=True)
        if trial.measurement:
          device, versions = trial.measurement.device, versions | trial.measurement.versions
      peak = options.peak_tflops * 1e12 if options.peak_tflops else devices.peak_flops(device)
      rows.append(format_row(manifest, library, trials, peak))
      # Written after each row, so that a run that is cut short leaves what it measured.
      options.output_file.write_text(format_report(rows, device, versions, peak), encoding="utf-8")


if __name__ == "__main__":
  main()
