"""Kills commands, repeats them until they finish, and compares the results with those of undisturbed runs.

A command is killed at a random time of its run, or when a certain file appears, or it kills itself at the n-th call of
a function such as a rename, a sync, a save or an evaluation (tests.torture.faults).
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
  """One SIGKILL. Its time is set by `fault`, else by `watched`, else by `share`.

  Attributes:
    share: the kill comes after this share of the time of an undisturbed run.
    fault: the arguments of faults.kill_at, with which the process kills itself.
    watched: (glob, number, seconds): the kill comes so many seconds after this number of names in the output directory
      has matched the glob.
    fresh: whether the command is started in a new interpreter.
    is_certain: whether a process that ends before the kill is a failure.
    code: the exit code of the command. It is 1 if a worker process is killed.
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
    """Waits for the time of the kill, and kills the process. Does nothing if the process kills itself (`fault`)."""
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


def at_call(rng: random.Random, target: str, calls: int, within: float = 0.02, **fault_options: Any) -> Kill:
  """Draws a kill at the n-th call of a function.

  Args:
    rng: draws n, and what is not given.
    target: the function, as for faults.kill_at.
    calls: n is between 1 and this number.
    within: a kill within the call comes at most this many seconds after its beginning.
    **fault_options: `when`, `contains` and `process` of faults.kill_at. `when` is drawn if it isn't given.
  """
  when = fault_options.pop("when", None) or rng.choice(_WHEN)
  fault = {"target": target, "number": rng.randint(1, calls), "when": when, **fault_options}
  if when == "within":
    fault["delay"] = round(rng.uniform(0, within), 4)
  return Kill(fault=fault, code=1 if fault_options.get("process") == "worker" else -signal.SIGKILL)


def at_random(rng: random.Random, max_share: float = 0.9) -> Kill:
  """Draws a kill within the first `max_share` of the time of an undisturbed run. A faster run may end before it."""
  return Kill(share=rng.uniform(0, max_share), is_certain=False)


KillDraw = Callable[[random.Random], Kill]


class Command:
  """A command that is killed and repeated.

  Args:
    name: its name in the table.
    argv: returns the command for an output directory.
    difference: compares an output directory with that of an undisturbed run. Returns None, or what differs.
    context: the context of the part.
  """

  def __init__(
    self, name: str, argv: Callable[[Path], list[str]], difference: Callable[[Path, Path], str | None], context: Context
  ):
    self.name, self.argv, self.difference, self.context = name, argv, difference, context
    self._lock = threading.Lock()
    self._reference: tuple[Path, float] | None = None
    self.num_hits = 0

  def reference(self) -> tuple[Path, float]:
    """Returns the output directory of an undisturbed run, and how many seconds it took. Runs it at the first call."""
    with self._lock:
      if self._reference is None:
        directory = self.context.new_directory("reference") / "output"
        started = time.monotonic()
        finished = self.context.workplace.run(self.argv(directory))
        if wrong := finished.wrong():
          raise RuntimeError(f"the undisturbed run: {wrong}")
        self._reference = directory, time.monotonic() - started
      return self._reference

  def try_kills(self, kills: Sequence[Kill]) -> str | None:
    """Runs the command once for each kill and then undisturbed. Returns what is wrong with the result, or None."""
    reference, seconds = self.reference()
    output = self.context.new_directory("killed") / "output"
    for kill in kills:
      prelude = ("tests.torture.faults", "kill_at", kill.fault) if kill.fault else None
      process = self.context.workplace.start(self.argv(output), prelude=prelude, fresh=kill.fresh)
      kill.apply(process, output, seconds + (8 if kill.fresh else 0))
      finished = process.finish()
      if finished.code == kill.code:
        with self._lock:
          self.num_hits += 1
      elif kill.is_certain or finished.code != 0:
        return f"[{kill}] exit code {finished.code} instead of {kill.code}: {finished.error!r}"
      if wrong := (finished.wrong(1) if kill.code == 1 else None) or _survivors(process):
        return f"[{kill}] {wrong}"
    finished = self.context.workplace.run(self.argv(output))
    return finished.wrong() or self.difference(output, reference)

  def cases(self, group: str, number: int, draw_first: KillDraw, num_kills: Sequence[int] = (1, 2)) -> Iterator[Case]:
    """Makes `number` cases of the full campaign.

    The first kill of a case comes from `draw_first`, and more at random times. The number of kills of a case goes
    through `num_kills` in turn.
    """
    for index in range(self.context.count(number)):
      rng = self.context.rng(self.name, group, index)
      kills = [draw_first(rng)]
      kills += [at_random(rng, 0.6) for _ in range(num_kills[index % len(num_kills)] - 1)]
      name = "; ".join(map(str, kills))
      yield Case(f"{self.name}: {group}", name, lambda kills=tuple(kills): self.try_kills(kills))

  def check_num_hits(self, minimum: int) -> Case:
    """Makes a case, to be run after the others, that fails if too few kills came before the end of their process."""
    minimum = self.context.count(minimum)

    def check() -> str | None:
      log(f"{self.name}: {self.num_hits} SIGKILLs hit")
      return None if self.num_hits >= minimum else f"{self.num_hits} SIGKILLs hit, at least {minimum} should"

    return Case(f"{self.name}: at least {minimum} SIGKILLs hit", "all of them", check, in_process=True)


