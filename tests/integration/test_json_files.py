"""Each JSON file that the code reads: whatever its contents, it is read, or refused with one line that names it.

A new place is added to PLACES. The last test finds modules that read JSON past albert.io.json_values.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import struct
import types
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from albert import ensemble
from albert.config.model import load_model_config
from albert.config.recipes import read_recipe
from albert.data import feature_cache, shards, tables
from albert.data.manifest import Manifest
from albert.errors import UserError
from albert.experiments import catalog, layers
from albert.experiments.runner import _ResultRows
from albert.export import checkpoint
from albert.io import json_values
from albert.io.files import read_json
from albert.io.records import RecordWriter
from albert.predict.exported_model import read_description
from albert.predict.requests import JSON, RequestParser
from albert.report import records
from albert.runs import log_lines, output_files, run_directory
from albert.runs.directory_lock import _parse_owner
from albert.settings.sources import Settings
from albert.tasks.glue.labels import parse_labels
from albert.tasks.race import data as race_data
from albert.tasks.squad import data as squad_data
from albert.tasks.squad import predictions as squad_predictions
from albert.tokenization.vocabulary_files import find_tokenizer_config
from albert.training import cluster
from albert.training.prediction_sources import PredictionSources
from albert.weights.checkpoint_damage import find_damage
from albert.weights.checkpoints import CheckpointManager
from albert.weights.files import open_weights
from data_prep.runners.job import Job
from data_prep.runners.workspace import Workspace
from data_prep.settings import PreparationSettings
from data_prep.sorting.spills import _MAGIC, Spill
from data_prep.text_checks import check_head
from tests.synthetic import TINY_MODEL

ROOT = Path(__file__).resolve().parents[2]
DEEP = 100_000
BAD = {
  "empty": b"",
  "blank": b" \n",
  "number": b"5",
  "true": b"true",
  "text": b'"text"',
  "null": b"null",
  "list": b"[]",
  "list of lists": b"[[]]",
  "lists without end": b"[" * DEEP,
  "objects without end": b'{"a":' * DEEP,
  "deep lists": b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
  "5,000 digits": b'{"a": ' + b"1" * 5000 + b"}",
  "overflow": b'{"a": 1e999}',
  "NaN": b'{"a": NaN}',
  "not UTF-8": b'{"a": "\xff"}',
  "UTF-16": '{"a": 1}'.encode("utf-16"),
  "doubled key": b'{"a": 1, "a": 2}',
  "cut": b'{"a": ',
  "no JSON": b"{a: 1}",
}


@dataclasses.dataclass(frozen=True)
class Place:
  """A file that is read as JSON.

  Attributes:
    file: its path in a directory; others may be beside it.
    valid: content that is read.
    read: reads it, given the directory. UserError if it is damaged, or `damage`.
    named: what the error names; the file, if it is empty.
    damage: what `read` returns for a damaged file where that is no error; a text that is returned must hold it.
    beside: other files, by path.
    nan: whether NaN is read as null.
    wrap: makes the file's bytes of JSON.
    takes: the entries of BAD that are none here.
  """

  file: str
  valid: Any
  read: Callable[[Path], Any]
  named: str = ""
  damage: Any = dataclasses.field(default=...)
  beside: dict[str, str] = dataclasses.field(default_factory=dict)
  nan: bool = False
  wrap: Callable[[bytes], bytes] = bytes
  takes: tuple[str, ...] = ()


RUN = {
  "task": "race",
  "recipe": "race",
  "init_checkpoint": "",
  "model": {"hidden_size": 8, "num_attention_heads": 2},
  "optimizer": {"learning_rate": 0.1},
  "train": {"num_train_steps": 7, "seed": 3},
  "data": {"max_seq_length": 64, "vocab_sha256": "ab"},
  "training_data": {"num_files": 1, "num_examples": 2, "sha256": "ab"},
}
RUNS = {"seeds": [1, 2], "best_seed": 1, "best_run": "run-1", "metrics": {"accuracy": {"median": 1.0}}}
SQUAD = {
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
PASSAGE = {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["A"], "id": "high1.txt"}
CHOICE = {"id": "1", "article": "a", "question": "q", "options": ["x", "y"], "answer": 1}
MANIFEST = {
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
EXPERIMENT = {
  "title": "t",
  "source": "s",
  "model": "albert_base",
  "steps": 2,
  "reduced": {"steps": 1},
  "variants": [{"name": "n", "fields": {"num_hidden_layers": 3}, "data": {"masking": "none"}, "paper": {"mlm": 1.0}}],
}
DESCRIPTION = {
  "task": "classifier",
  "fields": [{"name": "text", "meaning": "m", "is_list": False}],
  "answers": {"label": "l"},
  "labels": ["a", "b"],
  "counted_by": "",
  "checkpoint": {"path": "p", "step": 3},
}
ROW = {"variant": "v", "seed": 1, "digest": "d", "parameters": 3, "examples_per_second": 1.5, "scores": {"mlm": 2.0}}
NBEST = {"q": [{"text": "x", "probability": 1.0}]}
EMPTY = hashlib.sha256().hexdigest()
CHECKPOINT_FILES = ("weights.index", "weights.data-00000-of-00001", "albert_config.json")
FILE_ENTRY = {"bytes": 5, "sha256": "ab"}


def _footer(data: bytes) -> bytes:
  return data + struct.pack("<QQ", len(data), zlib.crc32(data)) + _MAGIC


def _read_cached_features(directory: Path) -> None:
  footer = (directory / "footer").read_bytes()
  with RecordWriter(str(directory / "x.tfrecord")) as writer:
    writer.write(feature_cache._FOOTER + footer)
  try:
    feature_cache._read(str(directory / "x.tfrecord"))
  except UserError as error:
    if "records are missing" not in str(error):
      raise


def _settings_of_several_runs(directory: Path) -> None:
  try:
    Settings("race", {"output_dir": str(directory), "do_eval": True})
  except UserError as error:
    if not str(error).endswith("/run-1"):
      raise


def _read_environment(directory: Path) -> None:
  text = (directory / "value").read_bytes().decode("utf-8", "surrogateescape")
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(os.environ, "TF_CONFIG", text)
    cluster.process_addresses()


def _read_labels(directory: Path) -> None:
  parse_labels((directory / "value").read_bytes().decode("utf-8", "surrogateescape"))


def _read_request(directory: Path) -> None:
  fields = [{"name": "text", "meaning": "m", "is_list": False}]
  RequestParser(fields, JSON, "requests").parse(2, (directory / "value").read_bytes())


def _read_safetensors(directory: Path) -> None:
  try:
    open_weights(str(directory))
  except UserError as error:
    if "which is missing" not in str(error):
      raise


def _workspace(directory: Path) -> Workspace:
  job = Job(inputs=("a.txt",), output_dir=str(directory), spm_model_file="m", settings=PreparationSettings())
  workspace = Workspace(job, "ab")
  workspace.path = str(directory)
  return workspace


def _read_head(directory: Path) -> str:
  try:
    check_head(str(directory / "a.txt"), (directory / "a.txt").read_bytes())
  except UserError as error:
    return str(error)
  return str(directory / "a.txt")


def _questions(module: types.ModuleType, **options: Any) -> Callable[[Path], Any]:
  return lambda directory: module.read_questions([str(next(directory.iterdir()))], **options)


PLACES = {
  "recipe": Place(
    "r.json",
    {"task": "race", "model": {"hidden_size": 12}, "optimizer": {}, "train": {"seed": 1}, "data": {}},
    lambda d: read_recipe(str(d / "r.json"), "race"),
  ),
  "model config": Place(
    "c.json", {"hidden_size": 12, "gap_size": 0, "hidden_act": "gelu"}, lambda d: load_model_config(str(d / "c.json"))
  ),
  "Hugging Face config": Place(
    "config.json",
    {"model_type": "albert", "hidden_act": "gelu_new", "hidden_size": 64, "layer_norm_eps": 1e-12},
    lambda d: load_model_config(str(d / "config.json")),
  ),
  "config of a run, for a command": Place(
    "config.json",
    RUN,
    lambda d: [(s := Settings("race", {"output_dir": str(d)})).run_config(), s.model_config(), s.data_config()],
    beside={"eval_results.json": "{}"},
  ),
  "config of a run, for an ensemble": Place("config.json", RUN, lambda d: ensemble._read_config(str(d))),
  "config of a run, for an export": Place(
    "run/config.json", RUN, lambda d: checkpoint._run_settings_and_metrics(str(d / "run" / "checkpoints" / "step-1"), 1)
  ),
  "config of a run, for its vocabulary": Place(
    "config.json", RUN, lambda d: find_tokenizer_config(str(d)), beside={"spiece.model": ""}
  ),
  "Hugging Face tokenizer config": Place(
    "tokenizer_config.json",
    {"do_lower_case": True, "keep_accents": False},
    lambda d: find_tokenizer_config(str(d)),
    beside={"spiece.model": ""},
  ),
  "config of a run, for a report": Place(
    "config.json", RUN, lambda d: records.read_runs([str(d)], num_examples=1), nan=True
  ),
  "environment of a run": Place(
    "environment.json", {"cpus": 2}, lambda d: records.read_runs([str(d)], num_examples=1),
    beside={"config.json": "{}"}, nan=True,
  ),
  "several runs, for a command": Place(
    "runs.json",
    RUNS,
    _settings_of_several_runs,
  ),
  "several runs": Place("runs.json", RUNS, lambda d: output_files.read_runs(str(d / "runs.json")), nan=True),
  "results": Place(
    "r.json", {"step": 3, "loss": 0.5, "f1": None}, lambda d: output_files.read_results(str(d / "r.json")), nan=True
  ),
  "best checkpoint": Place(
    "best.json",
    {"step": 3, "metric": "f1", "value": 0.5},
    lambda d: CheckpointManager(str(d), keep=1, model_config=TINY_MODEL).best(),
    nan=True,
  ),
  "manifest of a checkpoint": Place(
    "step-1/manifest.json",
    {"step": 1, "files": dict.fromkeys(CHECKPOINT_FILES, FILE_ENTRY)},
    lambda d: find_damage(str(d / "step-1")),
    damage="manifest.json is damaged",
    beside={f"step-1/{name}": "12345" for name in CHECKPOINT_FILES},
  ),
  "manifest of shards": Place("manifest.json", MANIFEST, lambda d: Manifest.load(str(d))),
  "index of safetensors": Place(
    "model.safetensors.index.json", {"weight_map": {"a": "one.safetensors"}}, _read_safetensors
  ),
  "sources of predictions": Place(
    "prediction_sources.json",
    {"p.tsv": {"checkpoint": "c", "step": 3, "weights_sha256": "ab", "inputs": {"a": "cd"}}},
    lambda d: PredictionSources(str(d), [str(d / "p.tsv")], {"a": "cd"}).are_complete(),
    beside={"p.tsv": ""},
  ),
  "training data": Place(
    "t.json",
    {"files": [{"name": "a", "sha256": "ab", "num_examples": 3}]},
    lambda d: run_directory._read_content(str(d / "t.json")),
    damage=None,
  ),
  "metrics": Place(
    "m.jsonl",
    {"step": 3, "loss": 0.5},
    lambda d: log_lines.read(str(d / "m.jsonl")),
    nan=True,
    wrap=lambda data: data.replace(b"\n", b" ") + b"\n",
  ),
  "results of experiments": Place(
    "results.jsonl",
    ROW,
    lambda d: _ResultRows(types.SimpleNamespace(directory=str(d))),  # type: ignore[arg-type]
    nan=True,
    wrap=lambda data: data.replace(b"\n", b" ") + b"\n",
  ),
  "distances of layers": Place(
    "layers.json", {"l2": [1.0], "degrees": [2.0]}, lambda d: read_json(str(d / "layers.json"), layers.Distances)
  ),
  "experiment": Place("e.json", EXPERIMENT, lambda d: catalog.load(str(d / "e.json"), reduced=True)),
  "feature cache": Place("footer", {"num_examples": 3, "sha256": "ab"}, _read_cached_features, named="its end"),
  "lock": Place(
    "lock", {"pid": 3, "host": "h", "token": "t"}, lambda d: _parse_owner((d / "lock").read_bytes()), damage=None
  ),
  "TF_CONFIG": Place(
    "value",
    {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}},
    _read_environment,
    named="TF_CONFIG",
    wrap=lambda data: data.replace(b"\0", b""),
    takes=("empty",),
  ),
  "labels": Place(
    "value",
    "a",
    _read_labels,
    named="--labels",
    wrap=lambda data: b'["x", ' + data + b"]",
    takes=("number", "text"),
  ),
  "SQuAD": Place("s.json", SQUAD, _questions(squad_data, version_2=False, with_answers=True)),
  "SQuAD without answers": Place("s.json", SQUAD, _questions(squad_data, version_2=False, with_answers=False)),
  "RACE, a passage": Place("7.txt", PASSAGE, _questions(race_data, with_answers=True)),
  "RACE, all passages": Place("all.txt", PASSAGE, _questions(race_data, with_answers=True)),
  "RACE, JSON lines": Place(
    "r.jsonl", CHOICE, _questions(race_data, with_answers=True), wrap=lambda data: data.strip() or b"[]"
  ),
  "table": Place(
    "t.jsonl",
    {"id": 3, "text": "a"},
    lambda d: tables.read_table(str(d / "t.jsonl"), ["id", "text"]),
    wrap=lambda data: data.strip() or b"[]",
  ),
  "request": Place(
    "value", {"text": "a", "n": 3}, _read_request, named="requests, line 2", wrap=lambda data: data.strip() or b"[]"
  ),
  "exported model": Place(
    "d.json", DESCRIPTION, lambda d: read_description(str(d / "d.json"))
  ),
  "n-best answers": Place(
    "nbest_predictions.json", NBEST, lambda d: squad_predictions.read(str(d), ""), beside={"null_odds.json": '{"q": 1}'}
  ),
  "null odds": Place(
    "null_odds.json", {"q": 1.5}, lambda d: squad_predictions.read(str(d), ""),
    beside={"nbest_predictions.json": json.dumps(NBEST)},
  ),
  "hashes of shards": Place(
    "h.json", {"x": [1, 2, 3, 4, "ab", True, "cd"]}, lambda d: shards._read_cache(str(d / "h.json")), damage={}
  ),
  "settings of data preparation": Place(
    "settings.json",
    {"workspace_version": 2, "input_files": [{"file": "a"}], "ngram": 3},
    lambda d: _workspace(d)._read_settings(str(d)),
  ),
  "record of a shard": Place(
    "shard-00000.json",
    {"content": "c", "file": "pretraining-00000-of-00016.tfrecord", "examples": 1, "bytes": 0, "sha256": EMPTY},
    lambda d: _workspace(d).find_finished_shard(0, "c"),
    damage=None,
    beside={"pretraining-00000-of-00016.tfrecord": ""},
  ),
  "spill": Place(
    "x.spill",
    {"runs": [[1, 0, 9, 1, 1]], "records": [0, 2, 7], "summary": {}},
    lambda d: Spill.load(str(d / "x.spill")),
    damage=None,
    wrap=_footer,
  ),
  "text that may be JSON": Place("a.txt", {"text": "a"}, _read_head, damage="a.txt"),
}  # fmt: skip


def _write(directory: Path, place: Place, data: bytes) -> Path:
  for name, content in place.beside.items():
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(content)
  path = directory / place.file
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(place.wrap(data))
  return path


def _outcome(directory: Path, place: Place, data: bytes) -> str:
  """Writes the file and reads it. Returns "read", "damage" or the line of the error. Other exceptions are raised."""
  path = _write(directory, place, data)
  try:
    found = place.read(directory)
  except UserError as error:
    line = str(error)
    assert (place.named or str(path)) in line, line
    assert "\n" not in line
    assert len(line) < 1500, line
    return line
  is_damage = place.damage is not ... and (
    place.damage in found if isinstance(place.damage, str) and found else found == place.damage
  )
  return "damage" if is_damage else "read"


@pytest.mark.parametrize("name", PLACES)
def test_bad_json_is_one_line_or_known_damage(tmp_path: Path, name: str) -> None:
  place = PLACES[name]
  for fault, data in BAD.items():
    if (fault == "NaN" and place.nan) or fault in place.takes:
      continue
    assert _outcome(tmp_path, place, data) != "read", fault


def _changed(value: Any) -> Iterator[Any]:
  """Yields copies of a value. In each, one part is left out, or replaced by a value of another type."""
  for other in (None, True, -5, 2**63, "../x", [5], {"a": {"b": []}}):
    if type(other) is not type(value):
      yield other
  for key, inner in list(
    value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
  ):
    for other in _changed(inner):
      copy = value.copy()
      copy[key] = other
      yield copy
    if isinstance(value, dict):
      yield {k: v for k, v in value.items() if k != key}
      yield {**value, "unknown": inner}


@pytest.mark.parametrize("name", PLACES)
def test_a_value_of_another_kind_is_read_or_one_line(tmp_path: Path, name: str) -> None:
  place = PLACES[name]
  assert _outcome(tmp_path, place, json.dumps(place.valid).encode()) == ("read" if name[:4] != "text" else "damage")
  outcomes = [_outcome(tmp_path, place, json.dumps(value).encode()) for value in _changed(place.valid)]
  assert any(outcome != "read" for outcome in outcomes)


def test_no_other_module_reads_json() -> None:
  readers = {"load", "loads", "JSONDecoder", "decoder", "json", "convert"}
  found = set()
  for path in [*ROOT.glob("run_*.py"), *ROOT.glob("albert/**/*.py"), *ROOT.glob("data_prep/**/*.py")]:
    text = path.read_text(encoding="utf-8")
    if "json" not in text and "msgspec" not in text:
      continue
    for node in ast.walk(ast.parse(text)):
      is_import = isinstance(node, ast.ImportFrom) and node.module in ("json", "msgspec")
      is_call = (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("json", "msgspec")
        and node.attr in readers
      )
      if is_import or is_call:
        found.add(path)
  assert found == {Path(str(json_values.__file__))}
