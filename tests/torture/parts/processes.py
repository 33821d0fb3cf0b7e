"""Two processes on one output directory: one wins or they take turns, and the result is that of one undisturbed run."""

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
    command: what is started, and its undisturbed run.
    refused: what stderr of a process says that the other one keeps out; empty if both may end well.
  """

  def __init__(self, command: Command, refused: str):
    self.command, self.refused = command, refused

  def start(self, output: Path) -> Running:
    """One of the two processes."""
    return self.command.context.places.start(self.command.argv(output))

  def wait_until_locked(self, process: Running, output: Path) -> None:
    """Waits until the process holds a lock, or, where there is none, for a moment."""
    deadline = time.monotonic() + (60 if self.refused else 0.5)
    while process.poll() is None and time.monotonic() < deadline:
      if self.refused and list(output.glob(".*lock")):
        return
      time.sleep(0.002)

  def wrong_end(self, finished: Finished) -> str | None:
    """None if a process ended well, or was refused in one line with exit code 2."""
    if finished.code == 2 and self.refused:
      wrong = finished.wrong(2)
      return wrong or (None if self.refused in finished.error else f"another error: {finished.error!r}")
    return finished.wrong()

  def difference(self, output: Path) -> str | None:
    """After all: the command once more, since one that was refused is given again, then the comparison."""
    finished = self.command.context.places.run(self.command.argv(output), timeout=_SECONDS)
    return finished.wrong() or self.command.difference(output, self.command.reference()[0])


def _together(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Both start, one a little later."""
  seconds = pair.command.reference()[1]
  first = pair.start(output)
  time.sleep(rng.uniform(0, 1.1) * seconds)
  second = pair.start(output)
  ends = [process.finish(_SECONDS) for process in (first, second)]
  if all(end.code != 0 for end in ends):
    return f"neither ended well: {[end.error for end in ends]}"
  return pair.wrong_end(ends[0]) or pair.wrong_end(ends[1]) or pair.difference(output)


def _one_is_killed(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """The first is killed while it works; the second, which starts at the same moment, or a third goes on."""
  first = pair.start(output)
  pair.wait_until_locked(first, output)
  second = pair.start(output)
  time.sleep(rng.uniform(0, 0.5) * pair.command.reference()[1])
  first.send_signal(signal.SIGKILL)
  if first.wait(_SECONDS) not in (0, -signal.SIGKILL):
    return f"the first ended with code {first.poll()}"
  return pair.wrong_end(second.finish(_SECONDS)) or pair.difference(output)


def _one_is_stopped(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """The first is suspended while the second starts, and goes on when that has ended."""
  first = pair.start(output)
  pair.wait_until_locked(first, output)
  time.sleep(rng.uniform(0, 0.1))
  first.send_signal(signal.SIGSTOP)
  was_running = first.poll() is None
  second = pair.start(output).finish(_SECONDS)
  first.send_signal(signal.SIGCONT)
  end = first.finish(_SECONDS)
  if pair.refused and was_running and second.code != 2:
    return f"the second was not refused: exit code {second.code}"
  return pair.wrong_end(second) or pair.wrong_end(end) or pair.difference(output)


def _lock_file_is_removed(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """Somebody removes the lock file, and a second process starts: the first stops in one line, or ends well."""
  first = pair.start(output)
  pair.wait_until_locked(first, output)
  for lock in output.glob(".*lock"):
    lock.unlink(missing_ok=True)
  second = pair.start(output).finish(_SECONDS)
  end = first.finish(_SECONDS)
  lost = end.code == 1 and end.wrong(1) is None and "somebody removed" in end.error
  wrong = None if lost else pair.wrong_end(end)
  return wrong or pair.wrong_end(second) or pair.difference(output)


def _lock_of_another_life(pair: Pair, output: Path, rng: random.Random) -> str | None:
  """A lock file and a staging file are there whose process id a living process has by now."""
  output.mkdir()
  left = {"host": "here", "pid": os.getpid(), "command": "run_x.py", "since": "then", "host_key": "0", "token": "x"}
  for name in (".lock", ".spiece.lock"):
    (output / name).write_text(json.dumps(left), encoding="utf-8")
  finished = pair.start(output).finish(_SECONDS)
  for name in (".lock", ".spiece.lock"):  # the one that the command does not use
    (output / name).unlink(missing_ok=True)
  return finished.wrong() or pair.difference(output)


Trial = Callable[[Pair, Path, random.Random], "str | None"]
_LOCKED: tuple[tuple[str, Trial, int], ...] = (
  ("start together", _together, 2),
  ("one is killed", _one_is_killed, 1),
  ("one is suspended", _one_is_stopped, 1),
  ("the lock file is removed", _lock_file_is_removed, 1),
  ("a lock of another life of the process id", _lock_of_another_life, 1),
)


def _commands(context: Context) -> Iterator[Pair]:
  places, runs, made = context.places, outputs.difference_of_runs, outputs.difference_of_files
  training = "is training there"
  yield Pair(Command("pretraining", places.pretraining, runs, context), training)
  yield Pair(Command("classifier", places.classifier, runs, context), training)
  yield Pair(Command("SQuAD", places.squad, runs, context), training)
  yield Pair(Command("RACE", places.race_run, runs, context), training)
  yield Pair(Command("data preparation", places.data_prep, made, context), "is preparing data there")
  yield Pair(Command("vocabulary", places.train_vocab, made, context), "is training spiece.model there")
  yield Pair(Command("export", lambda o: places.export(places.classified, o), model_difference, context), "")


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  for pair in _commands(context):
    trials = _LOCKED if pair.refused else _LOCKED[:3]
    for group, trial, number in trials:
      for index in range(context.count(number)):
        rng = context.rng(pair.command.name, group, index)

        def run(pair: Pair = pair, trial: Trial = trial, rng: random.Random = rng) -> str | None:
          return trial(pair, context.new_directory("pair") / "output", rng)

        yield Case(f"{pair.command.name}: {group}", f"draw {index}", run)
