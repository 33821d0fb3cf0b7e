"""Tests of --eval_share: which rows are held out of a training file, and what is written about them."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.data.manifest import file_sha256
from albert.data.rows import rows_of
from albert.errors import UserError
from albert.io import files
from albert.settings.resolve import resolve_settings
from albert.tasks.glue.files import TextData
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.model import TextTask
from tests.tasks.glue.conftest import MakeTask

ROWS = [("one", "a"), ("Two  words", "b"), ("three", "a"), ("two words", "b"), ("four", "b"), ("five", "a")]
# The line of each row: the first line is the header, and the second text has a line break.
LINES = [2, 3, 5, 6, 7, 8]


@pytest.fixture
def train_file(tmp_path: Path) -> str:
  texts = ['"Two \nwords"' if text == "Two  words" else text for text, _ in ROWS]
  lines = [f"{text},{label}\n" for text, (_, label) in zip(texts, ROWS, strict=True)]
  (tmp_path / "train.csv").write_text("text,label\n" + "".join(lines))
  return str(tmp_path / "train.csv")


def make_config(train_file: str, **changes: Any) -> ClassifierConfig:
  return ClassifierConfig(
    **{"task_name": "custom", "text_columns": "text", "train_file": train_file, "eval_share": 0.34, **changes}
  )


@pytest.fixture
def task(train_file: str, make_task: MakeTask) -> TextTask:
  return make_task(train_file=train_file, eval_share=0.34)


def test_each_row_is_trained_or_evaluated_on_and_keeps_its_id_and_line(task: TextTask, train_file: str) -> None:
  train, dev = task.data.rows("train"), task.data.rows("dev")
  assert sorted([*train.ids, *dev.ids]) == [str(row) for row in range(6)]
  for rows in (train, dev):
    assert {task.spec.labels[label] for label in rows.labels} == {"a", "b"}
    for row_id, text, label in zip(rows.ids, rows.texts[0], rows.labels, strict=True):
      assert (" ".join(text.split()), task.spec.labels[label]) == (
        " ".join(ROWS[int(row_id)][0].split()),
        ROWS[int(row_id)][1],
      )
  # The two texts that differ only in case and whitespace are on one side.
  assert {"1", "3"} <= set(train.ids) or {"1", "3"} <= set(dev.ids)
  record = json.loads(task.data_records()["eval_split.json"])
  assert record == {
    "source": train_file,
    "sha256": file_sha256(train_file),
    "eval_share": 0.34,
    "eval_seed": 12345,
    "lines": [LINES[int(row_id)] for row_id in dev.ids],
  }


def test_both_parts_are_hashed_as_the_training_file_and_cached_as_different_examples(task: TextTask) -> None:
  assert task.data.content("train") == task.data.content("dev")
  assert task.data.row_settings("dev")["eval_share"] == 0.34
  assert task.sets.examples("train").num_examples + task.sets.examples("dev").num_examples == 6
  assert task.settings()["eval_share"] == 0.34


def test_rows_in_memory_are_divided_like_those_of_a_file(task: TextTask) -> None:
  rows = rows_of(ROWS, "train", ["text", "label"])
  in_memory = task.with_data("train", rows)
  for split in ("train", "dev"):
    assert in_memory.data.rows(split).ids == task.data.rows(split).ids
  assert json.loads(in_memory.data_records()["eval_split.json"])["rows"] == [int(i) for i in task.data.rows("dev").ids]


def test_nothing_is_held_out_if_the_task_gets_a_development_set(task: TextTask) -> None:
  with_dev = task.with_data("dev", rows_of([("six", "a")], "eval", ["text", "label"]))
  assert len(with_dev.data.rows("train")) == 6
  assert with_dev.data.rows("dev").texts == [["six"]]
  assert with_dev.settings()["eval_share"] == 0
  assert "eval_split.json" not in with_dev.data_records()


def test_the_log_and_the_summary_count_the_rows_of_each_label(
  task: TextTask, train_file: str, verbose: None, capsys: pytest.CaptureFixture[str]
) -> None:
  task.check_inputs(train=True, evaluate=True, predict=False)
  task.check_inputs(train=True, evaluate=False, predict=False)  # says nothing again
  lines = capsys.readouterr().err.splitlines()
  summary = json.loads(task.data_records()["data_summary.json"])
  for split in ("train", "dev"):
    counts = {label: sum(ROWS[int(i)][1] == label for i in task.data.rows(split).ids) for label in "ab"}
    about_rows = {"source": train_file, "rows": sum(counts.values()), "labels": counts}
    assert {name: summary[split][name] for name in about_rows} == about_rows
  assert (summary["dev"]["rows_in_training_set"], "rows_in_training_set" in summary["train"]) == (0, False)
  assert lines == [
    f"{train_file} (train): {summary['train']['rows']} rows; a: 2, b: {summary['train']['labels']['b']}",
    f"{train_file} (dev): {summary['dev']['rows']} row{'s' * (summary['dev']['rows'] > 1)}; a: 1, "
    f"b: {summary['dev']['labels']['b']}",
  ]


def test_the_summary_counts_tokens_unknown_characters_and_duplicates(tmp_path: Path, make_task: MakeTask) -> None:
  texts = {"train": ["one two three", "two 漢 漢", "four " * 40, "T"], "dev": [" t", "one  Two three", "new"]}
  paths = {split: tmp_path / f"{split}.csv" for split in texts}
  for split, path in paths.items():
    path.write_text("text,label\n" + "".join(f"{text},{'ab'[i % 2]}\n" for i, text in enumerate(texts[split])))
  task = make_task(train_file=str(paths["train"]), eval_file=str(paths["dev"]), max_seq_length=16)
  task.check_inputs(train=True, evaluate=True, predict=False)
  summary = json.loads(task.data_records()["data_summary.json"])
  ids = [task.data.tokenizer.encode(text) for text in texts["train"]]
  lengths = [len(each) + 2 for each in ids]
  assert summary["train"]["tokens"] == {"median": statistics.median(lengths), "greatest": max(lengths)}
  assert summary["train"]["longer_than_max_seq_length"] == sum(length > 16 for length in lengths) == 1
  kept = [token for each in ids for token in each[:14]]
  unknown = summary["train"]["unknown_tokens"]
  assert unknown["share"] == pytest.approx(kept.count(task.data.tokenizer.special_ids.unk) / len(kept))
  assert unknown["characters"] == ["漢"]
  assert summary["dev"]["rows_in_training_set"] == 2


@pytest.mark.parametrize(
  ("changes", "content", "message"),
  [
    ({"eval_file": "dev.csv"}, "", r"^--eval_share=0.34 and --eval_file=dev.csv are both given: give one$"),
    ({"task_name": "RTE"}, "", r"^--eval_share=0.34 is for --task_name=custom, not for RTE, which has files"),
    ({}, "text,label\nx,a\ny,a\n X ,b\nz,c\n", r"line 5: too few texts of the label 'c' .* \(1\): add"),
    (
      {"group_column": "who"},
      "text,label,who\nx,a,1\ny,b,1\n",
      r"too few different groups in --group_column=who \(1\)",
    ),
    ({"group_column": "who"}, "text,label,who\nx,a,1\ny,b,\n", r"train.csv, line 3: column 'who' is empty: fill"),
    (
      {"eval_share": 0.0, "folds": 3},
      "text,label\nx,a\ny,a\nz,b\nv,a\nw,b\n",
      r"train.csv, line 4: too few texts of the label 'b' .* \(2\): --folds=3 needs as many: give fewer folds",
    ),
    ({"folds": 3}, "", r"^--folds=3 and --eval_share=0.34 are both given: give one$"),
    ({"eval_share": 0.0, "folds": 3, "fold": 4}, "", r"^--folds=3 --fold=4: give a fold from 1 to 3"),
    ({"eval_share": 0.0, "folds": 1}, "", r"^--folds=1: give two or more folds"),
    ({"group_column": "who", "eval_share": 0.0}, "", r"^--group_column=who only goes with --eval_share"),
    (
      {},
      "text,label\nx,a\nX,b\n",
      r"train.csv: too few different texts \(1\) to hold some out: add one, or give --eval",
    ),
  ],
)
def test_what_cannot_be_divided_is_refused(
  train_file: str, changes: dict[str, Any], content: str, message: str
) -> None:
  if content:
    Path(train_file).write_text(content)
  with pytest.raises(UserError, match=message):
    TextData(make_config(train_file, **changes)).read(train=True, evaluate=True, predict=False)


def test_rows_of_a_group_are_on_one_side_and_every_label_stays_in_the_training_rows(tmp_path: Path) -> None:
  path = tmp_path / "train.csv"
  lines = [f"text {row},{'ab'[row % 2]},patient {row // 4}\n" for row in range(40)]
  path.write_text("text,label,patient\n" + "".join(lines))
  sides = []
  for text_file in (path, tmp_path / "*.csv"):
    data = TextData(make_config(str(text_file), group_column="patient"))
    groups = {split: data.rows(split).table.columns["patient"] for split in ("train", "dev")}
    assert not {*groups["train"]} & {*groups["dev"]}
    assert (len(groups["train"]), len(groups["dev"])) == (28, 12)  # a third of 40, in groups of 4
    assert data.row_settings("dev")["group"] == "patient"
    sides.append(data.rows("dev").ids)
  assert sides[0] == sides[1]
  path.write_text("text,label,patient\nx,a,1\ny,b,2\nz,a,1\n")
  for division in ({}, {"eval_share": 0.0, "folds": 2, "fold": 1}, {"eval_share": 0.0, "folds": 2, "fold": 2}):
    with pytest.raises(UserError, match=r"all rows of the label '.' are in groups of --group_column=patient that are"):
      TextData(make_config(str(path), group_column="patient", **division)).rows("dev")


@pytest.mark.parametrize("group", ["", "patient"])
def test_each_row_is_held_out_by_one_fold_and_the_folds_have_their_share_of_each_label(
  tmp_path: Path, group: str
) -> None:
  path = tmp_path / "train.csv"
  lines = [f"text {row},{'aab'[row % 3]},patient {row // 4}\n" for row in range(60)]
  path.write_text("text,label,patient\n" + "".join(lines))
  config = make_config(str(path), eval_share=0.0, folds=5, group_column=group)
  folds = [TextData(config).of_fold(fold) for fold in range(1, 6)]
  ids = [data.rows("dev").ids for data in folds]
  assert sorted(int(row_id) for ids_of_fold in ids for row_id in ids_of_fold) == list(range(60))
  assert all(sorted([*data.rows("train").ids, *data.rows("dev").ids]) == sorted(map(str, range(60))) for data in folds)
  if group:
    assert all(len({int(i) // 4 for i in ids_of_fold}) == 3 for ids_of_fold in ids)  # three whole groups
  else:
    assert all(np.bincount(data.rows("dev").labels).tolist() == [8, 4] for data in folds)
  path.write_text("text,label,patient\n" + "".join(reversed(lines)))  # the choice does not depend on the order
  other = TextData(dataclasses.replace(config, fold=3))
  assert {*other.rows("dev").texts[0]} == {*folds[2].rows("dev").texts[0]} or group
  assert len({json.dumps(data.row_settings("dev")) for data in folds}) == 5  # tokenized data is not mixed up
  assert other.with_source("dev", str(path)).config.folds == 0


def test_folds_of_a_regression_have_all_sizes_of_numbers(tmp_path: Path) -> None:
  path = tmp_path / "train.csv"
  path.write_text("text,label\n" + "".join(f"text {row},{row**2}\n" for row in range(40)))
  config = make_config(str(path), eval_share=0.0, folds=4, fold=2, regression=True)
  numbers = np.sqrt(TextData(config).rows("dev").labels)
  np.testing.assert_array_equal(numbers // 4, np.arange(10))  # one of each four neighbours


@pytest.mark.parametrize("has_eval_file", [False, True])
def test_a_run_parses_each_file_once_and_hashes_it_once(
  train_file: str, spm_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_eval_file: bool
) -> None:
  """Without --labels, and with the evaluation and the predictions of the run."""
  opened: list[str] = []
  open_file = files.open_file
  monkeypatch.setattr(
    files, "open_file", lambda path, *args, **options: opened.append(path) or open_file(path, *args, **options)
  )
  (tmp_path / "new.csv").write_text("text\nsix\n")
  (tmp_path / "dev.csv").write_text("text,label\nseven,a\n")
  flags = {"task_name": "custom", "text_columns": "text", "train_file": train_file, "max_seq_length": 32}
  flags |= {"eval_file": str(tmp_path / "dev.csv")} if has_eval_file else {"eval_share": 0.34}
  flags |= {"predict_file": str(tmp_path / "new.csv"), "spm_model_file": spm_model, "output_dir": str(tmp_path / "run")}
  flags |= {"do_train": True, "do_eval": True, "do_predict": True, "from_scratch": True, "model": "albert_base"}
  resolved = resolve_settings("classifier", flags)
  data = resolved.read_inputs()
  paths = [train_file, *([str(tmp_path / "dev.csv")] if has_eval_file else []), str(tmp_path / "new.csv")]
  tables = [path for path in opened if path.endswith(".csv")]
  assert tables == paths  # before TensorFlow is imported
  task = resolved.make_task(data)
  task.check_inputs(train=True, evaluate=True, predict=True)
  assert task.training_data().num_examples == (6 if has_eval_file else 4)
  task.evaluation_data()
  tables = [path for path in opened if path.endswith(".csv")]
  assert sorted(tables) == sorted([*paths, *paths[:-1]])
