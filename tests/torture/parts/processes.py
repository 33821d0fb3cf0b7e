"""Starts two processes on one output directory. The result must be the same as that of one undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.torture import outputs
from tests.torture.campaign import Case, Context
from tests.torture.parts.kills import Command, model_difference
from tests.torture.workplace import Finished, Running

_SECONDS = 400.0


class Pair:
  """A command that is started twice with the same output directory.

  Args:
    command: the command.
    refusal: a part of the error of a process that finds the directory locked. Empty for a command without a lock.
  """

  def __init__(self, command: Command, refusal: str):
    self.command, self.refusal = command, refusal

  def start(self, output: Path) -> Running:
    """Starts one of the two processes."""
    return self.command.context.workplace.start(self.command.argv(output))

  def wait_until_locked(self, process: Running, output: Path) -> None:
    """Waits until the process has locked the directory, or for half a second if the command has no lock."""
    deadline = time.monotonic() + (60 if self.refusal else 0.5)
    while process.poll() is None and time.monotonic() < deadline:
      if self.refusal and list(output.glob(".*lock")):
        return
      time.sleep(0.002)

  def wrong_end(self, finished: Finished) -> str | None:
    """Returns None if a process ended well or was refused in one line with exit code 2, else what is wrong."""
    if finished.code == 2 and self.refusal:
      wrong = finished.wrong(2)
      return wrong or (None if self.refusal in finished.error else f"another error: {finished.error!r}")
    return finished.wrong()

  def difference(self, output: Path) -> str | None:
    """Runs the command once more, as a user would after a refusal, and compares the result with an undisturbed run."""
    finished = self.command.context.workplace.run(self.command.argv(output), timeout=_SECONDS)
    return finished.wrong() or self.command.difference(output, self.command.reference()[0])


def _together(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Starts both processes, the second a random time after the first."""
  seconds = pair.command.reference()[1]
  first = pair.start(output)
  time.sleep(rng.uniform(0, 1.1) * seconds)
  second = pair.start(output)
  ends = [process.finish(_SECONDS) for process in (first, second)]
  if all(end.code != 0 for end in ends):
    return f"neither ended well: {[end.error for end in ends]}"
  return pair.wrong_end(ends[0]) or pair.wrong_end(ends[1]) or pair.difference(output)


def _one_is_killed(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Kills the first process while the second waits or works. The second, or the repeated command, must finish."""
  first = pair.start(output)
  pair.wait_until_locked(first, output)
  second = pair.start(output)
  time.sleep(rng.uniform(0, 0.5) * pair.command.reference()[1])
  first.send_signal(signal.SIGKILL)
  if first.wait(_SECONDS) not in (0, -signal.SIGKILL):
    return f"the first ended with code {first.poll()}"
  return pair.wrong_end(second.finish(_SECONDS)) or pair.difference(output)


def _one_is_stopped(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Suspends the first process, runs the second, and then lets the first go on."""
  first = pair.start(output)
  pair.wait_until_locked(first, output)
  time.sleep(rng.uniform(0, 0.1))
  first.send_signal(signal.SIGSTOP)
  was_running = first.poll() is None
  second = pair.start(output).finish(_SECONDS)
  first.send_signal(signal.SIGCONT)
  end = first.finish(_SECONDS)
  if pair.refusal and was_running and second.code != 2:
    return f"the second was not refused: exit code {second.code}"
  return pair.wrong_end(second) or pair.wrong_end(end) or pair.difference(output)


def _lock_file_is_removed(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Removes the lock file while the first process works, and starts a second one.

  The first must end well, or stop with one line that says that somebody removed its lock.
  """
  first = pair.start(output)
  pair.wait_until_locked(first, output)
  for lock in output.glob(".*lock"):
    lock.unlink(missing_ok=True)
  second = pair.start(output).finish(_SECONDS)
  end = first.finish(_SECONDS)
  reports_lost_lock = end.code == 1 and end.wrong(1) is None and "somebody removed" in end.error
  wrong = None if reports_lost_lock else pair.wrong_end(end)
  return wrong or pair.wrong_end(second) or pair.difference(output)


def _lock_of_another_life(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """A process has left its lock file behind, and another process has its process id by now. The lock must be taken."""
  output.mkdir()
  content = {"host": "here", "pid": os.getpid(), "command": "run_x.py", "since": "then", "host_key": "0", "token": "x"}
  for name in (".lock", ".spiece.lock"):
    (output / name).write_text(json.dumps(content), encoding="utf-8")
  finished = pair.start(output).finish(_SECONDS)
  for name in (".lock", ".spiece.lock"):  # each command uses only one of them, so the other one is still there
    (output / name).unlink(missing_ok=True)
  return finished.wrong() or pair.difference(output)


Trial = Callable[[Pair, Path, random.Random], "str | None"]
# Group, trial, and cases in the full campaign. The last two need a command that locks its output directory.
_TRIALS: tuple[tuple[str, Trial, int], ...] = (
  ("start together", _together, 2),
  ("one is killed", _one_is_killed, 1),
  ("one is suspended", _one_is_stopped, 1),
  ("the lock file is removed", _lock_file_is_removed, 1),
  ("a lock of another life of the process id", _lock_of_another_life, 1),
)


def _pairs(context: Context) -> Iterator[Pair]:
  workplace, runs, files = context.workplace, outputs.difference_of_runs, outputs.difference_of_files
  training = "is training there"
  yield Pair(Command("pretraining", workplace.pretraining_command, runs, context), training)
  yield Pair(Command("classifier", workplace.classifier_command, runs, context), training)
  yield Pair(Command("SQuAD", workplace.squad_command, runs, context), training)
  yield Pair(Command("RACE", workplace.race_command, runs, context), training)
  yield Pair(Command("data preparation", workplace.data_prep_command, files, context), "is preparing data there")
  yield Pair(Command("vocabulary", workplace.train_vocab_command, files, context), "is training spiece.model there")
  yield Pair(
    Command("export", lambda o: workplace.export_command(workplace.classifier_run, o), model_difference, context), ""
  )


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  for pair in _pairs(context):
    trials = _TRIALS if pair.refusal else _TRIALS[:3]
    for group, trial, number in trials:
      for index in range(context.count(number)):
        rng = context.rng(pair.command.name, group, index)

        def run(pair: Pair = pair, trial: Trial = trial, rng: random.Random = rng) -> str | None:
          return trial(pair, context.new_directory("pair") / "output", rng)

        yield Case(f"{pair.command.name}: {group}", f"draw {index}", run)
