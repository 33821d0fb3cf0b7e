"""Converts the input files: plans the parts of the text, has processes write them, and checks that no file changed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress
from albert.io.workers import WorkerPool
from data_prep import input_hashes
from data_prep.conversion import duplicates, parts, report
from data_prep.conversion.duplicates import CopyTask
from data_prep.conversion.parts import PartRecord, PartTask, SourcePiece
from data_prep.conversion.report import BAD_RECORD, ReadingReport
from data_prep.readers import formats
from data_prep.readers.settings import FILE, TEXT, ReadingSettings

# A part is made from about this many bytes of input, and from at most this many pieces of files.
PART_BYTES = 8 << 20
_MAX_PIECES = 4096
# The names of parts, of their records, and of the hashes of their documents.
_PART_NAME = re.compile(r"\.?text-\d{8}-\d{15}\.txt(\.json|\.hashes)?")

# The message if nothing remains of the input.
NO_TEXT_MESSAGE = "--input_file: the input holds no text: look at the table above, and check --text_format"


class ConvertedText(NamedTuple):
  """The text that is tokenized: input files that need no conversion, and the parts that were made from the other ones.

  Attributes:
    paths: the text files, in the order of the input.
    report: what was read and left out of the converted files.
    input_ordinals: for each of `paths`, the index of the input file; None for a part.
    entries: for each input file, its entry for the manifest (name, size, SHA-256); None for files that were not
      converted.
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
    unconverted = {
      ordinal: entry
      for ordinal, entry in zip(self.input_ordinals, entries_of_paths, strict=True)
      if ordinal is not None
    }
    return [unconverted[ordinal] if entry is None else entry for ordinal, entry in enumerate(self.entries)]


class _TextFile(NamedTuple):
  """A file of `ConvertedText`.

  Attributes:
    path: the file.
    ordinal: for an input file that needs no conversion, its index; None for a part.
    task: what to write to a part; None for an input file.
  """

  path: str
  ordinal: int | None = None
  task: PartTask | None = None


def _plan(
  inputs: Sequence[str], entries: Sequence[dict[str, Any] | None], settings: ReadingSettings, directory: str
) -> list[_TextFile]:
  """Plans the parts. The plan depends only on the files and the settings.

  Args:
    inputs: the input files, sorted.
    entries: the manifest's entries of the files to convert, None for the others.
    settings: how they are read.
    directory: where the parts are written.
  """
  text_files: list[_TextFile] = []
  num_parts = 0
  for pieces_or_ordinal in _group_pieces(inputs, entries, settings):
    if isinstance(pieces_or_ordinal, int):
      text_files.append(_TextFile(inputs[pieces_or_ordinal], ordinal=pieces_or_ordinal))
      continue
    first = pieces_or_ordinal[0]
    name = f"text-{first.ordinal:08d}-{first.piece.start:015d}.txt"
    path = files.join(directory, name)
    # With --drop_duplicates, a part is first written to a hidden file, and then copied without the duplicates.
    written_path = files.join(directory, f".{name}") if settings.drop_duplicates else path
    text_files.append(_TextFile(path, task=PartTask(pieces_or_ordinal, settings, written_path, num_parts)))
    num_parts += 1
  return text_files


def _group_pieces(
  inputs: Sequence[str], entries: Sequence[dict[str, Any] | None], settings: ReadingSettings
) -> Iterator[tuple[SourcePiece, ...] | int]:
  """Groups the pieces of the files to convert. Short files share a part.

  Args:
    inputs: the input files, sorted.
    entries: the manifest's entries of the files to convert, None for the others.
    settings: how they are read.

  Yields:
    In the order of the input: the pieces of each part, and the index of each file that is not converted.
  """
  group: list[SourcePiece] = []
  for ordinal, (path, entry) in enumerate(zip(inputs, entries, strict=True)):
    if entry is None:
      if group:
        yield tuple(group)
        group = []
      yield ordinal
      continue
    reader = formats.reader_of(formats.format_of(path, settings))
    for piece in reader.plan(path, settings, PART_BYTES):
      num_bytes = sum(source.piece.num_bytes for source in group)
      if group and (num_bytes + piece.num_bytes > PART_BYTES or len(group) >= _MAX_PIECES):
        yield tuple(group)
        group = []
      group.append(SourcePiece(ordinal, piece, entry["sha256"]))
  if group:
    yield tuple(group)


