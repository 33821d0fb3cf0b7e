"""What the tasks of GLUE are: their files, columns, labels, metrics and submissions. One frozen spec for each.

The layout of the files is that of the archives of gluebenchmark.com; a submission is what its site takes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from albert.config.base import option
from albert.config.run import FinetuningConfig
from albert.errors import UserError
from albert.io import json_values

CUSTOM = "custom"
PLAIN, RANKING = "plain", "ranking"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(FinetuningConfig):
  """What run_classifier.py reads."""

  task_name: str = option(
    "",
    "task of GLUE (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, AX), or custom",
    resets=("labels",),
  )
  data_dir: str = option(
    "",
    "folder of the task's files, or one that holds such folders (as GLUE's archives unpack)",
    affects_training=False,
    resets=("train_file", "eval_file", "predict_file"),
  )
  train_file: str = option("", "TSV, CSV or JSONL to train on, instead of the one in data_dir", affects_training=False)
  eval_file: str = option("", "file to evaluate on, instead of those in data_dir", affects_training=False)
  predict_file: str = option("", "file to predict, instead of those in data_dir", affects_training=False)
  formulation: str = option(
    PLAIN,
    "plain: each row alone; ranking (QNLI): each sentence against the other sentences of its question",
    choices=(PLAIN, RANKING),
  )
  text_columns: str = option(
    "", "column of the text, or columns of the pair with a comma (task custom)", evaluation_may_differ=True
  )
  label_column: str = option("label", "column of the label (task custom)", evaluation_may_differ=True)
  id_column: str = option(
    "", "column that names each row; none: rows are counted from 0 (task custom)", evaluation_may_differ=True
  )
  labels: str = option(
    "", "labels with commas between, or a JSON list; none: those of the training file, sorted (task custom)"
  )
  regression: bool = option(False, "labels are numbers to predict, not classes (task custom)")


@dataclasses.dataclass(frozen=True)
class FileFormat:
  """One file of a task.

  Attributes:
    name: of the file in the task's folder; "" for a custom task's.
    columns: all there are, in order; () if any are fine.
    texts: the column of the text, or of the two of a pair.
    label: column of the label; "" if there is none.
    id: column that names the rows; "" if rows are counted from 0.
    has_header: whether the first line names the columns.
    tolerated_damage: see tables.read_table.
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
  """A file for gluebenchmark.com: `name`, columns index and prediction, made of the test file `source`.

  `folder` is that of the test file, if it is not the task's own. An optional one is written if its file is there.
  """

  name: str
  source: FileFormat
  folder: str = ""
  is_optional: bool = False


@dataclasses.dataclass(frozen=True)
class TaskSpec:
  """A task.

  Attributes:
    name: as GLUE spells it.
    folder: of its files.
    labels: of the classes, in the order of the model's logits; () for regression.
    train: the training file; None if there is none.
    dev: split -> development file.
    submissions: split -> test file and what becomes of it.
    metrics: names of metrics.classification.METRICS; by the first one checkpoints are compared.
    low, high: range of a regression's numbers, in the files and in predictions.
    ranking_label: label of the rows whose text is the right answer to its question, for a task that can also be
      trained with --formulation=ranking; "" for other tasks.
    model_of: the task whose model predicts it, if that is another.
  """

  name: str
  folder: str
  labels: tuple[str, ...]
  train: FileFormat | None
  dev: Mapping[str, FileFormat]
  submissions: Mapping[str, Submission]
  metrics: tuple[str, ...] = ("accuracy",)
  low: float = float("-inf")
  high: float = float("inf")
  ranking_label: str = ""
  model_of: str = ""

  @property
  def is_regression(self) -> bool:
    """True for a task whose labels are numbers."""
    return not self.labels

  def formats(self) -> list[FileFormat]:
    """All its files."""
    train = [self.train] if self.train else []
    return [*train, *self.dev.values(), *(submission.source for submission in self.submissions.values())]


_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = ("sentence1", "sentence2")
_BINARY = ("0", "1")


def _spec(
  name: str,
  labels: tuple[str, ...],
  train: FileFormat,
  test: FileFormat,
  metrics: tuple[str, ...] = ("accuracy",),
  low: float = float("-inf"),
  high: float = float("inf"),
) -> TaskSpec:
  """A task whose development file is laid out as its training file is."""
  return TaskSpec(
    name,
    name,
    labels,
    train,
    {"dev": dataclasses.replace(train, name="dev.tsv", tolerated_damage=0.0)},
    {"test": Submission(f"{name}.tsv", test)},
    metrics,
    low,
    high,
  )


