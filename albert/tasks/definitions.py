"""The tasks of the Python API: what is learned, from which data. The model is chosen later. Needs no TensorFlow.

    task = albert.tasks.Classification(train=frame, text="comment", label="kind")
    estimator = albert.Estimator(task, init_checkpoint="downloads/albert_base")

Data is the path of a file, or data in memory: a pandas frame, a dict of columns, a list of dicts, or a list of tuples
(see albert.data.rows.rows_of). Errors about data in memory name the row, counted from 0, and the column. The other
arguments are flags of the scripts under names that are shorter; the task's config checks them.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from albert.config.base import Config, option_fields
from albert.data import tables
from albert.data.rows import ABSENT, Rows, TableData, is_path, rows_of
from albert.errors import UserError, python_messages
from albert.io import files, json_values
from albert.io.text import format_value
from albert.runs import output_files
from albert.tasks.answers import ClassAnswer, LabelsAnswer
from albert.tasks.glue.files import find_labels
from albert.tasks.glue.flags import ClassifierConfig, format_class_weights, format_columns, format_labels
from albert.tasks.glue.specs import CUSTOM, canonical_name
from albert.tasks.splits import DEV, EVAL_SEED, EVAL_SHARE, FILE_FIELDS, TEST, TRAIN, hold_out
from albert.tasks.squad.files import SQUAD_REMEDY, SquadFile, answer_list
from albert.tasks.squad.flags import SquadConfig
from albert.tasks.tagging.files import SPANS, TAGS, TEXT, TOKENS, find_types, read_texts
from albert.tasks.tagging.flags import TaggingConfig

# Split -> the argument for its data.
_ARGUMENT_NAMES = {TRAIN: "train", DEV: "eval", TEST: "test"}
# The recipes give numbers of steps, which are right for the sizes of SQuAD and RACE only. These settings depend on the
# size of the data instead.
_RELATIVE_LENGTHS = {"num_train_epochs": 2.0, "warmup_proportion": 0.1}


def _setting(config_class: type[Config], name: str) -> Any:
  """Declares an argument that is a field of the task's config."""
  return dataclasses.field(default=option_fields(config_class)[name].default, kw_only=True, metadata={"setting": name})


# Flag -> the argument or method of the Python API that does the same, if it has another name.
PYTHON_NAMES = {
  "do_train": "train()",
  "do_eval": "evaluate()",
  "do_predict": "predict()",
  "text_columns": "text",
  "label_column": "label",
  "id_column": "id",
  "group_column": "group",
  "regression": "albert.tasks.Regression",
  "albert_config_file": "model",
}


class TaskDefinition(abc.ABC):
  """A task and its data. Estimator adds the model and the settings of the training.

  Attributes:
    task_name: the name of the task in albert.tasks.registry.TASKS.
    default_settings: the values of settings that the Estimator is not given, for a new run. They replace values of the
      recipe.
    file_fields: split ("train", "dev" or "test") -> the field of the task's config that names its file.
    settings: field of the task's config -> its value, for the fields that the definition sets.
    rows: split -> its rows, if they are in memory.
  """

  task_name: str
  default_settings: ClassVar[Mapping[str, Any]] = {}
  file_fields: ClassVar[Mapping[str, str]] = FILE_FIELDS

  def __init_subclass__(cls) -> None:
    cls.__post_init__ = python_messages(PYTHON_NAMES)(cls.__post_init__)  # type: ignore[method-assign]

  def __post_init__(self) -> None:
    self.settings: dict[str, Any] = {}
    self.rows: dict[str, Rows] = {}
    for field in dataclasses.fields(self):  # type: ignore[arg-type]  # the classes below are dataclasses
      if field.metadata:
        self.settings[field.metadata["setting"]] = getattr(self, field.name)

  def has(self, split: str) -> bool:
    """Whether the definition gives data for a split."""
    return split in self.rows or bool(self.settings.get(self.file_fields.get(split, "")))

  def convert_answers(self, answers: list[Any]) -> list[Any]:
    """Converts the labels in answers to the type that they have in the training data."""
    return answers


