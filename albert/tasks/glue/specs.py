"""The tasks of GLUE: the files, columns, labels, metrics and submissions of each, as one frozen TaskSpec.

Files have the layout of the archives of gluebenchmark.com. Submissions have the form that its site accepts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from albert.config import recipes
from albert.errors import UserError
from albert.tasks.glue.config import ClassifierConfig
from albert.tasks.glue.own_data.columns import parse_columns

CUSTOM = "custom"
# The metrics of one label among the others (albert.metrics.classification computes them).
POSITIVE_METRICS = ("f1", "precision", "recall")


@dataclasses.dataclass(frozen=True)
class FileFormat:
  """The layout of one file of a task.

  Attributes:
    name: file name in the task's folder; "" for a file of a custom task.
    columns: the names of all columns, in order; () if the file may have any columns.
    texts: the column of the text, or the two columns of a pair.
    label: the column of the label; "" if the file has no labels.
    id: the column of the ids; "" if rows are numbered from 0.
    has_header: whether the first line names the columns.
    tolerated_damage: maximum ratio of damaged to undamaged lines. Damaged lines are skipped (see tables.read_table).
    allows_empty_texts: whether a text may be empty.
  """

  name: str
  columns: tuple[str, ...]
  texts: tuple[str, ...]
  label: str = ""
  id: str = ""
  has_header: bool = True
  tolerated_damage: float = 0.0
  allows_empty_texts: bool = False


@dataclasses.dataclass(frozen=True)
class Submission:
  """A test set, and the file for gluebenchmark.com with its predictions.

  Attributes:
    name: file name of the submission; "" if there is none.
    test_file: layout of the test set.
    folder: the folder of the test set; "" if it is the task's own folder.
    is_optional: whether the test set is skipped if its file does not exist.
  """

  name: str
  test_file: FileFormat
  folder: str = ""
  is_optional: bool = False


@dataclasses.dataclass(frozen=True)
class TaskSpec:
  """A classification or regression task.

  Attributes:
    name: the name, spelled as in GLUE.
    folder: the folder of its files.
    labels: the names of the classes, in the order of the model's logits; () for regression.
    train: the training file; None if there is none.
    dev: split -> development file.
    submissions: split -> test set and submission.
    metrics: names of metrics.classification.METRICS. Checkpoints are compared by the first one, unless --best_metric
      is the loss.
    positive_class: the class that f1, precision and recall are computed for.
    label_separator: separates the labels of a row, if it may have several; "" if each row has one.
    low: for a regression, the smallest allowed number in the files and in predictions.
    high: for a regression, the largest allowed number.
    ranking_label: the label of a row whose sentence answers its question, for a task that can be trained with
      --formulation=ranking; "" for other tasks.
    model_of: for a task without training data, the task whose model makes the predictions; "" for other tasks.
  """

  name: str
  folder: str
  labels: tuple[str, ...]
  train: FileFormat | None
  dev: Mapping[str, FileFormat]
  submissions: Mapping[str, Submission]
  metrics: tuple[str, ...] = ("accuracy",)
  positive_class: int = 1
  label_separator: str = ""
  low: float = float("-inf")
  high: float = float("inf")
  ranking_label: str = ""
  model_of: str = ""

  @property
  def is_regression(self) -> bool:
    """Whether the labels are numbers."""
    return not self.labels

  @property
  def positive_metrics(self) -> list[str]:
    """The metrics that are computed for the positive class alone."""
    return [name for name in self.metrics if name in POSITIVE_METRICS]

  def formats(self) -> list[FileFormat]:
    """Returns the layouts of all files of the task."""
    train = [self.train] if self.train else []
    return [*train, *self.dev.values(), *(submission.test_file for submission in self.submissions.values())]


_ENTAILMENT_LABELS = ("entailment", "not_entailment")
_SENTENCE_COLUMNS = ("sentence1", "sentence2")
_BINARY_LABELS = ("0", "1")


def _make_spec(
  name: str,
  labels: tuple[str, ...],
  train: FileFormat,
  test: FileFormat,
  metrics: tuple[str, ...] = ("accuracy",),
  low: float = float("-inf"),
  high: float = float("inf"),
) -> TaskSpec:
  """Makes the spec of a task whose development file has the layout of its training file."""
  return TaskSpec(
    name=name,
    folder=name,
    labels=labels,
    train=train,
    dev={"dev": dataclasses.replace(train, name="dev.tsv", tolerated_damage=0.0)},
    submissions={"test": Submission(f"{name}.tsv", test)},
    metrics=metrics,
    low=low,
    high=high,
  )


def _make_cola() -> TaskSpec:
  # train.tsv and dev.tsv have no header. The column "mark" holds the mark of the sentence's author, such as "*".
  columns = ("source", "label", "mark", "sentence")
  train = FileFormat("train.tsv", columns, ("sentence",), "label", has_header=False)
  test = FileFormat("test.tsv", ("index", "sentence"), ("sentence",), id="index")
  return _make_spec("CoLA", _BINARY_LABELS, train, test, ("matthews_corrcoef", "accuracy"))


def _make_sst_2() -> TaskSpec:
  train = FileFormat("train.tsv", ("sentence", "label"), ("sentence",), "label")
  test = FileFormat("test.tsv", ("index", "sentence"), ("sentence",), id="index")
  return _make_spec("SST-2", _BINARY_LABELS, train, test)


def _make_mrpc() -> TaskSpec:
  columns, texts = ("#1 ID", "#2 ID", "#1 String", "#2 String"), ("#1 String", "#2 String")
  train = FileFormat("train.tsv", ("Quality", *columns), texts, "Quality")
  test = FileFormat("test.tsv", ("index", *columns), texts, id="index")
  return _make_spec("MRPC", _BINARY_LABELS, train, test, ("accuracy", "f1"))


def _make_sts_b() -> TaskSpec:
  columns = ("index", "genre", "filename", "year", "old_index", "source1", "source2", *_SENTENCE_COLUMNS)
  train = FileFormat("train.tsv", (*columns, "score"), _SENTENCE_COLUMNS, "score", "index")
  test = FileFormat("test.tsv", columns, _SENTENCE_COLUMNS, id="index")
  return _make_spec("STS-B", (), train, test, ("pearson", "spearman"), low=0.0, high=5.0)


def _make_qqp() -> TaskSpec:
  # In the published files a few questions contain line ends, which split their rows in two. The original code skips
  # these rows. A few other questions are empty.
  texts = ("question1", "question2")
  train = FileFormat(
    "train.tsv",
    ("id", "qid1", "qid2", *texts, "is_duplicate"),
    texts,
    "is_duplicate",
    "id",
    tolerated_damage=1e-3,
    allows_empty_texts=True,
  )
  test = FileFormat("test.tsv", ("id", *texts), texts, id="id", allows_empty_texts=True)
  spec = _make_spec("QQP", _BINARY_LABELS, train, test, ("accuracy", "f1"))
  dev = dataclasses.replace(train, name="dev.tsv")  # has damaged rows, too, unlike the dev.tsv of other tasks
  return dataclasses.replace(spec, dev={"dev": dev})


def _make_mnli() -> TaskSpec:
  parses = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
  columns = ("index", "promptID", "pairID", "genre", *parses, *_SENTENCE_COLUMNS)
  votes = ("label1", "label2", "label3", "label4", "label5")
  matched = FileFormat("dev_matched.tsv", (*columns, *votes, "gold_label"), _SENTENCE_COLUMNS, "gold_label", "index")
  test = FileFormat("test_matched.tsv", columns, _SENTENCE_COLUMNS, id="index")
  return TaskSpec(
    name="MNLI",
    folder="MNLI",
    labels=("contradiction", "entailment", "neutral"),
    train=FileFormat("train.tsv", (*columns, "label1", "gold_label"), _SENTENCE_COLUMNS, "gold_label", "index"),
    dev={"matched": matched, "mismatched": dataclasses.replace(matched, name="dev_mismatched.tsv")},
    submissions={
      "test_matched": Submission("MNLI-m.tsv", test),
      "test_mismatched": Submission("MNLI-mm.tsv", dataclasses.replace(test, name="test_mismatched.tsv")),
      "diagnostic": Submission("AX.tsv", _DIAGNOSTIC, "diagnostic", is_optional=True),
    },
  )


_DIAGNOSTIC = FileFormat("diagnostic.tsv", ("index", *_SENTENCE_COLUMNS), _SENTENCE_COLUMNS, id="index")


def _make_nli(name: str, texts: tuple[str, ...], labels: tuple[str, ...]) -> TaskSpec:
  train = FileFormat("train.tsv", ("index", *texts, "label"), texts, "label", "index")
  test = FileFormat("test.tsv", ("index", *texts), texts, id="index")
  return _make_spec(name, labels, train, test)


def _make_qnli() -> TaskSpec:
  spec = _make_nli("QNLI", ("question", "sentence"), _ENTAILMENT_LABELS)
  return dataclasses.replace(spec, ranking_label="entailment")


def _make_diagnostic() -> TaskSpec:
  """The diagnostic set alone, predicted by a model of MNLI."""
  mnli = _make_mnli()
  submissions = {"diagnostic": dataclasses.replace(mnli.submissions["diagnostic"], is_optional=False)}
  return dataclasses.replace(
    mnli, name="AX", folder="diagnostic", train=None, dev={}, submissions=submissions, model_of="MNLI"
  )


SPECS: dict[str, TaskSpec] = {
  spec.name: spec
  for spec in (
    _make_cola(),
    _make_sst_2(),
    _make_mrpc(),
    _make_sts_b(),
    _make_qqp(),
    _make_mnli(),
    _make_qnli(),
    _make_nli("RTE", _SENTENCE_COLUMNS, _ENTAILMENT_LABELS),
    _make_nli("WNLI", _SENTENCE_COLUMNS, _BINARY_LABELS),
    _make_diagnostic(),
  )
}


def recipe_name(config: ClassifierConfig) -> str:
  """Returns the recipe of --task_name: glue_NAME, or glue_custom if configs/ has no such file; "" without the flag."""
  if not config.task_name:
    return ""
  name = canonical_name(config.task_name)
  if name in SPECS and SPECS[name].model_of:
    name = SPECS[name].model_of
  recipe = f"glue_{_normalize_name(name)}"
  return recipe if recipe in recipes.config_names() else f"glue_{CUSTOM}"


def _normalize_name(name: str) -> str:
  """Converts all spellings of a task's name to the same text: SST-2, sst_2 and SST2 to sst2."""
  return name.lower().replace("-", "").replace("_", "")


