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

from tests.torture import clocks, outputs
from tests.torture.campaign import Case, Context
from tests.torture.points import PHASES
from tests.torture.workplace import ROOT, Finished, Workplace

_POINTS = "tests.torture.points"
_STREAMS, _LOCALES = "standard output closed, full or unread", "LANG=C and names that are not ASCII"
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def _same_names(a: Path, b: Path) -> str | None:
  """For files that hold times: both directories have the same names, and nothing is left over."""
  if found := outputs.leftovers(a):
    return f"left over: {found}"
  names = [sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) for root in (a, b)]
  return None if names[0] == names[1] else f"files {names[0]} instead of {names[1]}"


def _same_versions(a: Path, b: Path) -> str | None:
  """For exported models: each version in `a` has the files of the one version in `b`.

  An export that could not print its last line has written its version, and the repeated command writes the next one.
  """
  if found := outputs.leftovers(a):
    return f"left over: {found}"
  (reference,) = b.glob("*/*")
  versions = sorted(a.glob("*/*"))
  wrong = [f"version {version.name}: {wrong}" for version in versions if (wrong := _same_names(version, reference))]
  return "; ".join(wrong) or (None if versions else "no version")


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of the campaign.

  Attributes:
    name: in the table.
    argv: of places and the output directory.
    difference: of two output directories, None if there is none.
    tries: signals sent to it in the full campaign.
    prints: whether it writes to standard output.
  """

  name: str
  argv: Callable[[Workplace, Path], list[str]]
  difference: Callable[[Path, Path], str | None]
  tries: int
  prints: bool = True


def _report(places: Workplace, output: Path) -> list[str]:
  return ["-m", "albert.report", str(places.pretrained), f"--output_file={output / 'page.html'}"]


def _predict(places: Workplace, output: Path) -> list[str]:
  return ["-m", "albert.predict", f"--model={places.exported_classifier}", f"--input_file={_pairs(places)}"]


def _pairs(places: Workplace) -> Path:
  path = places.directory / "pairs_to_predict.tsv"
  if not path.exists():
    staging = path.with_name(f"{path.name}.{threading.get_ident()}")
    staging.write_text("".join(f"word {i} of a text\tanother text {i}\n" for i in range(200)), encoding="utf-8")
    staging.replace(path)
  return path


def _ensemble(places: Workplace, output: Path) -> list[str]:
  # Two names of one run: as an ensemble of two seeds.
  other = places.directory / "classified_again"
  if not other.exists():
    shutil.copytree(places.classified, other, dirs_exist_ok=True)
  return ["-m", "albert.ensemble", f"--inputs={places.classified},{other}", f"--output_dir={output}"]


def _questions(places: Workplace, output: Path) -> list[str]:
  module = "data_prep.question_texts"
  return ["-m", module, f"--squad_file={places.squad_dev}", f"--output_file={output / 'text.txt'}"]


def _sample(places: Workplace, output: Path) -> list[str]:
  packages = f"--packages_dir={Path(json.__file__).parent}"
  return ["-m", "data_prep.sample_corpus", packages, f"--output_dir={output}", "--num_processes=1"]


COMMANDS = (
  Command("pretraining", lambda p, o: p.pretraining(o), outputs.difference_of_runs, 18),
  Command("classifier", lambda p, o: p.classifier(o), outputs.difference_of_runs, 12),
  Command("SQuAD", lambda p, o: p.squad(o), outputs.difference_of_runs, 8),
  Command("RACE", lambda p, o: p.race_run(o), outputs.difference_of_runs, 8),
  Command("data preparation", lambda p, o: p.data_prep(o), outputs.difference_of_files, 12),
  Command("vocabulary", lambda p, o: p.train_vocab(o), outputs.difference_of_files, 6),
  Command("export", lambda p, o: p.export(p.classified, o), _same_versions, 6),
  Command("convert", lambda p, o: p.convert(p.pretrained, o), outputs.difference_of_files, 6),
  Command("report", _report, _same_names, 4),
  Command("ensemble", _ensemble, outputs.difference_of_files, 4),
  Command("predict", _predict, outputs.difference_of_files, 6),
  Command("question texts", _questions, outputs.difference_of_files, 3, prints=False),
  Command("sample corpus", _sample, outputs.difference_of_files, 3),
)


class _References:
  """Undisturbed runs of the commands: their output, how long they took and how often each phase was entered."""

  def __init__(self, context: Context):
    self._context = context
    self._lock = threading.Lock()
    self._made: dict[str, tuple[Path, float, dict[str, int]]] = {}

  def of(self, command: Command) -> tuple[Path, float, dict[str, int]]:
    with self._lock:
      if command.name not in self._made:
        places, output = self._context.places, self._context.new_directory("reference")
        argv = command.argv(places, output)
        counts = output.with_name(f"{output.name}.json")
        started = time.monotonic()
        finished = places.run(argv, prelude=(_POINTS, "count", {"path": str(counts)}))
        seconds = time.monotonic() - started
        if finished.code or bool(finished.stdout) != command.prints:
          raise RuntimeError(f"{command.name}: {finished}")
        self._made[command.name] = output, seconds, json.loads(counts.read_text(encoding="utf-8"))
      return self._made[command.name]


def _wrong_stop(finished: Finished, number: int) -> str | None:
  """What is wrong with how a signal ended a command; it may also have been done before."""
  if finished.code not in (128 + number, -number, 0):
    return f"exit code {finished.code} after signal {number}: {finished.error!r}"
  for text in ("Traceback", "Exception ignored", "error: "):
    if text in finished.stderr:
      return f"{text!r} after signal {number}: {finished.stderr[-600:]!r}"
  stops = [line for line in finished.stderr.splitlines() if line.startswith("stopped")]
  # While Python ends itself, a second SIGINT ends the process as the system does by default.
  num_expected = (0, 1) if finished.code == -number else (int(finished.code == 128 + number),)
  if len(stops) not in num_expected:
    return f"exit code {finished.code} with the lines {stops}"
  return None


def _again(context: Context, command: Command, output: Path, reference: Path) -> str | None:
  """Repeats the command, and returns what is wrong with its result."""
  finished = context.places.run(command.argv(context.places, output))
  if finished.code == 2 and "output_dir" in finished.error:
    return command.difference(output, reference)  # its output was complete, and it does not overwrite it
  return finished.wrong() or command.difference(output, reference)


def _stopped_in(context: Context, references: _References, command: Command, index: int) -> str | None:
  """A signal in a phase of the command, or at a random moment; then the same command again."""
  rng = context.rng(command.name, index)
  output = context.new_directory("stopped")
  reference, seconds, counts = references.of(command)
  number = int(_NUMBERS[index % 2])
  again = rng.choice((None, 0.0, 0.002, 0.05)) if index // 2 % 2 else None
  phases = [*(phase for phase in PHASES if counts.get(phase)), None]
  phase = phases[index % len(phases)]
  argv = command.argv(context.places, output)
  if phase is not None:
    point = {"phase": phase, "at": rng.randint(1, counts[phase]), "number": number, "again_after": again}
    finished = context.places.run(argv, prelude=(_POINTS, "interrupt", point))
    if finished.code == 0 and phase != "writing":
      return f"{point}: not stopped"
    what = str(point)
  else:
    process = context.places.start(argv)
    moment = rng.uniform(0.0, seconds)
    time.sleep(moment)
    process.send_signal(number)
    if again is not None:
      time.sleep(again)
      process.send_signal(number)
    finished, what = process.finish(), f"signal {number} after {moment:.2f} seconds, again after {again}"
  if finished.code != 0 and command.difference is outputs.difference_of_runs:
    compare = functools.partial(outputs.difference_of_runs, stopped_at=outputs.last_step(output))
    command = dataclasses.replace(command, difference=compare)
  wrong = _wrong_stop(finished, number) or _again(context, command, output, reference)
  return wrong and f"{what}: {wrong}"


def _stopped_at_start(context: Context, command: Command, index: int) -> str | None:
  """A signal while a new interpreter imports what the command needs."""
  rng = context.rng("start", command.name, index)
  output = context.new_directory("start")
  number = int(_NUMBERS[index % 2])
  process = context.places.start(command.argv(context.places, output), fresh=True)
  # Before this Python starts itself, and has its own way to end.
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
  """Waits until the process handles SIGTERM, which Python alone does not."""
  deadline = time.monotonic() + 30
  while time.monotonic() < deadline:
    try:
      status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
      return
    (caught,) = [line for line in status.splitlines() if line.startswith("SigCgt")] or ["SigCgt 0"]
    if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
      return
    time.sleep(0.005)
  raise RuntimeError(f"process {pid} does not handle signal {number}")


def _broken_stdout(context: Context, references: _References, command: Command, how: str) -> str | None:
  """Standard output is closed, full or a pipe that nobody reads; then the same command again."""
  output = context.new_directory("stdout")
  reference, _, _ = references.of(command)
  expected = 0 if not command.prints else 141 if how == "unread" else 1
  argv = command.argv(context.places, output)
  finished = context.places.run(argv, prelude=(_POINTS, "break_stdout", {"how": how}))
  if wrong := finished.wrong(expected):
    return wrong
  if "Exception ignored" in finished.stderr or (expected == 1 and "standard output" not in finished.error):
    return f"stderr {finished.stderr[-300:]!r}"
  return _again(context, command, output, reference)


def _training_alone(context: Context, how: str) -> str | None:
  """Training writes to stderr alone, so that a broken standard output does not stop it."""
  argv = [flag for flag in context.places.pretraining(context.new_directory("training")) if flag != "--do_eval"]
  return context.places.run(argv, prelude=(_POINTS, "break_stdout", {"how": how})).wrong()


def _shell(context: Context, words: str, redirection: str, code: int) -> str | None:
  """A real shell and a new interpreter."""
  command = ["bash", "-c", f"{sys.executable} {words} {redirection}"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
  finished = Finished(result.returncode, result.stdout, result.stderr)
  if code == 141 and finished.code == 0:  # all was written before the reader went
    return ("Traceback" in finished.stderr and finished.stderr[-300:]) or None
  return finished.wrong(code) or ("Exception ignored" in finished.stderr and finished.stderr[-300:]) or None


def _other_locale(context: Context, command: Command, environment: dict[str, str]) -> str | None:
  """A directory whose name is not ASCII, in a locale that knows only ASCII; a missing file is one line."""
  output = context.new_directory("größe-日本-é")
  argv = command.argv(context.places, output)
  finished = context.places.run(argv, env={"LC_ALL": "C", "LANG": "C", **environment}, fresh=True)
  if wrong := finished.wrong():
    return wrong
  names = [path for path in output.rglob("*") if path.is_file()]
  return None if names or command.name == "predict" else "it wrote nothing there"


def _odd_name(context: Context, argv: Callable[[Path], list[str]], code: int) -> str | None:
  """A name that is no UTF-8 in a command."""
  odd = context.new_directory("odd") / os.fsdecode(b"caf\xe9")
  return context.places.run(argv(odd)).wrong(code)


def _clock(context: Context, references: _References, command: Command, index: int) -> str | None:
  """The clock goes back by a day while the command runs; then once more when it is stopped and goes on."""
  rng = context.rng("clock", command.name, index)
  reference, _, _ = references.of(command)
  output = context.new_directory("clock")
  back = (_POINTS, "set_clock_back", {"calls": rng.randint(1, 40), "seconds": clocks.DAY})
  argv = command.argv(context.places, output)
  if index % 2:
    first = context.places.run(argv, prelude=(_POINTS, "interrupt", _MIDDLE))
    if first.code != 143:
      return f"not stopped: {first.code}"
    if not list((output / "checkpoints").iterdir()):
      return "it saved nothing"
  finished = context.places.run(argv, prelude=back)
  wrong = finished.wrong() or command.difference(output, reference)
  if wrong is None:
    page = context.places.run(["-m", "albert.report", str(output), f"--output_file={output}.html"], prelude=back)
    wrong = page.wrong()
  return wrong


_MIDDLE = {"phase": "training", "at": 5, "number": int(signal.SIGTERM), "again_after": None}


# ---- cases -----------------------------------------------------------------------------------------------


def _signal_cases(context: Context, references: _References) -> Iterator[Case]:
  for command in COMMANDS:
    for index in range(context.count(command.tries)):
      run = functools.partial(_stopped_in, context, references, command, index)
      yield Case(f"SIGINT and SIGTERM: {command.name}", f"signal {index}", run)
  starts = [(command, 1) for command in COMMANDS] + [(COMMANDS[4], 8), (COMMANDS[8], 4)]
  for command, tries in starts:
    for index in range(context.count(tries)):
      number = sum(map(ord, command.name)) + index
      run = functools.partial(_stopped_at_start, context, command, number)
      yield Case("SIGINT and SIGTERM: start and imports", f"{command.name}, signal {number}", run)


def _stream_cases(context: Context, references: _References) -> Iterator[Case]:
  for command in COMMANDS:
    for how in ("closed", "full", "unread"):
      run = functools.partial(_broken_stdout, context, references, command, how)
      yield Case(_STREAMS, f"{command.name}, {how}", run)
  for how in ("closed", "full", "unread"):
    yield Case(
      "standard output closed, full or unread", f"training, {how}", functools.partial(_training_alone, context, how)
    )
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
  places = context.places
  odd: list[tuple[str, Callable[[Path], list[str]], int]] = [
    ("vocabulary", places.train_vocab, 2),
    ("report", lambda path: ["-m", "albert.report", str(path)], 2),
    ("data preparation", lambda path: places.data_prep(path.parent / "out", f"--input_file={path}"), 2),
    ("pretraining", places.pretraining, 2),
    ("export", lambda path: places.export(places.classified, path), 2),
    ("convert", lambda path: places.convert(path, path.parent / "out"), 2),
  ]
  for name, argv, code in odd:
    yield Case(
      "LANG=C and names that are not ASCII", f"{name}, no UTF-8", functools.partial(_odd_name, context, argv, code)
    )


def _clock_cases(context: Context, references: _References) -> Iterator[Case]:
  group = "the clock set back"
  for command in COMMANDS[:2]:
    for index in range(2 if command is COMMANDS[0] else 1):
      yield Case(group, f"{command.name} {index}", functools.partial(_clock, context, references, command, index))
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
