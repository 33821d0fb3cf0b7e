"""Tests of reading the files of GLUE and of custom tasks: errors name the file and the line, warnings the first row."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from albert.data.tables import Table, read_table
from albert.errors import UserError
from albert.tasks.glue.files import (
  TextRows,
  duplicate_warnings,
  duplicates,
  empty_text_warnings,
  find_file,
  find_labels,
  read_text_table,
  rows_of_table,
  summary,
  summary_line,
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
  """Returns the format of a file of a task."""
  return next(file_format for file_format in SPECS[task].formats() if file_format.name == name)


def read_rows(path: str, file_format: FileFormat, spec: TaskSpec) -> tuple[TextRows, Table]:
  """Reads a file. Returns its rows, and the table that they were made of."""
  table = read_text_table(path, file_format, spec)
  return rows_of_table(table, file_format, spec), table


def read_labels(path: Path, column: str) -> list[str]:
  """Reads the label column of a file, and returns its labels."""
  return find_labels(read_table(str(path), [column]), column)


def read_file(archive: Path, task: str, name: str) -> TextRows:
  """Reads a file of a task in an archive."""
  spec = SPECS[task]
  folder = "diagnostic" if name == "diagnostic.tsv" else spec.folder
  path = find_file(str(archive), folder, name)
  assert path is not None
  rows, _ = read_rows(path, format_of(task, name), spec)
  return rows


@pytest.mark.parametrize(("task", "name"), ALL_FILES)
def test_every_published_file_format_is_read(archive: Path, task: str, name: str) -> None:
  rows = read_file(archive, task, name)
  assert len(rows) == (4 * 11 if name == "train.tsv" else 11)
  assert all(rows.first)
  assert len(set(rows.ids)) == len(rows)
  spec = SPECS[task]
  has_single_texts = task in ("CoLA", "SST-2")
  assert (rows.second is None) == has_single_texts
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
  names = {name: [submission.name for submission in spec.submissions.values()] for name, spec in GLUE_SPECS.items()}
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
  folder = archive / "RTE"
  assert find_file(str(folder), "RTE", "dev.tsv") == str(folder / "dev.tsv")
  assert find_file(str(folder), "RTE", "nothing.tsv") is None
  assert find_file("", "RTE", "dev.tsv") is None


class Fault(NamedTuple):
  """A change of one line of a task's file, and the error that it causes."""

  task: str
  name: str
  line: int
  change: Callable[[str], str]
  message: str


FAULTS = {
  "beyond the scale": Fault(
    "STS-B", "train.tsv", 3, lambda line: line[:-5] + "7.5", r"line 3: score 7\.5 is not between 0"
  ),
  "empty text": Fault(
    "SST-2", "dev.tsv", 5, lambda line: "\t" + line[-1], r"dev\.tsv, line 5: column 'sentence' is empty"
  ),
  "duplicate id": Fault(
    "WNLI", "test.tsv", 5, lambda line: "1" + line[1:], r"test\.tsv, line 5: index '1' is already used in line 3"
  ),
  "a column less": Fault(
    "CoLA", "train.tsv", 2, lambda line: line.replace("\t", " ", 1), r"line 2: 3 columns instead of 4"
  ),
  "damage where none is known": Fault(
    "MNLI", "train.tsv", 9, lambda line: "cut", r"train\.tsv, line 9: 1 column instead of"
  ),
  "a label of another task": Fault(
    "WNLI",
    "dev.tsv",
    2,
    lambda line: line[:-1] + "entailment",
    r"dev\.tsv, line 2: label 'entailment' is one of RTE, not of WNLI \(0, 1\): check --task_name",
  ),
}


@pytest.mark.parametrize("fault_name", FAULTS)
def test_faults_are_named_with_file_and_line(tmp_path: Path, fault_name: str) -> None:
  fault = FAULTS[fault_name]
  write_archive(tmp_path, [fault.task], num_rows=11)
  edit_line(tmp_path / fault.task / fault.name, fault.line, fault.change)
  with pytest.raises(UserError, match=fault.message):
    read_file(tmp_path, fault.task, fault.name)


