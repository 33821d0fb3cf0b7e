"""The tasks of GLUE, and custom tasks: the files, columns, labels, metrics and submissions of each as a TaskSpec.

Files have the layout of the archives of gluebenchmark.com. Submissions have the form that its site accepts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config import recipes
from albert.errors import UserError
from albert.metrics.classification import POSITIVE_METRICS
from albert.tasks.glue import flags

CUSTOM = "custom"
LOSS = "loss"
# The metrics by what is predicted. The first one is the default of --best_metric.
_METRICS_OF_NUMBERS = ("pearson", "spearman", "rmse", "mae")
_METRICS_OF_CLASSES = (
  *("accuracy", "f1", "matthews_corrcoef", "macro_f1", "micro_f1", "macro_precision", "macro_recall"),
  *("precision", "recall"),
)
_METRICS_OF_SEVERAL_LABELS = (
  *("micro_f1", "macro_f1", "accuracy"),
  *("micro_precision", "micro_recall", "macro_precision", "macro_recall"),
)


@dataclasses.dataclass(frozen=True)
class FileFormat:
  """The layout of one file of a task, and for a test set the file for gluebenchmark.com with its predictions.

  Attributes:
    name: file name in the task's folder; "" for a file of a custom task.
    texts: the column of the text, or the two columns of a pair.
    label: the column of the label; "" if the file has no labels.
    id: the column of the ids; "" if rows are numbered from 0.
    header: the names of all columns of a file without a header; () if its first line names them.
    label_columns: several columns of 0 and 1, each for the label of its name; () if the labels are in one column.
    group: the column of the groups whose rows stay together when some are held out; "" if there is none.
    separator: what separates the fields; "" if it is recognized.
    tolerated_damage: maximum ratio of damaged to undamaged lines. Damaged lines are skipped (see tables.read_table).
    allows_empty_texts: whether a text may be empty.
    submission: for a test set the name of the submission; "" if there is none.
    folder: the folder of a further test set, which is skipped if its file does not exist; "" for the task's own folder.
  """

  name: str
  texts: tuple[str, ...]
  label: str = ""
  id: str = ""
  header: tuple[str, ...] = ()
  label_columns: tuple[str, ...] = ()
  group: str = ""
  separator: str = ""
  tolerated_damage: float = 0.0
  allows_empty_texts: bool = False
  submission: str = ""
  folder: str = ""


@dataclasses.dataclass(frozen=True)
class TaskSpec:
  """A classification or regression task.

  Attributes:
    name: the name, spelled as in GLUE.
    folder: the folder of its files.
    labels: the names of the classes, in the order of the model's logits; () for regression.
    train: the training file; None if there is none.
    dev: split -> development file.
    test: split -> test file.
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
  test: Mapping[str, FileFormat]
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
    return [*train, *self.dev.values(), *self.test.values()]


_ENTAILMENT_LABELS, _BINARY_LABELS = ("entailment", "not_entailment"), ("0", "1")
_SENTENCES = ("sentence1", "sentence2")
_DIAGNOSTIC = FileFormat("diagnostic.tsv", _SENTENCES, id="index", submission="AX.tsv")
_MNLI = TaskSpec(
  name="MNLI",
  folder="MNLI",
  labels=("contradiction", "entailment", "neutral"),
  train=FileFormat("train.tsv", _SENTENCES, "gold_label", "index"),
  dev={
    "matched": FileFormat("dev_matched.tsv", _SENTENCES, "gold_label", "index"),
    "mismatched": FileFormat("dev_mismatched.tsv", _SENTENCES, "gold_label", "index"),
  },
  test={
    "test_matched": FileFormat("test_matched.tsv", _SENTENCES, id="index", submission="MNLI-m.tsv"),
    "test_mismatched": FileFormat("test_mismatched.tsv", _SENTENCES, id="index", submission="MNLI-mm.tsv"),
    "diagnostic": dataclasses.replace(_DIAGNOSTIC, folder="diagnostic"),
  },
)


