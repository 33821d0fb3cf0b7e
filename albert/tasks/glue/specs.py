"""The tasks of GLUE, and custom tasks: the files, columns, labels, metrics and submissions of each as a TaskSpec.

Files have the layout of the archives of gluebenchmark.com. Submissions have the form that its site accepts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from albert.config import recipes
from albert.errors import UserError
from albert.io import files
from albert.tasks.glue.flags import (
  BALANCED,
  RANKING,
  WINDOWS,
  ClassifierConfig,
  fixed_threshold,
  parse_class_weights,
  parse_columns,
  parse_labels,
)

CUSTOM = "custom"
# The metrics of one label among the others (albert.metrics.classification computes them).
POSITIVE_METRICS = ("f1", "precision", "recall")
LOSS = "loss"
# The metrics by what is predicted. The first one is the default of --best_metric. albert.metrics.classification
# computes them; it is not imported here, because the flags are checked before slow imports.
_METRICS_OF_NUMBERS = ("pearson", "spearman", "rmse", "mae")
_METRICS_OF_SEVERAL_LABELS = (
  *("micro_f1", "macro_f1", "accuracy"),
  *("micro_precision", "micro_recall", "macro_precision", "macro_recall"),
)
_AVERAGES_OVER_LABELS = ("macro_f1", "micro_f1", "macro_precision", "macro_recall")


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
  """Makes the spec of a custom task. `choose_metrics` chooses its metrics.

  Args:
    config: the flags, which name the columns.
    labels: the names of the classes; not used for regression.
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


def tasks_of_header(header: Sequence[str]) -> list[str]:
  """Returns the names of the tasks that have a file with exactly this header."""
  return [
    name
    for name, spec in SPECS.items()
    if any(file.has_header and list(file.columns) == list(header) for file in spec.formats())
  ]


def make_spec(config: ClassifierConfig, labels: Sequence[str] = ()) -> TaskSpec:
  """Returns the spec of the task that the flags name.

  Args:
    config: the flags.
    labels: the labels of a custom task without --labels: those of its training file. Without them the spec has no
      labels, and the flags that name labels are not checked; the training file must exist.
  Raises:
    UserError: the task is unknown, or does not have the given labels, formulation or metrics.
  """
  name = canonical_name(config.task_name)
  _check_eval_share(config, name)
  given_labels = parse_labels(config.labels)
  _check_multi_label(config, name, given_labels)
  if name == CUSTOM:
    spec = custom_spec(config, given_labels or labels)
    if not config.regression and not spec.labels:
      _check_training_file(config)
  else:
    spec = SPECS[name]
    if config.labels and given_labels != spec.labels:
      raise UserError(f"--labels={config.labels}: those of {name} are {', '.join(spec.labels) or 'numbers'}")
  if config.formulation == RANKING and not spec.ranking_label:
    ranking_tasks = ", ".join(other.name for other in SPECS.values() if other.ranking_label)
    raise UserError(f"--formulation={RANKING} is for {ranking_tasks}, not for {name}")
  _check_long_texts(config, spec)
  if name == CUSTOM and not spec.labels and not config.regression:
    return spec
  _check_class_weights(config, spec)
  return choose_metrics(spec, config)


def _check_eval_share(config: ClassifierConfig, name: str) -> None:
  """Raises UserError if --eval_share is given for a task with development sets of its own, or beside --eval_file."""
  if config.eval_share and name != CUSTOM:
    raise UserError(
      f"--eval_share={config.eval_share:g} is for --task_name={CUSTOM}, not for {name}, which has files to evaluate "
      "on: leave it out"
    )
  if config.eval_share and config.eval_file:
    raise UserError(f"--eval_share={config.eval_share:g} and --eval_file={config.eval_file} are both given: give one")


def _check_multi_label(config: ClassifierConfig, task_name: str, labels: Sequence[str]) -> None:
  """Raises UserError if --multi_label, --label_separator or --thresholds cannot be used."""
  fixed_threshold(config.thresholds)  # raises an error for a wrong value
  if not config.multi_label:
    return
  if task_name != CUSTOM:
    raise UserError(f"--multi_label is for --task_name={CUSTOM}: a row of {task_name} has one label")
  if config.regression:
    raise UserError("--multi_label and --regression are both given: a regression predicts numbers: leave one out")
  separator = config.label_separator
  if not separator.strip() or separator != separator.strip():
    raise UserError(f"--label_separator={separator!r}: give a text without whitespace at its ends, such as ';'")
  for label in labels:
    if separator in label:
      raise UserError(
        f"--labels: the label {label!r} contains --label_separator={separator}: give another separator, or the labels "
        "one by one"
      )