def _cola() -> TaskSpec:
  # Source, label, the author's own mark, sentence: without a header, but for test.tsv.
  columns = ("source", "label", "mark", "sentence")
  train = FileFormat("train.tsv", columns, ("sentence",), "label", has_header=False)
  test = FileFormat("test.tsv", ("index", "sentence"), ("sentence",), id="index")
  return _spec("CoLA", _BINARY, train, test, ("matthews_corrcoef", "accuracy"))


def _sst_2() -> TaskSpec:
  train = FileFormat("train.tsv", ("sentence", "label"), ("sentence",), "label")
  test = FileFormat("test.tsv", ("index", "sentence"), ("sentence",), id="index")
  return _spec("SST-2", _BINARY, train, test)


def _mrpc() -> TaskSpec:
  columns, texts = ("#1 ID", "#2 ID", "#1 String", "#2 String"), ("#1 String", "#2 String")
  train = FileFormat("train.tsv", ("Quality", *columns), texts, "Quality")
  test = FileFormat("test.tsv", ("index", *columns), texts, id="index")
  return _spec("MRPC", _BINARY, train, test, ("accuracy", "f1"))


def _sts_b() -> TaskSpec:
  columns = ("index", "genre", "filename", "year", "old_index", "source1", "source2", *_SENTENCES)
  train = FileFormat("train.tsv", (*columns, "score"), _SENTENCES, "score", "index")
  test = FileFormat("test.tsv", columns, _SENTENCES, id="index")
  return _spec("STS-B", (), train, test, ("pearson", "spearman"), low=0.0, high=5.0)


def _qqp() -> TaskSpec:
  # A few questions of the published files hold line ends, which cut their rows in two (the original leaves those
  # out), and a few are empty.
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
  spec = _spec("QQP", _BINARY, train, test, ("accuracy", "f1"))
  return dataclasses.replace(spec, dev={"dev": dataclasses.replace(train, name="dev.tsv")})


def _mnli() -> TaskSpec:
  parses = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
  columns = ("index", "promptID", "pairID", "genre", *parses, *_SENTENCES)
  votes = ("label1", "label2", "label3", "label4", "label5")
  matched = FileFormat("dev_matched.tsv", (*columns, *votes, "gold_label"), _SENTENCES, "gold_label", "index")
  test = FileFormat("test_matched.tsv", columns, _SENTENCES, id="index")
  return TaskSpec(
    "MNLI",
    "MNLI",
    ("contradiction", "entailment", "neutral"),
    FileFormat("train.tsv", (*columns, "label1", "gold_label"), _SENTENCES, "gold_label", "index"),
    {"matched": matched, "mismatched": dataclasses.replace(matched, name="dev_mismatched.tsv")},
    {
      "test_matched": Submission("MNLI-m.tsv", test),
      "test_mismatched": Submission("MNLI-mm.tsv", dataclasses.replace(test, name="test_mismatched.tsv")),
      "diagnostic": Submission("AX.tsv", _DIAGNOSTIC, "diagnostic", is_optional=True),
    },
  )


_DIAGNOSTIC = FileFormat("diagnostic.tsv", ("index", *_SENTENCES), _SENTENCES, id="index")


def _nli(name: str, texts: tuple[str, ...], labels: tuple[str, ...]) -> TaskSpec:
  train = FileFormat("train.tsv", ("index", *texts, "label"), texts, "label", "index")
  test = FileFormat("test.tsv", ("index", *texts), texts, id="index")
  return _spec(name, labels, train, test)


def _qnli() -> TaskSpec:
  spec = _nli("QNLI", ("question", "sentence"), _ENTAILMENT)
  return dataclasses.replace(spec, ranking_label="entailment")


def _diagnostic() -> TaskSpec:
  """The diagnostic set alone, for a model of MNLI."""
  mnli = _mnli()
  submissions = {"diagnostic": dataclasses.replace(mnli.submissions["diagnostic"], is_optional=False)}
  return dataclasses.replace(
    mnli, name="AX", folder="diagnostic", train=None, dev={}, submissions=submissions, model_of="MNLI"
  )