# The file `name` of the task `other` is read as if it were the file `name` of `task`. In the last case, RTE's test.tsv
# is read as if it were RTE's dev.tsv.
@pytest.mark.parametrize(
  ("task", "other", "name", "message"),
  [
    ("CoLA", "SST-2", "train.tsv", r"line 1: .* header of a file of SST-2, not of CoLA's train\.tsv \(which has none"),
    ("SST-2", "CoLA", "train.tsv", r"line 1: no column 'sentence'; there are: source0, 0, "),
    (
      "SST-2",
      "RTE",
      "dev.tsv",
      r"line 1: .* header of a file of RTE or WNLI, not of SST-2's dev\.tsv \(.*sentence, lab",
    ),
    ("RTE", "STS-B", "test.tsv", r"line 1: .* header of a file of STS-B, not of RTE's test\.tsv"),
    ("QNLI", "RTE", "train.tsv", r"line 1: .* header of a file of RTE or WNLI, not of QNLI's train\.tsv"),
    ("RTE", "RTE", "test.tsv", r"no column 'label'; there are: index, sentence1, sentence2"),
  ],
)
def test_a_file_of_another_task_is_refused(archive: Path, task: str, other: str, name: str, message: str) -> None:
  expected_format = format_of(task, "dev.tsv" if task == other else name)
  with pytest.raises(UserError, match=message):
    read_rows(str(archive / other / name), expected_format, SPECS[task])


def test_a_row_of_qqp_that_is_split_into_two_lines_is_skipped_and_reported(tmp_path: Path) -> None:
  write_archive(tmp_path, ["QQP"], num_rows=600)
  path = tmp_path / "QQP" / "train.tsv"
  edit_line(path, 100, lambda line: line[:30] + "\n" + line[30:])
  file_format = format_of("QQP", "train.tsv")
  rows, table = read_rows(str(path), file_format, SPECS["QQP"])
  assert (len(rows), list(table.damaged_lines)) == (4 * 600 - 1, [100, 101])
  # A third damaged line is more than the format tolerates in a file of this size.
  edit_line(path, 300, lambda line: "cut")
  with pytest.raises(UserError, match=r"train\.tsv, line 100: \d columns instead of 6"):
    read_rows(str(path), file_format, SPECS["QQP"])


def test_empty_questions_of_qqp_are_read(tmp_path: Path) -> None:
  write_archive(tmp_path, ["QQP"], num_rows=11)
  path = tmp_path / "QQP" / "test.tsv"
  edit_line(path, 4, lambda line: line.rsplit("\t", 1)[0] + "\t")
  assert read_file(tmp_path, "QQP", "test.tsv").second[2] == ""  # type: ignore[index]


def test_a_pickled_slice_of_rows_keeps_its_rows() -> None:
  rows = TextRows(["a", "b", "c"], ["x", "y", "z"], ["1", "2", "3"], np.array([0, 1, 0], np.int32))
  chunk = pickle.loads(pickle.dumps(rows[1:]))
  assert (chunk.ids, chunk.first, chunk.second, chunk.labels.tolist()) == (["b", "c"], ["y", "z"], ["2", "3"], [1, 0])


def custom_config(**options: object) -> ClassifierConfig:
  return ClassifierConfig(task_name="custom", **{"text_columns": "a,b", **options})  # type: ignore[arg-type]


def test_a_custom_task_reads_named_columns(tmp_path: Path) -> None:
  path = tmp_path / "mine.csv"
  path.write_text('key,b,a,kind\nk1,"two, too",one,no\nk2,four,three,yes\n', encoding="utf-8")
  labels = read_labels(path, "kind")
  assert labels == ["no", "yes"]
  spec = custom_spec(custom_config(label_column="kind", id_column="key"), labels)
  assert spec.labels == ("no", "yes")
  rows, _ = read_rows(str(path), spec.dev["dev"], spec)
  assert (rows.ids, rows.first, rows.second) == (["k1", "k2"], ["one", "three"], ["two, too", "four"])
  assert rows.labels.tolist() == [0, 1]
  rows, _ = read_rows(str(path), spec.submissions["test"].test_file, spec)
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
  with pytest.raises(
    UserError, match=r"t\.tsv: column 'label' holds 300 different labels in 300 rows: give --regression"
  ):
    read_labels(path, "label")
  path.write_text("label\na\na\n", encoding="utf-8")
  with pytest.raises(UserError, match=r"holds 1 label\(s\), \['a'\]: a task needs two or more"):
    read_labels(path, "label")


