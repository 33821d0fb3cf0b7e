"""Reads the input: has processes convert the files to parts of text, and decompress text that needs no conversion."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress, log
from albert.io.workers import WorkerPool
from data_prep import text_files, units
from data_prep.conversion import duplicates, parts, report
from data_prep.conversion.report import ReadingReport
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
    entries: for each input file, its entry for the manifest (name, size, SHA-256); None for a file that is read
      directly.
    originals: path of a decompressed file -> the GZIP file.
  """

  paths: list[str]
  report: ReadingReport
  entries: list[dict[str, Any] | None]
  originals: dict[str, str]


class GzipTask(NamedTuple):
  """A GZIP file to decompress, and the path of the text up to the hash in its name."""

  path: str
  text_prefix: str

  def text_path(self, entry: Mapping[str, Any]) -> str:
    """Returns the path of the text, by the manifest's entry of the GZIP file."""
    return f"{self.text_prefix}-{entry['sha256'][:16]}.txt"


def decompress(task: GzipTask) -> dict[str, Any]:
  """Writes the text of a GZIP file, unless an earlier command has done so. Returns the manifest's entry of the file.

  Raises:
    UserError: the file is damaged, or changed while it was being read.
  """
  metadata = files.stats([task.path])
  entry = units.hash_file(task.path)
  text_path = task.text_path(entry)
  if not files.exists(text_path):
    with text_files.open_stream(task.path) as source, files.write_whole(text_path) as target:
      shutil.copyfileobj(source, target, _BYTES_PER_READ)
      units.check_unchanged(metadata)
  return entry


def _plan(
  inputs: Sequence[str], entries: Mapping[str, dict[str, Any]], settings: ReadingSettings, directory: str
) -> dict[str, parts.PartTask | None]:
  """Plans the parts of the files with `entries`, by these and the settings alone. Short files share a part.

  Returns:
    Path of each text file, in order -> its task; None for an input file without an entry.
  """
  planned: dict[str, parts.PartTask | None] = {}
  numbers = itertools.count()  # of parts
  group: list[parts.SourcePiece] = []  # the pieces of the next part

  def end_part() -> None:
    if group:
      name = f"text-{group[0].ordinal:08d}-{group[0].piece.start:015d}.txt"
      # With --drop_duplicates, a part is first written to a hidden file, and then copied without the duplicates.
      written_path = files.join(directory, f".{name}" if settings.drop_duplicates else name)
      planned[files.join(directory, name)] = parts.PartTask(tuple(group), settings, written_path, next(numbers))
      group.clear()

  for ordinal, path in enumerate(inputs):
    if path not in entries:
      end_part()
      planned[path] = None
      continue
    text_format = formats.format_of(path, settings)
    for piece in formats.READERS[text_format].plan(path, settings, PART_BYTES):
      num_bytes = sum(source.piece.num_bytes for source in group)
      if num_bytes + piece.num_bytes > PART_BYTES or len(group) >= _MAX_PIECES:
        end_part()
      group.append(parts.SourcePiece(ordinal, text_format, piece, entries[path]["sha256"]))
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
  entries_by_path = _map_files(units.hash_file, to_convert, to_convert, pool, "hashing input")
  planned = _plan(inputs, entries_by_path, settings, directory)
  all_parts = {path: task for path, task in planned.items() if task is not None}
  if overwritten := sorted(all_parts.keys() & {*inputs}):
    raise UserError(f"{overwritten[0]} is an input file, and would be written, too: give another --output_dir")
  tasks = list(all_parts.values())
  records = _complete_parts(tasks, pool)
  try:
    units.check_unchanged(metadata)
  except UserError:  # the text of some parts may be another one than their records say
    for task in tasks:
      files.discard(task.record_path)
    raise
  reading_report = report.add_reports(records[task.path].report for task in tasks)
  if reading_report.num_bad > settings.skip_bad_records:
    example = reading_report.dropped[report.BAD_RECORD].examples[-1]
    raise parts.too_many_bad_records(example, settings.skip_bad_records)
  part_files = {path for task in tasks for path in (task.path, task.record_path, task.hashes_path)}
  for name in files.listdir(directory):  # the parts of an earlier command that this one does not plan
    if _PART_NAME.fullmatch(name) and files.join(directory, name) not in part_files:
      files.remove(files.join(directory, name))
  if settings.drop_duplicates:
    reading_report = _drop_duplicates(all_parts, records, pool)
  kept = [path for path, task in planned.items() if task is None or _has_text_or_remove(path)]
  # A GZIP file that needs no conversion is decompressed, so that several processes can read parts of its text.
  gzip_paths = [path for path in inputs if path.endswith(".gz") and path not in entries_by_path]
  gzip_tasks = [GzipTask(path, files.join(directory, f"gzip-{n:08d}")) for n, path in enumerate(gzip_paths)]
  gzip_entries = _map_files(decompress, gzip_tasks, gzip_paths, pool, "decompressing")
  entries_by_path |= {task.path: entry for task, entry in gzip_entries.items()}
  text_paths = {task.path: task.text_path(entry) for task, entry in gzip_entries.items()}
  return ConvertedText(
    paths=[text_paths.get(path, path) for path in kept],
    report=reading_report,
    entries=[entries_by_path.get(path) for path in inputs],
    originals={text_path: path for path, text_path in text_paths.items()},
  )


