"""How commands end: signals in every phase, broken standard output, other locales, a clock that is set back."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.torture import outputs
from tests.torture.campaign import Case, Context
from tests.torture.commands import POINTS, Command, all_commands
from tests.torture.points import PHASES
from tests.torture.workplace import ROOT, Finished

# Groups of cases.
_STREAMS_GROUP, _LOCALES_GROUP = "standard output closed, full or unread", "LANG=C and names that are not ASCII"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The exit code of a command that writes to a pipe without a reader.
_SIGPIPE_CODE = 128 + signal.SIGPIPE
_DAY = 86400.0  # in seconds


def _unexpected_stop(finished: Finished, signal_number: int) -> str | None:
  """Returns None if the signal stopped a command properly, or came after the end of the command; else what is wrong."""
  if finished.code not in (128 + signal_number, -signal_number, 0):
    return f"exit code {finished.code} after signal {signal_number}: {finished.error!r}"
  for text in ("Traceback", "Exception ignored", "error: "):
    if text in finished.stderr:
      return f"{text!r} after signal {signal_number}: {finished.stderr[-600:]!r}"
  stopped_lines = [line for line in finished.stderr.splitlines() if line.startswith("stopped")]
  if finished.code == -signal_number:  # a second SIGINT came while the interpreter shut down: the line may be missing
    is_expected = len(stopped_lines) <= 1
  else:
    is_expected = len(stopped_lines) == (1 if finished.code else 0)
  return None if is_expected else f"exit code {finished.code} with the lines {stopped_lines}"


def _repeat(command: Command, output: Path, difference: Callable[[Path, Path], str | None] | None = None) -> str | None:
  """Repeats a command, and compares its result with the reference. Returns None, or what is wrong."""
  finished = command.context.workplace.run(command.argv(output))
  difference, reference = difference or command.difference, command.reference().output
  if finished.code == 2 and "output_dir" in finished.error:
    return difference(output, reference)  # refused, because the first run had completed the output
  return finished.unexpected_end() or difference(output, reference)


def _stop_and_repeat(command: Command, index: int) -> str | None:
  """Stops a command with a signal in one of its phases, or at a random time, and then repeats the command."""
  context, reference = command.context, command.reference()
  rng = context.rng(command.name, index)
  output = context.new_directory("stopped")
  signal_number = int(_SIGNALS[index % 2])
  # In two of four cases the signal may be sent twice.
  again_after = rng.choice((None, 0.0, 0.002, 0.05)) if index % 4 >= 2 else None
  # The phases of the command and a random time (None) take turns.
  phases = [*(phase for phase in PHASES if reference.phase_counts.get(phase)), None]
  phase = phases[index % len(phases)]
  argv = command.argv(output)
  if phase is None:
    seconds = rng.uniform(0.0, reference.seconds)
    description = f"signal {signal_number} after {seconds:.2f} seconds, again after {again_after}"
    finished = _stop_at(seconds, context, argv, signal_number, again_after)
  else:
    at = rng.randint(1, reference.phase_counts[phase])
    point = {"phase": phase, "at": at, "number": signal_number, "again_after": again_after}
    description = str(point)
    finished = context.workplace.run(argv, prelude=(POINTS, "interrupt", point))
    if finished.code == 0 and phase != "writing":
      return f"{description}: not stopped"
  difference = None
  if finished.code != 0 and command.difference is outputs.difference_of_runs:
    difference = functools.partial(outputs.difference_of_runs, stopped_at=outputs.last_step(output))
  wrong = _unexpected_stop(finished, signal_number) or _repeat(command, output, difference)
  return wrong and f"{description}: {wrong}"


def _stop_at(
  seconds: float, context: Context, argv: list[str], signal_number: int, again_after: float | None
) -> Finished:
  """Runs a command, and sends it a signal after so many seconds, and again `again_after` seconds later if not None."""
  process = context.workplace.start(argv)
  time.sleep(seconds)
  process.send_signal(signal_number)
  if again_after is not None:
    time.sleep(again_after)
    process.send_signal(signal_number)
  return process.finish()


def _stop_at_start(command: Command, index: int) -> str | None:
  """Stops a command with a signal while a new interpreter imports the modules that the command needs."""
  context = command.context
  rng = context.rng("start", command.name, index)
  signal_number = int(_SIGNALS[index % 2])
  process = context.workplace.start(command.argv(context.new_directory("start")), new_interpreter=True)
  # Before the command has set its handlers, Python itself handles a signal.
  _wait_for_signal_handlers(process.pid)
  seconds = rng.uniform(0.0, 1.5)
  time.sleep(seconds)
  process.send_signal(signal_number)
  if index % 4 >= 2:  # a second signal
    time.sleep(rng.choice((0.0, 0.01)))
    process.send_signal(signal_number)
  wrong = _unexpected_stop(process.finish(), signal_number)
  return wrong and f"signal {signal_number} after {seconds:.2f} seconds: {wrong}"


def _wait_for_signal_handlers(pid: int) -> None:
  """Waits until the command has set its handlers of signals: until it handles SIGTERM, for which Python has none."""
  deadline = time.monotonic() + 30
  while time.monotonic() < deadline:
    try:
      status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
      return
    caught_line = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt 0")
    caught_mask = int(caught_line.split()[1], 16)  # bit n - 1 is set if signal n has a handler
    if caught_mask >> (signal.SIGTERM - 1) & 1:
      return
    time.sleep(0.005)
  raise RuntimeError(f"process {pid} does not handle SIGTERM")


def _broken_stdout(command: Command, how: str) -> str | None:
  """Runs a command with a standard output that is closed, full or a pipe without a reader, and then repeats it."""
  output = command.context.new_directory("stdout")
  code_if_it_prints = _SIGPIPE_CODE if how == "unread" else 1
  expected_code = code_if_it_prints if command.prints else 0
  finished = command.context.workplace.run(command.argv(output), prelude=(POINTS, "break_stdout", {"how": how}))
  if wrong := finished.unexpected_end(expected_code):
    return wrong
  if "Exception ignored" in finished.stderr or (expected_code == 1 and "standard output" not in finished.error):
    return f"stderr {finished.stderr[-300:]!r}"
  return _repeat(command, output)


def _train_with_broken_stdout(context: Context, how: str) -> str | None:
  """Trains without an evaluation. Training prints only to stderr, so a broken standard output must not stop it."""
  argv = [
    flag for flag in context.workplace.pretraining_command(context.new_directory("training")) if flag != "--do_eval"
  ]
  return context.workplace.run(argv, prelude=(POINTS, "break_stdout", {"how": how})).unexpected_end()


def _shell(context: Context, words: str, redirection: str, code: int) -> str | None:
  """Runs `python WORDS` in bash with a redirection of its standard output. The exit code must be `code`."""
  command = ["bash", "-c", f"{sys.executable} {words} {redirection}"]
  completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
  finished = Finished(completed.returncode, completed.stdout, completed.stderr)
  if code == _SIGPIPE_CODE and finished.code == 0:  # the command had written everything before the reader ended
    return finished.unexpected_end(0)
  if wrong := finished.unexpected_end(code):
    return wrong
  return finished.stderr[-300:] if "Exception ignored" in finished.stderr else None


def _other_locale(command: Command, environment: dict[str, str]) -> str | None:
  """Runs a command in an ASCII locale, with an output directory whose name is not ASCII."""
  output = command.context.new_directory("größe-日本-é")
  environment = {"LC_ALL": "C", "LANG": "C", **environment}
  finished = command.context.workplace.run(command.argv(output), env=environment, new_interpreter=True)
  if wrong := finished.unexpected_end():
    return wrong
  has_files = any(path.is_file() for path in output.rglob("*"))
  return None if has_files or command.name == "predict" else "it wrote nothing there"


def _path_that_is_not_utf8(context: Context, argv: Callable[[Path], list[str]], code: int) -> str | None:
  """Runs a command with a path that is not valid UTF-8. The exit code must be `code`."""
  path = context.new_directory("odd") / os.fsdecode(b"caf\xe9")
  return context.workplace.run(argv(path)).unexpected_end(code)


def _set_clock_back(command: Command, index: int) -> str | None:
  """Sets the clock back by a day while a run is trained (resumed if `index` is odd), and while its report is made."""
  context = command.context
  rng = context.rng("clock", command.name, index)
  output = context.new_directory("clock")
  clock_back = (POINTS, "set_clock_back", {"calls": rng.randint(1, 40), "seconds": _DAY})
  argv = command.argv(output)
  if index % 2:
    stopped = context.workplace.run(argv, prelude=(POINTS, "interrupt", _STOP_IN_TRAINING))
    if stopped.code != 128 + signal.SIGTERM:
      return f"not stopped: {stopped.code}"
    if not list((output / "checkpoints").iterdir()):
      return "it saved nothing"
  finished = context.workplace.run(argv, prelude=clock_back)
  if wrong := finished.unexpected_end() or command.difference(output, command.reference().output):
    return wrong
  report = ["-m", "albert.report", str(output), f"--output_file={output}.html"]
  return context.workplace.run(report, prelude=clock_back).unexpected_end()


# Arguments of points.interrupt.
_STOP_IN_TRAINING = {"phase": "training", "at": 5, "number": int(signal.SIGTERM), "again_after": None}


# ---- cases -----------------------------------------------------------------------------------------------


def _signal_cases(commands: Sequence[Command]) -> Iterator[Case]:
  for command in commands:
    for index in range(command.context.count(command.num_tries)):
      run = functools.partial(_stop_and_repeat, command, index)
      yield Case(f"SIGINT and SIGTERM: {command.name}", f"signal {index}", run)
  # The start of two commands that do not import TensorFlow is stopped more often.
  num_tries = {"data preparation": 9, "report": 5}
  for position, command in enumerate(commands):
    for index in range(command.context.count(num_tries.get(command.name, 1))):
      number = position + index  # so that commands with one try differ in the signal
      run = functools.partial(_stop_at_start, command, number)
      yield Case("SIGINT and SIGTERM: start and imports", f"{command.name}, signal {number}", run)


def _stream_cases(context: Context, commands: Sequence[Command]) -> Iterator[Case]:
  for command in commands:
    for how in ("closed", "full", "unread"):
      run = functools.partial(_broken_stdout, command, how)
      yield Case(_STREAMS_GROUP, f"{command.name}, {how}", run)
  for how in ("closed", "full", "unread"):
    yield Case(_STREAMS_GROUP, f"training, {how}", functools.partial(_train_with_broken_stdout, context, how))
  for words in ("run_pretraining.py --help", "-m albert.export --version"):
    for redirection, code in ((">&-", 1), (">/dev/full", 1), ("| head -0; exit ${PIPESTATUS[0]}", _SIGPIPE_CODE)):
      run = functools.partial(_shell, context, words, redirection, code)
      yield Case(_STREAMS_GROUP, f"{words} {redirection}", run)


def _locale_cases(context: Context, commands: Sequence[Command]) -> Iterator[Case]:
  environments = ({"PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
  for number, command in enumerate(commands):
    environment = environments[number % len(environments)]
    run = functools.partial(_other_locale, command, environment)
    yield Case(_LOCALES_GROUP, f"{command.name}, {environment}", run)
  workplace = context.workplace
  # Name, command for a path that is not UTF-8, exit code.
  with_paths: list[tuple[str, Callable[[Path], list[str]], int]] = [
    ("vocabulary", workplace.train_vocab_command, 2),
    ("report", lambda path: ["-m", "albert.report", str(path)], 2),
    ("data preparation", lambda path: workplace.data_prep_command(path.parent / "out", f"--input_file={path}"), 2),
    ("pretraining", workplace.pretraining_command, 2),
    ("export", lambda path: workplace.export_command(workplace.classifier_run, path), 2),
    ("convert", lambda path: workplace.convert_command(path, path.parent / "out"), 2),
  ]
  for name, argv, code in with_paths:
    yield Case(_LOCALES_GROUP, f"{name}, no UTF-8", functools.partial(_path_that_is_not_utf8, context, argv, code))


def _clock_cases(commands: Sequence[Command]) -> Iterator[Case]:
  pretraining, classifier, *_ = commands
  for command, index in ((pretraining, 0), (pretraining, 1), (classifier, 0)):
    yield Case("the clock set back", f"{command.name} {index}", functools.partial(_set_clock_back, command, index))


def cases(context: Context) -> Iterator[Case]:
  commands = all_commands(context)
  yield from _signal_cases(commands)
  yield from _stream_cases(context, commands)
  yield from _locale_cases(context, commands)
  yield from _clock_cases(commands)
