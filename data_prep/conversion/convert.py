"""Reads the input: has processes convert the files to parts of text, and decompress text that needs no conversion."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from albert.errors import UserError
from albert.io import files, json_values
from albert.io.progress import Progress
from albert.io.workers import WorkerPool
from data_prep import text_files, units
from data_prep.conversion import duplicates, parts, report
from data_prep.conversion.duplicates import CopyTask
from data_prep.conversion.parts import PartRecord, PartTask, SourcePiece
from data_prep.conversion.report import BAD_RECORD, ReadingReport
from data_prep.readers import formats
from data_prep.readers.records import FILE, TEXT, ReadingSettings

# A part is made from about this many bytes of input, and from at most this many pieces of files.
PART_BYTES = 8 << 20
_MAX_PIECES = 4096
_BYTES_PER_READ = 1 << 20
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
    entries: for each input file, its entry for the manifest (name, size, SHA-256); None for a file that is read
      directly.
    originals: path of a decompressed file -> the GZIP file.
  """

  paths: list[str]
  report: ReadingReport
  input_ordinals: list[int | None]
  entries: list[dict[str, Any] | None]
  originals: dict[str, str]


class _TextFile(NamedTuple):
  """A file of `ConvertedText`: an input file with its index, or a part with its task."""

  path: str
  ordinal: int | None = None
  task: PartTask | None = None


def _plan(
  inputs: Sequence[str], entries: Sequence[dict[str, Any] | None], settings: ReadingSettings, directory: str
) -> list[_TextFile]:
  """Plans the parts, by the files and the settings alone. Short files share a part.

  `entries` has None for the files that are read directly.
  """
  planned: list[_TextFile] = []
  numbers = itertools.count()  # of parts
  group: list[SourcePiece] = []  # the pieces of the next part

  def end_part() -> None:
    if group:
      name = f"text-{group[0].ordinal:08d}-{group[0].piece.start:015d}.txt"
      # With --drop_duplicates, a part is first written to a hidden file, and then copied without the duplicates.
      written_path = files.join(directory, f".{name}" if settings.drop_duplicates else name)
      task = PartTask(tuple(group), settings, written_path, next(numbers))
      planned.append(_TextFile(files.join(directory, name), task=task))
      group.clear()

  for ordinal, (path, entry) in enumerate(zip(inputs, entries, strict=True)):
    if entry is None:
      end_part()
      planned.append(_TextFile(path, ordinal))
      continue
    reader = formats.READERS[formats.format_of(path, settings)]
    for piece in reader.plan(path, settings, PART_BYTES):
      num_bytes = sum(source.piece.num_bytes for source in group)
      if num_bytes + piece.num_bytes > PART_BYTES or len(group) >= _MAX_PIECES:
        end_part()
      group.append(SourcePiece(ordinal, piece, entry["sha256"]))
  end_part()
  return planned


def convert_inputs(
  inputs: Sequence[str], settings: ReadingSettings, directory: str, pool: WorkerPool, *, convert_all: bool = False
) -> ConvertedText:
  """Converts the input files that do not have the form that is tokenized (`formats.is_read_directly`), or all of them.

  If an earlier command was stopped, the parts that it wrote to the directory are kept, as far as files and settings are
  the same.

  Raises:
    UserError: bad input, or a file changed while it was read.
  """
  to_convert = [path for path in inputs if convert_all or not formats.is_read_directly(path, settings)]
  metadata = files.stats(to_convert)
  entries_by_path = _map_files(units.hash_file, to_convert, pool, "hashing input")
  entries = [entries_by_path.get(path) for path in inputs]
  planned = _plan(inputs, entries, settings, directory)
  part_paths = {text_file.path for text_file in planned if text_file.task is not None}
  if overwritten := sorted(part_paths & {*inputs}):
    raise UserError(f"{overwritten[0]} is an input file, and would be written, too: give another --output_dir")
  tasks = [text_file.task for text_file in planned if text_file.task is not None]
  records = _complete_parts(tasks, settings, pool)
  try:
    units.check_unchanged(metadata)
  except UserError:  # the text of some parts may be another one than their records say
    for task in tasks:
      files.discard(task.record_path)
    raise
  reading_report = report.add_reports(records[task.path].report for task in tasks)
  _check_bad_records(reading_report, settings)
  _remove_other_parts(directory, {path for task in tasks for path in (task.path, task.record_path, task.hashes_path)})
  if settings.drop_duplicates:
    reading_report = _drop_duplicates(planned, reading_report, pool)
  kept = [text_file for text_file in planned if text_file.task is None or _has_text_or_remove(text_file.path)]
  paths, ordinals = [text_file.path for text_file in kept], [text_file.ordinal for text_file in kept]
  return _decompress(ConvertedText(paths, reading_report, ordinals, entries, {}), directory, pool)


def _map_files(
  function: Callable[[Any], dict[str, Any]], paths_or_tasks: Sequence[Any], pool: WorkerPool, action: str
) -> dict[Any, dict[str, Any]]:
  """Calls a function that returns the manifest's entry of a file for each file. A progress bar shows the action."""
  entries: dict[Any, dict[str, Any]] = {}
  if paths_or_tasks:
    paths = [getattr(task, "path", task) for task in paths_or_tasks]
    with Progress(sum(map(files.size, paths)), "B", action) as progress:
      for task, entry in pool.map(function, list(paths_or_tasks)):
        entries[task] = entry
        progress.update(entry["bytes"])
  return entries


