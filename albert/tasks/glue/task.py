"""Classification and regression of texts and of pairs of texts: the tasks of GLUE, and custom tasks."""

from __future__ import annotations

import abc
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.data.examples import OPTION_MASK, TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import DataSource, Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.io import files
from albert.models.classifier import ClassifierModel
from albert.tasks import predictions
from albert.tasks.answers import class_answers
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, weighted_mean
from albert.tasks.finetuning import DEV, LOSS, TEST, TRAIN, FinetuningTask
from albert.tasks.glue import evaluation as glue_evaluation
from albert.tasks.glue import specs
from albert.tasks.glue.data import TextRows, find_file, make_spec, read_rows
from albert.tasks.glue.features import LABEL_IDS, SCORES, TextFeaturizer
from albert.tasks.glue.ranking import IS_RIGHT, RankingExamples, RankingFeaturizer, make_ranking_examples
from albert.tasks.glue.specs import CUSTOM, RANKING, ClassifierConfig, FileFormat, Submission, TaskSpec
from albert.tasks.predictions import Predictions

# B batch, N examples, C classes, K sequences of an example, S tokens of a sequence.

# A row without other candidates is compared with the first of these logits. Sequences of padding get the second one.
_NO_CANDIDATE_LOGIT, _PADDING_LOGIT = 0.0, -1e9

_TextTaskT = TypeVar("_TextTaskT", bound="TextTask")


