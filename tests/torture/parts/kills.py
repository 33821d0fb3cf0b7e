"""Kills commands, repeats them until they finish, and compares the results with those of undisturbed runs.

A command is killed at a random time of its run, or when a certain file appears. Or it kills itself at the n-th call of
a function such as a rename, a sync, a save or an evaluation (tests.torture.faults).
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.torture import outputs
from tests.torture.campaign import Case, Context, log
from tests.torture.commands import Command
from tests.torture.workplace import Running, Workplace

# The class that writes and deletes checkpoints.
_MANAGER = "albert.weights.checkpoints:CheckpointManager"
# When a process kills itself, relative to the call of a function.
_KILL_TIMES = ("before", "after", "within")


class WatchedFiles(NamedTuple):
  """When a kill comes: `seconds` after `number` different names in the output directory have matched `pattern`."""

  pattern: str
  number: int
  seconds: float


@dataclasses.dataclass(frozen=True)
class Kill:
  """One SIGKILL. Its time depends on `fault` if that is set, else on `watched` if that is set, else on `share`.

  Attributes:
    share: the kill comes after this share of the time that an undisturbed run takes.
    fault: the arguments of faults.kill_at, with which the process kills itself.
    watched: the files that must have appeared.
    new_interpreter: whether the command is started in a new interpreter.
    is_certain: whether a process that ends before the kill is a failure.
    code: the exit code of the command: -9, or 1 if only a worker process is killed.
  """

  share: float = -1.0
  fault: dict[str, Any] | None = None
  watched: WatchedFiles | None = None
  new_interpreter: bool = False
  is_certain: bool = True
  code: int = -signal.SIGKILL

  def __str__(self) -> str:
    if self.fault:
      arguments = [f"{name}={value}" for name, value in self.fault.items() if value != ""]
      return " ".join(arguments)
    if self.watched:
      return f"{self.watched.seconds:.4f} s after {self.watched.number} of {self.watched.pattern}"
    return f"at {self.share:.3f} of the run" + (" (new interpreter)" if self.new_interpreter else "")

  def apply(self, process: Running, output: Path, seconds: float) -> None:
    """Waits for the time of the kill, and kills the process. Does nothing if the process kills itself (`fault`)."""
    if self.fault:
      return
    if self.watched:
      matching_paths: set[str] = set()
      while process.poll() is None and len(matching_paths) < self.watched.number:
        matching_paths.update(str(path) for path in output.glob(self.watched.pattern))
      time.sleep(self.watched.seconds)
    else:
      deadline = time.monotonic() + self.share * seconds
      while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)


def draw_kill_at_call(
  rng: random.Random, target: str, max_number: int, max_delay: float = 0.02, **fault_options: Any
) -> Kill:
  when = fault_options.pop("when", None) or rng.choice(_KILL_TIMES)
  fault = {"target": target, "number": rng.randint(1, max_number), "when": when, **fault_options}
  if when == "within":
    fault["delay"] = round(rng.uniform(0, max_delay), 4)
  return Kill(fault=fault, code=1 if fault_options.get("process") == "worker" else -signal.SIGKILL)


def draw_kill_at_random_time(rng: random.Random, max_share: float = 0.9) -> Kill:
  """Draws a kill within the first `max_share` of the time of an undisturbed run. A faster run ends before the kill."""
  return Kill(share=rng.uniform(0, max_share), is_certain=False)


# Draws a kill.
KillDraw = Callable[[random.Random], Kill]


class KilledCommand(Command):
  """A command that is killed and repeated.

  Attributes:
    num_hits: number of kills that came before the end of their process.
  """

  num_hits = 0

  def try_kills(self, kills: Sequence[Kill]) -> str | None:
    """Runs the command once for each kill and then undisturbed. Returns what is wrong with the result, or None."""
    reference = self.reference()
    output = self.context.new_directory("killed") / "output"
    for kill in kills:
      prelude = ("tests.torture.faults", "kill_at", kill.fault) if kill.fault else None
      process = self.context.workplace.start(self.argv(output), prelude=prelude, new_interpreter=kill.new_interpreter)
      kill.apply(process, output, reference.seconds + (8 if kill.new_interpreter else 0))  # imports take 8 s
      finished = process.finish()
      if finished.code == kill.code:
        with self._lock:
          self.num_hits += 1
      elif kill.is_certain or finished.code != 0:
        return f"[{kill}] exit code {finished.code} instead of {kill.code}: {finished.error!r}"
      if kill.code == 1 and (wrong := finished.unexpected_end(1)):
        return f"[{kill}] {wrong}"
      if wrong := _find_survivors(process):
        return f"[{kill}] {wrong}"
    finished = self.context.workplace.run(self.argv(output))
    return finished.unexpected_end() or self.difference(output, reference.output)

  def cases(self, group: str, number: int, draw_first: KillDraw, num_kills: Sequence[int] = (1, 2)) -> Iterator[Case]:
    for index in range(self.context.count(number)):
      rng = self.context.rng(self.name, group, index)
      kills = [draw_first(rng)]
      kills += [draw_kill_at_random_time(rng, 0.6) for _ in range(num_kills[index % len(num_kills)] - 1)]
      name = "; ".join(map(str, kills))
      yield Case(f"{self.name}: {group}", name, lambda kills=tuple(kills): self.try_kills(kills))

  def check_num_hits(self, minimum: int) -> Case:
    """Makes a case, to be run after the others, that fails if too few kills came before the end of their process."""
    minimum = self.context.count(minimum)

    def check() -> str | None:
      log(f"{self.name}: {self.num_hits} SIGKILLs hit")
      return None if self.num_hits >= minimum else f"{self.num_hits} SIGKILLs hit, at least {minimum} should"

    return Case(f"{self.name}: at least {minimum} SIGKILLs hit", "all of them", check, in_process=True)


def _find_survivors(process: Running) -> str | None:
  """Waits up to ten seconds for the worker processes of a killed command to end. Returns None, or that some did not."""
  deadline = time.monotonic() + 10
  while time.monotonic() < deadline:
    try:
      os.killpg(process.pid, 0)
    except ProcessLookupError:
      return None
    time.sleep(0.02)
  return "processes of the killed command are still there after 10 seconds"


def _any_of(*draws: KillDraw) -> KillDraw:
  """Returns a function that chooses one of `draws` and draws a kill with it."""

  def draw(rng: random.Random) -> Kill:
    chosen_draw = rng.choice(draws)
    return chosen_draw(rng)

  return draw


def _at_call(target: str, max_number: int = 1, max_delay: float = 0.02, **fault_options: Any) -> KillDraw:
  """Returns a function that draws a kill at a call of `target`, see `draw_kill_at_call`."""
  return lambda rng: draw_kill_at_call(rng, target, max_number, max_delay, **fault_options)


def _while_saving(rng: random.Random) -> Kill:
  """Draws a kill while a checkpoint is written: at a call, or when the staging directory appears."""
  if rng.random() < 0.4:
    watched = WatchedFiles("checkpoints/.step-*.tmp", rng.randint(1, 2), rng.uniform(0, 0.01))
    return Kill(watched=watched, is_certain=False)
  return _any_of(
    _at_call("albert.weights.checkpoints:write_bundle", 3, 0.005),
    _at_call("albert.weights.checkpoints:file_sha256", 8, when="before"),
    _at_call(f"{_MANAGER}._rename", 3, 0.01, when="within"),
    _at_call("os:replace", 3, contains="/checkpoints/step-", when="before"),
    _at_call("os:replace", 3, contains="/checkpoints/step-", when="after"),
  )(rng)


_WHILE_STARTING = _any_of(
  _at_call("albert.runs.directory_lock:DirectoryLock.acquire"),
  _at_call("albert.runs.output_files:claim_directory"),
  _at_call("albert.runs.output_files:write_environment"),
  _at_call("albert.runs.logs:MetricsLog.__init__", when="before"),
  _at_call("albert.estimator:Estimator.__init__", 1, 0.3, when="within"),
  lambda rng: Kill(share=rng.uniform(0, 0.15), new_interpreter=True, is_certain=False),
)
_WHILE_EVALUATING = _at_call("albert.training.evaluator:Evaluator.evaluate", 3, 1.0)
_WHILE_RECORDING_EVALUATION = _any_of(
  _at_call(f"{_MANAGER}.record_evaluation", 2), _at_call("albert.runs.logs:EvaluationLog.add", 2)
)
_WHILE_WRITING_RESULTS = _any_of(
  _at_call("albert.runs.figures:draw_curves", 1, 0.3),
  _at_call("os:replace", 1, contains="eval_results.json", when="before"),
  _at_call("os:replace", 1, contains="eval_results.json", when="after"),
  _at_call("albert.io.files:write_json", 1, contains="eval_results.json"),
)
# Functions that a resumed run calls, and the longest delay of a kill within the call in seconds.
_RESUMING = (
  ("albert.weights.checkpoints:restore", 0.05),
  (f"{_MANAGER}.remove_leftovers", 0.01),
  (f"{_MANAGER}.latest", 0.02),
  ("albert.runs.logs:MetricsLog.__init__", 0.01),
  ("albert.runs.logs:EvaluationLog.__init__", 0.01),
)


def _cases_while_resuming(command: KilledCommand, number: int) -> Iterator[Case]:
  """Makes cases in which the command is killed after a save, and again while it resumes."""
  for index in range(command.context.count(number)):
    rng = command.context.rng(command.name, "resuming", index)
    target, max_delay = rng.choice(_RESUMING)
    after_save = draw_kill_at_call(rng, f"{_MANAGER}.save", 3, when="after")
    while_resuming = draw_kill_at_call(rng, target, 1, max_delay, when=rng.choice(("before", "after")))
    kills = (after_save, while_resuming)
    name = "; ".join(map(str, kills))
    yield Case(f"{command.name}: while resuming", name, lambda kills=kills: command.try_kills(kills))


def _pretraining(context: Context) -> Iterator[Case]:
  flags = ["--keep_checkpoints=2", "--eval_every_steps=4"]
  workplace = context.workplace
  command = KilledCommand(
    context, "pretraining", lambda output: workplace.pretraining_command(output, *flags), outputs.difference_of_runs
  )
  yield from command.cases("at any time", 9, draw_kill_at_random_time, (2, 3))
  yield from command.cases("while saving", 5, _while_saving, (1, 2))
  yield from command.cases("at a rename or a sync", 4, _any_of(_at_call("os:replace", 20), _at_call("os:fsync", 35)))
  yield from command.cases(
    "while pruning", 3, _any_of(_at_call("os:unlink", 4, contains="weights."), _at_call(f"{_MANAGER}.prune", 5, 0.004))
  )
  yield from command.cases(
    "during an evaluation", 3, _any_of(_WHILE_EVALUATING, _WHILE_EVALUATING, _WHILE_RECORDING_EVALUATION), (2, 1)
  )
  yield from command.cases("while starting", 4, _WHILE_STARTING, (1, 2))
  yield from command.cases("while writing the results", 3, _WHILE_WRITING_RESULTS, (2, 1))
  yield from _cases_while_resuming(command, 4)
  yield command.check_num_hits(50)


def _finetuning(context: Context) -> Iterator[Case]:
  workplace = context.workplace
  while_predicting = _any_of(
    _at_call("os:replace", 1, contains="predictions"),
    _at_call("albert.estimator:Estimator.write_predictions", 1, 0.5),
  )
  classifier = KilledCommand(context, "classifier", workplace.classifier_command, outputs.difference_of_runs)
  while_caching = _any_of(_at_call("numpy:savez", 2), _at_call("os:replace", 2, contains=".npz"))
  yield from classifier.cases("at any time", 3, draw_kill_at_random_time, (2,))
  yield from classifier.cases("while keeping features", 3, while_caching, (1,))
  yield from classifier.cases("while predicting", 2, while_predicting, (2,))
  yield from classifier.cases("at a rename", 3, _at_call("os:replace", 20), (1,))
  yield classifier.check_num_hits(10)
  squad = KilledCommand(context, "SQuAD", workplace.squad_command, outputs.difference_of_runs)
  while_writing_evaluation = _at_call("os:replace", 4, contains="_dev.")
  yield from squad.cases("at any time", 3, draw_kill_at_random_time, (2,))
  yield from squad.cases("while writing the evaluation", 2, while_writing_evaluation, (1,))
  yield from squad.cases("while predicting", 3, while_predicting, (1, 2))
  yield from squad.cases("at a rename", 3, _at_call("os:replace", 20), (1,))
  yield squad.check_num_hits(10)


def _other_commands(context: Context) -> Iterator[Case]:
  """Yields the cases of commands that write files without training: data preparation, vocabulary and export."""
  workplace = context.workplace
  for num_processes in (1, 2):
    preparation = KilledCommand(
      context,
      f"data preparation, {num_processes} process{'es' * (num_processes - 1)}",
      lambda output, num_processes=num_processes: workplace.data_prep_command(
        output, f"--num_processes={num_processes}", "--dupe_factor=5"
      ),
      outputs.difference_of_files,
    )
    yield from preparation.cases("at any time", 5, draw_kill_at_random_time, (2,))
    yield from preparation.cases(
      "at a rename or a sync", 7, _any_of(_at_call("os:replace", {1: 6, 2: 2}[num_processes]), _at_call("os:fsync", 6))
    )
    if num_processes > 1:
      in_worker = _at_call("os:replace", 2, process="worker", when="before")
      yield from preparation.cases("a worker process", 3, in_worker, (1,))
    yield preparation.check_num_hits(10)
  vocabulary = KilledCommand(context, "vocabulary", workplace.train_vocab_command, outputs.difference_of_files)
  yield from vocabulary.cases("at any time", 6, draw_kill_at_random_time, (2,))
  yield from vocabulary.cases("while writing", 10, _any_of(_at_call("os:replace", 2), _at_call("os:fsync", 2)), (1,))
  yield vocabulary.check_num_hits(10)
  export = KilledCommand(
    context,
    "export",
    lambda output: workplace.export_command(workplace.classifier_run, output),
    outputs.difference_of_models,
  )
  yield from export.cases("at any time", 4, draw_kill_at_random_time, (2,))
  while_writing = _any_of(
    _at_call("os:replace", 3),
    _at_call("albert.export.companion_files:format_model_card"),
    _at_call("os:fsync", 3),
  )
  yield from export.cases("while writing", 7, while_writing, (1,))
  yield export.check_num_hits(10)


def _fork_equals_new_interpreter(workplace: Workplace, context: Context) -> str | None:
  """Checks that a forked process and a new interpreter write the same bits, since the campaign uses forks."""
  directory = context.new_directory("new_interpreter")
  finished = workplace.run(workplace.pretraining_command(directory / "run"), new_interpreter=True)
  return finished.unexpected_end() or outputs.difference_of_runs(directory / "run", workplace.pretraining_run)


def cases(context: Context) -> Iterator[Case]:
  yield from _pretraining(context)
  yield from _finetuning(context)
  yield from _other_commands(context)
  yield Case(
    "fork and new interpreter agree", "pretraining", lambda: _fork_equals_new_interpreter(context.workplace, context)
  )
