"""The inputs that the user gives to experiments: texts, a vocabulary and tasks. Hashes tell when their files change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from albert.config.model import ModelConfig
from albert.config.recipes import read_recipe
from albert.data.shard_files.manifest import file_sha256
from albert.errors import UserError
from albert.io import files
from albert.io.globs import matching_paths, split_globs
from albert.tasks.glue.files import TextData
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.specs import SPECS
from albert.tasks.race.data import find_passages, split_folder
from albert.tasks.splits import TRAIN

# Flag -> help, of the flags that give the data of tasks.
TASK_DATA_FLAGS = {
  "glue_dir": "folder of GLUE; --glue_tasks selects the tasks",
  "squad_v1": "train file and dev file of SQuAD v1.1, separated by a comma",
  "squad_v2": "train file and dev file of SQuAD v2.0, separated by a comma",
  "race_dir": "folder of RACE",
}
# Files that are read at the same time.
_NUM_READERS = 8


@dataclasses.dataclass(frozen=True)
class DownstreamTask:
  """A task on which the pretrained models are fine-tuned.

  Attributes:
    script: name of the script without .py, such as run_squad.
    flags: flags of the script.
    scores: name of a score -> name of its metric, and the factor that converts the metric to percent.
    data: paths and globs of the task's data, separated by commas. Of a folder, all files in it count.
    recipe: name of the recipe that the script chooses, if there is another one for other weights; else "".
  """

  script: str
  flags: Mapping[str, Any]
  scores: Mapping[str, tuple[str, float]]
  data: str = ""
  recipe: str = ""

  def recipe_flags(self, model: ModelConfig) -> dict[str, str]:
    """Returns the flag that names the recipe for a model's weights, if the script chooses the one for others.

    So a model that was pretrained without dropout is fine-tuned on RACE without it (race_v2).
    """
    other = read_recipe(self.recipe, self.script.removeprefix("run_")).better_recipe_for(model)
    return {"recipe": other} if other else {}


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
  _hashes: dict[str, str] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

  def hash_files(self, spec: str) -> str:
    """Returns a hash of the contents of files (see the function hash_files). The files are read only once."""
    if spec not in self._hashes:
      self._hashes[spec] = hash_files(spec)
    return self._hashes[spec]


def check_path(flag: str, path: str) -> None:
  """Raises UserError if a file or a folder that a flag gives does not exist."""
  if not files.exists(path):
    raise UserError(f"--{flag}: {path} does not exist: give the path of the task's data, or leave the flag out")


def squad_files(flag: str, paths: str) -> tuple[str, str]:
  """Returns the train file and the dev file of SQuAD.

  Args:
    flag: the name of the flag, squad_v1 or squad_v2.
    paths: its value.
  Raises:
    UserError: these are not two paths, or a file does not exist.
  """
  if paths.count(",") != 1:
    raise UserError(f"--{flag}={paths}: give the train file and the dev file, separated by a comma")
  train_file, dev_file = paths.split(",")
  for path in (train_file, dev_file):
    check_path(flag, path)
  return train_file, dev_file


def check_glue_folder(glue_dir: str, name: str, *, predicts: bool = False) -> None:
  """Raises UserError if a file of a task of GLUE is missing. Otherwise the task would fail only when its turn comes.

  Args:
    glue_dir: the folder of GLUE. The files are in its folder of the task, or in itself.
    name: the task.
    predicts: whether the test sets are predicted, too, and not only the training and development sets used.
  """
  check_path("glue_dir", glue_dir)
  spec, remedy = SPECS[name], "download the task, or leave it out of --glue_tasks"
  if not files.exists(files.join(glue_dir, spec.folder)) and not matching_paths(files.join(glue_dir, "*.tsv")):
    raise UserError(f"--glue_dir={glue_dir}: has no folder {name}: {remedy}")
  task = TextData(ClassifierConfig(task_name=name, data_dir=glue_dir))
  for split in (TRAIN, *task.evaluation_splits, *(task.prediction_splits() if predicts else ())):
    if not task.has_file(split):
      raise UserError(f"--glue_dir={glue_dir}: {name} has no {task.formats[split].name}: {remedy}")


def check_race_folder(race_dir: str, splits: Sequence[str]) -> None:
  """Raises UserError if the folder of RACE does not exist, or has no passages of one of the splits."""
  check_path("race_dir", race_dir)
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
  with ThreadPoolExecutor(_NUM_READERS) as readers:
    entries = list(zip(paths, readers.map(file_sha256, paths), strict=True))
  return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _files_in(path: str) -> Iterator[str]:
  """Yields the path itself, or all files in it if it is a folder."""
  if not files.is_dir(path):
    if not files.is_special(path):  # reading a pipe might never end
      yield path
    return
  for name in files.listdir(path):
    yield from _files_in(files.join(path, name))
