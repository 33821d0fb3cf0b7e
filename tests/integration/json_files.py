"""The JSON files that the code reads: a valid content of each, and the function that reads it.

tests/integration/test_json_files.py reads all of them with damaged contents.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert.config.model import load_model_config
from albert.config.recipes import read_recipe
from albert.config.run import process_addresses
from albert.data import shards, tables
from albert.data.manifest import DataContent, Manifest, checksum_of
from albert.export.companion_files import RequestField
from albert.io.files import read_json
from albert.predict.requests import JSON, RequestParser
from albert.runs.directory_lock import _parse_owner
from albert.settings.sources import Settings
from albert.tasks.glue.flags import parse_labels
from albert.tasks.pretraining.flags import PretrainingConfig, read_stages
from albert.tasks.race import files as race_files
from albert.tasks.squad import files as squad_files
from albert.tasks.tagging.files import read_texts
from albert.tasks.tagging.flags import TaggingConfig
from albert.tokenization.byte_bpe import BYTE_CHARACTERS
from albert.tokenization.recorded_settings import find_tokenizer_config
from albert.tokenization.tokenizer import Tokenizer
from albert.weights.checkpoints import CheckpointManager, find_damage
from data_prep.block_files import _MAGIC, Block
from data_prep.conversion.parts import PartTask, load_record, read_sentences
from data_prep.examples.settings import PreparationSettings
from data_prep.job import Job, Workspace
from data_prep.readers.records import ReadingSettings
from tests.synthetic import TINY_MODEL


@dataclasses.dataclass(frozen=True)
class JsonFile:
  """A file from which the code reads JSON.

  Code that reads JSON from a flag or a variable is tested in the same way: `read` takes the value of the flag or the
  variable from a file called `value`.

  Attributes:
    path: the path of the file in a directory.
    valid: a valid content.
    read: a function that reads the file. Its argument is the directory. For a damaged file it raises a UserError,
      unless `result_if_damaged` is given.
    name_in_error: the text with which an error names the file; "" for its path.
    result_if_damaged: what `read` returns for a damaged file, or a text that the returned text contains. The default,
      `...`, says that damage is an error.
    other_files: path in the directory -> content, of other files that `read` needs.
    reads_nan: whether NaN is read as null.
    wrap: converts the bytes of the JSON to the bytes of the file.
    accepted_contents: the names of the contents in test_json_files.BAD_CONTENTS that are not bad for this file.
  """

  path: str
  valid: Any
  read: Callable[[Path], Any]
  name_in_error: str = ""
  result_if_damaged: Any = dataclasses.field(default=...)
  other_files: dict[str, str] = dataclasses.field(default_factory=dict)
  reads_nan: bool = False
  wrap: Callable[[bytes], bytes] = bytes
  accepted_contents: tuple[str, ...] = ()


def make_block_from_footer(data: bytes) -> bytes:
  """Returns the bytes of a block file of data preparation that has only a footer with the JSON `data`."""
  return data + struct.pack("<QQ", len(data), zlib.crc32(data)) + _MAGIC


def json_line_without_blanks(data: bytes) -> bytes:
  """Returns a line of a file whose blank lines are skipped. An empty content becomes a list, which is no valid line."""
  return data.strip() or b"[]"


def read_value(directory: Path) -> str:
  """Returns JSON that is not in a file, as the command line or the environment gives it."""
  return (directory / "value").read_bytes().decode("utf-8", "surrogateescape")


def read_settings(directory: Path) -> None:
  settings = Settings("race", {"output_dir": str(directory)})
  settings.run_config()
  settings.model_config()
  settings.data_config()


def read_tf_config(directory: Path) -> None:
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(os.environ, "TF_CONFIG", read_value(directory))
    process_addresses()


def read_stages_value(directory: Path) -> None:
  read_stages(PretrainingConfig(stages=read_value(directory)), TINY_MODEL)


def read_labels(directory: Path) -> None:
  parse_labels(read_value(directory))


def read_request(directory: Path) -> None:
  fields = [RequestField("text", "m")]
  RequestParser(fields, JSON, "requests").parse(2, (directory / "value").read_bytes())


def make_workspace(directory: Path) -> Workspace:
  job = Job(inputs=("a.txt",), output_dir=str(directory), spm_model_file="m", settings=PreparationSettings())
  workspace = Workspace(job, "ab")
  workspace.path = str(directory)
  return workspace


def make_part(path: str) -> PartTask:
  """Makes a part of the conversion to text, without sources."""
  return PartTask((), ReadingSettings(), path, 0)


def questions_reader(module: types.ModuleType, **options: Any) -> Callable[[Path], Any]:
  """Returns a function that reads the only file of a directory with `read_questions` of a module."""
  return lambda directory: module.read_questions([str(next(directory.iterdir()))], **options)


# The config.json of a run.
RUN_CONFIG = {
  "task": "race",
  "recipe": "race",
  "init_checkpoint": "",
  "model": {"hidden_size": 8, "num_attention_heads": 2},
  "optimizer": {"learning_rate": 0.1},
  "train": {"num_train_steps": 7, "seed": 3},
  "data": {"max_seq_length": 64, "vocab_sha256": "ab"},
  "training_data": {"num_files": 1, "num_examples": 2, "sha256": "ab"},
}

SQUAD_FILE = {
  "version": "1.1",
  "data": [
    {
      "title": "t",
      "paragraphs": [
        {
          "context": "one two",
          "qas": [{"id": "q", "question": "w?", "answers": [{"text": "two", "answer_start": 4}]}],
        }
      ],
    }
  ],
}

# A passage of RACE.
RACE_PASSAGE = {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["A"], "id": "high1.txt"}

# A line of a file of multiple-choice questions.
MULTIPLE_CHOICE_QUESTION = {"id": "1", "article": "a", "question": "q", "options": ["x", "y"], "answer": 1}

# The manifest.json of shards.
SHARDS_MANIFEST = {
  "kind": "pretraining",
  "settings": {"sentence_prediction": "sop", "masking": "static", "ngram": 3, "input_files": [{"file": "a.txt"}]},
  "vocab_sha256": "ab",
  "vocab_size": 30,
  "num_documents": 1,
  "num_tokens": 9,
  "label_counts": {"0": 1},
  "num_examples": 2,
  "shards": [{"file": "x", "examples": 2, "bytes": 3, "sha256": "ab"}],
}

# Of an empty file.
EMPTY_SHA256 = hashlib.sha256().hexdigest()

CHECKPOINT_FILES = ("weights.index", "weights.data-00000-of-00001", "albert_config.json")

# The entry of a file in the manifest.json of a checkpoint.
CHECKPOINT_FILE_ENTRY = {"bytes": 5, "sha256": "ab"}

# A byte-level BPE vocabulary: its special pieces, and the beginning of its JSON with the pieces of the 256 bytes.
BPE_SPECIAL_IDS = {piece: i for i, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))}
BPE_BYTE_IDS = b"".join(b"%s: %d, " % (json.dumps(c).encode(), 5 + i) for i, c in enumerate(BYTE_CHARACTERS))
SHARD_HASHES = {"x": [[1, 2, False], [3, 4, "ab", True]]}

# Name for the tests -> the file. In the functions, d is the directory.
JSON_FILES = {
  "recipe": JsonFile(
    "r.json",
    {"task": "race", "model": {"hidden_size": 12}, "optimizer": {}, "train": {"seed": 1}, "data": {}, "stages": []},
    lambda d: read_recipe(str(d / "r.json"), "race"),
  ),
  "model config": JsonFile(
    "c.json", {"hidden_size": 12, "gap_size": 0, "hidden_act": "gelu"}, lambda d: load_model_config(str(d / "c.json"))
  ),
  "Hugging Face config": JsonFile(
    "config.json",
    {"model_type": "albert", "hidden_act": "gelu_new", "hidden_size": 64, "layer_norm_eps": 1e-12},
    lambda d: load_model_config(str(d / "config.json")),
  ),
  "config of a run, for a command": JsonFile(
    "config.json",
    RUN_CONFIG,
    read_settings,
    other_files={"training_loss.json": "{}"},
  ),
  "Hugging Face tokenizer config": JsonFile(
    "tokenizer_config.json",
    {"do_lower_case": True, "keep_accents": False, "added_tokens_decoder": {"4": {"content": "[MASK]"}}},
    lambda d: find_tokenizer_config(str(d)),
    other_files={"spiece.model": ""},
  ),
  "Hugging Face special tokens": JsonFile(
    "special_tokens_map.json",
    {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]"}, "additional_special_tokens": ["[SEP]"]},
    lambda d: find_tokenizer_config(str(d)),
    other_files={"spiece.model": ""},
  ),
  "Hugging Face added tokens": JsonFile(
    "added_tokens.json",
    {"[MASK]": 4},
    lambda d: find_tokenizer_config(str(d)),
    other_files={"spiece.model": ""},
  ),
  "byte-level BPE pieces": JsonFile(
    "vocab.json",
    BPE_SPECIAL_IDS,
    lambda d: Tokenizer(d / "vocab.json"),
    other_files={"merges.txt": ""},
    wrap=lambda data: data.replace(b"{", b"{" + BPE_BYTE_IDS, 1),
  ),
  "byte-level BPE tokenizer": JsonFile(
    "tokenizer.json",
    {
      "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
      "normalizer": None,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
      "model": {"type": "BPE", "dropout": None, "vocab": BPE_SPECIAL_IDS | {"he": 261}, "merges": [["h", "e"]]},
    },
    lambda d: Tokenizer(d / "tokenizer.json"),
    wrap=lambda data: data.replace(b'"vocab": {', b'"vocab": {' + BPE_BYTE_IDS, 1),
  ),
  "best checkpoint": JsonFile(
    "best.json",
    {"step": 3, "metric": "f1", "value": 0.5},
    lambda d: CheckpointManager(str(d), keep=1, model_config=TINY_MODEL).best(),
    reads_nan=True,
  ),
  "manifest of a checkpoint": JsonFile(
    "step-1/manifest.json",
    {"step": 1, "files": dict.fromkeys(CHECKPOINT_FILES, CHECKPOINT_FILE_ENTRY)},
    lambda d: find_damage(str(d / "step-1")),
    result_if_damaged="manifest.json is damaged",
    other_files={f"step-1/{name}": "12345" for name in CHECKPOINT_FILES},
  ),
  "manifest of shards": JsonFile("manifest.json", SHARDS_MANIFEST, lambda d: Manifest.load(str(d))),
  "training data": JsonFile(
    "t.json",
    {"files": [{"name": "a", "sha256": "ab", "num_examples": 3}]},
    lambda d: read_json(str(d / "t.json"), DataContent),
  ),
  "lock": JsonFile(
    "lock",
    {"pid": 3, "host": "h", "token": "t"},
    lambda d: _parse_owner((d / "lock").read_bytes()).pid,
    result_if_damaged=0,
  ),
  "TF_CONFIG": JsonFile(
    "value",
    {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}},
    read_tf_config,
    name_in_error="TF_CONFIG",
    wrap=lambda data: data.replace(b"\0", b""),
    accepted_contents=("empty",),
  ),
  "labels": JsonFile(
    "value",
    "a",
    read_labels,
    name_in_error="--labels",
    wrap=lambda data: b'["x", ' + data + b"]",
    accepted_contents=("number", "text"),
  ),
  "stages": JsonFile(
    "value",
    {"until": 1, "input_file": "a"},
    read_stages_value,
    name_in_error="stages",
    wrap=lambda data: b"[" + data + b"]",
    accepted_contents=("empty", "blank"),
  ),
  "SQuAD": JsonFile(
    "s.json",
    SQUAD_FILE,
    questions_reader(squad_files, version_2=False, with_answers=True),
    accepted_contents=("list",),  # without questions, which is refused later
  ),
  "RACE, a passage": JsonFile("7.txt", RACE_PASSAGE, questions_reader(race_files, with_answers=True)),
  "RACE, JSON lines": JsonFile(
    "r.jsonl",
    MULTIPLE_CHOICE_QUESTION,
    questions_reader(race_files, with_answers=True),
    wrap=json_line_without_blanks,
    accepted_contents=("empty", "blank", "list"),  # without questions, which is refused later
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
    accepted_contents=("empty", "blank", "list"),  # a table without rows
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
