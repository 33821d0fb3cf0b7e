"""The inputs that the user gives to experiments and leaderboards: texts, a vocabulary and tasks, and their flags.

Hashes tell when the files change.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from albert.config import command_flags, recipes
from albert.config.command_flags import Range
from albert.config.model import ModelConfig
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.experiments import catalog
from albert.io import files
from albert.io.files import matching_paths, split_globs
from albert.tasks.glue.files import TextData
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.specs import SPECS
from albert.tasks.race.files import find_passages, split_folder
from albert.tasks.splits import DEV, TEST, TRAIN


@dataclasses.dataclass(frozen=True)
class DownstreamTask:
  """A task on which the pretrained models are fine-tuned.

  Attributes:
    script: name of the script without .py, such as run_squad.
    flags: flags of the script.
    scores: name of a score -> name of its metric, and the factor that converts the metric to percent.
    data: paths and globs of the task's data, separated by commas. Of a folder, all files in it count.
    recipe: name of the recipe that the script chooses.
  """

  script: str
  flags: Mapping[str, Any]
  scores: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
  data: str = ""
  recipe: str = ""

  def recipe_for(self, model: ModelConfig) -> recipes.Recipe:
    """Returns the recipe for a model's weights: the script's, or one that suits them better.

    So a model that was pretrained without dropout is fine-tuned on RACE without it (race_v2).
    """
    task = self.script.removeprefix("run_")
    recipe = recipes.read_recipe(self.recipe, task)
    other = recipe.better_recipe_for(model)
    return recipes.read_recipe(other, task) if other else recipe

  def flags_for(self, model: ModelConfig) -> dict[str, Any]:
    """Returns the flags for a model's weights, with the recipe if it is not the script's."""
    recipe = self.recipe_for(model).name
    return {**self.flags, "recipe": recipe} if recipe != self.recipe else dict(self.flags)


def glue_task(name: str, glue_dir: str) -> DownstreamTask:
  """Returns a task of GLUE."""
  recipe = f"glue_{name.lower().replace('-', '')}"
  return DownstreamTask(
    "run_classifier",
    {"task_name": name, "data_dir": glue_dir},
    data=",".join(files.join(glue_dir, folder) for folder in (name, "*.tsv")),  # the files may be in either folder
    recipe=recipe if recipe in recipes.config_names() else "glue_custom",
  )


def squad_task(version: str, train_file: str, dev_file: str) -> DownstreamTask:
  """Returns a version of SQuAD, squad_v1 or squad_v2."""
  task_flags = {"train_file": train_file, "eval_file": dev_file, "version_2_with_negative": version == "squad_v2"}
  return DownstreamTask("run_squad", task_flags, data=f"{train_file},{dev_file}", recipe=version)


def define_plan_flags(*, glue_tasks: Sequence[str], glue_help: str, scale: str, scale_help: str) -> None:
  """Defines the flags that experiments and leaderboards share. The arguments are defaults and texts of --help."""
  for name, help_text in (
    ("glue_dir", "folder of GLUE; --glue_tasks selects the tasks"),
    ("squad_v1", "train file and dev file of SQuAD v1.1, separated by a comma"),
    ("squad_v2", "train file and dev file of SQuAD v2.0, separated by a comma"),
    ("race_dir", "folder of RACE"),
  ):
    command_flags.define("str", name, "", help_text)
  flags.DEFINE_list("glue_tasks", list(glue_tasks), glue_help, module_name=sys.argv[0])
  command_flags.define("str", "scale", scale, scale_help, choices=catalog.SCALES)
  gflops_help = "speed that the estimated cost assumes, in GFLOP/s (default: half the speed of matrix products here)"
  command_flags.define("float", "gflops", None, gflops_help, allowed=Range(0.001))
  command_flags.define("bool", "dry_run", False, "print the plan and its estimated cost, without running it")
  command_flags.define("bool", "print_commands", False, "print the commands that are not done, without running them")


def given_tasks(glue_names: Sequence[str], *, predicts: bool = False) -> dict[str, DownstreamTask]:
  """Returns the tasks whose data the flags give: name in GLUE, squad_v1, squad_v2 or race -> task.

  Args:
    glue_names: the names that --glue_tasks may have.
    predicts: whether the test sets are predicted, too, and not only the training and development sets used.
  Raises:
    UserError: a name is unknown, or a file is missing.
  """
  values, tasks = flags.FLAGS, {}
  for name in values.glue_tasks if values.glue_dir else ():
    if name not in glue_names:
      raise UserError(f"--glue_tasks: {name!r} is not one of {', '.join(glue_names)}")
    check_glue_folder(values.glue_dir, name, predicts=predicts)
    tasks[name] = glue_task(name, values.glue_dir)
  for version in ("squad_v1", "squad_v2"):
    if paths := values[version].value:
      if paths.count(",") != 1:
        raise UserError(f"--{version}={paths}: give the train file and the dev file, separated by a comma")
      for path in paths.split(","):
        _check_path(version, path)
      tasks[version] = squad_task(version, *paths.split(","))
  if values.race_dir:
    check_race_folder(values.race_dir, (TRAIN, DEV, TEST) if predicts else (TRAIN, DEV))
    tasks["race"] = DownstreamTask("run_race", {"data_dir": values.race_dir}, data=values.race_dir, recipe="race")
  return tasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
  """The inputs that the user gives.

  Attributes:
    output_dir: directory for text, shards, runs and tables.
    corpus: globs of the text to train on. If it is empty, the documentation of the installed packages is used.
    additional_corpus: globs of more text, for variants that use it.
    heldout_corpus: globs of the text that pretraining is evaluated on. If it is empty, the text of the SQuAD and RACE
      files is used; without these files, a held-out part of the documentation of the installed packages.
    question_flags: flags of data_prep.question_texts, which name the SQuAD and RACE files; may be empty.
    spm_model_file: the vocabulary. If it is empty, a vocabulary is trained on the corpus.
    tasks: name -> task to fine-tune on.
    vocab_size: size of the vocabulary.
    max_predictions_per_seq: masked tokens per sequence at most; 0 for 15% of the sequence.
    num_seeds: number of runs of each variant.
    hash_files: the function hash_files. It reads the same files only once.
  """

  output_dir: str
  corpus: str = ""
  additional_corpus: str = ""
  heldout_corpus: str = ""
  question_flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
  spm_model_file: str = ""
  tasks: Mapping[str, DownstreamTask] = dataclasses.field(default_factory=dict)
  vocab_size: int
  max_predictions_per_seq: int = 0
  num_seeds: int
  hash_files: Callable[[str], str] = dataclasses.field(
    default_factory=lambda: functools.cache(hash_files), init=False, compare=False
  )


def _check_path(flag: str, path: str) -> None:
  """Raises UserError if a file or a folder that a flag gives does not exist."""
  if not files.exists(path):
    raise UserError(f"--{flag}: {path} does not exist: give the path of the task's data, or leave the flag out")


def check_glue_folder(glue_dir: str, name: str, *, predicts: bool = False) -> None:
  """Raises UserError if a file of a task of GLUE is missing. Otherwise the task would fail only when its turn comes.

  Args:
    glue_dir: the folder of GLUE. The files are in its folder of the task, or in itself.
    name: the task.
    predicts: whether the test sets are predicted, too, and not only the training and development sets used.
  """
  _check_path("glue_dir", glue_dir)
  spec, remedy = SPECS[name], "download the task, or leave it out of --glue_tasks"
  if not files.exists(files.join(glue_dir, spec.folder)) and not matching_paths(files.join(glue_dir, "*.tsv")):
    raise UserError(f"--glue_dir={glue_dir}: has no folder {name}: {remedy}")
  task = TextData(ClassifierConfig(task_name=name, data_dir=glue_dir))
  for split in (TRAIN, *task.evaluation_splits, *(task.prediction_splits() if predicts else ())):
    if not task.has_file(split):
      raise UserError(f"--glue_dir={glue_dir}: {name} has no {task.formats[split].name}: {remedy}")


def check_race_folder(race_dir: str, splits: Sequence[str]) -> None:
  """Raises UserError if the folder of RACE does not exist, or has no passages of one of the splits."""
  _check_path("race_dir", race_dir)
  for split in splits:
    find_passages(split_folder(race_dir, split), "--race_dir")


def hash_files(spec: str) -> str:
  """Returns a hash of the names and contents of files, in hex; "" if there is no file.

  Args:
    spec: paths and globs, separated by commas. Of a folder, all files in it are hashed, also those in its subfolders. A
      path that does not exist is left out: the command that reads it reports it.
  """
  paths = sorted(
    {path for pattern in split_globs(spec) for match in matching_paths(pattern) for path in _files_in(match)}
  )
  if not paths:
    return ""
  entries = list(zip(paths, files.in_threads(file_sha256, paths), strict=True))
  return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _files_in(path: str) -> Iterator[str]:
  """Yields the path itself, or all files in it if it is a folder."""
  if not files.is_dir(path):
    if not files.is_special(path):  # reading a pipe might never end
      yield path
    return
  for name in files.listdir(path):
    yield from _files_in(files.join(path, name))