SPECS: dict[str, TaskSpec] = {
  spec.name: spec
  for spec in (
    _cola(),
    _sst_2(),
    _mrpc(),
    _sts_b(),
    _qqp(),
    _mnli(),
    _qnli(),
    _nli("RTE", _SENTENCES, _ENTAILMENT),
    _nli("WNLI", _SENTENCES, _BINARY),
    _diagnostic(),
  )
}


def recipe_name(config: ClassifierConfig) -> str:
  """The recipe in configs/ for the task that the flags name; "" if they name none."""
  if not config.task_name:
    return ""
  name = canonical_name(config.task_name)
  return f"glue_{_key(SPECS[name].model_of or name if name in SPECS else name)}"


def _key(name: str) -> str:
  return name.lower().replace("-", "").replace("_", "")


_BY_KEY = {_key(name): spec for name, spec in SPECS.items()} | {"sts": SPECS["STS-B"], "diagnostic": SPECS["AX"]}


def canonical_name(task_name: str) -> str:
  """The task's name as SPECS has it, however it is spelled (sts-b, SST2, mnli), or CUSTOM.

  Raises:
    UserError: no name, or an unknown one; the message lists the known ones.
  """
  if _key(task_name) == CUSTOM:
    return CUSTOM
  spec = _BY_KEY.get(_key(task_name))
  if spec is None:
    given = f"--task_name={task_name}: unknown task" if task_name else "--task_name is missing"
    raise UserError(f"{given}; tasks: {', '.join(SPECS)}, {CUSTOM}")
  return spec.name


def custom_spec(config: ClassifierConfig, labels: Sequence[str]) -> TaskSpec:
  """The user's own task.

  Args:
    config: names the columns.
    labels: of the classes; not used for regression. Where there are two, F1 is that of the second.
  Raises:
    UserError: no text columns, more than two, the same column twice, or fewer than two labels.
  """
  texts = text_columns(config)
  file = FileFormat("", (), texts, config.label_column, config.id_column)
  return TaskSpec(
    CUSTOM,
    "",
    () if config.regression else tuple(labels),
    file,
    {"dev": file},
    {"test": Submission("", dataclasses.replace(file, label=""))},
    ("pearson", "spearman") if config.regression else _custom_metrics(len(labels)),
  )


def _custom_metrics(num_labels: int) -> tuple[str, ...]:
  return ("accuracy", "f1", "matthews_corrcoef") if num_labels == 2 else ("accuracy", "matthews_corrcoef")


def text_columns(config: ClassifierConfig) -> tuple[str, ...]:
  """--text_columns of a custom task, with its checks."""
  texts = tuple(name.strip() for name in config.text_columns.split(",") if name.strip())
  if len(texts) not in (1, 2):
    raise UserError(
      f"--text_columns={config.text_columns}: a custom task needs the column of its text, or the two of a pair with a "
      "comma between"
    )
  names = [*texts, config.label_column, *([config.id_column] if config.id_column else [])]
  if len(set(names)) < len(names):
    raise UserError(f"--text_columns, --label_column and --id_column name a column twice: {', '.join(names)}")
  return texts


# Characters of a flag's value in an error.
_LONGEST_SHOWN = 200


def parse_labels(text: str) -> tuple[str, ...]:
  """--labels: commas between, or a JSON list; () for none.

  Raises:
    UserError: fewer than two labels, an empty one, or one twice.
  """
  if not text:
    return ()
  labels: list[str] = text.split(",")
  where = f"--labels={text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + '...'}"
  if text.startswith("["):
    given = json_values.parse(where, text, list[str | int | float], "give a JSON list of texts")
    labels = list(map(str, given))
  labels = [label.strip() for label in labels]
  if any(character in text for text in labels for character in "\t\r\n"):
    raise UserError(f"{where}: a label has a tab or a line end, which predictions files cannot hold: remove it")
  if len(set(labels)) < max(len(labels), 2) or "" in labels:
    raise UserError(f"{where}: give at least two different labels, with commas between")
  return tuple(labels)


def format_labels(labels: Sequence[str]) -> str:
  """What parse_labels makes `labels` of."""
  text = ",".join(labels)
  return json.dumps(list(labels)) if text.startswith("[") or any("," in label for label in labels) else text


def tasks_of_header(header: Sequence[str]) -> list[str]:
  """The tasks that have a file with exactly this first line."""
  return [
    name
    for name, spec in SPECS.items()
    if any(file.has_header and list(file.columns) == list(header) for file in spec.formats())
  ]
