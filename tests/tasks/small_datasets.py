"""Small datasets for every registered task. tests/tasks/test_every_task.py trains each task on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas

from albert.tasks.glue.files import TextData
from tests.conftest import english_like_documents
from tests.synthetic import write_shards
from tests.tasks.glue.archive import write_archive
from tests.tasks.race.folders import write_made_up_race
from tests.tasks.squad.question_files import write_made_up_squad
from tests.tasks.tagging.word_files import write_columns, write_json_lines


@dataclasses.dataclass(frozen=True)
class SmallDataset:
  """How to write one dataset of a task, and how to export a model that was trained on it.

  Attributes:
    write: writes the files into a directory. Returns the fields of the task's config, apart from `spm_model_file`.
    exports: the names of the export forms (albert.export.registry.FORMS) of such a model.
    eval_file: the task's config -> the data that the task evaluates on, as --eval_file of albert.export takes it.
  """

  write: Callable[[Path], dict[str, Any]]
  exports: tuple[str, ...]
  eval_file: Callable[[Any], str]


def _write_pretraining(directory: Path) -> dict[str, Any]:
  write_shards(directory / "shards", [15, 9, 6])
  (directory / "sentences.txt").write_text("the [MASK] and the river [MASK]\nnobody sold the [MASK].\n")
  shards = str(directory / "shards" / "*")
  return {"input_file": shards, "eval_input_file": shards, "predict_file": str(directory / "sentences.txt")}


def _glue_writer(task_name: str) -> Callable[[Path], dict[str, Any]]:
  def write(directory: Path) -> dict[str, Any]:
    archive = write_archive(directory, [task_name], num_rows=8)
    return {"task_name": task_name, "data_dir": str(archive), "max_seq_length": 32}

  return write


def _write_custom(directory: Path) -> dict[str, Any]:
  """Writes a Parquet file, a part of which is held out, and JSON lines to predict, one of which has no text."""
  texts = [sentence for document in english_like_documents(4, seed=6) for sentence in document]
  rows = [(text, label) for label in ("so, so", "good") for text in texts[:8]]
  frame = pandas.DataFrame({"the text, in full": [text for text, _ in rows], "kind": [label for _, label in rows]})
  frame.to_parquet(directory / "train.parquet")
  lines = [json.dumps({"the text, in full": text}) for text in (texts[9], "", texts[10])]
  (directory / "new.jsonl").write_text("\n".join(lines) + "\n")
  return {
    "task_name": "custom",
    "text_columns": '"the text, in full"',
    "label_column": "kind",
    "train_file": str(directory / "train.parquet"),
    "predict_file": str(directory / "new.jsonl"),
    "eval_share": 0.25,
    "max_seq_length": 32,
  }


def _write_long_texts(directory: Path) -> dict[str, Any]:
  """Writes texts of one sentence and of several. The longest have more windows than max_windows."""
  documents = english_like_documents(8, seed=7)
  for name, number in (("train.tsv", 8), ("dev.tsv", 5)):
    rows = [f"{' '.join(document[: 1 + index])}\t{index % 2}\n" for index, document in enumerate(documents[:number])]
    (directory / name).write_text("text\tlabel\n" + "".join(rows))
  return {
    "task_name": "custom",
    "text_columns": "text",
    "train_file": str(directory / "train.tsv"),
    "eval_file": str(directory / "dev.tsv"),
    "predict_file": str(directory / "dev.tsv"),
    "long_texts": "windows",
    "max_seq_length": 16,
    "doc_stride": 9,
    "max_windows": 5,
  }


def _write_held_out_rows(config: Any) -> str:
  """Writes the rows that are evaluated on because of --eval_share to a file of their own, and returns its path."""
  text_data = TextData(config)
  rows = text_data.rows("dev")
  labels = [text_data.spec.labels[label] for label in rows.labels]
  frame = pandas.DataFrame({"the text, in full": rows.texts[0], "kind": labels})
  path = Path(config.train_file).with_name("dev.csv")
  frame.to_csv(path, index=False)
  return str(path)


def _write_multi_label(directory: Path) -> dict[str, Any]:
  texts = ["the river and the boat", "an old boat", "the river at night", "nobody came", "a letter", "the old letter"]
  labels = ["water;travel", "travel", "water", "", "post", "post;travel"]
  lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in zip(texts * 2, labels * 2, strict=True))]
  path = directory / "rows.tsv"
  path.write_text("\n".join(lines) + "\n")
  files = dict.fromkeys(("train_file", "eval_file", "predict_file"), str(path))
  columns = {"task_name": "custom", "text_columns": "text", "multi_label": True, "label_separator": ";"}
  return {**files, **columns, "max_seq_length": 32}


def _squad_writer(version: int) -> Callable[[Path], dict[str, Any]]:
  def write(directory: Path) -> dict[str, Any]:
    is_v2 = version == 2
    return {
      "train_file": write_made_up_squad(directory / "train.json", 8, version_2=is_v2, seed=1, max_sentences=3),
      "predict_file": write_made_up_squad(directory / "dev.json", 6, version_2=is_v2, seed=2, max_sentences=3),
      "version_2_with_negative": is_v2,
      "max_seq_length": 48,
      "max_query_length": 12,
      "doc_stride": 16,
    }

  return write


def _write_race(directory: Path) -> dict[str, Any]:
  return {"data_dir": write_made_up_race(directory, 2), "max_seq_length": 64, "max_qa_length": 24}


def _write_columns(directory: Path) -> dict[str, Any]:
  """Writes sentences in columns, longer than a window."""
  return {
    "train_file": write_columns(directory / "train.conll", 8, seed=1, max_words=24),
    "eval_file": write_columns(directory / "dev.conll", 6, seed=2, max_words=24),
    "predict_file": write_columns(directory / "test.conll", 5, seed=3, max_words=24),
    "max_seq_length": 24,
    "doc_stride": 8,
  }


def _write_json_lines(directory: Path) -> dict[str, Any]:
  return {
    "train_file": write_json_lines(directory / "train.jsonl", 8, seed=1),
    "eval_file": write_json_lines(directory / "dev.jsonl", 6, seed=2),
    "predict_file": write_json_lines(directory / "test.jsonl", 5, seed=3),
    "scheme": "BILOU",
    "max_seq_length": 48,
  }


# Registered task -> name of a test case -> its dataset.
SMALL_DATASETS: dict[str, dict[str, SmallDataset]] = {
  "pretraining": {
    "shards": SmallDataset(
      _write_pretraining, ("fill_mask", "sentence_order", "embeddings"), lambda config: config.eval_input_file
    )
  },
  "classifier": {
    "classes": SmallDataset(_glue_writer("MRPC"), ("classifier",), lambda config: f"{config.data_dir}/MRPC/dev.tsv"),
    "own files": SmallDataset(_write_custom, ("classifier",), _write_held_out_rows),
    "long texts": SmallDataset(_write_long_texts, ("classifier",), lambda config: config.eval_file),
    "regression": SmallDataset(
      _glue_writer("STS-B"), ("regression",), lambda config: f"{config.data_dir}/STS-B/dev.tsv"
    ),
    "multi_label": SmallDataset(_write_multi_label, ("multi_label",), lambda config: config.eval_file),
  },
  "squad": {
    "v1": SmallDataset(_squad_writer(1), ("squad_v1",), lambda config: config.predict_file),
    "v2": SmallDataset(_squad_writer(2), ("squad_v2",), lambda config: config.predict_file),
  },
  "tagging": {
    "columns": SmallDataset(_write_columns, ("tagging",), lambda config: config.eval_file),
    "json_lines": SmallDataset(_write_json_lines, ("tagging",), lambda config: config.eval_file),
  },
  "race": {"folders": SmallDataset(_write_race, ("race",), lambda config: f"{config.data_dir}/dev")},
}