def convert_inputs(
  inputs: Sequence[str],
  settings: ReadingSettings,
  directory: str,
  pool: WorkerPool,
  *,
  convert_all: bool = False,
) -> ConvertedText:
  """Converts the input files that do not have the form that is tokenized (`formats.is_read_directly`).

  If an earlier command was stopped, the parts that it wrote are kept, as far as files and settings are the same.

  Args:
    inputs: the input files, sorted.
    settings: how they are read.
    directory: where the parts are written.
    pool: processes that read and write the files.
    convert_all: whether files that have this form already are converted, too.

  Raises:
    UserError: bad input, or a file changed while it was read.
    RunError: the disk or the system failed.
  """
  to_convert = [path for path in inputs if convert_all or not formats.is_read_directly(path, settings)]
  entries_by_path = _hash_files(to_convert, pool, "hashing input")
  entries = [entries_by_path.get(path) for path in inputs]
  text_files = _plan(inputs, entries, settings, directory)
  part_paths = {text_file.path for text_file in text_files if text_file.task is not None}
  if overwritten := sorted(part_paths & {*inputs}):
    raise UserError(f"{overwritten[0]} is an input file, and would be written, too: give another --output_dir")
  tasks = [text_file.task for text_file in text_files if text_file.task is not None]
  records = _complete_parts(tasks, settings, entries_by_path, pool)
  reading_report = report.add_reports(records[task.path].report for task in tasks)
  _check_bad_records(reading_report, settings)
  _remove_other_parts(directory, {path for task in tasks for path in (task.path, task.record_path, task.hashes_path)})
  if settings.drop_duplicates:
    reading_report = _drop_duplicates(text_files, reading_report, pool)
  kept = [text_file for text_file in text_files if text_file.task is None or _has_text_or_remove(text_file.path)]
  paths, ordinals = [text_file.path for text_file in kept], [text_file.ordinal for text_file in kept]
  return ConvertedText(paths, reading_report, ordinals, entries)


def _hash_files(paths: Sequence[str], pool: WorkerPool, action: str) -> dict[str, dict[str, Any]]:
  """Returns the manifest's entry of each file (name, size, SHA-256). A progress bar shows the action."""
  entries: dict[str, dict[str, Any]] = {}
  with Progress(sum(map(files.size, paths)), "B", action) as progress:
    for path, entry in pool.map(input_hashes.hash_file, list(paths)):
      entries[path] = entry
      progress.update(entry["bytes"])
  return entries


def _complete_parts(
  tasks: Sequence[PartTask], settings: ReadingSettings, entries_by_path: dict[str, dict[str, Any]], pool: WorkerPool
) -> dict[str, PartRecord]:
  """Writes the parts that no earlier command has written.

  Args:
    tasks: all parts.
    settings: how the text is read.
    entries_by_path: the manifest's entry of each file to convert, as it was before it was read.
    pool: processes that read and write the files.

  Returns:
    Path -> record, for all parts.

  Raises:
    UserError: bad input, or a file changed while it was read.
  """
  records: dict[str, PartRecord] = {}
  for task in tasks:
    if record := parts.load_record(task):
      records[task.path] = record
  if records:
    print(f"kept {len(records)} of {len(tasks)} parts of the text of an earlier run")
  missing = [task for task in tasks if task.path not in records]
  records |= _write_parts(missing, settings, pool)
  read_paths = {source.piece.path for task in missing for source in task.pieces}
  _check_unchanged({path: entries_by_path[path] for path in sorted(read_paths)}, pool)
  return records


def _write_parts(tasks: Sequence[PartTask], settings: ReadingSettings, pool: WorkerPool) -> dict[str, PartRecord]:
  """Writes parts. Returns the record of each part, by its path.

  Raises:
    UserError: bad input, or more bad records than --skip_bad_records.
  """
  records: dict[str, PartRecord] = {}
  num_bad = 0
  with Progress(sum(task.num_bytes for task in tasks), "B", "reading text") as progress:
    for task, record in pool.map(parts.write_part, tasks):
      records[task.path] = record
      progress.update(task.num_bytes)
      num_bad += record.report.num_bad
      if num_bad > settings.skip_bad_records:
        _check_bad_records(report.add_reports(item.report for item in records.values()), settings)
  return records


