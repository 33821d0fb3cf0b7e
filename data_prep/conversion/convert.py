"""Converts the input files: plans the parts of the text, has processes write them, and checks that no file changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress
from data_prep import input_hashes
from data_prep.conversion import duplicates, parts, report
from data_prep.conversion.duplicates import CopyResult, CopyTask
from data_prep.conversion.parts import PartRecord, PartTask, SourcePiece
from data_prep.conversion.report import BAD_RECORD, ReadingReport
from data_prep.readers import formats
from data_prep.readers.settings import FILE, ReadingSettings

# A part is made from about this many bytes of input, and from at most this many files.
PART_BYTES = 8 << 20
_MAX_FILES = 4096
# The names of parts, of their records, and of the hashes of their documents.
_PART_NAME = re.compile(r"\.?text-\d{8}-\d{15}\.txt(\.json|\.hashes)?")

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class RunTasks(Protocol):
  """Calls functions in other processes, possibly on other machines."""

  def __call__(
    self, function: Callable[[Argument], Result], arguments: Sequence[Argument], schema: type[Result]
  ) -> Iterable[tuple[Argument, Result]]:
    """Calls a function for each argument.

    Args:
      function: a function of a module.
      arguments: its arguments; they can be pickled.
      schema: the type of its results; they can be converted to JSON.

    Returns:
      Pairs of arguments and results, in any order.
    """


class ConvertedText(NamedTuple):
  """The input files, those of other forms replaced by the text that was made from them.

  Attributes:
    paths: the text files, in the order of the input.
    report: what was read and left out of the converted files.
    input_ordinals: for each of `paths` the index of the input file; None for the parts of converted files.
    entries: the manifest's entries (name, size, SHA-256) of the input files; None for files that were not converted.
  """

  paths: list[str]
  report: ReadingReport
  input_ordinals: list[int | None]
  entries: list[dict[str, Any] | None]

  def input_entries(self, entries_of_paths: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the manifest's entries of all input files.

    Args:
      entries_of_paths: the entries of `paths`.
    """
    found = {
      ordinal: entry
      for ordinal, entry in zip(self.input_ordinals, entries_of_paths, strict=True)
      if ordinal is not None
    }
    return [found[ordinal] if entry is None else entry for ordinal, entry in enumerate(self.entries)]


class _Slot(NamedTuple):
  """A text file of the result: an input file as it is, or a part to write."""

  ordinal: int | None
  path: str
  task: PartTask | None


def plan(
  inputs: Sequence[str],
  entries: Sequence[dict[str, Any] | None],
  settings: ReadingSettings,
  directory: str,
  part_bytes: int,
) -> list[_Slot]:
  """Plans the parts. Short files share a part. The plan depends only on the files and the settings.

  Args:
    inputs: the input files, sorted.
    entries: the manifest's entries of the files to convert, None for the others.
    settings: how they are read.
    directory: where the parts are written.
    part_bytes: a part is made from about this many bytes of input.
  """
  slots: list[_Slot] = []
  group: list[SourcePiece] = []

  def end_part() -> None:
    if group:
      name = f"text-{group[0].ordinal:08d}-{group[0].piece.start:015d}.txt"
      path = files.join(directory, name)
      # With --drop_duplicates the parts are copied to this path later, without the duplicates.
      part_path = files.join(directory, f".{name}") if settings.drop_duplicates else path
      number = sum(slot.task is not None for slot in slots)
      slots.append(_Slot(None, path, PartTask(tuple(group), settings, part_path, number)))
      group.clear()

  for ordinal, (path, entry) in enumerate(zip(inputs, entries, strict=True)):
    if entry is None:
      end_part()
      slots.append(_Slot(ordinal, path, None))
      continue
    reader = formats.reader_of(formats.format_of(path, settings))
    for piece in reader.plan(path, settings, part_bytes):
      num_bytes = sum(source.piece.num_bytes for source in group)
      if group and (num_bytes + piece.num_bytes > part_bytes or len(group) >= _MAX_FILES):
        end_part()
      group.append(SourcePiece(ordinal, piece, entry["sha256"]))
  end_part()
  return slots


