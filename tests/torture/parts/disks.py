"""Full, read-only, limited and failing disks at random moments of each command; then the same command with space.

A case runs a command two or three times on a disk that fails at a random moment, each time further on, and then once on
a healthy one, whose result is compared with that of an undisturbed run.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sentencepiece

from albert.weights.checkpoint_damage import find_damage
from tests.torture import outputs
from tests.torture.campaign import Case, Context
from tests.torture.small_disks import SmallDisk, can_fail_calls, can_mount
from tests.torture.workplace import Finished, Workplace

# What depends on the time, not on the command: not compared.
_CHANGING = {"environment.json", "curves.png", "fingerprint.pb", ".lock"}
_LOGS = {"metrics.jsonl", "eval_metrics.jsonl"}
_BEFORE = b"<!DOCTYPE html>\nwhat was there before\n"  # a report replaces nothing but a page
_STDOUT = "answers.jsonl"


@dataclasses.dataclass(frozen=True)
class Command:
  """A command that writes to a disk.

  Attributes:
    name: of the rows of the table.
    argv: the directory of the disk -> the command.
    cases: of each kind, in the full campaign.
    moments: of failure in a case.
    replaced: files that the command replaces; something is there before it.
    inputs: a directory that it reads through albert.io.files; None if reading is not tried.
    prints: standard output goes to a file on the disk.
    has_workers: writing is not made to fail: the pipes to its worker processes would fail, too, as no disk does.
  """

  name: str
  argv: Callable[[Path], list[str]]
  cases: int
  moments: int
  replaced: tuple[str, ...] = ()
  inputs: Callable[[], Path] | None = None
  prints: bool = False
  has_workers: bool = False


@dataclasses.dataclass(frozen=True)
class Reference:
  """What an undisturbed run of a command leaves, the space it takes, the seconds, and how many warnings it prints."""

  contents: dict[str, Any]
  kib: int
  largest: int
  seconds: float
  num_warnings: int


def contents(directory: Path) -> dict[str, Any]:
  """The files below a directory: of checkpoints the tensors, of logs the lines without times, of others the bytes.

  Hidden files and what depends on the time are left out, and so is the directory in the text of files.
  """
  found: dict[str, Any] = {}
  for path in sorted(directory.rglob("*")):
    name = str(path.relative_to(directory))
    parts = path.relative_to(directory).parts
    if not path.is_file() or path.name in _CHANGING or "tensorboard" in parts or any(p.startswith(".") for p in parts):
      continue
    if "checkpoints" in parts and path.name != "best.json":
      if path.name == "weights.index":
        found[name] = outputs._tensors(str(path.with_suffix("")), path.stat().st_mtime_ns)
    elif path.name in _LOGS:
      found[name] = outputs.log_lines(path)
    else:
      found[name] = path.read_bytes().replace(str(directory).encode(), b"DISK")
  return found


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str | None:
  """None if both are equal, else one line."""
  if found.keys() != expected.keys():
    return f"files of only one of them: {sorted(found.keys() ^ expected.keys())[:5]}"
  different = [name for name in expected if found[name] != expected[name]]
  return f"files that differ: {different[:5]}" if different else None


class Attack:
  """The cases of one command."""

  def __init__(self, context: Context, command: Command):
    self.context, self.command, self.places = context, command, context.places
    self._lock = threading.Lock()
    self._reference: Reference | None = None

  def _start(self, disk: SmallDisk, prelude: tuple[str, str, dict[str, Any]] | None = None) -> Any:
    output = disk.path / _STDOUT if self.command.prints else None
    if output is not None:
      output.unlink(missing_ok=True)
    return self.places.start(self.command.argv(disk.path), stdout=output, prelude=prelude)

  def _disk(self) -> SmallDisk:
    disk = SmallDisk(self.context.new_directory(self.command.name.replace(" ", "_")) / "disk")
    for name in self.command.replaced:
      path = disk.path / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(_BEFORE)
    return disk

  def reference(self) -> Reference:
    """Made when it is first asked for."""
    with self._lock:
      if self._reference is None:
        with self._disk() as disk:
          started = time.monotonic()
          finished = self._start(disk).finish()
          if found := finished.wrong():
            raise RuntimeError(f"the undisturbed {self.command.name}: {found}")
          seconds = time.monotonic() - started
          sizes = [path.stat().st_size for path in disk.path.rglob("*") if path.is_file()]
          num_warnings = finished.stderr.count("warning: ")
          self._reference = Reference(contents(disk.path), disk.used_kib, max(sizes), seconds, num_warnings)
      return self._reference

  def _check_failure(self, disk: SmallDisk, finished: Finished, code: int, reasons: tuple[str, ...]) -> str | None:
    """What is wrong with the end of a command on a disk that fails."""
    if found := finished.wrong(code):
      return found
    if not any(reason in finished.error for reason in reasons):
      return f"the error does not say why: {finished.error!r}"
    if left := outputs.leftovers(disk.path):
      return f"left over: {left[:3]}"
    expected = self.reference().contents
    # A log and the files that say where a run is may be those of an earlier moment.
    for name, content in contents(disk.path).items():
      path = disk.path / name
      is_old = name in self.command.replaced and path.read_bytes() == _BEFORE
      is_of_moment = path.name in _LOGS or path.name == "best.json" or name == _STDOUT
      if name in expected and not is_of_moment and not is_old and content != expected[name]:
        return f"half written: {name} ({finished.error!r})"
    for path in disk.path.rglob("checkpoints/step-*"):
      if damage := find_damage(str(path)):
        return f"{path}: {damage}"
    return None

  def _has_more_warnings(self, finished: Finished) -> bool:
    """Whether the command has warned more often than the undisturbed one: it could not write an optional file."""
    return finished.stderr.count("warning: ") > self.reference().num_warnings

  def _check_success(self, disk: SmallDisk, finished: Finished) -> str | None:
    """What is wrong with a command that the fault did not reach, or that went on without features or events."""
    if found := finished.wrong():
      return found
    if self._has_more_warnings(finished):  # kept features and TensorBoard's events: the same command makes them
      return self._finish(disk)
    return difference(contents(disk.path), self.reference().contents)

  def _finish(self, disk: SmallDisk) -> str | None:
    """The same command with space and without faults."""
    disk.resize()
    finished = self._start(disk).finish()
    if found := finished.wrong():
      return f"with space again: {found}"
    if left := outputs.leftovers(disk.path):
      return f"with space again, left over: {left[:3]}"
    if found := difference(contents(disk.path), self.reference().contents):
      return f"with space again: {found}"
    return None

  # ---- kinds of cases --------------------------------------------------------------------------------------

  def full(self, rng: random.Random) -> str | None:
    """A disk that is too small, by a random share of what the command needs."""
    shares = sorted(rng.uniform(0.0, 0.95) for _ in range(self.command.moments))
    with self._disk() as disk:
      for share in shares:
        disk.resize(round(share * self.reference().kib))
        finished = self._start(disk).finish()
        if finished.code == 0 and self._has_more_warnings(finished):
          return self._check_success(disk, finished)
        reasons = (os.strerror(errno.ENOSPC),)
        if found := self._check_failure(disk, finished, 1, reasons):
          return f"on a disk of {share:.0%} of {self.reference().kib} KiB: {found}"
      return self._finish(disk)

  def filled(self, rng: random.Random) -> str | None:
    """A disk that another program fills at a random moment."""
    with self._disk() as disk:
      seconds = rng.uniform(0.1, 1.0) * self.reference().seconds
      process = self._start(disk)
      time.sleep(seconds)
      filler = disk.fill()
      finished = process.finish()
      filler.unlink(missing_ok=True)
      if finished.code == 0:
        return self._check_success(disk, finished)
      if found := self._check_failure(disk, finished, 1, (os.strerror(errno.ENOSPC),)):
        return f"filled after {seconds:.2f} s: {found}"
      return self._finish(disk)

  def timed(self, rng: random.Random, calls: str, number: int) -> str | None:
    """From a random moment on, calls return an error."""
    with self._disk() as disk:
      for _ in range(self.command.moments):
        seconds = rng.uniform(0.0, 0.7) * self.reference().seconds
        prelude = ("tests.torture.small_disks", "fail_calls", {"calls": calls, "number": number, "seconds": seconds})
        finished = self._start(disk, prelude).finish()
        if finished.code == 0:
          return self._check_success(disk, finished)  # it had ended before
        if found := self._check_failure(disk, finished, 1, (os.strerror(number),)):
          return f"{errno.errorcode[number]} of {calls} after {seconds:.2f} s: {found}"
      return self._finish(disk)

  def limited(self, rng: random.Random) -> str | None:
    """A limit on the size of a file."""
    largest = self.reference().largest
    with self._disk() as disk:
      for share in sorted(rng.uniform(0.0, 0.9) for _ in range(self.command.moments)):
        limit = round(share * largest)
        prelude = ("tests.torture.small_disks", "limit_files", {"num_bytes": limit})
        finished = self._start(disk, prelude).finish()
        if finished.code == 0 and self._has_more_warnings(finished):
          return self._check_success(disk, finished)
        if found := self._check_failure(disk, finished, 1, (os.strerror(errno.EFBIG),)):
          return f"with a limit of {limit} bytes a file: {found}"
      return self._finish(disk)

  def read_only(self, rng: random.Random) -> str | None:
    """A disk that nothing can be written to, empty or with what a stopped command left."""
    with self._disk() as disk:
      if rng.random() < 0.5:
        disk.resize(round(rng.uniform(0.3, 0.9) * self.reference().kib))
        self._start(disk).finish()
        disk.resize()
      before = {path: path.read_bytes() for path in disk.path.rglob("*") if path.is_file()}
      disk.make_read_only()
      finished = self._start(disk).finish()
      if found := finished.wrong(2):
        return found
      if {path: path.read_bytes() for path in disk.path.rglob("*") if path.is_file()} != before:
        return "something was changed"
      return self._finish(disk)

  def unreadable(self, rng: random.Random) -> str | None:
    """Reading an input fails."""
    assert self.command.inputs is not None
    below = str(self.command.inputs())
    with self._disk() as disk:
      for after in sorted(rng.randrange(0, 12) for _ in range(self.command.moments)):
        arguments = {"below": below, "number": errno.EIO, "after": after}
        finished = self._start(disk, ("tests.torture.small_disks", "fail_reads", arguments)).finish()
        if finished.code == 0:
          return self._check_success(disk, finished)  # it reads less often
        if found := self._check_failure(disk, finished, 1, (os.strerror(errno.EIO),)):
          return f"EIO after {after} reads: {found}"
        if below not in finished.error:
          return f"the error does not name the file: {finished.error!r}"
      return self._finish(disk)


def _printed(attack: Attack, share: float) -> str | None:
  """Standard output on a full disk: what is there is the beginning of the answers."""
  with attack._disk() as disk:
    disk.resize(round(share * attack.reference().kib))
    finished = attack._start(disk).finish()
    if found := finished.wrong(1):
      return found
    whole = attack.reference().contents[_STDOUT]
    if not whole.startswith((disk.path / _STDOUT).read_bytes()):
      return "other answers"
    return attack._finish(disk)


def _full_scratch(attack: Attack, rng: random.Random) -> str | None:
  """TMPDIR on a disk that is full, or becomes full at a random moment; the output is elsewhere."""
  with attack._disk() as disk, SmallDisk(attack.context.new_directory("scratch") / "disk", 4) as scratch:
    if rng.random() < 0.5:
      scratch.fill()
    process = attack.places.start(attack.command.argv(disk.path), env={"TMPDIR": str(scratch.path)})
    time.sleep(rng.uniform(0.1, 1.0) * attack.reference().seconds)
    scratch.fill()
    finished = process.finish()
    if finished.code != 0:
      if found := attack._check_failure(disk, finished, 1, (os.strerror(errno.ENOSPC), "temporary directory")):
        return found
      return attack._finish(disk)
    return attack._check_success(disk, finished)


# ---- the commands ----------------------------------------------------------------------------------------


class Inputs:
  """What the commands read."""

  def __init__(self, places: Workplace):
    self.places = places
    self._lock = threading.RLock()

  @functools.cached_property
  def other_run(self) -> Path:
    """A second run of the classifier, for an ensemble."""
    return self.places._made("disks-classified", lambda output: self.places.classifier(output, "--seed=7"))

  @functools.cached_property
  def questions(self) -> Path:
    """Lines for albert.predict: pairs of sentences."""
    path = self.places.directory / "disks-pairs.tsv"
    sentences = [line for line in self.places.corpus.read_text(encoding="utf-8").splitlines() if line]
    pairs = zip(sentences[::2], sentences[1::2], strict=False)
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return path

  def ensemble(self, disk: Path) -> list[str]:
    with self._lock:
      runs = f"{self.places.classified},{self.other_run}"
    return ["-m", "albert.ensemble", f"--inputs={runs}", f"--output_dir={disk}/both"]

  def report(self, disk: Path) -> list[str]:
    return ["-m", "albert.report", str(self.places.classified), f"--output_file={disk}/report.html"]

  def question_texts(self, disk: Path) -> list[str]:
    squad, race = self.places.squad_train, self.places.race / "dev"
    module = "data_prep.question_texts"
    return ["-m", module, f"--squad_file={squad}", f"--race_file={race}", f"--output_file={disk}/text.txt"]

  def sample_corpus(self, disk: Path) -> list[str]:
    package = Path(sentencepiece.__file__).parents[1] / "absl"
    module = "data_prep.sample_corpus"
    return ["-m", module, f"--packages_dir={package}", "--num_processes=1", f"--output_dir={disk}"]

  def predict(self, disk: Path) -> list[str]:
    del disk
    model = self.places.exported_classifier
    with self._lock:
      questions = self.questions
    return ["-m", "albert.predict", f"--model={model}", f"--input_file={questions}", "--format=tsv"]

  def cached(self, make: Callable[..., list[str]]) -> Callable[[Path], list[str]]:
    return lambda disk: make(disk / "run", f"--cache_dir={disk}/cache")

  def pretraining(self, disk: Path) -> list[str]:
    return self.places.pretraining(disk / "run", "--num_train_steps=6", "--max_eval_steps=2")


def _commands(places: Workplace) -> list[Command]:
  inputs = Inputs(places)
  weights = lambda: places.pretrained  # noqa: E731
  return [
    Command("pretraining", inputs.pretraining, 1, 3, inputs=lambda: places.shards),
    Command("classifier", inputs.cached(places.classifier), 1, 3, inputs=lambda: places.glue),
    Command("SQuAD", inputs.cached(places.squad), 1, 3),
    Command("RACE", inputs.cached(places.race_run), 1, 3),
    Command("export", lambda disk: places.export(places.classified, disk), 1, 2, inputs=lambda: places.classified),
    Command("conversion", lambda disk: places.convert(places.pretrained, disk / "hf"), 5, 1, inputs=weights),
    Command("conversion to TF1", lambda disk: places.convert(places.pretrained, disk / "tf1", "--format=tf1"), 5, 1),
    Command("ensemble", inputs.ensemble, 5, 1, inputs=lambda: places.classified),
    Command("report", inputs.report, 5, 1, ("report.html",), inputs=lambda: places.classified),
    Command("data preparation", lambda disk: places.data_prep(disk / "shards"), 5, 1, inputs=lambda: places.corpus),
    Command(
      "vocabulary", places.train_vocab, 5, 1, ("spiece.model", "spiece.vocab"),
      inputs=lambda: places.corpus,
    ),
    Command("sample of a corpus", inputs.sample_corpus, 5, 1, ("train.txt", "heldout.txt"), has_workers=True),
    Command("text of questions", inputs.question_texts, 5, 1, ("text.txt",), inputs=lambda: places.race),
  ]  # fmt: skip


def _experiments(context: Context, kib: int) -> str | None:
  """The first command of an experiment fails on a full disk."""
  with SmallDisk(context.new_directory("experiments") / "disk", kib) as disk:
    argv = ["-m", "albert.experiments", "--run=masking", "--scale=smoke", f"--output_dir={disk.path}"]
    finished = context.places.run(argv)
    return finished.wrong(1)


def _attacks(attack: Attack) -> Iterator[tuple[str, Callable[[random.Random], str | None]]]:
  """(kind, case) of a command; without the kinds that this machine does not allow."""
  command = attack.command
  for _ in range(command.cases):
    yield "full disk", attack.full
  yield "read-only disk", attack.read_only
  is_like_another = command.name in ("SQuAD", "RACE")  # which write as the classifier does
  if not is_like_another:
    yield "disk filled by another program", attack.filled
  if can_fail_calls() and not is_like_another:
    for _ in range(0 if command.has_workers else max(1, command.cases // 2)):
      yield "EDQUOT or EIO when writing", lambda rng: attack.timed(rng, "write", rng.choice([errno.EDQUOT, errno.EIO]))
    yield "EIO when syncing", lambda rng: attack.timed(rng, "sync", errno.EIO)
  for _ in range(max(1, command.cases // 2)):
    yield "limit on the size of files", attack.limited
  if command.inputs is not None:
    yield "EIO when reading", attack.unreadable
  if command.name == "export":
    yield "TMPDIR on a full disk", functools.partial(_full_scratch, attack)


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  if not can_mount(context.directory / "probe"):
    raise RuntimeError("this process may not mount file systems: run this part as root")
  for command in _commands(context.places):
    attack = Attack(context, command)
    numbers: dict[str, int] = {}
    for kind, run in _attacks(attack):
      number = numbers[kind] = numbers.get(kind, 0) + 1
      rng = context.rng(command.name, kind, number)
      if number <= context.count(command.cases):
        yield Case(f"{command.name}, {kind}", f"{number}", functools.partial(run, rng))
  answers = Attack(context, Command("predict", Inputs(context.places).predict, 1, 1, prints=True))
  for share in (0.0, context.rng("predict").uniform(0.1, 0.9)):
    yield Case("predict, full disk for its output", f"{share:.0%}", functools.partial(_printed, answers, share))
  for kib in (4, context.rng("experiments").randrange(8, 64)):
    yield Case("experiments, full disk", f"{kib} KiB", functools.partial(_experiments, context, kib))