def _make_spec(
  name: str, labels: tuple[str, ...], train: FileFormat, test_id: str = "index", **options: Any
) -> TaskSpec:
  """Makes the spec of a task. `train` is the layout of train.tsv and dev.tsv; test.tsv has the same text columns."""
  dev = dataclasses.replace(train, name="dev.tsv")
  test = FileFormat(
    "test.tsv", train.texts, id=test_id, allows_empty_texts=train.allows_empty_texts, submission=f"{name}.tsv"
  )
  return TaskSpec(name, name, labels, train, {"dev": dev}, {"test": test}, **options)


SPECS: dict[str, TaskSpec] = {
  spec.name: spec
  for spec in (
    _make_spec(
      "CoLA",
      _BINARY_LABELS,
      # "mark" is the mark of the sentence's author, such as "*".
      FileFormat("train.tsv", ("sentence",), "label", header=("source", "label", "mark", "sentence")),
      metrics=("matthews_corrcoef", "accuracy"),
    ),
    _make_spec("SST-2", _BINARY_LABELS, FileFormat("train.tsv", ("sentence",), "label")),
    _make_spec(
      "MRPC", _BINARY_LABELS, FileFormat("train.tsv", ("#1 String", "#2 String"), "Quality"), metrics=("accuracy", "f1")
    ),
    _make_spec(
      "STS-B",
      (),
      FileFormat("train.tsv", _SENTENCES, "score", "index"),
      metrics=("pearson", "spearman"),
      low=0.0,
      high=5.0,
    ),
    _make_spec(
      "QQP",
      _BINARY_LABELS,
      # In the published files a few questions contain line ends, which split their rows in two. The original code skips
      # these rows. A few other questions are empty.
      FileFormat(
        "train.tsv", ("question1", "question2"), "is_duplicate", "id", tolerated_damage=1e-3, allows_empty_texts=True
      ),
      test_id="id",
      metrics=("accuracy", "f1"),
    ),
    _MNLI,
    _make_spec(
      "QNLI",
      _ENTAILMENT_LABELS,
      FileFormat("train.tsv", ("question", "sentence"), "label", "index"),
      ranking_label="entailment",
    ),
    _make_spec("RTE", _ENTAILMENT_LABELS, FileFormat("train.tsv", _SENTENCES, "label", "index")),
    _make_spec("WNLI", _BINARY_LABELS, FileFormat("train.tsv", _SENTENCES, "label", "index")),
    # The diagnostic set alone, predicted by a model of MNLI.
    TaskSpec(
      name="AX",
      folder="diagnostic",
      labels=_MNLI.labels,
      train=None,
      dev={},
      test={"diagnostic": _DIAGNOSTIC},
      model_of="MNLI",
    ),
  )
}


def _normalize_name(name: str) -> str:
  """Converts all spellings of a task's name to the same text: SST-2, sst_2 and SST2 to sst2."""
  return name.lower().replace("-", "").replace("_", "")


def canonical_name(task_name: str) -> str:
  """Returns the name of a task as it is spelled in SPECS, or CUSTOM.

  Args:
    task_name: the name in any spelling, such as sts-b, SST2 or mnli.
  Raises:
    UserError: the name is empty or unknown; the message lists the known names.
  """
  for name in (*SPECS, CUSTOM):
    if _normalize_name(name) == _normalize_name(task_name):
      return name
  problem = f"--task_name={task_name}: unknown task" if task_name else "--task_name is missing"
  raise UserError(f"{problem}; tasks: {', '.join(SPECS)}, {CUSTOM}; SQuAD, RACE and tagging have scripts of their own")


def recipe_name(config: flags.ClassifierConfig) -> str:
  """Returns the recipe of --task_name: glue_NAME, or glue_custom if configs/ has no such file; "" without the flag."""
  if not config.task_name:
    return ""
  name = canonical_name(config.task_name)
  if name in SPECS:
    name = SPECS[name].model_of or name
  recipe = f"glue_{_normalize_name(name)}"
  return recipe if recipe in recipes.config_names() else f"glue_{CUSTOM}"