def _has_text_or_remove(path: str) -> bool:
  """Whether a part has documents. If not, its file is removed, since no command accepts an empty file."""
  if not files.exists(path):
    return False
  if not files.size(path):
    files.remove(path)
    return False
  return True


def _drop_duplicates(text_files: Sequence[_TextFile], before: ReadingReport, pool: WorkerPool) -> ReadingReport:
  """Copies the parts without duplicates.

  Args:
    text_files: the plan. Its parts are copied.
    before: the report of all parts, with the duplicates.
    pool: processes that read and write the files.

  Returns:
    The report without the duplicates.
  """
  planned = [(text_file.path, text_file.task) for text_file in text_files if text_file.task is not None]
  duplicates_by_part = duplicates.find_duplicates([task.hashes_path for _, task in planned])
  copy_tasks = []
  for path, task in planned:
    is_affected = task.number in duplicates_by_part
    dropped_numbers = tuple(duplicates_by_part[task.number].tolist()) if is_affected else ()
    copy_tasks.append(CopyTask(task.path, path, dropped_numbers))
  results = {copy_task.path: result for copy_task, result in pool.map(duplicates.copy_part, copy_tasks)}
  dropped = report.add_reports(results[path].report for path, _ in planned)
  after = report.add_reports([before, dropped])
  after.sentences -= sum(result.sentences for result in results.values())
  for entry in dropped.dropped.values():
    after.documents -= entry.documents
    after.characters -= entry.characters
  return after


def remove_working_files(directory: str) -> None:
  """Removes the copies of the text that a command with --drop_duplicates needs to continue after it was stopped."""
  for name in files.listdir(directory):
    if name.startswith(".text-") and name.endswith((".txt", ".hashes")):
      files.remove(files.join(directory, name))


def _check_bad_records(reading_report: ReadingReport, settings: ReadingSettings) -> None:
  """Raises a UserError if there are more bad records than --skip_bad_records."""
  if reading_report.num_bad > settings.skip_bad_records:
    example = reading_report.dropped[BAD_RECORD].examples[-1]
    raise parts.too_many_bad_records(example, settings.skip_bad_records)


def _check_unchanged(before: dict[str, dict[str, Any]], pool: WorkerPool) -> None:
  """Raises a UserError if a file changed. `before` maps its path to the manifest's entry from before it was read."""
  after = _hash_files(list(before), pool, "checking input")
  for path, entry in before.items():
    if after[path] != entry:
      raise input_hashes.changed_file_error(path)


def _remove_other_parts(directory: str, paths: set[str]) -> None:
  """Removes the parts of an earlier command that are not in this one's plan."""
  for name in files.listdir(directory):
    path = files.join(directory, name)
    if _PART_NAME.fullmatch(name) and path not in paths:
      files.remove(path)


def print_report(converted: ConvertedText, inputs: Sequence[str], settings: ReadingSettings) -> None:
  """Prints what was read and left out, and warnings about text that was probably not meant to be read in this way.

  Args:
    converted: the result of `convert_inputs`.
    inputs: the input files.
    settings: how they were read.
  """
  print(report.format_table(converted.report))
  text_formats = {formats.format_of(path, settings) for path in inputs}
  for warning in report.warnings(converted.report, _remedies(settings, text_formats)):
    print(warning, file=sys.stderr, flush=True)


def _remedies(settings: ReadingSettings, text_formats: set[str]) -> dict[str, str]:
  """Returns the remedies for `report.warnings`.

  Args:
    settings: how the text was read.
    text_formats: the forms of the input files.
  """
  if not any(settings.splits_sentences(text_format) for text_format in text_formats):
    few_sentences = "give --sentences=split if the lines are paragraphs"
  elif settings.document != FILE and TEXT in text_formats:
    few_sentences = "give --document=file if each file is a document"
  else:
    few_sentences = "give text with longer documents"
  return {
    "few sentences": few_sentences,
    "much dropped": "look at the examples in the table above, and check --text_format and --text_field",
  }
