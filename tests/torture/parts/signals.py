"""How commands end: signals in every phase, broken standard output, other locales, a clock that is set back."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.torture import clocks, outputs
from tests.torture.campaign import Case, Context
from tests.torture.points import PHASES
from tests.torture.workplace import ROOT, Finished, Workplace

_POINTS = "tests.torture.points"
_STREAMS, _LOCALES = "standard output closed, full or unread", "LANG=C and names that are not ASCII"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _difference_of_names(a: Path, b: Path) -> str | None:
  """Compares the names of files, for outputs whose contents hold times. Returns None, or what differs."""
  if left := outputs.leftovers(a):
    return f"left over: {left}"
  names_a, names_b = (
    sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) for root in (a, b)
  )
  return None if names_a == names_b else f"files {names_a} instead of {names_b}"


def _difference_of_versions(a: Path, b: Path) -> str | None:
  """Compares the names of the files in each version of an exported model `a` with those in the one version of `b`.

  `a` may have two versions: an export that could not print its last line has written its version, and the repeated
  command writes the next one.
  """
  if left := outputs.leftovers(a):
    return f"left over: {left}"
  (reference,) = b.glob("*/*")
  versions = sorted(a.glob("*/*"))
  differences = ((version.name, _difference_of_names(version, reference)) for version in versions)
  wrong = [f"version {name}: {difference}" for name, difference in differences if difference]
  return "; ".join(wrong) or (None if versions else "no version")


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of the campaign.

  Attributes:
    name: its name in the table.
    argv: gives the command for a workplace and an output directory.
    difference: compares two output directories. Returns None, or what differs.
    tries: the number of signals sent to it in the full campaign.
    prints: whether it writes to standard output.
  """

  name: str
  argv: Callable[[Workplace, Path], list[str]]
  difference: Callable[[Path, Path], str | None]
  tries: int
  prints: bool = True


def _report(workplace: Workplace, output: Path) -> list[str]:
  return ["-m", "albert.report", str(workplace.pretraining_run), f"--output_file={output / 'page.html'}"]


def _predict(workplace: Workplace, output: Path) -> list[str]:
  return ["-m", "albert.predict", f"--model={workplace.exported_classifier}", f"--input_file={_input_file(workplace)}"]


def _input_file(workplace: Workplace) -> Path:
  """The file of 200 pairs of texts to predict. Threads may ask for it at the same time, so it appears at once."""
  path = workplace.directory / "pairs_to_predict.tsv"
  if not path.exists():
    staging = path.with_name(f"{path.name}.{threading.get_ident()}")
    staging.write_text("".join(f"word {i} of a text\tanother text {i}\n" for i in range(200)), encoding="utf-8")
    staging.replace(path)
  return path


def _ensemble(workplace: Workplace, output: Path) -> list[str]:
  other = workplace.directory / "classified_again"  # a copy of the run in the place of a second seed
  if not other.exists():
    shutil.copytree(workplace.classifier_run, other, dirs_exist_ok=True)
  return ["-m", "albert.ensemble", f"--inputs={workplace.classifier_run},{other}", f"--output_dir={output}"]


def _questions(workplace: Workplace, output: Path) -> list[str]:
  module = "data_prep.question_texts"
  return ["-m", module, f"--squad_file={workplace.squad_dev_file}", f"--output_file={output / 'text.txt'}"]


def _sample(workplace: Workplace, output: Path) -> list[str]:
  packages = f"--packages_dir={Path(json.__file__).parent}"
  return ["-m", "data_prep.sample_corpus", packages, f"--output_dir={output}", "--num_processes=1"]


COMMANDS = (
  Command("pretraining", lambda p, o: p.pretraining_command(o), outputs.difference_of_runs, 18),
  Command("classifier", lambda p, o: p.classifier_command(o), outputs.difference_of_runs, 12),
  Command("SQuAD", lambda p, o: p.squad_command(o), outputs.difference_of_runs, 8),
  Command("RACE", lambda p, o: p.race_command(o), outputs.difference_of_runs, 8),
  Command("data preparation", lambda p, o: p.data_prep_command(o), outputs.difference_of_files, 12),
  Command("vocabulary", lambda p, o: p.train_vocab_command(o), outputs.difference_of_files, 6),
  Command("export", lambda p, o: p.export_command(p.classifier_run, o), _difference_of_versions, 6),
  Command("convert", lambda p, o: p.convert_command(p.pretraining_run, o), outputs.difference_of_files, 6),
  Command("report", _report, _difference_of_names, 4),
  Command("ensemble", _ensemble, outputs.difference_of_files, 4),
  Command("predict", _predict, outputs.difference_of_files, 6),
  Command("question texts", _questions, outputs.difference_of_files, 3, prints=False),
  Command("sample corpus", _sample, outputs.difference_of_files, 3),
)


