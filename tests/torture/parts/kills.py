"""Kills commands, gives them again, and compares the results with those of undisturbed runs.

A moment is drawn at random over the time of a run, or a process kills itself at the n-th call of a function (a rename,
a sync, a save, an evaluation: tests.torture.faults), or it is killed as soon as a file appears.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.torture import outputs
from tests.torture.campaign import Case, Context, log
from tests.torture.workplace import Running, Workplace

_SAVE = "albert.weights.checkpoints:CheckpointManager"
_WHEN = ("before", "after", "within")


@dataclasses.dataclass(frozen=True)
class Kill:
  """One SIGKILL.

  Attributes:
    share: of the time of an undisturbed run, after which it comes; negative for the other ways.
    fault: arguments of faults.kill_at.
    watched: (glob in the output directory, how many names it must have matched so far, seconds to wait then).
    fresh: in a new interpreter.
    is_certain: the process must be killed; else it may end before.
    code: the exit code of the command, 1 where a worker process is killed.
  """

  share: float = -1.0
  fault: dict[str, Any] | None = None
  watched: tuple[str, int, float] | None = None
  fresh: bool = False
  is_certain: bool = True
  code: int = -signal.SIGKILL

  def __str__(self) -> str:
    if self.fault:
      words = [f"{name}={value}" for name, value in self.fault.items() if value != ""]
      return " ".join(words)
    if self.watched:
      return "{2:.4f} s after {1} of {0}".format(*self.watched)
    return f"at {self.share:.3f} of the run" + (" (new interpreter)" if self.fresh else "")

  def apply(self, process: Running, output: Path, seconds: float) -> None:
    """Waits for the moment and kills the process, unless it does so itself."""
    if self.fault:
      return
    if self.watched:
      pattern, number, delay = self.watched
      seen: set[str] = set()
      while process.poll() is None and len(seen) < number:
        seen.update(str(path) for path in output.glob(pattern))
      time.sleep(delay)
    else:
      deadline = time.monotonic() + self.share * seconds
      while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)


def at_call(rng: random.Random, target: str, calls: int, within: float = 0.02, **more: Any) -> Kill:
  """A SIGKILL when a function is called for the n-th time, n drawn from 1 to `calls`."""
  when = more.pop("when", None) or rng.choice(_WHEN)
  fault = {"target": target, "number": rng.randint(1, calls), "when": when, **more}
  if when == "within":
    fault["delay"] = round(rng.uniform(0, within), 4)
  return Kill(fault=fault, code=1 if more.get("process") == "worker" else -signal.SIGKILL)


def at_random(rng: random.Random, most: float = 0.9) -> Kill:
  """A kill at any time of a run; a run that is quicker than the undisturbed one was may end before."""
  return Kill(share=rng.uniform(0, most), is_certain=False)


Draw = Callable[[random.Random], Kill]


class Command:
  """A command whose kills are tried.

  Args:
    name: for the table.
    argv: output directory -> the command.
    difference: (directory, reference) -> None, or one line: what differs.
  """

  def __init__(
    self, name: str, argv: Callable[[Path], list[str]], difference: Callable[[Path, Path], str | None], context: Context
  ):
    self.name, self.argv, self.difference, self.context = name, argv, difference, context
    self._lock = threading.Lock()
    self._reference: tuple[Path, float] | None = None
    self.num_kills = 0

  def reference(self) -> tuple[Path, float]:
    """The directory of an undisturbed run, and its seconds."""
    with self._lock:
      if self._reference is None:
        directory = self.context.new_directory("reference") / "output"
        started = time.monotonic()
        finished = self.context.places.run(self.argv(directory))
        if wrong := finished.wrong():
          raise RuntimeError(f"the undisturbed run: {wrong}")
        self._reference = directory, time.monotonic() - started
      return self._reference

  def try_kills(self, kills: Sequence[Kill]) -> str | None:
    """Kills the command, again and again; lets it finish; compares."""
    reference, seconds = self.reference()
    output = self.context.new_directory("killed") / "output"
    for kill in kills:
      prelude = ("tests.torture.faults", "kill_at", kill.fault) if kill.fault else None
      process = self.context.places.start(self.argv(output), prelude=prelude, fresh=kill.fresh)
      kill.apply(process, output, seconds + (8 if kill.fresh else 0))
      finished = process.finish()
      if finished.code == kill.code:
        with self._lock:
          self.num_kills += 1
      elif kill.is_certain or finished.code != 0:
        return f"[{kill}] exit code {finished.code} instead of {kill.code}: {finished.error!r}"
      if wrong := (finished.wrong(1) if kill.code == 1 else None) or _survivors(process):
        return f"[{kill}] {wrong}"
    finished = self.context.places.run(self.argv(output))
    return finished.wrong() or self.difference(output, reference)

  def cases(self, group: str, number: int, first: Draw, in_a_row: Sequence[int] = (1, 2)) -> Iterator[Case]:
    """Cases whose first kill is drawn by `first`, and up to `in_a_row` in all."""
    for index in range(self.context.count(number)):
      rng = self.context.rng(self.name, group, index)
      kills = [first(rng)]
      kills += [at_random(rng, 0.6) for _ in range(in_a_row[index % len(in_a_row)] - 1)]
      name = "; ".join(map(str, kills))
      yield Case(f"{self.name}: {group}", name, lambda kills=tuple(kills): self.try_kills(kills))

  def enough(self, least: int) -> Case:
    """A case that fails if fewer processes than planned were killed."""
    least = self.context.count(least)

    def check() -> str | None:
      log(f"{self.name}: {self.num_kills} SIGKILLs hit")
      return None if self.num_kills >= least else f"{self.num_kills} SIGKILLs hit, at least {least} should"

    return Case(f"{self.name}: at least {least} SIGKILLs hit", "all of them", check, in_process=True)


def _survivors(process: Running) -> str | None:
  """What is left of a killed command after ten seconds: its worker processes must end by themselves."""
  deadline = time.monotonic() + 10
  while time.monotonic() < deadline:
    try:
      os.killpg(process.pid, 0)
    except ProcessLookupError:
      return None
    time.sleep(0.02)
  return "processes of the killed command are still there after 10 seconds"


def _any_of(*draws: Draw) -> Draw:
  return lambda rng: rng.choice(draws)(rng)


def _call(target: str, calls: int = 1, within: float = 0.02, **more: Any) -> Draw:
  return lambda rng: at_call(rng, target, calls, within, **more)


def _saving(rng: random.Random) -> Kill:
  """While a checkpoint is written: by a call, or when its staging directory appears."""
  if rng.random() < 0.4:
    return Kill(watched=("checkpoints/.step-*.tmp", rng.randint(1, 2), rng.uniform(0, 0.01)), is_certain=False)
  return _any_of(
    _call("albert.weights.checkpoints:write_bundle", 3, 0.005),
    _call("albert.weights.checkpoints:file_sha256", 8, when="before"),
    _call(f"{_SAVE}._rename", 3, 0.01, when="within"),
    _call("os:replace", 3, contains="/checkpoints/step-", when="before"),
    _call("os:replace", 3, contains="/checkpoints/step-", when="after"),
  )(rng)


_START = _any_of(
  _call("albert.runs.directory_lock:DirectoryLock.acquire"),
  _call("albert.runs.run_directory:claim_directory"),
  _call("albert.runs.run_directory:write_environment"),
  _call("albert.runs.metrics_log:MetricsLog.__init__", when="before"),
  _call("albert.estimator:Estimator.__init__", 1, 0.3, when="within"),
  lambda rng: Kill(share=rng.uniform(0, 0.15), fresh=True, is_certain=False),
)
_EVALUATION = _call("albert.training.evaluator:Evaluator.evaluate", 3, 1.0)
_RECORDING = _any_of(_call(f"{_SAVE}.record_evaluation", 2), _call("albert.runs.evaluation_log:EvaluationLog.add", 2))
_END = _any_of(
  _call("albert.runs.curves:draw_curves", 1, 0.3),
  _call("os:replace", 1, contains="eval_results.json", when="before"),
  _call("os:replace", 1, contains="eval_results.json", when="after"),
  _call("albert.io.files:write_json", 1, contains="eval_results.json"),
)
_RESUMING = (
  ("albert.training.training_run:restore", 0.05),
  (f"{_SAVE}.remove_leftovers", 0.01),
  (f"{_SAVE}.latest", 0.02),
  ("albert.runs.metrics_log:MetricsLog.__init__", 0.01),
  ("albert.runs.evaluation_log:EvaluationLog.__init__", 0.01),
)


def _while_resuming(command: Command, number: int) -> Iterator[Case]:
  """Killed after a save, and again while it resumes."""
  for index in range(command.context.count(number)):
    rng = command.context.rng(command.name, "resuming", index)
    target, within = rng.choice(_RESUMING)
    first = at_call(rng, f"{_SAVE}.save", 3, when="after")
    kills = (first, at_call(rng, target, 1, within, when=rng.choice(("before", "after"))))
    name = "; ".join(map(str, kills))
    yield Case(f"{command.name}: while resuming", name, lambda kills=kills: command.try_kills(kills))


def _pretraining(context: Context) -> Iterator[Case]:
  flags = ["--keep_checkpoints=2", "--eval_every_steps=4"]
  places = context.places
  command = Command(
    "pretraining", lambda output: places.pretraining(output, *flags), outputs.difference_of_runs, context
  )
  yield from command.cases("at any time", 9, at_random, (2, 3))
  yield from command.cases("while saving", 5, _saving, (1, 2))
  yield from command.cases("at a rename or a sync", 4, _any_of(_call("os:replace", 20), _call("os:fsync", 35)))
  yield from command.cases(
    "while pruning", 3, _any_of(_call("os:unlink", 4, contains="weights."), _call(f"{_SAVE}.prune", 5, 0.004))
  )
  yield from command.cases("during an evaluation", 3, _any_of(_EVALUATION, _EVALUATION, _RECORDING), (2, 1))
  yield from command.cases("while starting", 4, _START, (1, 2))
  yield from command.cases("while writing the results", 3, _END, (2, 1))
  yield from _while_resuming(command, 4)
  yield command.enough(50)


def _finetuning(context: Context) -> Iterator[Case]:
  places = context.places
  predictions = _any_of(
    _call("albert.training.prediction_sources:PredictionSources.write"),
    _call("os:replace", 1, contains="predictions"),
    _call("albert.estimator:Estimator.write_predictions", 1, 0.5),
  )
  classifier = Command("classifier", places.classifier, outputs.difference_of_runs, context)
  cache = _any_of(_call("albert.data.feature_cache:_write", 2), _call("os:replace", 2, contains=".tfrecord"))
  yield from classifier.cases("at any time", 3, at_random, (2,))
  yield from classifier.cases("while keeping features", 3, cache, (1,))
  yield from classifier.cases("while predicting", 2, predictions, (2,))
  yield from classifier.cases("at a rename", 3, _call("os:replace", 20), (1,))
  yield classifier.enough(10)
  squad = Command("SQuAD", places.squad, outputs.difference_of_runs, context)
  answers = _call("os:replace", 4, contains="_dev.")
  yield from squad.cases("at any time", 3, at_random, (2,))
  yield from squad.cases("while writing the evaluation", 2, answers, (1,))
  yield from squad.cases("while predicting", 3, predictions, (1, 2))
  yield from squad.cases("at a rename", 3, _call("os:replace", 20), (1,))
  yield squad.enough(10)


def _files(context: Context) -> Iterator[Case]:
  """Data preparation, vocabulary, export."""
  places = context.places
  for processes in (1, 2):
    preparation = Command(
      f"data preparation, {processes} process{'es' * (processes - 1)}",
      lambda output, processes=processes: places.data_prep(output, f"--num_processes={processes}", "--dupe_factor=5"),
      outputs.difference_of_files,
      context,
    )
    yield from preparation.cases("at any time", 5, at_random, (2,))
    yield from preparation.cases("at a rename or a sync", 7, _any_of(_call("os:replace", 6), _call("os:fsync", 6)))
    if processes > 1:
      worker = _call("os:replace", 2, process="worker", when="before")
      yield from preparation.cases("a worker process", 3, worker, (1,))
    yield preparation.enough(10)
  vocabulary = Command("vocabulary", places.train_vocab, outputs.difference_of_files, context)
  yield from vocabulary.cases("at any time", 6, at_random, (2,))
  yield from vocabulary.cases("while writing", 10, _any_of(_call("os:replace", 2), _call("os:fsync", 2)), (1,))
  yield vocabulary.enough(10)
  export = Command("export", lambda output: places.export(places.classified, output), model_difference, context)
  yield from export.cases("at any time", 4, at_random, (2,))
  writing = _any_of(_call("os:replace", 3), _call("albert.export.model_card:format_model_card"), _call("os:fsync", 3))
  yield from export.cases("while writing", 7, writing, (1,))
  yield export.enough(10)


def model_difference(directory: Path, reference: Path) -> str | None:
  """None if all versions of a model give the answers of the reference, and nothing else is there."""
  if found := outputs.leftovers(directory):
    return f"left over: {found}"
  expected = outputs.answers(next(reference.glob("*/*")))
  versions = list(itertools.chain.from_iterable(model.iterdir() for model in directory.iterdir()))
  different = [str(version) for version in versions if outputs.answers(version) != expected]
  return f"other answers: {different}" if different or not versions else None


def _same_bits(places: Workplace, context: Context) -> str | None:
  """A forked process and a new interpreter write the same bits: else the campaign would test something else."""
  directory = context.new_directory("fresh")
  finished = places.run(places.pretraining(directory / "run"), fresh=True)
  return finished.wrong() or outputs.difference_of_runs(directory / "run", places.pretrained)


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  yield from _pretraining(context)
  yield from _finetuning(context)
  yield from _files(context)
  yield Case("fork and new interpreter agree", "pretraining", lambda: _same_bits(context.places, context))