def make_spec(config: flags.ClassifierConfig) -> TaskSpec:
  """Returns the spec of the task that the flags name.

  Args:
    config: the flags. A custom task without --labels and --regression has no labels yet, and the flags that name labels
      are not checked.
  Raises:
    UserError: the task is unknown, or does not have the given labels, formulation or metrics.
  """
  name, labels = canonical_name(config.task_name), flags.parse_labels(config.labels)
  label_columns = flags.parse_columns(config.label_column, "label_column")
  if len(label_columns) > 1:
    if labels not in ((), label_columns):
      raise UserError(f"--labels={config.labels}: the labels are the names in --label_column: leave --labels out")
    labels, config = label_columns, dataclasses.replace(config, multi_label=True)
  _check_custom_flags(config, name, labels)
  if name == CUSTOM:
    spec = custom_spec(config, labels)
  else:
    spec = SPECS[name]
    if labels not in ((), spec.labels):
      raise UserError(f"--labels={config.labels}: those of {name} are {', '.join(spec.labels) or 'numbers'}")
  if config.formulation == flags.RANKING and not spec.ranking_label:
    ranking_tasks = ", ".join(other.name for other in SPECS.values() if other.ranking_label)
    raise UserError(f"--formulation={flags.RANKING} is for {ranking_tasks}, not for {name}")
  texts = spec.formats()[0].texts
  if config.long_texts == flags.WINDOWS and len(texts) > 1:
    raise UserError(
      f"--long_texts={flags.WINDOWS} is for single texts, and {name} has pairs ({', '.join(texts)}): leave it out, and "
      "the longer text of a pair is truncated"
    )
  if name == CUSTOM and not spec.labels and not config.regression:
    return spec
  if config.class_weights and (spec.is_regression or config.formulation == flags.RANKING):
    problem = "a regression has no labels" if spec.is_regression else f"--formulation={flags.RANKING} has no classes"
    raise UserError(f"--class_weights={config.class_weights}: {problem}: leave the flag out")
  if config.label_smoothing and (spec.is_regression or spec.label_separator or config.formulation == flags.RANKING):
    raise UserError(
      f"--label_smoothing={config.label_smoothing:g} is for classification with one label in a row: leave the flag out"
    )
  if config.class_weights not in ("", flags.BALANCED):
    flags.parse_class_weights(config.class_weights, spec.labels)
  return choose_metrics(spec, config)


def _check_custom_flags(config: flags.ClassifierConfig, name: str, labels: Sequence[str]) -> None:
  """Raises UserError if --eval_share, --folds, --multi_label or --thresholds cannot be used."""
  separator, divides = config.label_separator, bool(config.folds or config.eval_share)
  given = [f"--{name}={value}" for name in ("folds", "eval_share", "eval_file") if (value := getattr(config, name))]
  if config.group_column and not divides:
    raise UserError(f"--group_column={config.group_column} only goes with --eval_share or --folds: give one of them")
  if divides and name != CUSTOM:
    raise UserError(
      f"{given[0]} is for --task_name={CUSTOM}, not for {name}, which has files to evaluate on: leave it out"
    )
  if divides and len(given) > 1:
    raise UserError(f"{given[0]} and {given[1]} are both given: give one")
  if config.folds == 1 or config.fold > config.folds:
    fold = f" --fold={config.fold}" if config.fold else ""
    remedy = f"a fold from 1 to {config.folds}" if config.folds > 1 else "two or more folds"
    raise UserError(f"--folds={config.folds}{fold}: give {remedy}")
  flags.fixed_threshold(config.thresholds)  # raises an error for a wrong value
  if not config.multi_label:
    return
  if name != CUSTOM:
    raise UserError(f"--multi_label is for --task_name={CUSTOM}: a row of {name} has one label")
  if config.regression:
    both = "--multi_label and --regression are both given (several columns in --label_column imply --multi_label)"
    raise UserError(f"{both}: leave one out")
  if not separator or separator != separator.strip():
    raise UserError(f"--label_separator={separator!r}: give a text without whitespace at its ends, such as ';'")
  for label in labels:
    if separator in label:
      raise UserError(f"--labels: the label {label!r} contains --label_separator={separator}: give another separator")