def convert_inputs(
  inputs: Sequence[str],
  settings: ReadingSettings,
  directory: str,
  run_tasks: RunTasks,
  *,
  convert_all: bool = False,
) -> ConvertedText:
  """Converts the input files of other forms than that in which text is tokenized.

  Parts of an earlier command that still fit are kept.

  Args:
    inputs: the input files, sorted.
    settings: how they are read.
    directory: where the parts are written.
    run_tasks: calls functions in processes.
    convert_all: whether files that have this form are converted, too.

  Raises:
    UserError: bad input, or a file changed while it was read.
    RunError: the disk or the system failed.
  """
  to_convert = [path for path in inputs if convert_all or not formats.is_read_directly(path, settings)]
  hashes = _hash_files(to_convert, run_tasks, "hashing input")
  entries = [hashes.get(path) for path in inputs]
  slots = plan(inputs, entries, settings, directory, PART_BYTES)
  tasks = [slot.task for slot in slots if slot.task is not None]
  if overwritten := sorted({slot.path for slot in slots if slot.task is not None} & {*inputs}):
    raise UserError(f"{overwritten[0]} is an input file, and would be written, too: give another --output_dir")
  records = {task.path: record for task in tasks if (record := parts.load_record(task))}
  missing = [task for task in tasks if task.path not in records]
  if records:
    print(f"kept {len(records)} of {len(tasks)} parts of the text of an earlier run")
  records |= _write_parts(missing, settings, run_tasks)
  changed_paths = {source.piece.path for task in missing for source in task.pieces}
  _check_unchanged({path: hashes[path] for path in sorted(changed_paths)}, run_tasks)
  total = report.add_reports(records[task.path].report for task in tasks)
  _check_bad_records(total, settings)
  _remove_others(directory, {path for task in tasks for path in (task.path, task.record_path, task.hashes_path)})
  if settings.drop_duplicates:
    total = _drop_duplicates(slots, total, directory, run_tasks)
  kept = [slot for slot in slots if slot.task is None or _has_text(slot.path)]
  return ConvertedText([slot.path for slot in kept], total, [slot.ordinal for slot in kept], entries)


def _hash_files(paths: Sequence[str], run_tasks: RunTasks, action: str) -> dict[str, dict[str, Any]]:
  entries: dict[str, dict[str, Any]] = {}
  with Progress(sum(map(files.size, paths)), "B", action) as progress:
    for path, entry in run_tasks(input_hashes.hash_file, list(paths), dict[str, Any]):
      entries[path] = entry
      progress.update(entry["bytes"])
  return entries


def _write_parts(tasks: Sequence[PartTask], settings: ReadingSettings, run_tasks: RunTasks) -> dict[str, PartRecord]:
  records: dict[str, PartRecord] = {}
  num_bad = 0
  with Progress(sum(task.num_bytes for task in tasks), "B", "reading text") as progress:
    for task, record in run_tasks(parts.write_part, tasks, PartRecord):
      records[task.path] = record
      progress.update(task.num_bytes)
      num_bad += record.report.num_bad
      if num_bad > settings.skip_bad_records:
        _check_bad_records(report.add_reports(item.report for item in records.values()), settings)
  return records


def _has_text(path: str) -> bool:
  """Whether a part has documents. If not, its file is removed, since no command accepts an empty file."""
  if not files.exists(path):
    return False
  if not files.size(path):
    files.remove(path)
    return False
  return True


def _drop_duplicates(
  slots: Sequence[_Slot], total: ReadingReport, directory: str, run_tasks: RunTasks
) -> ReadingReport:
  """Copies the parts without duplicates. Returns the report with them."""
  numbered = [(slot.path, slot.task) for slot in slots if slot.task is not None]
  found = duplicates.find_duplicates([task.hashes_path for _, task in numbered], directory)
  copies = [
    CopyTask(task.path, path, tuple(found[task.number].tolist()) if task.number in found else ())
    for path, task in numbered
  ]
  results = {copy.path: result for copy, result in run_tasks(duplicates.copy_part, copies, CopyResult)}
  dropped = report.add_reports(results[path].report for path, _ in numbered)
  total = report.add_reports([total, dropped])
  total.sentences -= sum(result.sentences for result in results.values())
  for entry in dropped.dropped.values():
    total.documents -= entry.documents
    total.characters -= entry.characters
  return total


def remove_working_files(directory: str) -> None:
  """Removes the copies of the text that a command with --drop_duplicates needs to continue after it was stopped."""
  for name in files.listdir(directory):
    if name.startswith(".text-") and name.endswith((".txt", ".hashes")):
      files.remove(files.join(directory, name))


def _check_bad_records(total: ReadingReport, settings: ReadingSettings) -> None:
  if total.num_bad > settings.skip_bad_records:
    example = total.dropped[BAD_RECORD].examples[-1]
    raise parts.too_many_bad_records(example, settings.skip_bad_records)


def _check_unchanged(before: dict[str, dict[str, Any]], run_tasks: RunTasks) -> None:
  after = _hash_files(list(before), run_tasks, "checking input")
  for path, entry in before.items():
    if after[path] != entry:
      raise UserError(
        f"{path} changed while it was being read: nothing was written from it; run the same command again when no "
        "other program writes to this file"
      )


def _remove_others(directory: str, paths: set[str]) -> None:
  """Removes the parts of an earlier command that are not in this one's plan."""
  for name in files.listdir(directory):
    path = files.join(directory, name)
    if _PART_NAME.fullmatch(name) and path not in paths:
      files.remove(path)


def remedies(settings: ReadingSettings, text_formats: Iterable[str]) -> dict[str, str]:
  """Returns the remedies for `report.warnings`, for text that is read with these settings."""
  forms = set(text_formats)
  few = "give --sentences=split if the lines are paragraphs"
  if any(settings.splits_sentences(form) for form in forms):
    few = "give text with longer documents"
    if settings.document != FILE and "text" in forms:
      few = "give --document=file if each file is a document"
  return {
    "few sentences": few,
    "much dropped": "look at the examples in the table above, and check --text_format and --text_field",
  }