_SPECS_BY_NORMALIZED_NAME = {_normalize_name(name): spec for name, spec in SPECS.items()} | {
  "sts": SPECS["STS-B"],
  "diagnostic": SPECS["AX"],
}


def canonical_name(task_name: str) -> str:
  """Returns the name of a task as it is spelled in SPECS, or CUSTOM.

  Args:
    task_name: the name in any spelling, such as sts-b, SST2 or mnli.
  Raises:
    UserError: the name is empty or unknown; the message lists the known names.
  """
  if _normalize_name(task_name) == CUSTOM:
    return CUSTOM
  spec = _SPECS_BY_NORMALIZED_NAME.get(_normalize_name(task_name))
  if spec is None:
    problem = f"--task_name={task_name}: unknown task" if task_name else "--task_name is missing"
    raise UserError(f"{problem}; tasks: {', '.join(SPECS)}, {CUSTOM}")
  return spec.name


def custom_spec(config: ClassifierConfig, labels: Sequence[str]) -> TaskSpec:
  """Makes the spec of a custom task. `metric_choice.choose_metrics` chooses its metrics.

  Args:
    config: the flags, which name the columns.
    labels: the names of the classes; not used for regression.
  Raises:
    UserError: there is no text column, there are more than two, or a column is named twice.
  """
  texts = text_columns(config)
  file = FileFormat("", (), texts, config.label_column, config.id_column, allows_empty_texts=True)
  return TaskSpec(
    name=CUSTOM,
    folder="",
    labels=() if config.regression else tuple(labels),
    train=file,
    dev={"dev": file},
    submissions={"test": Submission("", dataclasses.replace(file, label=""))},
    label_separator=config.label_separator if config.multi_label else "",
  )


def text_columns(config: ClassifierConfig) -> tuple[str, ...]:
  """Returns the columns that --text_columns of a custom task names.

  Raises:
    UserError: there is no text column, there are more than two, or a column is named twice.
  """
  texts = parse_columns(config.text_columns)
  if len(texts) not in (1, 2):
    raise UserError(
      f"--text_columns={config.text_columns}: a custom task needs the name of its text column, or the two names of a "
      "pair, separated by a comma"
    )
  names = [*texts, config.label_column, *([config.id_column] if config.id_column else [])]
  if len(set(names)) < len(names):
    raise UserError(f"--text_columns, --label_column and --id_column name a column twice: {', '.join(names)}")
  return texts


def tasks_of_header(header: Sequence[str]) -> list[str]:
  """Returns the names of the tasks that have a file with exactly this header."""
  return [
    name
    for name, spec in SPECS.items()
    if any(file.has_header and list(file.columns) == list(header) for file in spec.formats())
  ]