def _complete_parts(tasks: Sequence[PartTask], settings: ReadingSettings, pool: WorkerPool) -> dict[str, PartRecord]:
  """Writes the parts that no earlier command has written. Returns path -> record, for all parts."""
  earlier = {task.path: record for task in tasks if (record := parts.load_record(task))}
  if earlier:
    print(f"kept {len(earlier)} of {len(tasks)} parts of the text of an earlier run")
  missing = [task for task in tasks if task.path not in earlier]
  records: dict[str, PartRecord] = {}
  num_bad = 0
  with Progress(sum(task.num_bytes for task in missing), "B", "reading text") as progress:
    for task, record in pool.map(parts.write_part, missing):
      records[task.path] = record
      progress.update(task.num_bytes)
      num_bad += record.report.num_bad
      if num_bad > settings.skip_bad_records:
        _check_bad_records(report.add_reports(item.report for item in records.values()), settings)
  return earlier | records


def _has_text_or_remove(path: str) -> bool:
  """Whether a part has documents. If not, its file is removed, since no command accepts an empty file."""
  if files.exists(path) and files.size(path):
    return True
  files.discard(path)
  return False


def _drop_duplicates(planned: Sequence[_TextFile], before: ReadingReport, pool: WorkerPool) -> ReadingReport:
  """Copies the parts without duplicates. `before` is the report with them; returns the one without them."""
  all_parts = [(text_file.path, text_file.task) for text_file in planned if text_file.task is not None]
  duplicates_by_part = duplicates.find_duplicates([task.hashes_path for _, task in all_parts])
  copy_tasks = []
  for path, task in all_parts:
    is_affected = task.number in duplicates_by_part
    dropped_numbers = tuple(duplicates_by_part[task.number].tolist()) if is_affected else ()
    copy_tasks.append(CopyTask(task.path, path, dropped_numbers))
  results = {copy_task.path: result for copy_task, result in pool.map(duplicates.copy_part, copy_tasks)}
  dropped = report.add_reports(results[path].report for path, _ in all_parts)
  after = report.add_reports([before, dropped])
  after.sentences -= sum(result.sentences for result in results.values())
  for entry in dropped.dropped.values():
    after.documents -= entry.documents
    after.characters -= entry.characters
  return after


# ---- GZIP files ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class GzipTask:
  """A GZIP file to decompress, and the text file to write."""

  path: str
  text_path: str

  @property
  def record_path(self) -> str:
    """The file for the `_TextRecord`."""
    return f"{self.text_path}.json"


class _TextRecord(msgspec.Struct):
  """The JSON file beside a decompressed text file: SHA-256 of the GZIP file, in hex, and the size of the text file."""

  sha256: str
  num_bytes: json_values.Count


def _is_decompressed(task: GzipTask, sha256: str) -> bool:
  """Whether an earlier command has decompressed the file with this hash."""
  record = text_files.read_record(task.record_path, _TextRecord)
  return files.exists(task.text_path) and record == _TextRecord(sha256, files.size(task.text_path))


def decompress(task: GzipTask) -> dict[str, Any]:
  """Writes the text of a GZIP file, unless an earlier command has done so. Returns the manifest's entry of the file.

  Raises:
    UserError: the file is damaged, or changed while it was being read.
  """
  metadata = files.stats([task.path])
  entry = units.hash_file(task.path)
  if _is_decompressed(task, entry["sha256"]):
    return entry
  with text_files.open_stream(task.path) as source, files.write_whole(task.text_path) as target:
    shutil.copyfileobj(source, target, _BYTES_PER_READ)
    num_bytes = target.tell()
    units.check_unchanged(metadata)
  files.write_json(task.record_path, {"sha256": entry["sha256"], "num_bytes": num_bytes})
  return entry


def _decompress(text: ConvertedText, directory: str, pool: WorkerPool) -> ConvertedText:
  """Writes the text of each GZIP file that needs no conversion, so that several processes can read parts of it."""
  tasks = {
    path: GzipTask(path, files.join(directory, f"gzip-{number:08d}.txt"))
    for number, path in enumerate(text.paths)
    if path.endswith(".gz")
  }
  entries_by_task = _map_files(decompress, list(tasks.values()), pool, "decompressing")
  entries = list(text.entries)
  for path, ordinal in zip(text.paths, text.input_ordinals, strict=True):
    if path in tasks and ordinal is not None:
      entries[ordinal] = entries_by_task[tasks[path]]
  paths = [tasks[path].text_path if path in tasks else path for path in text.paths]
  return text._replace(paths=paths, entries=entries, originals={task.text_path: path for path, task in tasks.items()})


# ---- after the conversion ------------------------------------------------------------------------------


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


def _remove_other_parts(directory: str, paths: set[str]) -> None:
  """Removes the parts of an earlier command that are not in this one's plan."""
  for name in files.listdir(directory):
    path = files.join(directory, name)
    if _PART_NAME.fullmatch(name) and path not in paths:
      files.remove(path)


def print_report(converted: ConvertedText, inputs: Sequence[str], settings: ReadingSettings) -> None:
  """Prints what was read and left out, and warnings about text that was probably not meant to be read in this way."""
  print(report.format_table(converted.report))
  text_formats = {formats.format_of(path, settings) for path in inputs}
  for warning in report.warnings(converted.report, _remedies(settings, text_formats)):
    print(warning, file=sys.stderr, flush=True)


def _remedies(settings: ReadingSettings, text_formats: set[str]) -> dict[str, str]:
  """Returns the remedies for `report.warnings`, by the forms of the input files."""
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