def _map_files(
  function: Callable[[Any], dict[str, Any]], tasks: Sequence[Any], paths: Sequence[str], pool: WorkerPool, action: str
) -> dict[Any, dict[str, Any]]:
  """Calls a function for the task of each of `paths`, and returns task -> the manifest's entry of the file."""
  entries: dict[Any, dict[str, Any]] = {}
  if tasks:
    with Progress(sum(map(files.size, paths)), "B", action) as progress:
      for task, entry in pool.map(function, tasks):
        entries[task] = entry
        progress.update(entry["bytes"])
  return entries


def _complete_parts(tasks: Sequence[parts.PartTask], pool: WorkerPool) -> dict[str, parts.PartRecord]:
  """Writes the parts that no earlier command has written. Returns path -> record, for all parts."""
  records = {task.path: record for task in tasks if (record := parts.load_record(task))}
  if records:
    print(f"kept {len(records)} of {len(tasks)} parts of the text of an earlier run")
  missing = [task for task in tasks if task.path not in records]
  with Progress(sum(task.num_bytes for task in missing), "B", "reading text") as progress:
    for task, record in pool.map(parts.write_part, missing):
      records[task.path] = record
      progress.update(task.num_bytes)
  return records


def _has_text_or_remove(path: str) -> bool:
  """Whether a part has documents. If not, its file is removed, since no command accepts an empty file."""
  if files.exists(path) and files.size(path):
    return True
  files.discard(path)
  return False


def _drop_duplicates(
  all_parts: Mapping[str, parts.PartTask], records: Mapping[str, parts.PartRecord], pool: WorkerPool
) -> ReadingReport:
  """Copies the parts without duplicates, and returns the report without them."""
  duplicates_by_part = duplicates.find_duplicates([task.hashes_path for task in all_parts.values()])
  copy_tasks = [
    duplicates.CopyTask(task.path, path, frozenset(duplicates_by_part.get(task.number, [])), records[task.path].report)
    for path, task in all_parts.items()
  ]
  reports = {copy_task.path: part_report for copy_task, part_report in pool.map(duplicates.copy_part, copy_tasks)}
  return report.add_reports(reports[path] for path in all_parts)


# ---- after the conversion ------------------------------------------------------------------------------


def remove_working_files(directory: str) -> None:
  """Removes the copies of the text that a command with --drop_duplicates needs to continue after it was stopped."""
  for name in files.listdir(directory):
    if name.startswith(".text-") and name.endswith((".txt", ".hashes")):
      files.remove(files.join(directory, name))


def print_report(converted: ConvertedText, inputs: Sequence[str], settings: ReadingSettings) -> None:
  """Prints what was read and left out, and warnings about text that was probably not meant to be read in this way."""
  print(report.format_table(converted.report))
  text_formats = {formats.format_of(path, settings) for path in inputs}
  if not any(settings.splits_sentences(text_format) for text_format in text_formats):
    remedy = "give --sentences=split if the lines are paragraphs"
  elif settings.document != FILE and TEXT in text_formats:
    remedy = "give --document=file if each file is a document"
  else:
    remedy = "give text with longer documents"
  for warning in report.warnings(converted.report, remedy):
    log(warning)