def test_a_custom_regression_has_the_metrics_and_the_columns_of_its_config() -> None:
  config = custom_config(regression=True, text_columns="a")
  spec = custom_spec(config, [])
  assert spec.is_regression
  assert spec.train == FileFormat("", (), ("a",), "label", allows_empty_texts=True)
  assert make_spec(config).metrics == ("pearson", "spearman", "rmse", "mae")


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"text_columns": ""}, "--text_columns=: a custom task needs the name of its text column"),
    ({"text_columns": "a,b,c"}, "--text_columns=a,b,c: a custom task needs"),
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


def warnings_of(path: Path, content: str, columns: str) -> list[str]:
  path.write_text(content, encoding="utf-8")
  spec = custom_spec(ClassifierConfig(task_name="custom", text_columns=columns), ["no", "yes"])
  table = read_text_table(str(path), spec.dev["dev"], spec)
  return list(empty_text_warnings(rows_of_table(table, spec.dev["dev"], spec), table))


@pytest.mark.parametrize(
  ("name", "content", "columns", "message"),
  [
    (
      "a.csv",
      'text,label\n"a\nb",yes\n" ",no\nc,no\n"",yes\n',
      "text",
      "a.csv, line 4: 2 rows of 4 have an empty",
    ),
    ("a.jsonl", '{"a": "x", "b": null, "label": "no"}\n', "a,b", "a.jsonl, line 1: 1 row of 1 has an empty text:"),
  ],
)
def test_rows_with_empty_texts_are_counted_and_the_first_is_named(
  tmp_path: Path, name: str, content: str, columns: str, message: str
) -> None:
  (warning,) = warnings_of(tmp_path / name, content, columns)
  assert warning.startswith(f"{tmp_path}/{message}")


def test_rows_without_empty_texts_give_no_warning(tmp_path: Path) -> None:
  assert warnings_of(tmp_path / "a.tsv", "text\tlabel\na\tyes\n.\tno\n", "text") == []


def read_table_of(path: Path, content: str, **options: bool) -> tuple[TextRows, Table, TaskSpec]:
  path.write_text(content, encoding="utf-8")
  spec = custom_spec(ClassifierConfig(task_name="custom", text_columns="a,b", **options), ["no", "yes"])  # type: ignore[arg-type]
  table = read_text_table(str(path), spec.dev["dev"], spec)
  return rows_of_table(table, spec.dev["dev"], spec), table, spec


def test_texts_in_both_sets_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
  header = "a,b,label\n"
  train, train_table, _ = read_table_of(tmp_path / "t.csv", header + "x,1,no\ny,2,no\nx,1,yes\nz,3,no\nw,4,no\n")
  dev, dev_table, _ = read_table_of(tmp_path / "d.csv", header + 'y,1,no\nX,"1\n",no\nZ,3,no\nw, 4,no\nw,4,no\n')
  pairs = duplicates(train, dev)
  assert pairs == [(1, 0), (2, 3), (3, 4), (4, 4)]
  assert list(duplicate_warnings(train_table, dev_table, pairs)) == [
    f"{tmp_path}/d.csv: 4 rows of 5 have texts that are in {tmp_path}/t.csv, too: line 3 (line 2), line 5 (line 5), "
    "line 6 (line 6), ...: the results will be better than on new texts"
  ]
  (warning,) = duplicate_warnings(train_table, dev_table, pairs[:1])
  assert "d.csv: 1 row of 5 has a text that is in" in warning
  assert list(duplicate_warnings(train_table, dev_table, [])) == []


def test_a_summary_counts_labels_and_gives_the_range_of_numbers(tmp_path: Path) -> None:
  path = tmp_path / "t.csv"
  rows, table, spec = read_table_of(path, "a,b,label\nx,1,no\ny,2,no\n")
  assert summary(rows, table, spec) == {"source": str(path), "rows": 2, "labels": {"no": 2, "yes": 0}}
  assert summary_line("dev", summary(rows, table, spec)) == f"{path} (dev): 2 rows; no: 2, yes: 0"
  rows, table, spec = read_table_of(path, "a,b,label\nx,1,0.5\ny,2,4\n", regression=True)
  assert summary(rows, table, spec) == {"source": str(path), "rows": 2, "least": 0.5, "mean": 2.25, "greatest": 4.0}
  assert summary_line("train", summary(rows, table, spec)).endswith("2 rows; numbers from 0.5 to 4, mean 2.25")
