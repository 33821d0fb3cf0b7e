"""All kinds of files that the commands read, each with a function that reads it. The part "safety" uses them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from albert.config import recipes
from albert.config.model import ModelConfig, load_model_config
from albert.data import examples, manifest, shards, tables
from albert.experiments.runner import RESULTS_FILE, ResultRow
from albert.export.companion_files import DESCRIPTION
from albert.io import files, records
from albert.predict.exported_model import ExportedModel
from albert.report.page import make_page
from albert.report.records import read_runs
from albert.runs import logs, output_files
from albert.tasks import predictions
from albert.tasks.race import files as race_files
from albert.tasks.squad import files as squad_files
from albert.tokenization.tokenizer import Tokenizer
from albert.weights import checkpoints
from albert.weights.files import open_weights
from data_prep.text_files import open_text_lines
from tests.report.run_files import make_run


@dataclasses.dataclass(frozen=True)
class FileReader:
  """A kind of file, and how to read it."""

  name: str
  read: Callable[[Path], object]
  prepare: Callable[[Path], object] = lambda directory: None


def _read_weights(path: Path) -> object:
  weights = open_weights(str(path))
  return [weights.read(name) for name in weights.entries]


def _read_run(path: Path) -> object:
  run = path.parent
  return make_page("Report", *read_runs([str(run)], num_examples=3))


def _make_run(directory: Path) -> None:
  make_run(directory / "run")


def _make_checkpoint(directory: Path) -> None:
  weights = {"bert/pooler/dense/kernel": np.ones([2, 2], np.float32)}
  manager = checkpoints.CheckpointManager(str(directory / "checkpoints"), keep=2, model_config=ModelConfig())
  manager.save(1, weights)


def _read_newest_checkpoint(path: Path) -> object:
  directory = next(parent for parent in path.parents if parent.name == "checkpoints")
  manager = checkpoints.CheckpointManager(str(directory), keep=2, model_config=ModelConfig())
  return manager.select("best"), manager.latest()


def _read_bundle(path: Path) -> object:
  return _read_weights(path.with_name("weights"))


def _featurize(numbers: Any) -> examples.TokenizedExamples:
  ones = np.ones(len(numbers), np.int32)
  return examples.TokenizedExamples(ones, ones, ones)


def _read_feature_cache(path: Path) -> object:
  """Fills a feature cache, overwrites the cached file with the file at `path`, and reads the cache."""

  def use_cache() -> None:
    tokenized = examples.make_examples([1, 2], _featurize, name="features", key={}, cache_dir=str(path.parent))
    if tokenized.num_examples != 2:
      raise AssertionError("the cache gave other examples")

  use_cache()
  cache_file = next(path.parent.glob("features-*.npz"))
  cache_file.write_bytes(path.read_bytes())
  use_cache()
  return None


def _make_exported_model(parent: Path) -> None:
  directory = parent / "model"
  (directory / DESCRIPTION).parent.mkdir(parents=True)
  text = '{"task": "x", "fields": [], "answers": [], "labels": [], "counted_by": null}'
  (directory / DESCRIPTION).write_text(text)
  (directory / "saved_model.pb").write_bytes(b"")


def _read_table(path: Path) -> object:
  return tables.read_header(str(path)), tables.read_table(str(path), ["id", "label"])


# Files that torch or pickle writes.
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle")


def _read_race(path: Path) -> object:
  return race_files.read_questions([str(path)], with_answers=True)


def _open_exported_model(path: Path) -> object:
  return ExportedModel(str(next(parent for parent in path.parents if parent.name == "model")))


READERS: tuple[FileReader, ...] = (
  *(FileReader(f"weights{suffix}", _read_weights) for suffix in (".safetensors", *_PICKLE_SUFFIXES)),
  FileReader("model/model.safetensors", lambda path: _read_weights(path.parent)),
  FileReader("model/pytorch_model.bin", lambda path: _read_weights(path.parent)),
  FileReader("model.ckpt.index", lambda path: _read_weights(path.with_name("model.ckpt"))),
  *(
    FileReader(f"checkpoints/step-1/{name}", read, _make_checkpoint)
    for name in ("weights.index", "weights.data-00000-of-00001", "albert_config.json", "manifest.json")
    for read in (_read_newest_checkpoint, _read_bundle)
  ),
  FileReader("checkpoints/best.json", _read_newest_checkpoint, _make_checkpoint),
  FileReader("albert_config.json", lambda path: load_model_config(str(path))),
  FileReader(output_files.CONFIG, lambda path: output_files.read_config(str(path))),
  FileReader(output_files.RUNS, lambda path: output_files.read_runs(str(path))),
  FileReader(output_files.EVAL_RESULTS, lambda path: output_files.read_results(str(path))),
  FileReader(output_files.METRICS, lambda path: logs.read(str(path))),
  FileReader(RESULTS_FILE, lambda path: logs.read(str(path), ResultRow)),
  FileReader("predictions_dev.tsv", lambda path: predictions.read_predictions(str(path))),
  *(
    FileReader(f"run/{name}", _read_run, _make_run)
    for name in (
      "config.json", "environment.json", "metrics.jsonl", "eval_metrics.jsonl", "eval_results.json", "runs.json",
      "predictions.tsv", "predictions_dev.json", "mistakes_dev.tsv", "confusion_matrix_dev.png",
    )
  ),
  FileReader("manifest.json", lambda path: manifest.Manifest.load(str(path.parent))),
  FileReader("shard.tfrecord", lambda path: list(map(records.decode_example, records.read_records(str(path))))),
  FileReader("shards.tfrecord", lambda path: shards.count_and_hash_shards([str(path)])),
  FileReader("cached.npz", _read_feature_cache),
  FileReader("spiece.model", lambda path: Tokenizer(str(path)).encode("a text")),
  *(FileReader(f"table{suffix}", _read_table) for suffix in (".tsv", ".csv", ".jsonl")),
  FileReader("squad.json", lambda path: squad_files.read_questions([str(path)], version_2=True, with_answers=True)),
  *(FileReader(f"race{suffix}", _read_race) for suffix in (".txt", ".jsonl")),
  FileReader("recipe.json", lambda path: recipes.read_recipe(str(path), "pretraining")),
  *(FileReader(f"corpus{suffix}", lambda path: list(open_text_lines(str(path)))) for suffix in (".txt", ".txt.gz")),
  FileReader(f"model/{DESCRIPTION}", _open_exported_model, _make_exported_model),
  FileReader("model/saved_model.pb", _open_exported_model, _make_exported_model),
  FileReader("values.json", lambda path: files.read_json(str(path))),
)  # fmt: skip