class TextTask(FinetuningTask):
  """The base class of classification, regression and ranking: files, rows, metrics and written files.

  Args:
    model_config: the model.
    config: the task's settings, with the labels of the spec.
    spec: the files, labels and metrics of the task.
  """

  name = "classifier"
  config: ClassifierConfig

  def __init__(self, model_config: ModelConfig, config: ClassifierConfig, spec: TaskSpec):
    super().__init__(model_config, config)
    self.spec = spec
    self._set_formats()

  def _set_formats(self) -> None:
    """Decides the splits, the layouts of their files, and the metric that checkpoints are compared by."""
    spec, config = self.spec, self.config
    dev = {DEV: next(iter(spec.dev.values()), spec.train)} if config.eval_file else spec.dev
    self._formats = {split: file for split, file in {TRAIN: spec.train, **dev}.items() if file is not None}
    self.submissions = _submissions(spec, config)
    self._formats |= {split: submission.test_file for split, submission in self.submissions.items()}
    self.evaluation_splits = [split for split in dev if split in self._formats]
    metric_prefix = f"{next(iter(dev))}_" if len(dev) > 1 else ""
    self.best_metric = metric_prefix + spec.metrics[0]

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of texts or pairs of texts. They have the names of the columns of the task's test set."""
    id_column = self.config.id_column
    return rows_of(data, "the data to predict", self._test_texts(), [id_column] if id_column else [])

  def _test_texts(self) -> Sequence[str]:
    return next(iter(self.submissions.values())).test_file.texts

  def with_data(self: _TextTaskT, split: str, source: DataSource, *, cache: bool = True) -> _TextTaskT:
    """Returns a copy of the task that has other data for a split. Rows to predict need no column of ids."""
    task = super().with_data(split, source, cache=cache)
    if not isinstance(source, Rows):
      task._set_formats()
    elif split == TEST:
      id_column = self.config.id_column if self.config.id_column in source.columns else ""
      file = FileFormat("", (), tuple(self._test_texts()), id=id_column)
      task.submissions = {TEST: Submission("", file)}
      task._formats = {**self._formats, TEST: file}
    return task

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the task's name, its formulation and its labels."""
    return super().checkpoint_settings() | {
      "task_name": self.spec.model_of or self.spec.name,
      "formulation": self.config.formulation,
      "labels": specs.format_labels(self.spec.labels),
    }

  def head_settings(self) -> dict[str, Any]:
    """Adds the labels and the formulation. The head of another task with the same labels may be reused."""
    settings = self.checkpoint_settings()
    return super().head_settings() | {name: settings[name] for name in ("labels", "formulation")}

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Returns the columns that are read."""
    file = self._formats[split]
    return {"texts": file.texts, "label": file.label, "id": file.id}

  def data_files(self, split: str) -> Sequence[str]:
    """Returns the file of a split: the one that a flag gives, or else the task's file in data_dir."""
    config, spec = self.config, self.spec
    if split not in self._formats:
      raise UserError(f"{spec.name} has no {split} set; it is for --do_predict with a model of {spec.model_of}")
    flag = {TRAIN: "train_file"}.get(split, "predict_file" if split in self.submissions else "eval_file")
    flag_path = getattr(config, flag)
    if flag_path:
      if not files.exists(flag_path):
        raise UserError(f"--{flag}={flag_path}: no such file")
      return [flag_path]
    if spec.name == CUSTOM:
      raise UserError(f"--{flag} is missing: the {split} set of a custom task")
    if not config.data_dir:
      raise UserError(f"--data_dir is missing: the folder of {spec.name}'s files (or give --{flag})")
    folder, name = self._folder(split), self._formats[split].name
    path = find_file(config.data_dir, folder, name)
    if path is None:
      raise UserError(
        f"--data_dir={config.data_dir}: neither {files.join(config.data_dir, folder, name)} nor "
        f"{files.join(config.data_dir, name)} exists: give the folder of {spec.name}, or --{flag}"
      )
    return [path]

  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads the files of each split. Raises UserError if there is no development set to evaluate on."""
    if evaluate and not self.evaluation_splits:
      raise UserError(f"{self.spec.name} has no labels to evaluate with: give --do_predict")
    super().check_inputs(train=train, evaluate=evaluate, predict=predict)

  def evaluation_data(self) -> dict[str, Dataset]:
    """Returns split -> development set. Raises UserError if the task has none."""
    self.check_inputs(train=False, evaluate=True, predict=False)
    return super().evaluation_data()

  def prediction_splits(self) -> Sequence[str]:
    """Returns the test sets, without an optional one whose file does not exist."""
    return [
      split for split, submission in self.submissions.items() if not submission.is_optional or self._has_files(split)
    ]

  def _folder(self, split: str) -> str:
    submission = self.submissions.get(split)
    return (submission.folder if submission else "") or self.spec.folder

  def rows(self, split: str) -> TextRows:
    """Reads the file of a split, and prints a warning if it skips damaged lines."""
    path = self.sources(split)[0]
    rows, damaged_lines = read_rows(path, self._formats[split], self.spec)
    if damaged_lines:
      print(
        f"warning: {path}: {len(damaged_lines)} lines have another number of columns and are skipped; the first one is "
        f"line {damaged_lines[0]}",
        file=sys.stderr,
      )
    return rows

  def raw_examples(self, split: str) -> Sequence[Any]:
    """Reads the rows of a split."""
    return self.rows(split)

  def raw_rows(self, split: str) -> TextRows:
    """Returns the rows from which the examples of a split were made."""
    raw = self.cached_raw_examples(split)
    assert isinstance(raw, TextRows | RankingExamples)
    return raw.rows if isinstance(raw, RankingExamples) else raw

  def featurizer(self, split: str) -> Callable[[Any], TokenizedExamples]:
    """Returns the tokenizer of rows."""
    del split
    return self._text_featurizer()

  def _text_featurizer(self) -> TextFeaturizer:
    config = self.config
    return TextFeaturizer(self.tokenizer_config, config.max_seq_length)

  def build_model(self) -> keras.Model:
    """Makes a ClassifierModel."""
    model = ClassifierModel(self.model_config, self.num_logits())
    ids = tf.zeros([1, 2], tf.int32)
    model({INPUT_IDS: ids, INPUT_MASK: ids, SEGMENT_IDS: ids})
    return model

  def num_logits(self) -> int:
    """Returns the number of logits of each sequence: one for each class."""
    return len(self.spec.labels)

  @abc.abstractmethod
  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Converts the outputs of forward to scores (see Predictions)."""

  def predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Makes the predictions for a split.

    Args:
      split: the name of the split.
      outputs: the outputs of forward, for all examples of the split or for some.
    Returns: the predictions, with labels if the file has them.
    """
    rows, indices = self.raw_rows(split), outputs["example_index"]
    labels = rows.labels[indices] if self._formats[split].label else None
    return Predictions([rows.ids[i] for i in indices], self.spec.labels, self.scores(outputs), labels)

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the task's metrics (see compute_metrics)."""
    return glue_evaluation.compute_metrics(self.spec, self.predictions(split, outputs))

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes predictions, mistakes and a picture."""
    result, rows = self.predictions(split, outputs), self.raw_rows(split)
    columns = [column for column in (rows.first, rows.second) if column is not None]
    texts = [
      (name, [column[i] for i in outputs["example_index"]])
      for name, column in zip(self._formats[split].texts, columns, strict=True)
    ]
    predictions.write_predictions(directory, split, result)
    predictions.write_mistakes(directory, split, result, texts)
    predictions.draw_predictions(directory, split, result)

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the paths of the predictions of each test set, and of its submission if there is one."""
    paths: list[str] = []
    splits = self.prediction_splits()
    if predictions_file and len(splits) > 1:
      raise UserError(
        f"--predictions_file={predictions_file} names one file, and {self.spec.name} has the test sets "
        f"{', '.join(splits)}: leave it out, or name the one to predict as --predict_file"
      )
    for split in splits:
      paths.append(predictions_file or predictions.predictions_path(directory, split))
      name = self.submissions[split].name
      if name:
        companion = predictions.companion_path(predictions_file, "submission") if predictions_file else ""
        paths.append(companion or files.join(directory, name))
    return paths

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes the predictions of the test sets, and the submissions to gluebenchmark.com."""
    del model
    paths = self.prediction_files(directory, predictions_file)
    remaining_paths = iter(paths)
    for split in self.prediction_splits():
      submission = self.submissions[split]
      result = self.predictions(split, run_model(self.data(split)))
      predictions.write_predictions(directory, split, result, next(remaining_paths))
      if submission.name:
        glue_evaluation.write_submission(directory, self.spec, submission, result, next(remaining_paths))
    return paths

  def _has_files(self, split: str) -> bool:
    return find_file(self.config.data_dir, self._folder(split), self._formats[split].name) is not None

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns a ClassAnswer, or a number of a regression, for each row of the test sets."""
    del model
    results = [self.predictions(split, run_model(self.data(split))) for split in self.prediction_splits()]
    return [answer for result in results for answer in class_answers(result)]


