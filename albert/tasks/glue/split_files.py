"""Finds the files of a classification or regression task: its splits, and the path and layout of each split's file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from albert.errors import UserError
from albert.io import files
from albert.tasks.glue.config import ClassifierConfig
from albert.tasks.glue.data import find_file, make_spec
from albert.tasks.glue.specs import CUSTOM, FileFormat, Submission, TaskSpec
from albert.tasks.splits import DEV, TEST, TRAIN


@dataclasses.dataclass(frozen=True)
class TaskFiles:
  """The splits of a task and the layouts of their files.

  Attributes:
    spec: the task.
    config: the flags, which name files or the folder of the task's files.
    formats: split -> layout of its file.
    submissions: test split -> the file for gluebenchmark.com with its predictions.
    evaluation_splits: the splits to evaluate on.
  """

  spec: TaskSpec
  config: ClassifierConfig
  formats: Mapping[str, FileFormat]
  submissions: Mapping[str, Submission]
  evaluation_splits: tuple[str, ...]

  def prediction_splits(self) -> list[str]:
    """Returns the test sets, without an optional one whose file does not exist."""
    return [
      split for split, submission in self.submissions.items() if not submission.is_optional or self.has_file(split)
    ]

  def check_can_evaluate(self) -> None:
    """Raises UserError if the task has no split to evaluate on."""
    if not self.evaluation_splits:
      raise UserError(f"{self.spec.name} has no labels to evaluate with: give --do_predict")

  def find(self, split: str) -> str:
    """Returns the path of a split's file: the one that a flag gives, or else the task's file in data_dir.

    Raises:
      UserError: the task does not have this split, a flag is missing, or there is no such file.
    """
    spec = self.spec
    if split == DEV and self.config.eval_share:
      return self.find(TRAIN)
    if split not in self.formats:
      # Only the diagnostic set AX lacks splits.
      raise UserError(f"{spec.name} has no {split} set; it is for --do_predict with a model of {spec.model_of}")
    flags = {TRAIN: "train_file"} | dict.fromkeys(self.submissions, "predict_file")
    flag = flags.get(split, "eval_file")
    path: str = getattr(self.config, flag)
    if not path:
      return self._find_in_data_dir(split, flag)
    if not files.exists(path):
      raise UserError(f"--{flag}={path}: no such file")
    return path

  def _find_in_data_dir(self, split: str, flag: str) -> str:
    """Returns the path of a split's file in data_dir. `flag` is the flag that could name it instead, for errors."""
    config, spec = self.config, self.spec
    if spec.name == CUSTOM:
      advice = "; or give --eval_share=0.1 to hold out a tenth of --train_file" if split == DEV else ""
      raise UserError(f"--{flag} is missing: the {split} set of a custom task{advice}")
    if not config.data_dir:
      raise UserError(f"--data_dir is missing: the folder of {spec.name}'s files (or give --{flag})")
    folder, name = self._folder(split), self.formats[split].name
    path = find_file(config.data_dir, folder, name)
    if path is None:
      raise UserError(
        f"--data_dir={config.data_dir}: neither {files.join(config.data_dir, folder, name)} nor "
        f"{files.join(config.data_dir, name)} exists: give the folder of {spec.name}, or --{flag}"
      )
    return path

  def _folder(self, split: str) -> str:
    submission = self.submissions.get(split)
    return (submission.folder if submission else "") or self.spec.folder

  def has_file(self, split: str) -> bool:
    """Whether a split's file is in data_dir."""
    return find_file(self.config.data_dir, self._folder(split), self.formats[split].name) is not None


def task_files(spec: TaskSpec, config: ClassifierConfig) -> TaskFiles:
  """Decides the splits of a task and the layouts of their files.

  Args:
    spec: the task.
    config: the flags.
  """
  dev_formats: Mapping[str, FileFormat | None] = spec.dev
  if config.eval_file:
    # The file replaces all development sets (MNLI has two), and has the layout of the first one.
    dev_formats = {DEV: next(iter(spec.dev.values()), spec.train)}
  submissions = _submissions(spec, config)
  test_formats = {split: submission.test_file for split, submission in submissions.items()}
  formats = {split: file for split, file in {TRAIN: spec.train, **dev_formats, **test_formats}.items() if file}
  return TaskFiles(spec, config, formats, submissions, tuple(split for split in dev_formats if split in formats))


def _submissions(spec: TaskSpec, config: ClassifierConfig) -> Mapping[str, Submission]:
  """Returns split -> test set to predict. --predict_file replaces all test sets of the task.

  If the task has several test sets, it is not known which of them --predict_file is. Then no file for gluebenchmark.com
  is written.
  """
  if not config.predict_file:
    return spec.submissions
  first_submission = next(iter(spec.submissions.values()))
  submission_name = first_submission.name if len(spec.submissions) == 1 else ""
  return {TEST: Submission(submission_name, first_submission.test_file)}


def splits_of_command(config: ClassifierConfig, *, train: bool, evaluate: bool, predict: bool) -> Sequence[str]:
  """Returns the splits that a command reads, after checking that their files exist. The files are not opened.

  Args:
    config: the flags.
    train, evaluate, predict: what the command does.
  Raises:
    UserError: the task is unknown, a flag is missing, or there is no such file.
  """
  files_of_task = task_files(make_spec(config, reads_labels=False), config)
  splits: list[str] = []
  if train:
    splits.append(TRAIN)
  if evaluate:
    files_of_task.check_can_evaluate()
    splits += files_of_task.evaluation_splits
  if predict:
    splits += files_of_task.prediction_splits()
  for split in splits:
    files_of_task.find(split)
  return splits