def _check_training_file(config: ClassifierConfig) -> None:
  """Raises UserError if there is no training file to take the labels of a custom task from."""
  if not config.train_file:
    raise UserError("--labels is missing, and there is no --train_file to take the labels of a custom task from")
  if not files.exists(config.train_file):
    raise UserError(f"--train_file={config.train_file}: no such file")


def _check_long_texts(config: ClassifierConfig, spec: TaskSpec) -> None:
  """Raises UserError if --long_texts=windows is given for pairs of texts."""
  texts = spec.formats()[0].texts
  if config.long_texts == WINDOWS and len(texts) > 1:
    raise UserError(
      f"--long_texts={WINDOWS} is for single texts, and {spec.name} has pairs ({', '.join(texts)}): leave it out, and "
      "the longer text of a pair is truncated"
    )


def _check_class_weights(config: ClassifierConfig, spec: TaskSpec) -> None:
  """Raises UserError if --class_weights cannot be used with the task, or see parse_class_weights."""
  text = config.class_weights
  if not text:
    return
  if spec.is_regression or config.formulation == RANKING:
    problem = "a regression has no labels" if spec.is_regression else f"--formulation={RANKING} has no classes"
    raise UserError(f"--class_weights={text}: {problem}: leave the flag out")
  if text != BALANCED:
    parse_class_weights(text, spec.labels)


def _possible_metrics(spec: TaskSpec, *, has_positive_label: bool) -> tuple[str, ...]:
  """The metrics that can be computed for a task, the most usual ones first."""
  if spec.is_regression:
    return _METRICS_OF_NUMBERS
  if spec.label_separator:
    return _METRICS_OF_SEVERAL_LABELS
  positive_metrics = POSITIVE_METRICS if has_positive_label else ()
  return ("accuracy", *positive_metrics[:1], "matthews_corrcoef", *_AVERAGES_OVER_LABELS, *positive_metrics[1:])


def choose_metrics(spec: TaskSpec, config: ClassifierConfig) -> TaskSpec:
  """Returns the spec with the metrics and the positive class that the flags choose.

  A custom task reports all metrics that its labels allow. A task of GLUE reports those of GLUE, and --best_metric.

  Args:
    spec: the task. Without labels and without --regression, nothing can be checked, and it is returned unchanged.
    config: the flags.
  Raises:
    UserError: --positive_label is no label of the task, or --best_metric is no metric of it.
  """
  positive_class = _find_positive_class(spec, config)
  possible_metrics = _possible_metrics(spec, has_positive_label=positive_class is not None)
  metrics = possible_metrics if spec.name == CUSTOM else spec.metrics
  best_metric = config.best_metric
  if best_metric and best_metric not in (*possible_metrics, LOSS):
    needs_positive_label = best_metric in POSITIVE_METRICS and not spec.is_regression
    remedy = "give --positive_label, the label that it is computed for" if needs_positive_label else "give one of these"
    raise UserError(
      f"--best_metric={best_metric}: {spec.name} has {', '.join((*possible_metrics, LOSS))}: {remedy}, or leave the "
      "flag out"
    )
  if best_metric and best_metric != LOSS:
    metrics = (best_metric, *(name for name in metrics if name != best_metric))
  return dataclasses.replace(spec, metrics=metrics, positive_class=1 if positive_class is None else positive_class)


def _find_positive_class(spec: TaskSpec, config: ClassifierConfig) -> int | None:
  """The class that F1, precision and recall are computed for; None if there are more than two and none is named."""
  label = config.positive_label.strip()
  if not label:
    return 1 if len(spec.labels) == 2 and not spec.label_separator else None
  if spec.is_regression:
    raise UserError(f"--positive_label={label}: a regression has no labels: leave the flag out")
  if spec.label_separator:
    raise UserError(f"--positive_label={label}: with --multi_label, classes_dev.tsv has the F1 of each label")
  if label not in spec.labels:
    raise UserError(f"--positive_label={label}: not a label of {spec.name}: give one of {', '.join(spec.labels)}")
  return spec.labels.index(label)
