"""Tests of reading the files of GLUE and of custom tasks: errors name the file and the line, warnings the first row."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.data.tables import read_table
from albert.errors import UserError
from albert.tasks.glue.files import (
  TextData,
  TextRows,
  find_labels,
  read_text_table,
  rows_of_table,
  summary,
  summary_line,
  warn_of_duplicates,
  warn_of_empty_texts,
  warn_of_numbers,
)
from albert.tasks.glue.flags import ClassifierConfig, format_labels, parse_labels
from albert.tasks.glue.specs import SPECS, FileFormat, TaskSpec, canonical_name, custom_spec, make_spec
from tests.tasks.glue.archive import LABELS, edit_line, file_names, write_archive

# The tasks of the GLUE benchmark. SPECS may have further tasks.
GLUE_SPECS = {name: SPECS[name] for name in [*LABELS, "STS-B", "AX"]}
ALL_FILES = [(spec.name, file.name) for spec in GLUE_SPECS.values() for file in spec.formats()]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return write_archive(tmp_path_factory.mktemp("glue"), [*LABELS, "STS-B", "diagnostic"], num_rows=11)


def format_of(task: str, name: str) -> FileFormat:
  return next(file_format for file_format in SPECS[task].formats() if file_format.name == name)


def read_rows(path: Path, file_format: FileFormat, spec: TaskSpec) -> TextRows:
  return rows_of_table(read_text_table(str(path), file_format, spec), file_format, spec)


def read_labels(path: Path, column: str) -> list[str]:
  return find_labels(read_table(str(path), [column]), column)


def read_file(archive: Path, task: str, name: str) -> TextRows:
  folder = "diagnostic" if name == "diagnostic.tsv" else SPECS[task].folder
  return read_rows(archive / folder / name, format_of(task, name), SPECS[task])


@pytest.mark.parametrize(("task", "name"), ALL_FILES)
def test_every_published_file_format_is_read(archive: Path, task: str, name: str) -> None:
  rows = read_file(archive, task, name)
  assert len(rows) == (4 * 11 if name == "train.tsv" else 11)
  assert all(map(all, rows.texts))
  assert len(set(rows.ids)) == len(rows)
  spec = SPECS[task]
  assert len(rows.texts) == (1 if task in ("CoLA", "SST-2") else 2)
  if "test" in name or name == "diagnostic.tsv":
    assert not rows.labels.any()
  elif task == "STS-B":
    assert rows.labels.dtype == np.float32
    assert rows.labels[:4].tolist() == [0.0, 2.5, 5.0, 0.0]
  else:
    assert rows.labels.dtype == np.int32
    label_names = [spec.labels[label] for label in rows.labels]
    labels_in_turn = itertools.cycle(LABELS[task])
    assert label_names == list(itertools.islice(labels_in_turn, len(rows)))


def test_the_specs_list_exactly_the_published_files() -> None:
  for task in [*LABELS, "STS-B"]:
    names = {file.name for file in SPECS[task].formats()} - {"diagnostic.tsv"}
    assert names == set(file_names(task))


def test_submissions_have_the_names_that_gluebenchmark_accepts() -> None:
  names = {name: [file.submission for file in spec.test.values()] for name, spec in GLUE_SPECS.items()}
  assert names.pop("MNLI") == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
  assert names == {name: [f"{name}.tsv"] for name in names}


def test_metrics_are_those_of_glue() -> None:
  other_than_accuracy = {name: set(spec.metrics) for name, spec in GLUE_SPECS.items() if spec.metrics != ("accuracy",)}
  assert other_than_accuracy == {
    "CoLA": {"matthews_corrcoef", "accuracy"},
    "MRPC": {"f1", "accuracy"},
    "QQP": {"f1", "accuracy"},
    "STS-B": {"pearson", "spearman"},
  }


@pytest.mark.parametrize(
  ("spelling", "expected"),
  [("cola", "CoLA"), ("STS_B", "STS-B"), ("sst2", "SST-2"), ("mnli", "MNLI"), ("Custom", "custom")],
)
def test_case_hyphens_and_underscores_of_task_names_do_not_matter(spelling: str, expected: str) -> None:
  assert canonical_name(spelling) == expected


@pytest.mark.parametrize(
  ("task_name", "message"),
  [("", "--task_name is missing; tasks: CoLA, "), ("snli", "--task_name=snli: unknown task; .*AX")],
)
def test_unknown_names_list_the_known_ones(task_name: str, message: str) -> None:
  with pytest.raises(UserError, match=message):
    canonical_name(task_name)


def test_data_dir_may_be_the_folder_of_the_task(archive: Path) -> None:
  for data_dir in (archive, archive / "RTE"):
    assert TextData(ClassifierConfig(task_name="RTE", data_dir=str(data_dir))).find("dev") == [f"{archive}/RTE/dev.tsv"]


# Name of the case -> (task, file, number of a line, how it is changed, the error).
FAULTS: dict[str, tuple[str, str, int, Callable[[str], str], str]] = {
  "beyond the scale": ("STS-B", "train.tsv", 3, lambda line: line[:-5] + "7.5", r"line 3: score 7\.5 is not between 0"),
  "empty text": ("SST-2", "dev.tsv", 5, lambda line: "\t" + line[-1], r"dev\.tsv, line 5: column 'sentence' is empty"),
  "duplicate id": ("WNLI", "test.tsv", 5, lambda line: "1" + line[1:], r"line 5: index '1' is already used in line 3"),
  "a column less": ("CoLA", "train.tsv", 2, lambda line: line.replace("\t", " ", 1), r"line 2: 3 columns instead of 4"),
  "damage where none is known": (
    "MNLI",
    "train.tsv",
    9,
    lambda line: "cut",
    r"train\.tsv, line 9: 1 column instead of",
  ),
  "a label of another task": (
    *("WNLI", "dev.tsv", 2, lambda line: line[:-1] + "entailment"),
    r"dev\.tsv, line 2: label 'entailment' is not a label of this task: 0, 1",
  ),
}


@pytest.mark.parametrize("fault_name", FAULTS)
def test_faults_are_named_with_file_and_line(tmp_path: Path, fault_name: str) -> None:
  task, name, line, change, message = FAULTS[fault_name]
  write_archive(tmp_path, [task], num_rows=11)
  edit_line(tmp_path / task / name, line, change)
  with pytest.raises(UserError, match=message):
    read_file(tmp_path, task, name)


@pytest.mark.parametrize(
  ("task", "path", "message"),
  [
    (
      "CoLA",
      "SST-2/train.tsv",
      r"train\.tsv, line 1: 2 columns instead of 4 \('source', 'label', 'mark', 'sentence'\)",
    ),
    ("SST-2", "CoLA/train.tsv", r"line 1: no column 'sentence'; there are: 'source0', '0', "),
    ("RTE", "STS-B/train.tsv", r"train\.tsv, line 1: no column 'label'; .*: check --task_name=RTE and --data_dir$"),
    (
      "RTE",
      "STS-B/test.tsv",
      r"test\.tsv, line 1: column 'old_index' is not one of RTE; .*: check --task_name=RTE and",
    ),
    ("WNLI", "MNLI/test_matched.tsv", r"line 1: column 'promptID' is not one of WNLI"),
    ("CoLA", "QNLI/test.tsv", r"line 1: column 'question' is not one of CoLA"),
  ],
)
def test_a_file_of_another_task_is_refused(archive: Path, task: str, path: str, message: str) -> None:
  with pytest.raises(UserError, match=message):
    read_rows(archive / path, format_of(task, "test.tsv" if "test" in path else "train.tsv"), SPECS[task])


def test_a_row_of_qqp_that_is_split_into_two_lines_is_skipped_and_reported(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  write_archive(tmp_path, ["QQP"], num_rows=600)
  path = tmp_path / "QQP" / "train.tsv"
  edit_line(path, 100, lambda line: line[:30] + "\n" + line[30:])
  rows = TextData(ClassifierConfig(task_name="QQP", data_dir=str(tmp_path))).rows("train")
  assert (len(rows), list(rows.table.damaged_lines)) == (4 * 600 - 1, [100, 101])
  warning = "train.tsv: skipped 2 lines with another number of columns; the first one is line 100"
  assert warning in capsys.readouterr().err
  # A third damaged line is more than the format tolerates in a file of this size.
  edit_line(path, 300, lambda line: "cut")
  with pytest.raises(UserError, match=r"train\.tsv, line 100: \d columns instead of 6"):
    read_file(tmp_path, "QQP", "train.tsv")


def test_empty_questions_of_qqp_are_read(tmp_path: Path) -> None:
  write_archive(tmp_path, ["QQP"], num_rows=11)
  path = tmp_path / "QQP" / "test.tsv"
  edit_line(path, 4, lambda line: line.rsplit("\t", 1)[0] + "\t")
  assert read_file(tmp_path, "QQP", "test.tsv").texts[1][2] == ""


def test_a_pickled_slice_of_rows_keeps_its_rows() -> None:
  rows = TextRows(["a", "b", "c"], [["x", "y", "z"], ["1", "2", "3"]], np.array([0, 1, 0], np.int32))
  chunk = pickle.loads(pickle.dumps(rows[1:]))
  assert (chunk.ids, chunk.texts, chunk.labels.tolist()) == (["b", "c"], [["y", "z"], ["2", "3"]], [1, 0])


def custom_config(**options: object) -> ClassifierConfig:
  return ClassifierConfig(task_name="custom", **{"text_columns": "a,b", **options})  # type: ignore[arg-type]


def test_a_custom_task_reads_named_columns(tmp_path: Path) -> None:
  path = tmp_path / "mine.csv"
  path.write_text('key,b,a,kind\nk1,"two, too",one,no\nk2,four,three,yes\n', encoding="utf-8")
  labels = read_labels(path, "kind")
  assert labels == ["no", "yes"]
  spec = custom_spec(custom_config(label_column="kind", id_column="key"), labels)
  assert spec.labels == ("no", "yes")
  rows = read_rows(path, spec.dev["dev"], spec)
  assert (rows.ids, rows.texts) == (["k1", "k2"], [["one", "three"], ["two, too", "four"]])
  assert rows.labels.tolist() == [0, 1]
  rows = read_rows(path, spec.test["test"], spec)
  assert rows.labels.tolist() == [0, 0]


def test_labels_that_are_whole_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
  path = tmp_path / "t.tsv"
  path.write_text("label\n" + "".join(f"{label}\n" for label in (10, 9, -1, 10)), encoding="utf-8")
  assert read_labels(path, "label") == ["-1", "9", "10"]
  equal_labels = ["1", "01", "001", "0001", "00001", "000001"]  # the order of a set of them is random
  path.write_text("label\n" + "".join(f"{label}\n" for label in [*equal_labels, 2, 0]), encoding="utf-8")
  assert read_labels(path, "label") == ["0", *sorted(equal_labels), "2"]


def test_a_column_with_too_many_or_too_few_values_is_not_a_label_column(tmp_path: Path) -> None:
  path = tmp_path / "t.tsv"
  path.write_text("label\n" + "".join(f"{label / 7}\n" for label in range(300)), encoding="utf-8")
  message = r"t\.tsv: column 'label' holds 300 different labels in 300 rows: give --regression"
  with pytest.raises(UserError, match=message):
    read_labels(path, "label")
  for rows, message in (("a\na\n", "a task needs two or more labels; there are: 'a'"), ("", "has no rows")):
    path.write_text("label\n" + rows, encoding="utf-8")
    with pytest.raises(UserError, match=message):
      read_labels(path, "label")


@pytest.mark.parametrize(
  ("labels", "num_rows", "is_warned"),
  [
    (["0", "1"], 2, False),
    (["1", "2", "3", "4", "5"], 5, False),
    (["1.0", "2.0"], 3, False),
    ([str(number) for number in range(20)], 20, False),  # numbered classes
    (["404", "500"], 90, False),
    (["1", "2", "x"], 3, False),
    (["0", "0.00", "0.000"], 90, True),
    (["0.5", "1"], 90, True),
    (["250000", "270000", "280000"], 3, True),
    ([str(number) for number in range(18, 40)], 90, True),  # ages
  ],
)
def test_numbers_that_are_taken_for_labels_are_pointed_out(
  capsys: pytest.CaptureFixture[str], labels: list[str], num_rows: int, is_warned: bool
) -> None:
  warn_of_numbers("t.csv", "price", labels, num_rows)
  shown = ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "")
  assert capsys.readouterr().err == is_warned * (
    f"warning: t.csv: column 'price' holds {len(labels)} different numbers ({shown}), and each is learned as a class "
    "of its own: give --regression to predict numbers\n"
  )


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"regression": True}, "all labels are 2.5, so there is nothing to learn from the texts"),
    ({"labels": "2.5,no"}, "no row has the label 'no', so it is not learned"),
  ],
)
def test_labels_that_cannot_be_learned_are_pointed_out(
  tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str
) -> None:
  (tmp_path / "t.csv").write_text("text,label\na,2.5\nb,2.5\n")
  config = custom_config(text_columns="text", train_file=str(tmp_path / "t.csv"), **options)
  TextData(config).read(train=True, evaluate=False, predict=False)
  assert f"t.csv: {message}" in capsys.readouterr().err


def test_a_custom_regression_has_the_metrics_and_the_columns_of_its_config() -> None:
  config = custom_config(regression=True, text_columns="a")
  spec = custom_spec(config, [])
  assert spec.is_regression
  assert spec.train == FileFormat("", ("a",), "label", allows_empty_texts=True)
  assert make_spec(config).metrics == ("pearson", "spearman", "rmse", "mae")


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"text_columns": ""}, "--text_columns=: give the name of the text column"),
    ({"text_columns": "a,b,c"}, "--text_columns=a,b,c: give the name of the text"),
    ({"text_columns": "a,label"}, "name a column twice: a, label, label"),
    ({"text_columns": "a", "id_column": "a"}, "name a column twice: a, label, a"),
  ],
)
def test_columns_of_custom_tasks_are_checked(options: dict[str, object], message: str) -> None:
  with pytest.raises(UserError, match=message):
    custom_spec(custom_config(**options), ["x", "y"])


@pytest.mark.parametrize(
  ("text", "labels"),
  [
    # The flag -> its labels; None for a flag that is refused.
    ("", ()),
    ("b, a", ("b", "a")),
    ('["x, y", "z"]', ("x, y", "z")),
    ("[0],[1]", None),
    ("a,a", None),
    ("a", None),
    ("a,,b", None),
  ],
)
def test_the_flag_of_labels_is_a_list_of_two_or_more_different_names(text: str, labels: tuple[str, ...] | None) -> None:
  if labels is None:
    with pytest.raises(UserError, match="--labels="):
      parse_labels(text)
  else:
    assert parse_labels(text) == labels
    assert parse_labels(format_labels(labels)) == labels


@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="no ALBERT_DATA_DIR")
# The numbers of rows of train.tsv, dev.tsv and test.tsv; of diagnostic.tsv for AX.
@pytest.mark.parametrize(
  ("task", "num_rows"),
  [
    ("CoLA", [8551, 1043, 1063]),
    ("SST-2", [67349, 872, 1821]),
    ("STS-B", [5749, 1500, 1379]),
    ("RTE", [2490, 277, 3000]),
    ("WNLI", [635, 71, 146]),
    ("MRPC", [3667, 408, 1725]),
    ("AX", [1104]),
  ],
)
def test_the_published_files_have_the_published_numbers_of_rows(task: str, num_rows: list[int]) -> None:
  directory = Path(os.environ["ALBERT_DATA_DIR"], "glue")
  assert [len(read_file(directory, task, file.name)) for file in SPECS[task].formats()] == num_rows


def read_custom(path: Path, content: str, columns: str = "a,b", **options: Any) -> tuple[TextRows, TaskSpec]:
  path.write_text(content, encoding="utf-8")
  spec = custom_spec(custom_config(text_columns=columns, **options), ["no", "yes"])
  return read_rows(path, spec.dev["dev"], spec), spec


@pytest.mark.parametrize(
  ("name", "content", "columns", "message"),
  [
    (
      "a.csv",
      'text,label\n"a\nb",yes\n" ",no\nc,no\n"",yes\n',
      "text",
      "line 4: an empty text, as in 2 rows of 4: only",
    ),
    ("a.jsonl", '{"a": "x", "b": null, "label": "no"}\n', "a,b", "line 1: an empty text, as in 1 row of 1: only"),
    ("a.tsv", "text\tlabel\na\tyes\n.\tno\n", "text", ""),
  ],
)
def test_rows_with_empty_texts_are_counted_and_the_first_is_named(
  tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, columns: str, message: str
) -> None:
  warn_of_empty_texts(read_custom(tmp_path / name, content, columns)[0])
  warning = capsys.readouterr().err
  assert warning.startswith(f"warning: {tmp_path}/{name}, {message}") if message else not warning


def test_texts_in_both_sets_are_counted_and_the_first_are_named(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  header = "a,b,label\n"
  train, _ = read_custom(tmp_path / "t.csv", header + "x,1,no\ny,2,no\nx,1,yes\nz,3,no\nw,4,no\n")
  dev, _ = read_custom(tmp_path / "d.csv", header + 'y,1,no\nX,"1\n",no\nZ,3,no\nw, 4,no\nw,4,no\n')
  warn_of_duplicates(train, dev)
  assert capsys.readouterr().err == (
    f"warning: {tmp_path}/d.csv: 4 rows of 5 with texts that are in {tmp_path}/t.csv, too: line 3 (line 2), line 5 "
    "(line 5), line 6 (line 6), ...: the results will be better than on new texts\n"
  )
  warn_of_duplicates(train, dev.select([0, 1]))
  assert "d.csv: 1 row of 2 with texts that are in" in capsys.readouterr().err
  warn_of_duplicates(train, dev.select([0]))
  assert not capsys.readouterr().err


def test_a_summary_counts_labels_and_gives_the_range_of_numbers(tmp_path: Path) -> None:
  path = tmp_path / "t.csv"
  description = summary(*read_custom(path, "a,b,label\nx,1,no\ny,2,no\n"))
  assert description == {"source": str(path), "rows": 2, "labels": {"no": 2, "yes": 0}}
  assert summary_line("dev", description) == f"{path} (dev): 2 rows; no: 2, yes: 0"
  description = summary(*read_custom(path, "a,b,label\nx,1,0.5\ny,2,4\n", regression=True))
  assert description == {"source": str(path), "rows": 2, "least": 0.5, "mean": 2.25, "greatest": 4.0}
  assert summary_line("train", description).endswith("2 rows; numbers from 0.5 to 4, mean 2.25")
