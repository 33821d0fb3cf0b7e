"""Compares the runners of data preparation on the same text: their time, their memory, and the files that they write.

  PYTHONPATH=. python benchmarks/bench_runners.py --input_file='text/*.txt' --spm_model_file=30k.model \
    --runner=local --runner=beam=.venv-beam/bin/python --runner=ray=.venv-ray/bin/python -- --document=file

Each --runner is a name and, if the runner needs another environment, the Python of that environment. Words after -- are
flags of data_prep.create_pretraining_data for all runners. The runners take turns, --repeats times. The table shows the
shortest and the longest time of a command, and the processor time of all its processes, which hardly depends on what
else the machine does. It also shows the peak memory of all processes together, and of a single process. Processor time
and memory are sampled twice a second.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Flags of Beam's runner, for the number of processes.
_BEAM_FLAGS = ["--runner=DirectRunner", "--direct_running_mode=multi_processing"]
_SECONDS_BETWEEN_SAMPLES = 0.5


class Measurement(NamedTuple):
  """The measurement of one command.

  Attributes:
    seconds: time from the start of the command to its end.
    processor_seconds: processor time of all its processes.
    total_mb: greatest resident memory of all its processes together, in MB. Shared pages count for each process.
    process_mb: greatest resident memory of one of its processes, in MB.
    digest: a hash of the names and contents of all files that it wrote.
  """

  seconds: float
  processor_seconds: float
  total_mb: float
  process_mb: float
  digest: str


class _Sample(NamedTuple):
  """The resident memory of a process in MB, and the processor time in seconds that it has used so far."""

  resident_mb: float
  processor_seconds: float


def _sample_processes(pid: int) -> dict[int, _Sample]:
  """Returns samples of a process and its descendants, by their process ids."""
  ticks_per_second, page_size = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
  children: dict[int, list[int]] = {}  # of each process
  samples: dict[int, _Sample] = {}
  for path in Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):  # the process has ended meanwhile
      # The fields after the name, which is in parentheses: state, ppid, ..., utime, stime, ..., rss.
      fields = path.read_text().rpartition(")")[2].split()
      parent, utime, stime, rss = (int(fields[index]) for index in (1, 11, 12, 21))
      child = int(path.parent.name)
      children.setdefault(parent, []).append(child)
      samples[child] = _Sample(rss * page_size / 1e6, (utime + stime) / ticks_per_second)
  family = [pid]
  for parent in family:
    family += children.get(parent, [])
  return {process: samples[process] for process in family if process in samples}


def _hash_files(directory: Path) -> str:
  """Returns a hash of the names and contents of all files in a directory."""
  digest = hashlib.sha256()
  for path in sorted(directory.iterdir()):
    digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
  return digest.hexdigest()


def _command(runner: str, python: str, output_dir: str, options: argparse.Namespace) -> list[str]:
  command = [
    python,
    "-m",
    "data_prep.create_pretraining_data",
    f"--input_file={options.input_file}",
    f"--spm_model_file={options.spm_model_file}",
    f"--output_dir={output_dir}",
    f"--num_processes={options.num_processes}",
    f"--runner={runner}",
    *options.flags,
  ]
  if runner == "beam" and options.num_processes > 1:
    command += ["--", *_BEAM_FLAGS, f"--direct_num_workers={options.num_processes}"]
  return command


def measure(runner: str, python: str, options: argparse.Namespace) -> Measurement:
  """Runs the command with a runner.

  Args:
    runner: the value of the command's --runner.
    python: the Python of its environment.
    options: the flags of this benchmark.
  """
  with tempfile.TemporaryDirectory(dir=options.directory) as folder:
    output_dir = Path(folder) / "shards"
    begin = time.monotonic()
    with open(Path(folder) / "log", "w+b") as log:
      environment = {**os.environ, "PYTHONPATH": str(ROOT)}
      command = _command(runner, python, str(output_dir), options)
      process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
      total_mb, process_mb = 0.0, 0.0
      processor_seconds: dict[int, float] = {}  # of each process
      while process.poll() is None:
        samples = _sample_processes(process.pid)
        sizes = [sample.resident_mb for sample in samples.values()]
        total_mb, process_mb = max(total_mb, sum(sizes)), max([process_mb, *sizes])
        processor_seconds |= {pid: sample.processor_seconds for pid, sample in samples.items()}
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(_SECONDS_BETWEEN_SAMPLES)
      seconds = time.monotonic() - begin
      if process.returncode:
        log.seek(0)
        sys.exit(f"{' '.join(command)} failed:\n{log.read().decode()[-2000:]}")
    return Measurement(seconds, sum(processor_seconds.values()), total_mb, process_mb, _hash_files(output_dir))


def _parse_flags() -> argparse.Namespace:
  words = sys.argv[1:]
  separator = words.index("--") if "--" in words else len(words)
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--input_file", required=True)
  parser.add_argument("--spm_model_file", required=True)
  parser.add_argument("--runner", action="append", required=True)
  parser.add_argument("--num_processes", type=int, default=2)
  parser.add_argument("--repeats", type=int, default=2)
  parser.add_argument("--directory", help="where the shards are written; they are removed")
  options = parser.parse_args(words[:separator])
  options.flags = words[separator + 1 :]
  return options


def main() -> None:
  options = _parse_flags()
  pythons = {}  # of each runner
  for text in options.runner:
    name, _, python = text.partition("=")
    pythons[name] = python or sys.executable
  results: dict[str, list[Measurement]] = {name: [] for name in pythons}
  for _ in range(options.repeats):
    for name, python in pythons.items():
      results[name].append(measure(name, python, options))
      load = os.getloadavg()[0]
      print(f"{name}: {results[name][-1]}, load average {load:.1f}", file=sys.stderr, flush=True)
  digests = {result.digest for measured in results.values() for result in measured}
  print(
    "| runner | seconds | processor seconds | memory of all processes | memory of one process | SHA-256 of all files |"
  )
  print("|---|---|---|---|---|---|")
  for name, measured in results.items():
    seconds = sorted(result.seconds for result in measured)
    processor_seconds = sorted(result.processor_seconds for result in measured)
    total_mb, process_mb = max(result.total_mb for result in measured), max(result.process_mb for result in measured)
    print(
      f"| {name} | {seconds[0]:.0f} to {seconds[-1]:.0f} | {processor_seconds[0]:.0f} to {processor_seconds[-1]:.0f} | "
      f"{total_mb:.0f} MB | {process_mb:.0f} MB | {measured[0].digest[:16]} |"
    )
  if len(digests) > 1:
    sys.exit("the files differ")


if __name__ == "__main__":
  main()