class _Reference(NamedTuple):
  """An undisturbed run: its output directory, how many seconds it took, and how often it entered each phase."""

  output: Path
  seconds: float
  phase_counts: dict[str, int]


class _References:
  """Undisturbed runs of the commands. Each is made at its first use."""

  def __init__(self, context: Context):
    self._context = context
    self._lock = threading.Lock()
    self._runs: dict[str, _Reference] = {}

  def of(self, command: Command) -> _Reference:
    with self._lock:
      if command.name not in self._runs:
        workplace, output = self._context.workplace, self._context.new_directory("reference")
        argv = command.argv(workplace, output)
        counts = output.with_name(f"{output.name}.json")
        started = time.monotonic()
        finished = workplace.run(argv, prelude=(_POINTS, "count", {"path": str(counts)}))
        seconds = time.monotonic() - started
        if finished.code or bool(finished.stdout) != command.prints:
          raise RuntimeError(f"{command.name}: {finished}")
        phase_counts = json.loads(counts.read_text(encoding="utf-8"))
        self._runs[command.name] = _Reference(output, seconds, phase_counts)
      return self._runs[command.name]


def _wrong_stop(finished: Finished, number: int) -> str | None:
  """Returns None if signal `number` stopped a command as it should, or came after its end; else what is wrong."""
  if finished.code not in (128 + number, -number, 0):
    return f"exit code {finished.code} after signal {number}: {finished.error!r}"
  for text in ("Traceback", "Exception ignored", "error: "):
    if text in finished.stderr:
      return f"{text!r} after signal {number}: {finished.stderr[-600:]!r}"
  stops = [line for line in finished.stderr.splitlines() if line.startswith("stopped")]
  # While the interpreter shuts down, a second SIGINT kills the process directly, with or without a line before.
  num_expected = (0, 1) if finished.code == -number else (int(finished.code == 128 + number),)
  if len(stops) not in num_expected:
    return f"exit code {finished.code} with the lines {stops}"
  return None


def _repeat(context: Context, command: Command, output: Path, reference: Path) -> str | None:
  """Repeats a command, and compares its result with the reference. Returns None, or what is wrong."""
  finished = context.workplace.run(command.argv(context.workplace, output))
  if finished.code == 2 and "output_dir" in finished.error:
    return command.difference(output, reference)  # refused, because the first run had completed the output
  return finished.wrong() or command.difference(output, reference)


def _stop_and_repeat(context: Context, references: _References, command: Command, index: int) -> str | None:
  """Stops a command with a signal in one of its phases, or at a random time, and then repeats the command."""
  rng = context.rng(command.name, index)
  output = context.new_directory("stopped")
  reference = references.of(command)
  number = int(_SIGNALS[index % 2])
  again_after = rng.choice((None, 0.0, 0.002, 0.05)) if index // 2 % 2 else None
  phases = [*(phase for phase in PHASES if reference.phase_counts.get(phase)), None]
  phase = phases[index % len(phases)]
  argv = command.argv(context.workplace, output)
  if phase is not None:
    at = rng.randint(1, reference.phase_counts[phase])
    point = {"phase": phase, "at": at, "number": number, "again_after": again_after}
    finished = context.workplace.run(argv, prelude=(_POINTS, "interrupt", point))
    if finished.code == 0 and phase != "writing":
      return f"{point}: not stopped"
    description = str(point)
  else:
    process = context.workplace.start(argv)
    seconds = rng.uniform(0.0, reference.seconds)
    time.sleep(seconds)
    process.send_signal(number)
    if again_after is not None:
      time.sleep(again_after)
      process.send_signal(number)
    finished = process.finish()
    description = f"signal {number} after {seconds:.2f} seconds, again after {again_after}"
  if finished.code != 0 and command.difference is outputs.difference_of_runs:
    compare = functools.partial(outputs.difference_of_runs, stopped_at=outputs.last_step(output))
    command = dataclasses.replace(command, difference=compare)
  wrong = _wrong_stop(finished, number) or _repeat(context, command, output, reference.output)
  return wrong and f"{description}: {wrong}"


