"""Runs commands on a disk that is full or read-only, limits the size of files, or fails, and then without faults.

In most cases the disk fails at a random moment. Then the command is repeated, and the disk may fail again later. The
result of the last run, on a disk without faults, is compared with that of an undisturbed run.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from albert.weights.checkpoints import find_damage
from tests.torture import outputs
from tests.torture.campaign import Case, Context
from tests.torture.commands import Command, all_commands
from tests.torture.small_disks import SmallDisk, can_fail_calls, can_mount
from tests.torture.workplace import Finished, Prelude, Running

# Files that are not compared, because they hold times.
_NOT_COMPARED = {"environment.json", "curves.png", "fingerprint.pb", ".lock"}
_LOGS = {"metrics.jsonl", "eval_metrics.jsonl"}
# The content of files that the command replaces. A report replaces only an HTML page.
_OLD_CONTENT = b"<!DOCTYPE html>\nwhat was there before\n"
# The file on the disk to which the standard output of albert.predict goes.
_STDOUT = "answers.jsonl"
_OUTPUT = "output"  # the output directory on the disk


class Settings(NamedTuple):
  """How a command is attacked.

  Attributes:
    num_cases: number of cases of each kind in the full campaign.
    num_failures: how often the disk fails in a case. The command is repeated after each failure, and gets further.
    input_name: the file or directory of the workplace that the command reads through albert.io.files. "" if failing
      reads are not tested.
    replaced: files in the output directory that the command replaces. They exist before the command starts.
    has_workers: whether the command starts worker processes. System calls for writing are then not made to fail, since
      the pipes to the workers would fail, too.
  """

  num_cases: int
  num_failures: int
  input_name: str = ""
  replaced: tuple[str, ...] = ()
  has_workers: bool = False


_SETTINGS = {
  "pretraining": Settings(1, 3, "shards"),
  "classifier": Settings(1, 3, "glue_dir"),
  "SQuAD": Settings(1, 3),
  "RACE": Settings(1, 3),
  "data preparation": Settings(5, 1, "corpus"),
  "vocabulary": Settings(5, 1, "corpus", ("spiece.model", "spiece.vocab")),
  "export": Settings(1, 2, "classifier_run"),
  "convert": Settings(5, 1, "pretraining_run"),
  "convert to TF1": Settings(5, 1),
  "report": Settings(5, 1, "pretraining_run", ("page.html",)),
  "ensemble": Settings(5, 1, "classifier_run"),
  "predict": Settings(1, 1),
  "question texts": Settings(5, 1, "squad_dev_file", ("text.txt",)),
  "sample corpus": Settings(5, 1, "", ("train.txt", "heldout.txt"), has_workers=True),
}


class Reference(NamedTuple):
  """The results of a command on a disk without faults."""

  contents: dict[str, Any]
  kib: int
  largest_file: int
  seconds: float
  num_warnings: int


def read_contents(directory: Path) -> dict[str, Any]:
  """Reads the files below a directory, except for hidden files and files that hold times."""
  contents: dict[str, Any] = {}
  for path in sorted(directory.rglob("*")):
    name = str(path.relative_to(directory))
    folders_and_name = path.relative_to(directory).parts
    is_hidden = any(part.startswith(".") for part in folders_and_name)
    if not path.is_file() or is_hidden or path.name in _NOT_COMPARED or "tensorboard" in folders_and_name:
      continue
    if "checkpoints" in folders_and_name and path.name != "best.json":
      if path.name == "weights.index":
        contents[name] = outputs.read_tensors(str(path.with_suffix("")), path.stat().st_mtime_ns)
    elif path.name in _LOGS:
      contents[name] = outputs.read_log_lines(path)
    else:
      contents[name] = path.read_bytes().replace(str(directory).encode(), b"DISK")
  return contents


def find_difference(contents: dict[str, Any], expected: dict[str, Any]) -> str | None:
  """Compares two results of `read_contents`. Returns the first difference, or None."""
  if contents.keys() != expected.keys():
    return f"files of only one of them: {sorted(contents.keys() ^ expected.keys())[:5]}"
  different = [name for name in expected if contents[name] != expected[name]]
  return f"files that differ: {different[:5]}" if different else None


def _read_all(directory: Path) -> dict[Path, bytes]:
  return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


class Attack:
  """The attacks on one command. A method that checks or attacks returns what is wrong, or None."""

  def __init__(self, command: Command):
    self.context, self.command, self.workplace = command.context, command, command.context.workplace
    self.settings = _SETTINGS[command.name]
    self._lock = threading.Lock()
    self._reference: Reference | None = None

  def _start(self, disk: SmallDisk, prelude: Prelude | None = None) -> Running:
    """Starts the command with its output on the disk. The prelude makes the disk fail."""
    output = disk.path / _STDOUT if self.command.name == "predict" else None
    if output is not None:
      output.unlink(missing_ok=True)
    return self.workplace.start(self.command.argv(disk.path / _OUTPUT), stdout=output, prelude=prelude)

  def _new_disk(self) -> SmallDisk:
    """Mounts a disk with the files that the command replaces."""
    disk = SmallDisk(self.context.new_directory(self.command.name.replace(" ", "_")) / "disk")
    (disk.path / _OUTPUT).mkdir()
    for name in self.settings.replaced:
      (disk.path / _OUTPUT / name).write_bytes(_OLD_CONTENT)
    return disk

  def reference(self) -> Reference:
    """Returns the results on a disk without faults. The first call runs the command."""
    with self._lock:
      if self._reference is None:
        with self._new_disk() as disk:
          started = time.monotonic()
          finished = self._start(disk).finish()
          if wrong := finished.unexpected_end():
            raise RuntimeError(f"the undisturbed {self.command.name}: {wrong}")
          seconds = time.monotonic() - started
          sizes = [path.stat().st_size for path in disk.path.rglob("*") if path.is_file()]
          num_warnings = finished.stderr.count("warning: ")
          self._reference = Reference(read_contents(disk.path), disk.used_kib, max(sizes), seconds, num_warnings)
      return self._reference

  def _check_failure(self, disk: SmallDisk, finished: Finished, code: int, reasons: tuple[str, ...]) -> str | None:
    """Checks the end of a command that failed because of the disk, and the files that it left."""
    if wrong := finished.unexpected_end(code):
      return wrong
    if not any(reason in finished.error for reason in reasons):
      return f"the error does not say why: {finished.error!r}"
    if leftover_names := outputs.leftovers(disk.path):
      return f"left over: {leftover_names[:3]}"
    expected = self.reference().contents
    for name, content in read_contents(disk.path).items():
      path = disk.path / name
      is_old = path.name in self.settings.replaced and path.read_bytes() == _OLD_CONTENT
      may_be_unfinished = path.name in _LOGS or path.name == "best.json" or name == _STDOUT
      if name in expected and not may_be_unfinished and not is_old and content != expected[name]:
        return f"half written: {name} ({finished.error!r})"
    for path in disk.path.rglob("checkpoints/step-*"):
      if damage := find_damage(str(path)):
        return f"{path}: {damage}"
    return None

  def _has_more_warnings(self, finished: Finished) -> bool:
    """Whether the command warned more often than the undisturbed run, because it could not write an optional file."""
    return finished.stderr.count("warning: ") > self.reference().num_warnings

  def _check_success(self, disk: SmallDisk, finished: Finished) -> str | None:
    """Checks a command that succeeded, because the fault came too late or affected only an optional file."""
    if wrong := finished.unexpected_end():
      return wrong
    if self._has_more_warnings(finished):  # repeated, the command writes the optional file (feature cache, TensorBoard)
      return self._finish(disk)
    return find_difference(read_contents(disk.path), self.reference().contents)

  def _finish(self, disk: SmallDisk) -> str | None:
    """Repeats the command on a disk with enough space and without faults, and checks its results."""
    disk.resize()
    finished = self._start(disk).finish()
    if wrong := finished.unexpected_end():
      return f"repeated with enough space: {wrong}"
    if leftover_names := outputs.leftovers(disk.path):
      return f"repeated with enough space, left over: {leftover_names[:3]}"
    if wrong := find_difference(read_contents(disk.path), self.reference().contents):
      return f"repeated with enough space: {wrong}"
    return None

  # ---- kinds of cases --------------------------------------------------------------------------------------

  def run_on_full_disk(self, rng: random.Random) -> str | None:
    """Runs the command on a disk with a random share of the space that it needs, then with larger shares."""
    shares = sorted(rng.uniform(0.0, 0.95) for _ in range(self.settings.num_failures))
    with self._new_disk() as disk:
      for share in shares:
        disk.resize(round(share * self.reference().kib))
        finished = self._start(disk).finish()
        if finished.code == 0 and self._has_more_warnings(finished):
          return self._check_success(disk, finished)
        reasons = (os.strerror(errno.ENOSPC),)
        if wrong := self._check_failure(disk, finished, 1, reasons):
          return f"on a disk of {share:.0%} of {self.reference().kib} KiB: {wrong}"
      return self._finish(disk)

  def fill_disk_meanwhile(self, rng: random.Random) -> str | None:
    """Fills the disk at a random moment of the run, as another program may do."""
    with self._new_disk() as disk:
      seconds = rng.uniform(0.1, 1.0) * self.reference().seconds
      process = self._start(disk)
      time.sleep(seconds)
      filler = disk.fill()
      finished = process.finish()
      filler.unlink(missing_ok=True)
      if finished.code == 0:
        return self._check_success(disk, finished)
      if wrong := self._check_failure(disk, finished, 1, (os.strerror(errno.ENOSPC),)):
        return f"filled after {seconds:.2f} s: {wrong}"
      return self._finish(disk)

  def fail_calls(self, rng: random.Random, calls: str, number: int) -> str | None:
    """Makes system calls of the kind `calls` return error `number` from a random moment on (small_disks.fail_calls)."""
    with self._new_disk() as disk:
      for _ in range(self.settings.num_failures):
        seconds = rng.uniform(0.0, 0.7) * self.reference().seconds
        prelude = ("tests.torture.small_disks", "fail_calls", {"calls": calls, "number": number, "seconds": seconds})
        finished = self._start(disk, prelude).finish()
        if finished.code == 0:
          return self._check_success(disk, finished)  # it had ended before the first failing call
        if wrong := self._check_failure(disk, finished, 1, (os.strerror(number),)):
          return f"{errno.errorcode[number]} of {calls} after {seconds:.2f} s: {wrong}"
      return self._finish(disk)

  def limit_file_size(self, rng: random.Random) -> str | None:
    """Limits the size of each file to a random share of the largest one, then to larger shares."""
    largest_file = self.reference().largest_file
    with self._new_disk() as disk:
      for share in sorted(rng.uniform(0.0, 0.9) for _ in range(self.settings.num_failures)):
        limit = max(1000, round(share * largest_file))  # standard error is a file, too
        prelude = ("tests.torture.small_disks", "limit_files", {"num_bytes": limit})
        finished = self._start(disk, prelude).finish()
        if finished.code == 0 and self._has_more_warnings(finished):
          return self._check_success(disk, finished)
        if wrong := self._check_failure(disk, finished, 1, (os.strerror(errno.EFBIG),)):
          return f"with a limit of {limit} bytes per file: {wrong}"
      return self._finish(disk)

  def run_on_read_only_disk(self, rng: random.Random) -> str | None:
    """Runs the command on a read-only disk, which is empty or holds the files of a stopped command."""
    with self._new_disk() as disk:
      if rng.random() < 0.5:
        disk.resize(round(rng.uniform(0.3, 0.9) * self.reference().kib))
        self._start(disk).finish()
        disk.resize()
      before = _read_all(disk.path)
      disk.make_read_only()
      finished = self._start(disk).finish()
      if wrong := finished.unexpected_end(2):
        return wrong
      if _read_all(disk.path) != before:
        return "something was changed"
      return self._finish(disk)

  def fail_reads(self, rng: random.Random) -> str | None:
    """Makes reading the input fail after a random number of reads, then after more reads."""
    below = str(getattr(self.workplace, self.settings.input_name))
    with self._new_disk() as disk:
      for after in sorted(rng.randrange(0, 12) for _ in range(self.settings.num_failures)):
        arguments = {"below": below, "number": errno.EIO, "after": after}
        finished = self._start(disk, ("tests.torture.small_disks", "fail_reads", arguments)).finish()
        if finished.code == 0:
          return self._check_success(disk, finished)  # it needs fewer reads
        if wrong := self._check_failure(disk, finished, 1, (os.strerror(errno.EIO),)):
          return f"EIO after {after} reads: {wrong}"
        if below not in finished.error:
          return f"the error does not name the file: {finished.error!r}"
      return self._finish(disk)


def _print_to_full_disk(attack: Attack, share: float) -> str | None:
  """Prints to a file on a full disk. The file must then hold the beginning of the answers."""
  with attack._new_disk() as disk:
    disk.resize(round(share * attack.reference().kib))
    finished = attack._start(disk).finish()
    if wrong := finished.unexpected_end(1):
      return wrong
    all_answers = attack.reference().contents[_STDOUT]
    if not all_answers.startswith((disk.path / _STDOUT).read_bytes()):
      return "other answers"
    return attack._finish(disk)


def _fill_temporary_directory(attack: Attack, rng: random.Random) -> str | None:
  """Puts TMPDIR on a disk that is full, or becomes full at a random moment. The output is on another disk."""
  with attack._new_disk() as disk, SmallDisk(attack.context.new_directory("scratch") / "disk", 4) as scratch_disk:
    if rng.random() < 0.5:
      scratch_disk.fill()
    process = attack.workplace.start(attack.command.argv(disk.path / _OUTPUT), env={"TMPDIR": str(scratch_disk.path)})
    time.sleep(rng.uniform(0.1, 1.0) * attack.reference().seconds)
    scratch_disk.fill()
    finished = process.finish()
    if finished.code != 0:
      if wrong := attack._check_failure(disk, finished, 1, (os.strerror(errno.ENOSPC), "temporary directory")):
        return wrong
      return attack._finish(disk)
    return attack._check_success(disk, finished)


def _run_experiment_on_full_disk(context: Context, kib: int) -> str | None:
  """Runs an experiment whose first command fails on a full disk."""
  with SmallDisk(context.new_directory("experiments") / "disk", kib) as disk:
    argv = ["-m", "albert.experiments", "--run=masking", "--scale=smoke", f"--output_dir={disk.path}"]
    finished = context.workplace.run(argv)
    if wrong := finished.unexpected_end(1):
      return wrong
    reasons = (f"the disk of {disk.path}", os.strerror(errno.ENOSPC))
    says_why = any(reason in finished.error for reason in reasons)
    return None if says_why else f"the error does not say why: {finished.error!r}"


def _kinds_of_attacks(attack: Attack) -> Iterator[tuple[str, Callable[[random.Random], str | None]]]:
  """Yields (kind, function that attacks), without the kinds that this machine does not allow."""
  command, settings = attack.command, attack.settings
  for _ in range(settings.num_cases):
    yield "full disk", attack.run_on_full_disk
  yield "read-only disk", attack.run_on_read_only_disk
  is_like_another = command.name in ("SQuAD", "RACE")  # these write the same files as the classifier
  if not is_like_another:
    yield "disk filled by another program", attack.fill_disk_meanwhile
  if can_fail_calls() and not is_like_another:
    num_failing_writes = 0 if settings.has_workers else max(1, settings.num_cases // 2)
    for _ in range(num_failing_writes):
      yield (
        "EDQUOT or EIO when writing",
        lambda rng: attack.fail_calls(rng, "write", rng.choice([errno.EDQUOT, errno.EIO])),
      )
    yield "EIO when syncing", lambda rng: attack.fail_calls(rng, "sync", errno.EIO)
  for _ in range(max(1, settings.num_cases // 2)):
    yield "limit on the size of files", attack.limit_file_size
  if settings.input_name:
    yield "EIO when reading", attack.fail_reads
  if command.name == "export":
    yield "TMPDIR on a full disk", functools.partial(_fill_temporary_directory, attack)


def cases(context: Context) -> Iterator[Case]:
  if not can_mount(context.directory / "probe"):
    raise RuntimeError("this process may not mount file systems: run this part as root")
  workplace = context.workplace
  commands = {command.name: command for command in all_commands(context)}
  predict = Attack(commands.pop("predict"))
  commands["convert to TF1"] = Command(
    context,
    "convert to TF1",
    lambda output: workplace.convert_command(workplace.pretraining_run, output, "--format=tf1"),
    outputs.difference_of_files,
  )
  for command in commands.values():
    attack = Attack(command)
    numbers: dict[str, int] = {}
    for kind, run in _kinds_of_attacks(attack):
      number = numbers[kind] = numbers.get(kind, 0) + 1
      rng = context.rng(command.name, kind, number)
      if number <= context.count(attack.settings.num_cases):
        yield Case(f"{command.name}, {kind}", f"{number}", functools.partial(run, rng))
  for share in (0.0, context.rng("predict").uniform(0.1, 0.9)):
    yield Case(
      "predict, full disk for its output", f"{share:.0%}", functools.partial(_print_to_full_disk, predict, share)
    )
  for kib in (4, context.rng("experiments").randrange(8, 64)):
    yield Case("experiments, full disk", f"{kib} KiB", functools.partial(_run_experiment_on_full_disk, context, kib))