@dataclasses.dataclass(repr=False, eq=False)
class _ExampleDefinition(TaskDefinition):
  """The base class of tasks with examples in files or in memory, of which a share may be held out."""

  train: TableData | None = None
  _: dataclasses.KW_ONLY
  eval: TableData | None = None
  test: TableData | None = None
  eval_share: float = EVAL_SHARE
  eval_seed: int = EVAL_SEED

  def _add_data(self, split: str, required: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Adds the data of a split: a path to `settings`, or data in memory to `rows`. None adds nothing."""
    name = _ARGUMENT_NAMES[split]
    data = getattr(self, name)
    if is_path(data):
      self.settings[self.file_fields[split]] = existing_file(data, name)
    elif data is not None:
      self.rows[split] = rows_of(data, name, required, optional)
      setattr(self, name, None)  # the rows hold a copy

  def _hold_out_groups(self, column: str) -> None:
    """Moves a share of the training rows in memory to DEV. Rows with the same value in a column stay together."""
    if TRAIN in self.rows and not self.has(DEV) and self.eval_share:
      rows = self.rows[TRAIN]
      groups = [str(value) for value in rows.columns[column]]
      self.rows[TRAIN], self.rows[DEV] = hold_out(rows, self.eval_share, self.eval_seed, groups=groups)


def existing_file(path: TableData, name: str) -> str:
  """Returns an absolute path. Raises UserError if there is no such file; the message calls it `name`."""
  text = os.fspath(path)
  if not files.exists(text):
    raise UserError(f"{name}={text}: no such file; give data in memory as a list, a dict of columns or a frame")
  return files.absolute(str(text))


@dataclasses.dataclass(repr=False, eq=False)
class _TextDefinition(_ExampleDefinition):
  """The base class of classification and regression of texts."""

  task_name = "classifier"

  text: str | Sequence[str] = dataclasses.field(default="text", kw_only=True)
  label: str | Sequence[str] = _setting(ClassifierConfig, "label_column")
  id: str = _setting(ClassifierConfig, "id_column")
  group: str = _setting(ClassifierConfig, "group_column")

  def __post_init__(self) -> None:
    super().__post_init__()
    text_columns = [self.text] if isinstance(self.text, str) else list(self.text)
    id_columns = [self.id] if self.id else []
    self._label_columns = [self.label] if isinstance(self.label, str) else list(self.label)
    labeled_columns = [*text_columns, *self._label_columns, *id_columns]
    group_columns = [self.group] if self.group else []
    for name in [*labeled_columns, *group_columns]:
      if not isinstance(name, str) or name != name.strip() or not name:
        raise UserError(f"the column {name!r} is empty, has spaces at its ends, or is not a text: rename it")
    self.settings |= {"task_name": CUSTOM, "text_columns": format_columns(text_columns)}
    self.settings["label_column"] = format_columns(self._label_columns)
    self._add_data(TRAIN, [*labeled_columns, *group_columns])
    self._add_data(DEV, labeled_columns)
    self._add_data(TEST, text_columns, id_columns)
    if self.has(TRAIN) and not self.has(DEV) and self.eval_share:
      self.settings |= {"eval_share": float(self.eval_share), "eval_seed": self.eval_seed}

  def has(self, split: str) -> bool:
    """Whether the definition gives data for a split, or holds out a share of train for it."""
    return super().has(split) or (split == DEV and "eval_share" in self.settings)


def _label_text(value: Any) -> str:
  """Returns the text of a label in predictions files."""
  if isinstance(value, bool):
    return "true" if value else "false"
  return str(value).strip()


@dataclasses.dataclass(repr=False, eq=False)
class Classification(_TextDefinition):
  """Classifies texts or pairs of texts into two or more classes.

  Args:
    train: data to train on: the path of a TSV, CSV, JSONL or Parquet file, or data in memory. None if nothing is
      trained.
    eval: data to evaluate on, in the same forms. If it is not given, a share of train is held out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no labels.
    text: the column of the text, or the two columns of a pair.
    label: the column of the label: texts, whole numbers or bools. Or several columns of 0 and 1, each for the label of
      its name: then a row may have several labels, or none.
    id: the column of ids for predictions files; "" to number the rows from 0.
    group: the column of groups whose rows stay together when a share of train is held out; "" if there is none.
    labels: all labels; by default those in train, sorted.
    multi_label: whether a row may have several labels, or none. Its label is then a list, or a text with a separator;
      if `labels` is given, also a list of 0 and 1 for each of them.
    label_separator: separates the labels in a text.
    class_weights: the weights of the labels in the training loss: "balanced", or label -> weight. Labels without an
      entry have weight 1.
    eval_share: the share of train that is held out if eval is not given; 0 for none. The labels have about the same
      shares in it as in train, and rows with the same text stay together. eval_split.json in output_dir lists the rows.
    eval_seed: seed of the choice of the held-out rows.

  Raises:
    UserError: a column is missing, or a label cannot be used; the message names the row and the column. Files are read
      when the Estimator is made.

  Example:
    >>> data = {"comment": ["very good", "bad", "fine", "poor"], "kind": [1, 0, 1, 0]}
    >>> task = albert.tasks.Classification(train=data, text="comment", label="kind", eval_share=0.5)
  """

  _: dataclasses.KW_ONLY
  labels: Sequence[Any] | None = None
  multi_label: bool = False
  label_separator: str = ","
  class_weights: str | Mapping[Any, float] = ""

  def __post_init__(self) -> None:
    super().__post_init__()
    column, has_one_column = self._label_columns[0], len(self._label_columns) == 1
    for split in (TRAIN, DEV):
      if split in self.rows and has_one_column and not self.multi_label:
        self.rows[split] = self._with_integer_labels(self.rows[split], column)
    labels: list[Any] = [] if has_one_column else list(self._label_columns)
    if TRAIN in self.rows and has_one_column:
      for field in self.rows[TRAIN].columns[column]:
        labels += field if isinstance(field, list) else [field]
    labels += self.labels or ()
    self._label_values = {_label_text(label): label for label in labels}  # text of a label -> the label as it was given
    separator = self.label_separator if self.multi_label else ""
    if self.labels is not None:
      self.settings["labels"] = format_labels(list(map(_label_text, self.labels)))
    elif TRAIN in self.rows and has_one_column:  # the labels of a file are found when it is read
      list_columns = {column: separator} if separator else {}
      table = tables.read_table(self.rows[TRAIN], [column], list_columns=list_columns)
      self.settings["labels"] = format_labels(find_labels(table, column, separator))
    if self.multi_label:
      self.settings |= {"multi_label": True, "label_separator": separator}
    if isinstance(self.class_weights, Mapping):
      weights = {_label_text(name): weight for name, weight in self.class_weights.items()}
      self.settings["class_weights"] = format_class_weights(weights)
    elif self.class_weights:
      self.settings["class_weights"] = self.class_weights

  def _with_integer_labels(self, rows: Rows, column: str) -> Rows:
    """Converts labels such as 1.0 to integers. pandas converts a column of integers to floats if a value is missing."""
    labels = list(rows.columns[column])
    for index, value in enumerate(labels):
      if isinstance(value, float):
        if not value.is_integer():
          raise UserError(
            f"{rows.location(index)}: {column} {value:g} is not a class: use albert.tasks.Regression to predict numbers"
          )
        labels[index] = int(value)
    return dataclasses.replace(rows, columns={**rows.columns, column: labels})

  def convert_answers(self, answers: list[Any]) -> list[Any]:
    """Converts the labels in answers to the type that they have in the training data."""

    def label_of(text: str) -> Any:
      return self._label_values.get(text, text)

    def by_label(numbers: Mapping[str, float]) -> dict[Any, float]:
      return {label_of(text): number for text, number in numbers.items()}

    converted: list[Any] = []
    for answer in answers:
      if isinstance(answer, LabelsAnswer):
        labels = list(map(label_of, answer.labels))
        converted.append(LabelsAnswer(labels, by_label(answer.probabilities), by_label(answer.thresholds)))
      else:
        converted.append(ClassAnswer(label_of(answer.label), answer.probability, by_label(answer.probabilities)))
    return converted


@dataclasses.dataclass(repr=False, eq=False)
class Regression(_TextDefinition):
  """Predicts a number for each text or pair of texts.

  Args:
    train, eval, test, text, id, group: see Classification.
    label: the column of the number.
    eval_share: the share of train that is held out if eval is not given; 0 for none. The numbers have about the same
      distribution in it as in train, and rows with the same text stay together. eval_split.json in output_dir lists the
      rows.
    eval_seed: seed of the choice of the held-out rows.

  Raises:
    UserError: a column is missing, or a label is not a number; the message names the row and the column.

  Example:
    >>> pairs = [("A man plays.", "Someone plays.", 4.2), ("A dog runs.", "A cat sleeps.", 0.3)]
    >>> task = albert.tasks.Regression(train=pairs, text=("first", "second"), label="score", eval_share=0)
  """

  def __post_init__(self) -> None:
    super().__post_init__()
    self.settings["regression"] = True


@dataclasses.dataclass(repr=False, eq=False)
class Glue(TaskDefinition):
  """A task of GLUE. Its data is in the files of GLUE's archives.

  Args:
    name: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI or AX.
    data_dir: the folder that GLUE's archives were unpacked into, or the folder of the task.

  Raises:
    UserError: there is no such task.

  Example:
    >>> task = albert.tasks.Glue("MRPC", data_dir="glue_data")
  """

  task_name = "classifier"

  name: str
  data_dir: str | os.PathLike[str] = ""

  def __post_init__(self) -> None:
    super().__post_init__()
    task_name = canonical_name(self.name)
    if task_name == CUSTOM:
      raise UserError("Glue('custom'): use albert.tasks.Classification or albert.tasks.Regression for your own data")
    self.settings |= {"task_name": task_name, "data_dir": os.fspath(self.data_dir)}

  def has(self, split: str) -> bool:
    """Whether the split is the training set, and data_dir is given. The files of other splits are found later."""
    return split == TRAIN and bool(self.data_dir)


@dataclasses.dataclass(repr=False, eq=False)
class QuestionAnswering(_ExampleDefinition):
  """Answers questions with spans of a context, as in SQuAD.

  Each row of data in memory has the columns question and context; for training and evaluation also answers. An entry of
  the column answers is a text or a list of texts, whose first occurrence in the context is used; or a list of dicts
  with text and answer_start; or {"text": [...], "answer_start": [...]}. The columns id, title and is_impossible are
  optional. The content of a whole file of SQuAD, {"data": [...]}, is accepted, too.

  Args:
    train: data to train on: JSON files in the format of SQuAD (globs), or data in memory. None if nothing is
      trained.
    eval: data to evaluate on, in the same forms. If it is not given and train is in memory, a share of train is held
      out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no answers.
    version_2_with_negative: whether questions may be unanswerable. Such a question has no answers.
    eval_share: the share of train that is held out if eval is not given; 0 for none. Questions about one context stay
      together.
    eval_seed: seed of the choice of the held-out rows.

  Raises:
    UserError: a row lacks a field, or its answer is not in the context; the message names the row.

  Example:
    >>> train = [
    ...   {"question": "Where do they drink?", "context": "They drink in the pub.", "answers": "the pub"},
    ...   {"question": "Who sleeps?", "context": "The dog sleeps at home.", "answers": "The dog"},
    ... ]
    >>> task = albert.tasks.QuestionAnswering(train=train, eval_share=0)
  """

  task_name = "squad"
  default_settings: ClassVar[Mapping[str, Any]] = _RELATIVE_LENGTHS

  version_2_with_negative: bool = _setting(SquadConfig, "version_2_with_negative")

  def __post_init__(self) -> None:
    super().__post_init__()
    self.train, self.eval, self.test = map(flat_squad, (self.train, self.eval, self.test))
    for split in (TRAIN, DEV):
      self._add_data(split, ["question", "context", "answers"], ["id", "title", "is_impossible"])
      if split in self.rows:
        self.rows[split] = _with_answers(self.rows[split], self.version_2_with_negative)
    self._add_data(TEST, ["question", "context"], ["id", "title"])
    self._hold_out_groups("context")


def flat_squad(data: TableData | None) -> TableData | None:
  """Converts {"data": [...]}, the content of a file of SQuAD, to a list of dicts, one for each question.

  Args:
    data: the content of a file, or data in another form, which is returned unchanged.
  Raises:
    UserError: an article or a paragraph lacks a key.
  """
  if not isinstance(data, Mapping) or "data" not in data:
    return data
  return [
    {"title": article.title, "context": paragraph.context, **question}
    for article in json_values.convert("the data", data, SquadFile, SQUAD_REMEDY).data
    for paragraph in article.paragraphs
    for question in paragraph.qas
  ]


def _with_answers(rows: Rows, version_2: bool) -> Rows:
  """Converts answers to lists of dicts with text and answer_start. Rows of v2.0 without is_impossible get it."""
  answers = [_convert_answers(rows, index) for index in range(len(rows))]
  columns = {**rows.columns, "answers": answers}
  if version_2:
    given = rows.columns.get("is_impossible", [None] * len(rows))
    columns["is_impossible"] = [
      not answers[index] if value in (ABSENT, None) else value for index, value in enumerate(given)
    ]
  return dataclasses.replace(rows, columns=columns)


def _convert_answers(rows: Rows, index: int) -> list[Any]:
  """Converts the answers of a row. Values of another type than a text are checked when the rows are read."""
  value, context = rows.columns["answers"][index], rows.columns["context"][index]
  if isinstance(value, dict):
    return answer_list(rows.location(index), value)
  if value in (None, ""):
    return []
  answers = list(value) if isinstance(value, list) else [value]
  for number, answer in enumerate(answers):
    if isinstance(answer, str):
      start = context.find(answer) if isinstance(context, str) else -1
      if start < 0:
        raise UserError(f"{rows.location(index)}: the context does not have the answer {format_value(answer)}")
      answers[number] = {"text": answer, "answer_start": start}
  return answers


@dataclasses.dataclass(repr=False, eq=False)
class MultipleChoice(_ExampleDefinition):
  """Chooses one of several options for each question about an article, as in RACE.

  Each row of data in memory has the columns article, question and options (a list of texts); for training and
  evaluation also answer: a letter (A is the first option), or the index of the option from 0. If the question contains
  "_", the options are inserted there. The column id is optional.

  Args:
    train: data to train on: a file of JSON lines, a folder such as RACE/train, or data in memory. None if nothing is
      trained.
    eval: data to evaluate on, in the same forms. If it is not given and train is in memory, a share of train is held
      out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no answers.
    eval_share: the share of train that is held out if eval is not given; 0 for none. Questions about one article stay
      together.
    eval_seed: seed of the choice of the held-out rows.

  Raises:
    UserError: a row lacks a field; the message names the row. Other errors are reported by Estimator.

  Example:
    >>> train = [
    ...   {"article": "It rained.", "question": "It was _.", "options": ["wet", "dry"], "answer": "A"},
    ...   {"article": "The sun shone.", "question": "It was _.", "options": ["wet", "dry"], "answer": 1},
    ... ]
    >>> task = albert.tasks.MultipleChoice(train=train, eval_share=0)
  """

  task_name = "race"
  default_settings: ClassVar[Mapping[str, Any]] = {
    **_RELATIVE_LENGTHS,
    "eval_every_steps": 0,
    "select_checkpoint": "newest",
  }

  def __post_init__(self) -> None:
    super().__post_init__()
    fields = ["article", "question", "options"]
    self._add_data(TRAIN, [*fields, "answer"], ["id"])
    self._add_data(DEV, [*fields, "answer"], ["id"])
    self._add_data(TEST, fields, ["id"])
    self._hold_out_groups("article")


@dataclasses.dataclass(repr=False, eq=False)
class Tagging(_ExampleDefinition):
  """Finds spans of words, such as names, and their types.

  Each row of data in memory has the columns tokens (a list of words) and tags (a list of as many tags), or the columns
  text and spans (a list of dicts with start, end and label; start is the first character, from 0, and end the one after
  the last). To predict, tags and spans are not needed: give texts, lists of words, or rows.

  Args:
    train: data to train on: a file of columns (CoNLL) or of JSON lines, or data in memory. None if nothing is trained.
    eval: data to evaluate on, in the same forms. If it is not given and train is in memory, a share of train is held
      out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no tags.
    scheme: how tags mark spans: "BIO", "BILOU", "BIOES", "IO" or "plain" (see docs/tagging.md).
    labels: all types of spans; by default those in train, sorted.
    words: the column of the words; "" for tokens, and for the first column of a file of columns.
    tags: the column of the tags; "" for tags, and for the last column of a file of columns.
    offsets: what the offsets of spans count: "characters" or "utf16".
    word_rule: how texts are divided into words: "punctuation" or "whitespace" (see docs/tagging.md).
    eval_share: the share of train that is held out if eval is not given; 0 for none. Equal texts stay together.
    eval_seed: seed of the choice of the held-out rows.

  Raises:
    UserError: a row lacks a column, or its tags do not follow the scheme; the message names the row.

  Example:
    >>> train = [
    ...   {"tokens": ["Anna", "flew", "to", "New", "York"], "tags": ["B-PER", "O", "O", "B-LOC", "I-LOC"]},
    ...   {"tokens": ["Berlin", "waits"], "tags": ["B-LOC", "O"]},
    ... ]
    >>> task = albert.tasks.Tagging(train=train, eval_share=0)
  """

  task_name = "tagging"

  _: dataclasses.KW_ONLY
  scheme: str = _setting(TaggingConfig, "scheme")
  labels: Sequence[str] | None = None
  words: str = _setting(TaggingConfig, "word_column")
  tags: str = _setting(TaggingConfig, "tag_column")
  offsets: str = _setting(TaggingConfig, "offsets")
  word_rule: str = _setting(TaggingConfig, "word_rule")

  def __post_init__(self) -> None:
    super().__post_init__()
    group_column = columns_of_texts(self.train, self.words, self.tags, with_tags=False)[0]
    for split, with_tags in ((TRAIN, True), (DEV, True), (TEST, False)):
      data = getattr(self, _ARGUMENT_NAMES[split])
      self._add_data(split, columns_of_texts(data, self.words, self.tags, with_tags=with_tags), ["id"])
    if self.labels is not None:
      self.settings["labels"] = format_labels(self.labels)
    elif TRAIN in self.rows:
      texts = read_texts(self.rows[TRAIN], TaggingConfig(**self.settings), with_tags=True)
      self.settings["labels"] = format_labels(find_types(self.rows[TRAIN], texts))
    self._hold_out_groups(group_column)


def columns_of_texts(data: TableData, words: str = "", tags: str = "", *, with_tags: bool) -> list[str]:
  """Returns the columns that data in memory must have: words and tags, or text and spans.

  Args:
    data: the data, in any form that albert.data.rows.rows_of accepts; None or a path is accepted, too.
    words, tags: the names of the columns; "" for tokens and tags.
    with_tags: whether tags or spans are needed.
  """
  has_text = False
  if data is not None and not is_path(data):
    if hasattr(data, "columns"):
      names: Any = list(data.columns)
    elif isinstance(data, Mapping):
      names = list(data)
    else:
      first = next(iter(data), None) if hasattr(data, "__iter__") else None
      if isinstance(first, tuple) and first:
        first = first[0]
      names = first if isinstance(first, Mapping) else [TEXT] if isinstance(first, str) else [TOKENS]
    has_text = TEXT in names and (words or TOKENS) not in names
  required = [TEXT, SPANS] if has_text else [words or TOKENS, tags or TAGS]
  return required if with_tags else required[:1]


@dataclasses.dataclass(repr=False, eq=False)
class Pretraining(TaskDefinition):
  """Pretrains on TFRecord shards: masked LM, and sentence order or next sentence.

  Args:
    train: shards that data_prep wrote: paths or glob patterns, separated by commas. None if nothing is trained.
    eval: shards of held-out documents. They are not taken from train.
    test: the text file that predict() without an argument predicts. Its lines contain [MASK].

  Raises:
    UserError: an argument is not a path.

  Example:
    >>> task = albert.tasks.Pretraining(train="shards/train-*.tfrecord", eval="shards/eval-*.tfrecord")
  """

  task_name = "pretraining"
  file_fields: ClassVar[Mapping[str, str]] = {TRAIN: "input_file", DEV: "eval_input_file", TEST: "predict_file"}

  train: str | os.PathLike[str] | None = None
  _: dataclasses.KW_ONLY
  eval: str | os.PathLike[str] | None = None
  test: str | os.PathLike[str] | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    for split, name in _ARGUMENT_NAMES.items():
      path = getattr(self, name)
      if path is not None and not is_path(path):
        raise UserError(f"{name}: pretraining reads files: give their paths, separated by commas")
      if path is not None:
        self.settings[self.file_fields[split]] = os.fspath(path)


class TaskOfRun(TaskDefinition):
  """The task of a finished run, with the settings and the files that the run recorded.

  Args:
    output_dir: the directory of the run.

  Raises:
    UserError: there is no run in the directory.
  """

  file_fields: ClassVar[Mapping[str, str]] = {}  # a run's files are named by its settings

  def __init__(self, output_dir: str | os.PathLike[str]):
    self.settings, self.rows = {}, {}
    path = files.join(os.fspath(output_dir), output_files.CONFIG)
    if not files.exists(path):
      raise UserError(f"{output_dir}: holds no run: give the output_dir of a run, which has {output_files.CONFIG}")
    self.task_name = output_files.read_config(path).get("task", "")
    if not self.task_name:
      raise UserError(f"{path}: does not name the task of its run: give the output_dir of a run")