class ClassificationTask(TextTask):
  """Predicts one of several classes for each row."""

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the cross entropy. The output is logits, float32 [B, C]."""
    logits = model(batch, training=training, seed=seed)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[LABEL_IDS], logits=logits)
    return ForwardResult({LOSS: weighted_mean(losses, batch[EXAMPLE_WEIGHT])}, {"logits": logits})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the classes, float64 [N, C]."""
    return predictions.softmax(outputs["logits"])


class RegressionTask(TextTask):
  """Predicts a number for each row."""

  def num_logits(self) -> int:
    """Returns 1: the only logit is the number."""
    return 1

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the mean squared error. The output is values, float32 [B]."""
    values = model(batch, training=training, seed=seed)[:, 0]
    loss = weighted_mean(tf.square(values - batch[SCORES]), batch[EXAMPLE_WEIGHT])
    return ForwardResult({LOSS: loss}, {"values": values})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the predicted numbers, float32 [N]."""
    return outputs["values"]


class RankingTask(TextTask):
  """Each row's sentence is ranked among the candidates of its question (see albert.tasks.glue.ranking).

  The model gives each sequence one logit. The softmax over all candidates of a question gives the probability that
  the row's own sentence, the first candidate, is the right one. If there is no other candidate, the softmax is over
  the row's logit and 0. The loss is the binary cross entropy of that probability. So for a row whose sentence is not
  the right one, it is the negative log of the other candidates' total probability. With two candidates it equals the
  pairwise ranking loss.
  """

  multiple_choice: ClassVar[bool] = True

  def num_logits(self) -> int:
    """Returns 1: each sequence has one logit."""
    return 1

  def _right_class(self) -> int:
    return self.spec.labels.index(self.spec.ranking_label)

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Adds the formulation."""
    return super().feature_settings(split) | {"formulation": self.config.formulation}

  def data_files(self, split: str) -> Sequence[str]:
    """Returns the split's file and, if it exists, the training file, whose sentences are candidates too."""
    paths = super().data_files(split)
    if split == TRAIN:
      return paths
    train_file = self.config.train_file or find_file(self.config.data_dir, self.spec.folder, self._formats[TRAIN].name)
    return [*paths, train_file] if train_file and files.exists(train_file) else paths

  def raw_examples(self, split: str) -> Sequence[Any]:
    """Reads the rows of a split and adds the other candidates of each question."""
    more_rows = self.rows(TRAIN) if len(self.sources(split)) > 1 else None
    return make_ranking_examples(self.rows(split), self._right_class(), more_rows)

  def featurizer(self, split: str) -> Callable[[Any], TokenizedExamples]:
    """Returns the function that makes one sequence of each candidate."""
    del split
    return RankingFeaturizer(self._text_featurizer())

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the binary cross entropy. The output is log_probabilities, float32 [B, 2], of being wrong and right."""
    mask = batch[OPTION_MASK]  # [B, K]
    length = tf.shape(batch[INPUT_IDS])[2]
    sequences = {name: tf.reshape(batch[name], [-1, length]) for name in (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)}
    logits = tf.reshape(model(sequences, training=training, seed=seed), tf.shape(mask))
    logits = tf.where(mask > 0, logits, _PADDING_LOGIT)
    has_no_candidate = tf.reduce_sum(mask, axis=1, keepdims=True) < 2  # besides the row's own sentence
    extra_logits = tf.where(has_no_candidate, _NO_CANDIDATE_LOGIT, _PADDING_LOGIT)
    others_logit = tf.reduce_logsumexp(tf.concat([logits[:, 1:], extra_logits], axis=1), axis=1)
    log_probabilities = tf.nn.log_softmax(tf.stack([others_logit, logits[:, 0]], axis=1))
    losses = -tf.gather(log_probabilities, batch[IS_RIGHT], batch_dims=1)
    return ForwardResult({LOSS: weighted_mean(losses, batch[EXAMPLE_WEIGHT])}, {"log_probabilities": log_probabilities})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the two labels, float64 [N, 2], in the order of spec.labels."""
    probabilities = np.exp(outputs["log_probabilities"].astype(np.float64))
    return probabilities if self._right_class() == 1 else probabilities[:, ::-1]


def _submissions(spec: TaskSpec, config: ClassifierConfig) -> Mapping[str, Submission]:
  """The test sets to predict: --predict_file if it is given. Its submission is written if the task has one test set."""
  if not config.predict_file:
    return spec.submissions
  first = next(iter(spec.submissions.values()))
  return {TEST: Submission(first.name if len(spec.submissions) == 1 else "", first.test_file)}


def make_task(model_config: ModelConfig, config: ClassifierConfig) -> TextTask:
  """Makes the task that the flags name.

  Args:
    model_config: the model.
    config: the flags.
  Raises:
    UserError: the task is unknown, does not have the given labels or formulation, or its files cannot be used.
  """
  spec = make_spec(config)
  config = dataclasses.replace(config, task_name=spec.name, labels=specs.format_labels(spec.labels))
  if config.formulation == RANKING:
    return RankingTask(model_config, config, spec)
  return (RegressionTask if spec.is_regression else ClassificationTask)(model_config, config, spec)
