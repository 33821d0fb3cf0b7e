"""Runs the cases of the campaign's parts, and counts for each group how many were tried and how many passed."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import pkgutil
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from tests.torture import parts
from tests.torture.workplace import Workplace

_SECONDS_BETWEEN_PROGRESS_LINES = 10.0


@dataclasses.dataclass(frozen=True)
class Case:
  """One attack.

  Attributes:
    group: the row of the table, for example "pretraining, SIGKILL while saving".
    name: describes the attack well enough to repeat it.
    run: returns None if the case passed, else one line that says what went wrong. An exception is a failure, too.
    in_process: `run` changes this process (flags, working directory). Such cases run one after another in the main
      thread.
  """

  group: str
  name: str
  run: Callable[[], str | None]
  in_process: bool = False


@dataclasses.dataclass(frozen=True)
class Context:
  """What the cases of a part are made from.

  Attributes:
    seed: the seed of all random draws.
    share: the part of the full campaign that is run, for example 0.1.
    directory: the working directory of this part. It is empty at first, and removed if all cases pass.
    workplace: starts commands, and has the files and runs that parts share.
  """

  seed: int
  share: float
  directory: Path
  workplace: Workplace

  def rng(self, *names: object) -> random.Random:
    """Returns a random generator that depends only on the seed, the part and `names`."""
    text = "/".join(map(str, (self.seed, self.directory.name, *names)))
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))

  def count(self, full: int) -> int:
    """Returns how many cases to try if the full campaign tries `full` of them; at least one."""
    return max(1, round(full * self.share))

  def new_directory(self, name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))


class Outcome(NamedTuple):
  """How a case ended; `failure` is None if it passed."""

  group: str
  name: str
  failure: str | None


@dataclasses.dataclass(frozen=True)
class PartResult:
  """The outcomes of a part, in the order of its cases, and the seconds that it took."""

  name: str
  outcomes: list[Outcome]
  seconds: float

  @property
  def failures(self) -> list[Outcome]:
    return [outcome for outcome in self.outcomes if outcome.failure is not None]


def part_names() -> list[str]:
  return sorted(module.name for module in pkgutil.iter_modules(parts.__path__))


def load_part(part: str) -> Callable[[Context], Iterator[Case]]:
  """Imports a part, and returns its function `cases`."""
  module = importlib.import_module(f"{parts.__name__}.{part}")
  cases: Callable[[Context], Iterator[Case]] = module.cases
  return cases


def _describe_error(error: BaseException) -> str:
  """Returns one line with the type of an error, where it was raised, and its message."""
  frame = traceback.extract_tb(error.__traceback__)[-1]
  text = " ".join(str(error).split()) or "no message"
  return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {text}"


class _Progress:
  """Prints each failure to stderr at once, and from time to time how many cases are done."""

  def __init__(self, part: str, total: int):
    self._part, self._total = part, total
    self._lock = threading.Lock()
    self._done = self._failed = 0
    self._next_line_time = time.monotonic() + _SECONDS_BETWEEN_PROGRESS_LINES

  def add(self, outcome: Outcome) -> None:
    with self._lock:
      self._done += 1
      if outcome.failure is not None:
        self._failed += 1
        log(f"FAILED {self._part}: {outcome.group}: {outcome.name}: {outcome.failure}")
      if time.monotonic() > self._next_line_time or self._done == self._total:
        self._next_line_time = time.monotonic() + _SECONDS_BETWEEN_PROGRESS_LINES
        log(f"{self._part}: {self._done} of {self._total} tried, {self._failed} failed")


def log(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def run_case(case: Case, workplace: Workplace) -> Outcome:
  """Runs a case, and kills the processes that it leaves behind."""
  try:
    with workplace.killing_processes():
      failure = case.run()
  except (Exception, SystemExit) as error:
    failure = _describe_error(error)
  return Outcome(case.group, case.name, failure)


def run_part(
  name: str, make_cases: Callable[[Context], Iterator[Case]], context: Context, *, jobs: int = 1, only: str = ""
) -> PartResult:
  """Runs the cases of a part whose group contains `only`."""
  started = time.monotonic()
  cases: list[Case] = []
  wrong = "there are none"
  try:
    cases = [case for case in make_cases(context) if only in case.group]
  except (Exception, SystemExit) as error:
    traceback.print_exc()
    wrong = _describe_error(error)
  if not cases:
    return PartResult(name, [Outcome("making the cases", "cases(context)", wrong)], time.monotonic() - started)
  progress = _Progress(name, len(cases))
  outcomes: dict[int, Outcome] = {}

  def run(index: int) -> None:
    outcomes[index] = run_case(cases[index], context.workplace)
    progress.add(outcomes[index])

  with futures.ThreadPoolExecutor(jobs) as pool:
    started_cases = [pool.submit(run, index) for index, case in enumerate(cases) if not case.in_process]
    try:
      for future in futures.as_completed(started_cases):
        future.result()
    except BaseException:
      pool.shutdown(wait=False, cancel_futures=True)
      raise
  for index, case in enumerate(cases):
    if case.in_process:
      run(index)
  return PartResult(name, [outcomes[index] for index in range(len(cases))], time.monotonic() - started)


# ---- results ---------------------------------------------------------------------------------------------


def format_table(results: Sequence[PartResult]) -> str:
  """Formats the results: a Markdown table of the groups, one line with the time of each part, and the failures."""
  lines = ["| part | group | tried | passed |", "|---|---|--:|--:|"]
  for result in results:
    tried = Counter(outcome.group for outcome in result.outcomes)
    failed = Counter(outcome.group for outcome in result.failures)
    lines += [f"| {result.name} | {group} | {count} | {count - failed[group]} |" for group, count in tried.items()]
  num_tried = sum(len(result.outcomes) for result in results)
  num_failed = sum(len(result.failures) for result in results)
  lines.append(f"| all | | {num_tried} | {num_tried - num_failed} |\n")
  lines += [f"{result.name}: {result.seconds:.0f} seconds" for result in results]
  for result in results:
    lines += [f"FAILED {result.name}: {case.group}: {case.name}: {case.failure}" for case in result.failures]
  return "\n".join(lines) + "\n"


def run(
  names: Sequence[str],
  *,
  seed: int,
  share: float = 1.0,
  jobs: int = 2,
  only: str = "",
  work_dir: str = "",
) -> int:
  log(f"--seed={seed} --share={share:g} --jobs={jobs}: {' '.join(names)}")
  root = Path(work_dir) if work_dir else Path(tempfile.mkdtemp(prefix="albert-torture-"))
  results: list[PartResult] = []
  exit_code = 0
  try:
    with Workplace(root / "workplace") as workplace:
      for name in names:
        directory = root / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        context = Context(seed, share, directory, workplace)
        results.append(run_part(name, load_part(name), context, jobs=jobs, only=only))
        if results[-1].failures:
          exit_code = 1
          log(f"{name}: its files are left in {directory}")
        else:
          shutil.rmtree(directory)
    if not work_dir and exit_code == 0:
      shutil.rmtree(root)
  except KeyboardInterrupt:
    exit_code = 130
  print(format_table(results), end="", flush=True)
  print(f"repeat it with --seed={seed} --share={share:g}")
  return exit_code