def custom_spec(config: flags.ClassifierConfig, labels: Sequence[str]) -> TaskSpec:
  """Makes the spec of a custom task. `choose_metrics` chooses its metrics.

  Args:
    config: the flags, which name the columns.
    labels: the names of the classes; not used for regression.
  Raises:
    UserError: there is no text column, there are more than two, or a column is named twice.
  """
  texts = flags.parse_columns(config.text_columns)
  if len(texts) not in (1, 2):
    raise UserError(f"--text_columns={config.text_columns}: give the name of the text column, or two, with a comma")
  label_columns = flags.parse_columns(config.label_column, "label_column")
  names = [*texts, *label_columns, *filter(None, (config.id_column,))]
  if len(set(names)) < len(names):
    raise UserError(f"--text_columns, --label_column and --id_column name a column twice: {', '.join(names)}")
  if config.separator not in ("", "tab", "\t", ",", ";", "|"):
    raise UserError(f"--separator={config.separator}: give tab, ',', ';' or '|'")
  file = FileFormat(
    "",
    texts,
    ",".join(label_columns),
    config.id_column,
    flags.parse_columns(config.column_names, "column_names"),
    label_columns if len(label_columns) > 1 else (),
    separator=config.separator.replace("tab", "\t"),
    allows_empty_texts=True,
  )
  return TaskSpec(
    name=CUSTOM,
    folder="",
    labels=() if config.regression else tuple(labels),
    train=dataclasses.replace(file, group=config.group_column),
    dev={"dev": file},
    test={"test": dataclasses.replace(file, label="", label_columns=())},
    label_separator=config.label_separator if config.multi_label else "",
  )


def choose_metrics(spec: TaskSpec, config: flags.ClassifierConfig) -> TaskSpec:
  """Returns the spec with the metrics and the positive class that the flags choose.

  A custom task reports all metrics that its labels allow. A task of GLUE reports those of GLUE, and --best_metric.

  Args:
    spec: the task, with its labels if it is not a regression.
    config: the flags.
  Raises:
    UserError: --positive_label is no label of the task, or --best_metric is no metric of it.
  """
  positive_class = _find_positive_class(spec, config)
  possible_metrics: tuple[str, ...]
  if spec.is_regression:
    possible_metrics = _METRICS_OF_NUMBERS
  elif spec.label_separator:
    possible_metrics = _METRICS_OF_SEVERAL_LABELS
  else:
    left_out = POSITIVE_METRICS if positive_class is None else ()
    possible_metrics = tuple(name for name in _METRICS_OF_CLASSES if name not in left_out)
  metrics = possible_metrics if spec.name == CUSTOM else spec.metrics
  best_metric = config.best_metric
  if best_metric not in ("", LOSS, *possible_metrics):
    needs_positive_label = best_metric in POSITIVE_METRICS and not spec.is_regression
    remedy = "give --positive_label, the label that it is computed for" if needs_positive_label else "give one of these"
    raise UserError(f"--best_metric={best_metric}: {spec.name} has {', '.join((*possible_metrics, LOSS))}: {remedy}")
  if best_metric not in ("", LOSS):
    metrics = (best_metric, *(name for name in metrics if name != best_metric))
  return dataclasses.replace(spec, metrics=metrics, positive_class=1 if positive_class is None else positive_class)


def _find_positive_class(spec: TaskSpec, config: flags.ClassifierConfig) -> int | None:
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
