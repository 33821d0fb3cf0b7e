"""The tasks of the Python API (albert.tasks): rows in memory, in any form, give the same examples as rows in a file."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import sentencepiece

from albert import tasks
from albert.data.examples import TokenizedExamples
from albert.data.manifest import file_sha256
from albert.data.rows import Rows, rows_of
from albert.data.tables import read_table
from albert.errors import UserError
from albert.settings.resolve import make_defined_task
from albert.tasks.race.files import read_questions
from albert.tasks.splits import hold_out
from tests.synthetic import TINY_MODEL
from tests.tasks.race.folders import write_made_up_race
from tests.tasks.squad.question_files import write_made_up_squad
from tests.tasks.tagging.word_files import write_json_lines


class PolarsLikeColumn:
  """A column that has to_list(), as in Polars, but no tolist(), as in pandas and NumPy."""

  def __init__(self, cells: list[Any]):
    self.cells = cells

  def to_list(self) -> list[Any]:
    return self.cells


class PolarsLikeFrame(dict[str, Any]):
  """Column name -> column, with the attribute `columns` of a data frame."""

  columns = property(list)


# The same two rows in each form of data that the tasks accept. Some forms also have a column that is not used.
FORMS: dict[str, Any] = {
  "pandas": pandas.DataFrame({"text": ["one", "two"], "label": [1, 0], "other": [None, 0.5]}, index=[7, 3]),
  "Polars": PolarsLikeFrame(
    text=PolarsLikeColumn(["one", "two"]), label=PolarsLikeColumn([1, 0]), other=PolarsLikeColumn([None, None])
  ),
  "columns": {"text": ("one", "two"), "label": np.array([1, 0])},
  "dicts": [{"text": "one", "label": 1, "other": None}, {"text": "two", "label": np.int64(0)}],
  "tuples": [("one", 1), ("two", 0)],
  "matrix": np.array([["one", 1], ["two", 0]], object),
  "named fields": np.array([("one", 1), ("two", 0)], np.dtype([("text", "U9"), ("label", "i4")])),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_rows_and_the_hash_of_a_file_of_these_rows(form: str, tmp_path: Path) -> None:
  rows = rows_of(FORMS[form], "train", ["text", "label"])
  assert rows.columns == {"text": ["one", "two"], "label": [1, 0]}
  path = tmp_path / "rows.jsonl"
  path.write_bytes(b"".join(rows.json_lines()))
  table = read_table(str(path), ["text", "label"])
  assert read_table(rows, ["text", "label"]).columns == table.columns == {"text": ["one", "two"], "label": ["1", "0"]}
  assert rows.sha256 == file_sha256(str(path))


def test_cells_become_plain_python_values_and_missing_cells_become_none() -> None:
  columns = {"a": ["x", float("nan"), None], "b": [np.array(["p", "q"]), ({"n": np.float32(0.5)},), True]}
  rows = rows_of(columns, "train", ["a"], ["b", "c"])
  assert rows.columns == {"a": ["x", None, None], "b": [["p", "q"], [{"n": 0.5}], True]}
  assert rows_of(["one", "two"], "train", ["text"]).columns == {"text": ["one", "two"]}
  with pytest.raises(UserError, match=r"^train: row 1: column 'a' holds inf: give a finite number"):
    rows_of([1.0, float("inf")], "train", ["a"])


# The same column as each of the pandas types that can hold texts.
PANDAS_COLUMNS: dict[str, Any] = {
  "object": pandas.Series(["one", None, "two", float("nan")], dtype=object),
  "string": pandas.Series(["one", None, "two", pandas.NA], dtype="string"),
  "category": pandas.Series(["one", None, "two", None], dtype="category"),
}


@pytest.mark.parametrize("dtype", PANDAS_COLUMNS)
def test_missing_texts_of_pandas_are_named_by_row_and_column(dtype: str) -> None:
  frame = pandas.DataFrame({"comment": PANDAS_COLUMNS[dtype], "kind": ["x", "y", "x", "y"]})
  rows = rows_of(frame, "train", ["comment"])
  assert rows.columns == {"comment": ["one", None, "two", None]}
  with pytest.raises(UserError, match=r"^train: row 1: column 'comment' is empty"):
    read_table(rows, ["comment"]).non_empty_texts("comment")
  frame_without_gaps = frame.dropna()
  task = tasks.Classification(frame_without_gaps, text="comment", label="kind", eval_share=0, labels=["x", "y"])
  assert task.rows["train"].columns == {"comment": ["one", "two"], "kind": ["x", "x"]}


# Type of the label column -> (the column, its labels as plain Python values, the setting `labels` of the task).
PANDAS_LABELS: dict[str, tuple[Any, list[Any], str]] = {
  "category": (pandas.Series(["b", "a", "b"], dtype="category"), ["b", "a", "b"], "a,b"),
  "categories without rows": (pandas.Categorical(["b", "a", "b"], ["a", "b", "c"]), ["b", "a", "b"], "a,b"),
  "string": (pandas.Series(["b", "a", "b"], dtype="string"), ["b", "a", "b"], "a,b"),
  "nullable integers": (pandas.Series([2, 10, 2], dtype="Int64"), [2, 10, 2], "2,10"),
  "small integers": (pandas.Series([1, 0, 1], dtype="int8"), [1, 0, 1], "0,1"),
  "whole floats": (pandas.Series([1.0, 0.0, 1.0]), [1, 0, 1], "0,1"),
  "bool": (pandas.Series([True, False, True]), [True, False, True], "false,true"),
}


@pytest.mark.parametrize("dtype", PANDAS_LABELS)
def test_labels_of_pandas_keep_their_type(dtype: str) -> None:
  column, expected_labels, labels_setting = PANDAS_LABELS[dtype]
  frame = pandas.DataFrame({"text": ["one", "two", "three"], "label": column})
  task = tasks.Classification(frame, eval_share=0)
  labels = task.rows["train"].columns["label"]
  assert labels == expected_labels
  assert [type(label) for label in labels] == [type(label) for label in expected_labels]
  assert task.settings["labels"] == labels_setting


def test_frames_that_cannot_be_used_are_refused() -> None:
  frame = pandas.DataFrame({"comment": ["one", "two"], "kind": ["x", "y"]})
  with_missing_label = frame.assign(kind=pandas.array([1, None], dtype="Int64"))
  with_dates = frame.assign(comment=pandas.to_datetime(["2020-01-01", "2020-01-02"]))
  for train, message in (
    (frame.rename(columns={"comment": "review"}), r"^train: no column 'comment'; there are: 'review', 'kind'$"),
    (pandas.concat([frame, frame[["kind"]]], axis=1), r"^train: 2 columns are called 'kind': rename all but one"),
    (with_missing_label, r"^train: row 1: column 'kind' is empty: fill it in or remove the row"),
    (with_dates, r"^train: row 0: column 'comment' must hold texts, .* holds a Timestamp$"),
    (frame[:0], r"^train: has no rows"),
  ):
    with pytest.raises(UserError, match=message):
      tasks.Classification(train, text="comment", label="kind", eval_share=0.5)


def make_labelled_rows() -> Rows:
  """Makes 40 rows, of which 30 have the label a and 10 the label b."""
  return rows_of({"n": range(40), "label": ["a"] * 30 + ["b"] * 10}, "train", ["n", "label"])


def test_rows_of_a_group_are_held_out_together() -> None:
  rows = make_labelled_rows()
  groups = [number // 4 for number in range(40)]
  train, dev = hold_out(rows, 0.15, seed=7, groups=groups)
  # 0.15 * 40 = 6 rows are to be held out, and groups have 4 rows. So 2 whole groups are held out.
  assert list(collections.Counter(groups[i] for i in dev.row_numbers).values()) == [4, 4]
  assert not {groups[i] for i in dev.row_numbers} & {groups[i] for i in train.row_numbers}


def test_a_bad_share_or_too_few_rows_to_hold_out_are_refused() -> None:
  rows = make_labelled_rows()
  with pytest.raises(UserError, match=r"^train: too few rows \(2\) to hold some out for evaluation"):
    hold_out(rows.select([0, 1]), 0.5, seed=7, groups=["a", "a"])
  with pytest.raises(UserError, match=r"^eval_share=1.5: give a share between 0 and 1"):
    hold_out(rows, 1.5, seed=7, groups=range(40))


def make_task(definition: tasks.TaskDefinition, spm_model: str, tmp_path: Path, **settings: Any) -> Any:
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  model = dataclasses.replace(TINY_MODEL, vocab_size=vocab_size, max_position_embeddings=64)
  settings |= {"model": model, "spm_model_file": spm_model, "from_scratch": True, "output_dir": str(tmp_path / "run")}
  task, _ = make_defined_task(definition, settings)
  return task


def assert_same_examples(actual: TokenizedExamples, expected: TokenizedExamples) -> None:
  for name in ("input_ids", "sequence_lengths", "sequence_counts"):
    np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), name)
  for name in ("labels", "token_features"):
    actual_arrays, expected_arrays = getattr(actual, name), getattr(expected, name)
    assert actual_arrays.keys() == expected_arrays.keys()
    for key, array in actual_arrays.items():
      np.testing.assert_array_equal(array, expected_arrays[key], key)


@pytest.mark.parametrize("version", [1, 2])
def test_questions_in_memory_give_the_examples_of_their_file(version: int, spm_model: str, tmp_path: Path) -> None:
  is_v2 = version == 2

  def make_examples(train: Any) -> TokenizedExamples:
    definition = tasks.QuestionAnswering(train, version_2_with_negative=is_v2, eval_share=0)
    task = make_task(definition, spm_model, tmp_path, max_seq_length=48, max_query_length=12, doc_stride=16)
    return task.sets.examples("train")

  path = write_made_up_squad(tmp_path / "train.json", 8, version_2=is_v2, seed=1, max_sentences=3)
  content = json.loads(Path(path).read_text())
  rows = []
  for article in content["data"]:
    for paragraph in article["paragraphs"]:
      for qa in paragraph["qas"]:
        rows.append({"question": qa["question"], "context": paragraph["context"], "answers": qa["answers"]})
  # As in the datasets of Hugging Face: one list of texts and one list of offsets.
  rows_with_lists = []
  for row in rows:
    answers = {key: [answer[key] for answer in row["answers"]] for key in ("text", "answer_start")}
    rows_with_lists.append(row | {"answers": answers})
  examples_of_file = make_examples(path)
  for train in (content, rows, rows_with_lists):
    assert_same_examples(make_examples(train), examples_of_file)


def test_answers_are_found_in_the_context(spm_model: str, tmp_path: Path) -> None:
  rows = [("where ?", "in the house", "the house"), ("who ?", "a dog", ["a dog", "dog"]), ("why ?", "x", "")]
  task = tasks.QuestionAnswering(rows, eval_share=0, version_2_with_negative=True)
  assert task.rows["train"].columns["answers"] == [
    [{"text": "the house", "answer_start": 3}],
    [{"text": "a dog", "answer_start": 0}, {"text": "dog", "answer_start": 2}],
    [],
  ]
  assert task.rows["train"].columns["is_impossible"] == [False, False, True]
  for train, message in (
    ([("where ?", "in the house", "a cat")], r"^train: row 0: the context does not have the answer 'a cat'"),
    (
      [("a", "b", {"text": ["b"], "answer_start": []})],
      r"^train: row 0: answers .*: give lists of text and answer_start",
    ),
    ({"data": [{"paragraphs": [{}]}]}, r"^the data: .*paragraphs\[0\] lacks 'context': give data in the form of SQuAD"),
  ):
    with pytest.raises(UserError, match=message):
      tasks.QuestionAnswering(train, eval_share=0)
  wrong_offset = tasks.QuestionAnswering([("a ?", "b c", [{"text": "c", "answer_start": 0}])], eval_share=0)
  with pytest.raises(UserError, match=r"^train: row 0, question 0: answers\[0\]: answer_start 0 .* has at 2"):
    make_task(wrong_offset, spm_model, tmp_path, max_query_length=12, max_seq_length=48).data.rows("train")


def test_options_in_memory_give_the_examples_of_their_files(spm_model: str, tmp_path: Path) -> None:
  folder = Path(write_made_up_race(tmp_path, 2), "train")
  questions = read_questions(sorted(map(str, folder.glob("*/*.txt"))), with_answers=True)
  rows = []
  for number, question in enumerate(questions):
    answer = question.answer if number % 2 == 0 else "ABCD"[question.answer]  # an index or a letter
    rows.append({"article": question.article, "question": question.text, "options": question.options, "answer": answer})

  def make_race_task(train: Any) -> Any:
    return make_task(tasks.MultipleChoice(train, eval_share=0), spm_model, tmp_path, max_seq_length=64)

  assert_same_examples(make_race_task(rows).sets.examples("train"), make_race_task(folder).sets.examples("train"))
  wrong_answer_task = make_race_task([rows[0] | {"answer": "E"}])
  with pytest.raises(UserError, match=r"^train: row 0: answer 'E' is not one of the options, which are A to D"):
    wrong_answer_task.data.rows("train")


def test_tagged_words_in_memory_give_the_examples_of_their_file(spm_model: str, tmp_path: Path) -> None:
  path = write_json_lines(tmp_path / "train.jsonl", 9, seed=9)
  rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
  in_memory, in_file = (
    make_task(tasks.Tagging(train, scheme="BILOU", eval_share=0), spm_model, tmp_path, max_seq_length=24, doc_stride=8)
    for train in (rows, path)
  )
  assert_same_examples(in_memory.sets.examples("train"), in_file.sets.examples("train"))


def test_a_glue_task_is_found_in_another_spelling_and_a_custom_task_is_refused() -> None:
  assert tasks.Glue("sst2", "data").settings == {"task_name": "SST-2", "data_dir": "data"}
  with pytest.raises(UserError, match=r"use albert.tasks.Classification"):
    tasks.Glue("custom")


def test_pretraining_on_texts_in_memory_is_refused() -> None:
  with pytest.raises(UserError, match="pretraining reads files: give their paths"):
    tasks.Pretraining(["a", "b"])  # type: ignore[arg-type]


def test_an_unknown_public_task_is_an_attribute_error() -> None:
  unknown_name = "Parsing"
  with pytest.raises(AttributeError, match="no attribute 'Parsing'"):
    getattr(tasks, unknown_name)
