"""The benchmarks of the paper's leaderboards: their scripts, their metrics, and the authors' results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from albert.config import recipes
from albert.io import files
from albert.tasks.glue.files import TextData
from albert.tasks.glue.flags import ClassifierConfig

# The task whose model RTE, STS-B and MRPC start from (ALBERT, appendix A.4).
FIRST_TASK = "MNLI"
_STARTING_FROM_MNLI = ("RTE", "STS-B", "MRPC")
# Task of GLUE -> metric, and the authors' result of a single model on the development set, in percent:
# https://github.com/google-research/albert, ALBERT-xxlarge after 1.5M steps. There is none for WNLI.
_GLUE_RESULTS = {
  "MNLI": ("matched_accuracy", 90.8),
  "QNLI": ("accuracy", 95.3),
  "QQP": ("accuracy", 92.2),
  "RTE": ("accuracy", 89.2),
  "SST-2": ("accuracy", 96.9),
  "MRPC": ("accuracy", 90.9),
  "CoLA": ("matthews_corrcoef", 71.4),
  "STS-B": ("pearson", 93.0),
  "WNLI": ("accuracy", None),
}
_SECOND_METRICS = {"MNLI": "mismatched_accuracy", "QQP": "f1", "MRPC": "f1", "STS-B": "spearman"}
GLUE_TASKS = tuple(_GLUE_RESULTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
  """A task of a leaderboard.

  Attributes:
    name: the name in the table, and of the folder of its submission.
    script: the script, without .py.
    recipe: name of the recipe that the script chooses.
    flags: flags of the script.
    metrics: name of a metric -> the authors' result in percent, None if it is not known. The first one is shown first.
    factor: factor that converts our metrics to percent.
    submission: names of the files that the leaderboard asks for, in the output_dir of a run. A run writes them in this
      order.
    data: paths of the data, for its hash.
    starts_from_mnli: whether training starts from the best model of MNLI, if MNLI is among the tasks.
  """

  name: str
  script: str
  recipe: str
  flags: Mapping[str, str | bool | int]
  metrics: Mapping[str, float | None]
  factor: float = 100.0
  submission: Sequence[str]
  data: str
  starts_from_mnli: bool = False

  @property
  def recipe_task(self) -> str:
    """The task that the recipe is for."""
    return self.script.removeprefix("run_")


def glue_benchmark(name: str, glue_dir: str) -> Benchmark:
  """Returns a task of GLUE. Its submissions have the names that gluebenchmark.com asks for.

  Args:
    name: the name, one of GLUE_TASKS.
    glue_dir: the folder of GLUE.
  """
  metric, result = _GLUE_RESULTS[name]
  metrics = {metric: result}
  if name in _SECOND_METRICS:
    metrics[_SECOND_METRICS[name]] = None
  task = TextData(ClassifierConfig(task_name=name, data_dir=glue_dir))
  recipe = f"glue_{name.lower().replace('-', '')}"
  return Benchmark(
    name=name,
    script="run_classifier",
    recipe=recipe if recipe in recipes.config_names() else "glue_custom",
    flags={"task_name": name, "data_dir": glue_dir, "do_predict": True},
    metrics=metrics,
    submission=[task.submissions[split].name for split in task.prediction_splits()],
    data=",".join(files.join(glue_dir, folder) for folder in (name, "diagnostic" if name == FIRST_TASK else "*.tsv")),
    starts_from_mnli=name in _STARTING_FROM_MNLI,
  )


def squad_benchmark(version: str, train_file: str, dev_file: str) -> Benchmark:
  """Returns a version of SQuAD. Its test set is not public, so the submission has the answers of the development set.

  Args:
    version: "1.1" or "2.0".
    train_file: the training file.
    dev_file: the development file.
  """
  has_null = version == "2.0"
  return Benchmark(
    name=f"SQuAD{version}",
    script="run_squad",
    recipe="squad_v2" if has_null else "squad_v1",
    flags={
      "train_file": train_file,
      "eval_file": dev_file,
      "version_2_with_negative": has_null,
      # The recipes have no evaluations during training.
      "eval_every_steps": 1000 if has_null else 500,
      "select_checkpoint": "best",
    },
    metrics={"f1": 90.2, "exact": 87.4} if has_null else {"f1": 94.8, "exact": 89.3},
    factor=1.0,
    submission=["predictions_dev.json", *(["null_odds_dev.json"] if has_null else [])],
    data=f"{train_file},{dev_file}",
  )


def race_benchmark(race_dir: str) -> Benchmark:
  """Returns RACE. The authors' result is on its test set, 86.5; ours are on the development set, so none is shown.

  Args:
    race_dir: the folder of RACE.
  """
  return Benchmark(
    name="RACE",
    script="run_race",
    recipe="race",
    flags={"data_dir": race_dir, "do_predict": True},
    metrics={"accuracy": None},
    submission=["predictions_test.tsv"],
    data=race_dir,
  )
