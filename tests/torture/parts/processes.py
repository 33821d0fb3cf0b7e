"""Starts two processes with one output directory. The result must be the same as that of one undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.torture.campaign import Case, Context
from tests.torture.commands import Command, all_commands
from tests.torture.workplace import Finished, Running

# The time after which a process counts as hanging. The second process may wait for the first.
_SECONDS = 400.0


class Pair:
  """A command that is started twice with the same output directory.

  Args:
    command: the command.
    refusal: see _REFUSALS.
  """

  def __init__(self, command: Command, refusal: str):
    self.command, self.refusal = command, refusal

  def start(self, output: Path) -> Running:
    return self.command.context.workplace.start(self.command.argv(output))

  def wait_until_locked(self, process: Running, output: Path) -> None:
    """Waits until the process has locked the directory, or for half a second if the command has no lock."""
    deadline = time.monotonic() + (60 if self.refusal else 0.5)
    while process.poll() is None and time.monotonic() < deadline:
      if self.refusal and list(output.glob(".*lock")):
        return
      time.sleep(0.002)

  def unexpected_end(self, finished: Finished) -> str | None:
    """Returns None if a process succeeded, or was refused in one line with exit code 2; else what is wrong."""
    if finished.code == 2 and self.refusal:
      is_refusal = self.refusal in finished.error
      return finished.unexpected_end(2) or (None if is_refusal else f"another error: {finished.error!r}")
    return finished.unexpected_end()

  def difference(self, output: Path) -> str | None:
    """Runs the command once more, as a user would after a refusal, and compares the result with the reference."""
    finished = self.command.context.workplace.run(self.command.argv(output), timeout=_SECONDS)
    return finished.unexpected_end() or self.command.difference(output, self.command.reference().output)


def _start_together(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Starts the second process a random time after the first."""
  seconds = pair.command.reference().seconds
  first_process = pair.start(output)
  time.sleep(rng.uniform(0, 1.1) * seconds)
  second_process = pair.start(output)
  first_end, second_end = first_process.finish(_SECONDS), second_process.finish(_SECONDS)
  if first_end.code != 0 and second_end.code != 0:
    return f"neither succeeded: {first_end.error!r}, {second_end.error!r}"
  return pair.unexpected_end(first_end) or pair.unexpected_end(second_end) or pair.difference(output)


def _one_is_killed(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Kills the first process while the second one waits or works. The second one or a repeated command must succeed."""
  first_process = pair.start(output)
  pair.wait_until_locked(first_process, output)
  second_process = pair.start(output)
  time.sleep(rng.uniform(0, 0.5) * pair.command.reference().seconds)
  first_process.send_signal(signal.SIGKILL)
  if first_process.wait(_SECONDS) not in (0, -signal.SIGKILL):
    return f"the first process ended with exit code {first_process.poll()}"
  return pair.unexpected_end(second_process.finish(_SECONDS)) or pair.difference(output)


def _one_is_suspended(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Suspends the first process, runs the second one, and then resumes the first."""
  first_process = pair.start(output)
  pair.wait_until_locked(first_process, output)
  time.sleep(rng.uniform(0, 0.1))
  first_process.send_signal(signal.SIGSTOP)
  was_running = first_process.poll() is None
  second_end = pair.start(output).finish(_SECONDS)
  first_process.send_signal(signal.SIGCONT)
  first_end = first_process.finish(_SECONDS)
  if pair.refusal and was_running and second_end.code != 2:
    return f"the second process was not refused: exit code {second_end.code}"
  return pair.unexpected_end(second_end) or pair.unexpected_end(first_end) or pair.difference(output)


def _lock_file_is_removed(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Removes the lock file while the first process works, and starts a second process."""
  first_process = pair.start(output)
  pair.wait_until_locked(first_process, output)
  for lock in output.glob(".*lock"):
    lock.unlink(missing_ok=True)
  second_end = pair.start(output).finish(_SECONDS)
  first_end = first_process.finish(_SECONDS)
  reports_lost_lock = first_end.unexpected_end(1) is None and "somebody removed" in first_end.error
  wrong = None if reports_lost_lock else pair.unexpected_end(first_end)
  return wrong or pair.unexpected_end(second_end) or pair.difference(output)


def _lock_with_reused_process_id(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Starts a process in a directory with the lock file of an ended process, whose id another process has by now."""
  output.mkdir()
  content = {"host": "here", "pid": os.getpid(), "command": "run_x.py", "since": "then", "host_key": "0", "token": "x"}
  for name in (".lock", ".spiece.lock"):
    (output / name).write_text(json.dumps(content), encoding="utf-8")
  finished = pair.start(output).finish(_SECONDS)
  for name in (".lock", ".spiece.lock"):  # the command has removed only the one that it uses
    (output / name).unlink(missing_ok=True)
  return finished.unexpected_end() or pair.difference(output)


Trial = Callable[[Pair, Path, random.Random], "str | None"]
# Group, trial, and number of cases in the full campaign.
_TRIALS: tuple[tuple[str, Trial, int], ...] = (
  ("start together", _start_together, 2),
  ("one is killed", _one_is_killed, 1),
  ("one is suspended", _one_is_suspended, 1),
  ("the lock file is removed", _lock_file_is_removed, 1),
  ("a lock whose process id was reused", _lock_with_reused_process_id, 1),
)


# The other trials need a command that locks its output directory.
_TRIALS_WITHOUT_LOCK = _TRIALS[:3]


# Command -> a part of the error that the second process prints if the first has locked the directory; "" without lock.
_REFUSALS = {
  **dict.fromkeys(("pretraining", "classifier", "SQuAD", "RACE"), "is training there"),
  "data preparation": "is preparing data there",
  "vocabulary": "is training spiece.model there",
  "export": "",
}


def cases(context: Context) -> Iterator[Case]:
  commands = {command.name: command for command in all_commands(context)}
  for pair in (Pair(commands[name], refusal) for name, refusal in _REFUSALS.items()):
    for group, trial, number in _TRIALS if pair.refusal else _TRIALS_WITHOUT_LOCK:
      for index in range(context.count(number)):
        rng = context.rng(pair.command.name, group, index)

        def run(pair: Pair = pair, trial: Trial = trial, rng: random.Random = rng) -> str | None:
          return trial(pair, context.new_directory("pair") / "output", rng)

        yield Case(f"{pair.command.name}: {group}", f"draw {index}", run)