def _stop_at_start(context: Context, command: Command, index: int) -> str | None:
  """Stops a command with a signal while a new interpreter imports the modules that the command needs."""
  rng = context.rng("start", command.name, index)
  output = context.new_directory("start")
  number = int(_SIGNALS[index % 2])
  process = context.workplace.start(command.argv(context.workplace, output), fresh=True)
  # Until the command has set its handlers, Python would end the process in its own way.
  _wait_for_our_handler(process.pid, number)
  moment = rng.uniform(0.0, 1.5)
  time.sleep(moment)
  process.send_signal(number)
  if index % 4 >= 2:
    time.sleep(rng.choice((0.0, 0.01)))
    process.send_signal(number)
  wrong = _wrong_stop(process.finish(), number)
  return wrong and f"signal {number} after {moment:.2f} seconds: {wrong}"


def _wait_for_our_handler(pid: int, number: int) -> None:
  """Waits until the process handles SIGTERM. Python sets no handler for it, so this handler is the command's."""
  deadline = time.monotonic() + 30
  while time.monotonic() < deadline:
    try:
      status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
      return
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt 0")
    caught_mask = int(caught.split()[1], 16)  # bit n - 1 stands for signal n
    if caught_mask >> (signal.SIGTERM - 1) & 1:
      return
    time.sleep(0.005)
  raise RuntimeError(f"process {pid} does not handle signal {number}")


def _broken_stdout(context: Context, references: _References, command: Command, how: str) -> str | None:
  """Runs a command with a standard output that is closed, full or a pipe without a reader, and then repeats it."""
  output = context.new_directory("stdout")
  reference = references.of(command)
  expected_if_it_prints = 141 if how == "unread" else 1
  expected = expected_if_it_prints if command.prints else 0
  argv = command.argv(context.workplace, output)
  finished = context.workplace.run(argv, prelude=(_POINTS, "break_stdout", {"how": how}))
  if wrong := finished.wrong(expected):
    return wrong
  if "Exception ignored" in finished.stderr or (expected == 1 and "standard output" not in finished.error):
    return f"stderr {finished.stderr[-300:]!r}"
  return _repeat(context, command, output, reference.output)


def _training_only(context: Context, how: str) -> str | None:
  """Trains without an evaluation. Training prints only to stderr, so a broken standard output must not stop it."""
  argv = [
    flag for flag in context.workplace.pretraining_command(context.new_directory("training")) if flag != "--do_eval"
  ]
  return context.workplace.run(argv, prelude=(_POINTS, "break_stdout", {"how": how})).wrong()


