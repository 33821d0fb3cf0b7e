"""The JSON of tasks, served models and data preparation: valid contents, and the functions that read them."""

from __future__ import annotations

from albert.data import shards, tables
from albert.data.manifest import checksum_of
from albert.tasks.race import files as race_files
from albert.tasks.squad import files as squad_files
from albert.tasks.tagging.files import read_texts
from albert.tasks.tagging.flags import TaggingConfig
from data_prep.block_files import Block
from data_prep.conversion.parts import load_record, read_sentences
from data_prep.readers.records import ReadingSettings
from tests.integration.json_contents import (
  EMPTY_SHA256,
  MULTIPLE_CHOICE_QUESTION,
  RACE_PASSAGE,
  SQUAD_FILE,
)
from tests.integration.json_file import JsonFile
from tests.integration.json_readers import (
  json_line_without_blanks,
  make_block_from_footer,
  make_part,
  make_workspace,
  questions_reader,
  read_request,
)

SHARD_HASHES = {"x": [[1, 2, False], [3, 4, "ab", True]]}
# Name for the tests -> the file. In the functions, d is the directory.
JSON_DATA_FILES = {
  "SQuAD": JsonFile("s.json", SQUAD_FILE, questions_reader(squad_files, version_2=False, with_answers=True)),
  "RACE, a passage": JsonFile("7.txt", RACE_PASSAGE, questions_reader(race_files, with_answers=True)),
  "RACE, JSON lines": JsonFile(
    "r.jsonl", MULTIPLE_CHOICE_QUESTION, questions_reader(race_files, with_answers=True), wrap=json_line_without_blanks
  ),
  "tagged words": JsonFile(
    "w.jsonl",
    {"tokens": ["a"], "tags": ["O"]},
    lambda d: read_texts(str(d / "w.jsonl"), TaggingConfig(), with_tags=True),
    wrap=json_line_without_blanks,
  ),
  "tagged text": JsonFile(
    "w.jsonl",
    {"text": "a", "spans": [{"start": 0, "end": 1, "label": "X"}]},
    lambda d: read_texts(str(d / "w.jsonl"), TaggingConfig(), with_tags=True),
    wrap=json_line_without_blanks,
  ),
  "table": JsonFile(
    "t.jsonl",
    {"id": 3, "text": "a"},
    lambda d: tables.read_table(str(d / "t.jsonl"), ["id", "text"]),
    wrap=json_line_without_blanks,
  ),
  "request": JsonFile(
    "value",
    {"text": "a", "n": 3},
    read_request,
    name_in_error="requests, line 2",
    wrap=json_line_without_blanks,
  ),
  "hashes of shards": JsonFile(
    "h.json",
    {"files": SHARD_HASHES, "checksum": checksum_of(SHARD_HASHES)},
    lambda d: shards._read_cache(str(d / "h.json")),
    result_if_damaged={},
  ),
  "record of a shard": JsonFile(
    "shard-00000.json",
    {
      "content": "c",
      "shard": {"file": "pretraining-00000-of-00016.tfrecord", "examples": 1, "bytes": 0, "sha256": EMPTY_SHA256},
    },
    lambda d: make_workspace(d).find_finished_shard(0, "c"),
    result_if_damaged=None,
    other_files={"pretraining-00000-of-00016.tfrecord": ""},
  ),
  "record of a part of the text": JsonFile(
    ".text-0.txt.json",
    {"sources": make_part("").sources_digest, "num_bytes": 0, "report": {"documents": 0}},
    lambda d: load_record(make_part(str(d / "text-0.txt"))),
    result_if_damaged=None,
  ),
  "JSON lines of text": JsonFile(
    "t.jsonl",
    {"text": "A sentence."},
    lambda d: list(read_sentences(str(d / "t.jsonl"), ReadingSettings(), lambda num_bytes: None)),
    wrap=json_line_without_blanks,
  ),
  "block of instances": JsonFile(
    "x.block",
    {"tables": [[0, 7]], "records": [{}], "summary": {}},
    lambda d: Block.load(str(d / "x.block")),
    result_if_damaged=None,
    wrap=make_block_from_footer,
  ),
}