def _survivors(process: Running) -> str | None:
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
  return lambda rng: rng.choice(draws)(rng)


def _call(target: str, calls: int = 1, within: float = 0.02, **fault_options: Any) -> KillDraw:
  return lambda rng: at_call(rng, target, calls, within, **fault_options)


def _saving(rng: random.Random) -> Kill:
  """Draws a kill while a checkpoint is written: at a call, or when the staging directory appears."""
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
  """Makes cases in which the command is killed after a save, and again while it resumes."""
  for index in range(command.context.count(number)):
    rng = command.context.rng(command.name, "resuming", index)
    target, within = rng.choice(_RESUMING)
    first = at_call(rng, f"{_SAVE}.save", 3, when="after")
    kills = (first, at_call(rng, target, 1, within, when=rng.choice(("before", "after"))))
    name = "; ".join(map(str, kills))
    yield Case(f"{command.name}: while resuming", name, lambda kills=kills: command.try_kills(kills))


def _pretraining(context: Context) -> Iterator[Case]:
  flags = ["--keep_checkpoints=2", "--eval_every_steps=4"]
  workplace = context.workplace
  command = Command(
    "pretraining", lambda output: workplace.pretraining_command(output, *flags), outputs.difference_of_runs, context
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
  yield command.check_num_hits(50)


def _finetuning(context: Context) -> Iterator[Case]:
  workplace = context.workplace
  predictions = _any_of(
    _call("albert.training.prediction_sources:PredictionSources.write"),
    _call("os:replace", 1, contains="predictions"),
    _call("albert.estimator:Estimator.write_predictions", 1, 0.5),
  )
  classifier = Command("classifier", workplace.classifier_command, outputs.difference_of_runs, context)
  cache = _any_of(_call("albert.data.feature_cache:_write", 2), _call("os:replace", 2, contains=".tfrecord"))
  yield from classifier.cases("at any time", 3, at_random, (2,))
  yield from classifier.cases("while keeping features", 3, cache, (1,))
  yield from classifier.cases("while predicting", 2, predictions, (2,))
  yield from classifier.cases("at a rename", 3, _call("os:replace", 20), (1,))
  yield classifier.check_num_hits(10)
  squad = Command("SQuAD", workplace.squad_command, outputs.difference_of_runs, context)
  answers = _call("os:replace", 4, contains="_dev.")
  yield from squad.cases("at any time", 3, at_random, (2,))
  yield from squad.cases("while writing the evaluation", 2, answers, (1,))
  yield from squad.cases("while predicting", 3, predictions, (1, 2))
  yield from squad.cases("at a rename", 3, _call("os:replace", 20), (1,))
  yield squad.check_num_hits(10)


def _files(context: Context) -> Iterator[Case]:
  """The commands that write files without training: data preparation, vocabulary and export."""
  workplace = context.workplace
  for num_processes in (1, 2):
    preparation = Command(
      f"data preparation, {num_processes} process{'es' * (num_processes - 1)}",
      lambda output, num_processes=num_processes: workplace.data_prep_command(
        output, f"--num_processes={num_processes}", "--dupe_factor=5"
      ),
      outputs.difference_of_files,
      context,
    )
    yield from preparation.cases("at any time", 5, at_random, (2,))
    yield from preparation.cases("at a rename or a sync", 7, _any_of(_call("os:replace", 6), _call("os:fsync", 6)))
    if num_processes > 1:
      worker = _call("os:replace", 2, process="worker", when="before")
      yield from preparation.cases("a worker process", 3, worker, (1,))
    yield preparation.check_num_hits(10)
  vocabulary = Command("vocabulary", workplace.train_vocab_command, outputs.difference_of_files, context)
  yield from vocabulary.cases("at any time", 6, at_random, (2,))
  yield from vocabulary.cases("while writing", 10, _any_of(_call("os:replace", 2), _call("os:fsync", 2)), (1,))
  yield vocabulary.check_num_hits(10)
  export = Command(
    "export", lambda output: workplace.export_command(workplace.classifier_run, output), model_difference, context
  )
  yield from export.cases("at any time", 4, at_random, (2,))
  writing = _any_of(_call("os:replace", 3), _call("albert.export.model_card:format_model_card"), _call("os:fsync", 3))
  yield from export.cases("while writing", 7, writing, (1,))
  yield export.check_num_hits(10)


def model_difference(directory: Path, reference: Path) -> str | None:
  """Returns None if all versions of an exported model answer like the reference and nothing is left over."""
  if left := outputs.leftovers(directory):
    return f"left over: {left}"
  expected = outputs.answers(next(reference.glob("*/*")))
  versions = list(itertools.chain.from_iterable(model.iterdir() for model in directory.iterdir()))
  different = [str(version) for version in versions if outputs.answers(version) != expected]
  return f"other answers: {different}" if different or not versions else None


def _same_bits(workplace: Workplace, context: Context) -> str | None:
  """Checks that a forked process and a new interpreter write the same bits. The campaign's forks rely on that."""
  directory = context.new_directory("fresh")
  finished = workplace.run(workplace.pretraining_command(directory / "run"), fresh=True)
  return finished.wrong() or outputs.difference_of_runs(directory / "run", workplace.pretraining_run)


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  yield from _pretraining(context)
  yield from _finetuning(context)
  yield from _files(context)
  yield Case("fork and new interpreter agree", "pretraining", lambda: _same_bits(context.workplace, context))