def _shell(context: Context, words: str, redirection: str, code: int) -> str | None:
  """Runs a command in bash with a redirection of its standard output."""
  command = ["bash", "-c", f"{sys.executable} {words} {redirection}"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
  finished = Finished(result.returncode, result.stdout, result.stderr)
  if code == 141 and finished.code == 0:  # all was written before the reader went
    return ("Traceback" in finished.stderr and finished.stderr[-300:]) or None
  return finished.wrong(code) or ("Exception ignored" in finished.stderr and finished.stderr[-300:]) or None


def _other_locale(context: Context, command: Command, environment: dict[str, str]) -> str | None:
  """Runs a command in an ASCII locale, with an output directory whose name is not ASCII."""
  output = context.new_directory("größe-日本-é")
  argv = command.argv(context.workplace, output)
  finished = context.workplace.run(argv, env={"LC_ALL": "C", "LANG": "C", **environment}, fresh=True)
  if wrong := finished.wrong():
    return wrong
  has_files = any(path.is_file() for path in output.rglob("*"))
  return None if has_files or command.name == "predict" else "it wrote nothing there"


def _not_utf8_name(context: Context, argv: Callable[[Path], list[str]], code: int) -> str | None:
  """Runs a command with a path that is not valid UTF-8."""
  path = context.new_directory("odd") / os.fsdecode(b"caf\xe9")
  return context.workplace.run(argv(path)).wrong(code)


def _set_clock_back(context: Context, references: _References, command: Command, index: int) -> str | None:
  """Sets the clock back by a day during a run (a resumed one if `index` is odd) and during its report."""
  rng = context.rng("clock", command.name, index)
  output = context.new_directory("clock")
  clock_back = (_POINTS, "set_clock_back", {"calls": rng.randint(1, 40), "seconds": clocks.DAY})
  argv = command.argv(context.workplace, output)
  if index % 2:
    stopped = context.workplace.run(argv, prelude=(_POINTS, "interrupt", _STOP_IN_TRAINING))
    if stopped.code != 143:
      return f"not stopped: {stopped.code}"
    if not list((output / "checkpoints").iterdir()):
      return "it saved nothing"
  finished = context.workplace.run(argv, prelude=clock_back)
  if wrong := finished.wrong() or command.difference(output, references.of(command).output):
    return wrong
  report = ["-m", "albert.report", str(output), f"--output_file={output}.html"]
  return context.workplace.run(report, prelude=clock_back).wrong()


_STOP_IN_TRAINING = {"phase": "training", "at": 5, "number": int(signal.SIGTERM), "again_after": None}


# ---- cases -----------------------------------------------------------------------------------------------


def _signal_cases(context: Context, references: _References) -> Iterator[Case]:
  for command in COMMANDS:
    for index in range(context.count(command.tries)):
      run = functools.partial(_stop_and_repeat, context, references, command, index)
      yield Case(f"SIGINT and SIGTERM: {command.name}", f"signal {index}", run)
  starts = [(command, 1) for command in COMMANDS] + [(COMMANDS[4], 8), (COMMANDS[8], 4)]
  for command, tries in starts:
    for index in range(context.count(tries)):
      number = sum(map(ord, command.name)) + index
      run = functools.partial(_stop_at_start, context, command, number)
      yield Case("SIGINT and SIGTERM: start and imports", f"{command.name}, signal {number}", run)


def _stream_cases(context: Context, references: _References) -> Iterator[Case]:
  for command in COMMANDS:
    for how in ("closed", "full", "unread"):
      run = functools.partial(_broken_stdout, context, references, command, how)
      yield Case(_STREAMS, f"{command.name}, {how}", run)
  for how in ("closed", "full", "unread"):
    yield Case(_STREAMS, f"training, {how}", functools.partial(_training_only, context, how))
  for words in ("run_pretraining.py --help", "-m albert.export --version"):
    for redirection, code in ((">&-", 1), (">/dev/full", 1), ("| head -0; exit ${PIPESTATUS[0]}", 141)):
      run = functools.partial(_shell, context, words, redirection, code)
      yield Case(_STREAMS, f"{words} {redirection}", run)


def _locale_cases(context: Context) -> Iterator[Case]:
  environments = ({"PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
  for number, command in enumerate(COMMANDS):
    environment = environments[number % len(environments)]
    run = functools.partial(_other_locale, context, command, environment)
    yield Case(_LOCALES, f"{command.name}, {environment}", run)
  workplace = context.workplace
  commands: list[tuple[str, Callable[[Path], list[str]], int]] = [
    ("vocabulary", workplace.train_vocab_command, 2),
    ("report", lambda path: ["-m", "albert.report", str(path)], 2),
    ("data preparation", lambda path: workplace.data_prep_command(path.parent / "out", f"--input_file={path}"), 2),
    ("pretraining", workplace.pretraining_command, 2),
    ("export", lambda path: workplace.export_command(workplace.classifier_run, path), 2),
    ("convert", lambda path: workplace.convert_command(path, path.parent / "out"), 2),
  ]
  for name, argv, code in commands:
    yield Case(_LOCALES, f"{name}, no UTF-8", functools.partial(_not_utf8_name, context, argv, code))


def _clock_cases(context: Context, references: _References) -> Iterator[Case]:
  group = "the clock set back"
  for command in COMMANDS[:2]:
    for index in range(2 if command is COMMANDS[0] else 1):
      yield Case(
        group, f"{command.name} {index}", functools.partial(_set_clock_back, context, references, command, index)
      )
  yield Case(group, "all clocks but the monotonic one", functools.partial(clocks.real_clock, context))
  yield Case(group, "heartbeat of a lock", functools.partial(clocks.heartbeat, context), in_process=True)
  yield Case(group, "staging files", functools.partial(clocks.leftovers, context))


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  references = _References(context)
  yield from _signal_cases(context, references)
  yield from _stream_cases(context, references)
  yield from _locale_cases(context)
  yield from _clock_cases(context, references)
