"""The base class of the tasks on texts or pairs of texts. It reads their files and writes predictions."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.data.examples import OPTION_MASK, TokenizedExamples
from albert.data.rows import DataSource, Rows, TableData, rows_of
from albert.data.shard_files.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.io import files
from albert.metrics.classification import ERRORS
from albert.metrics.guessing import GUESSING_LOSS, guessing_loss
from albert.models.classifier import ClassifierModel
from albert.models.window_pooling import pool_windows
from albert.runs import output_files
from albert.runs.metrics_log import log
from albert.tasks import predictions
from albert.tasks.answers import class_answers
from albert.tasks.base import LOSS, Batch, DatasetOutputs
from albert.tasks.calibration import draw_calibration
from albert.tasks.finetuning import FinetuningTask
from albert.tasks.glue import evaluation as glue_evaluation
from albert.tasks.glue.config import WINDOWS, ClassifierConfig
from albert.tasks.glue.data import TextRows
from albert.tasks.glue.features import TextFeaturizer, WindowFeaturizer
from albert.tasks.glue.files import TextData
from albert.tasks.glue.labels import format_labels
from albert.tasks.glue.own_data import data_checks
from albert.tasks.glue.own_data.eval_share import split_record
from albert.tasks.glue.ranking import RankingExamples
from albert.tasks.glue.specs import CUSTOM
from albert.tasks.mistakes import write_mistakes
from albert.tasks.predictions import Predictions
from albert.tasks.splits import DEV, TEST, TRAIN

_TextTaskT = TypeVar("_TextTaskT", bound="TextTask")


class TextTask(FinetuningTask):
  """The base class of classification, regression and ranking of texts. It reads the files and writes the results.

  Args:
    model_config: the model.
    text_data: the files, the settings, the labels and the metrics of the task.
  """

  name = "classifier"
  config: ClassifierConfig

  def __init__(self, model_config: ModelConfig, text_data: TextData):
    super().__init__(model_config, text_data.config)
    self.spec = text_data.spec
    self._has_logged_data = False
    if self.config.long_texts == WINDOWS:
      self.multiple_choice = self.numbers_vary = True  # the sequences of a row are its windows
    self._set_data(text_data)

  def _set_data(self, text_data: TextData) -> None:
    """Sets the data, its splits, and the metric by which checkpoints are compared."""
    self.text_data = text_data
    self.evaluation_splits = splits = text_data.evaluation_splits
    main_metric = LOSS if self.config.best_metric == LOSS else self.spec.metrics[0]
    prefix = f"{splits[0]}_" if len(splits) > 1 else ""
    self.best_metric, self.best_loss = prefix + main_metric, prefix + LOSS
    self.higher_is_better = main_metric not in (LOSS, *ERRORS)

  def prediction_rows(self, data: TableData) -> Rows:
    """Converts texts, or pairs of texts, to rows with the column names of the task's test set."""
    id_column = self.config.id_column
    text_columns = next(iter(self.text_data.submissions.values())).test_file.texts
    return rows_of(data, "the data to predict", text_columns, [id_column] if id_column else [])

  def with_data(self: _TextTaskT, split: str, source: DataSource, *, cache: bool = True) -> _TextTaskT:
    """Returns a copy of the task that has other data for a split. Rows to predict need no ids."""
    task = super().with_data(split, source, cache=cache)
    task._set_data(self.text_data.with_source(split, source))
    task.config = dataclasses.replace(task.text_data.config, cache_dir=task.config.cache_dir)
    return task

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the task's name, its formulation and its labels."""
    return super().checkpoint_settings() | {
      "task_name": self.spec.model_of or self.spec.name,
      "formulation": self.config.formulation,
      "labels": format_labels(self.spec.labels),
      "multi_label": self.config.multi_label,
    }

  def head_settings(self) -> dict[str, Any]:
    """Adds the labels, the formulation and multi_label. A head may be reused for a task that has the same ones."""
    settings = self.checkpoint_settings()
    return super().head_settings() | {name: settings[name] for name in ("labels", "formulation", "multi_label")}

  def splits_with_data_of(self, split: str) -> Collection[str]:
    """Returns the split; with --eval_share both parts of the training data."""
    return self.text_data.splits_with_data_of(split)

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Returns the columns that are read from the file of a split, and which rows belong to it."""
    file_format, config = self.text_data.formats[split], self.config
    settings: dict[str, Any] = {"texts": file_format.texts, "label": file_format.label, "id": file_format.id}
    if config.long_texts == WINDOWS:
      settings |= {"doc_stride": config.doc_stride, "max_windows": config.max_windows}
    if self.text_data.is_divided(split):
      settings |= {"eval_share": config.eval_share, "eval_seed": config.eval_seed}
    if self.spec.label_separator:
      settings["label_separator"] = self.spec.label_separator
    return settings

  def data_files(self, split: str) -> Sequence[DataSource]:
    """Returns the file of a split: the one that a flag gives, or else the task's file in data_dir."""
    return self.text_data.sources(split)

  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads the files of each split. Before training, logs how many rows each label has, and repeated texts.

    Raises:
      UserError: a file cannot be used, or there is no development set to evaluate on.
    """
    if evaluate:
      self.text_data.check_can_evaluate()
    super().check_inputs(train=train, evaluate=evaluate, predict=predict)
    if train and not self._has_logged_data:
      self._has_logged_data = True
      self._log_data()

  def _log_data(self) -> None:
    """Logs what is trained and evaluated on, as far as it was read."""
    splits = self.text_data.splits
    for split, (rows, table) in splits.items():
      if self.text_data.formats[split].label:
        log(data_checks.summary_line(split, data_checks.summary(rows, table, self.spec)))
    if self.spec.name == CUSTOM and splits.keys() >= {TRAIN, DEV}:
      pairs = data_checks.duplicates(splits[TRAIN].rows, splits[DEV].rows)
      for warning in data_checks.duplicate_warnings(splits[TRAIN].table, splits[DEV].table, pairs):
        log(f"warning: {warning}")

  def data_records(self) -> dict[str, str]:
    """Returns a summary of the labeled rows, and with --eval_share which rows are held out."""
    data = self.text_data
    labeled = {split: rows for split, rows in data.splits.items() if data.formats[split].label}
    summaries = {split: data_checks.summary(*rows, self.spec) for split, rows in labeled.items()}
    records = {output_files.DATA_SUMMARY: json.dumps(summaries, indent=2, ensure_ascii=False) + "\n"}
    if data.is_divided(DEV) and DEV in labeled:
      records[output_files.EVAL_SPLIT] = split_record(data.sources(DEV)[0], labeled[DEV].table, self.config)
    return records

  def evaluation_data(self) -> dict[str, Dataset]:
    """Returns split -> development set. Raises UserError if the task has none."""
    self.check_inputs(train=False, evaluate=True, predict=False)
    return super().evaluation_data()

  def prediction_splits(self) -> Sequence[str]:
    """Returns the test sets, without an optional one whose file does not exist."""
    return self.text_data.prediction_splits()

  def raw_examples(self, split: str) -> Sequence[Any]:
    """Returns the rows of a split; each is an example. Logs warnings about damaged lines, and about empty texts."""
    rows, table = self.text_data.rows(split)
    warnings = [*data_checks.damage_warnings(table)]
    if self.text_data.formats[split].label and self.spec.name == CUSTOM:
      warnings += data_checks.empty_text_warnings(rows, table)
    for warning in warnings:
      log(f"warning: {warning}")
    return rows

  def cached_rows(self, split: str) -> TextRows:
    """Returns the rows of a split, which are read only once."""
    examples = self.cached_raw_examples(split)
    assert isinstance(examples, TextRows | RankingExamples)
    return examples.rows if isinstance(examples, RankingExamples) else examples

  def featurizer(self, split: str) -> Callable[[Any], TokenizedExamples]:
    """Returns the function that tokenizes rows."""
    del split
    return self._text_featurizer()

  def _text_featurizer(self) -> TextFeaturizer:
    config = self.config
    if config.long_texts == WINDOWS:
      return WindowFeaturizer(self.tokenizer_config, config.max_seq_length, config.doc_stride, config.max_windows)
    return TextFeaturizer(self.tokenizer_config, config.max_seq_length)

  def row_logits(self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None) -> tf.Tensor:
    """Computes the logits of each row; with --long_texts=windows, the pooled logits of its windows.

    Args: see Task.forward.
    Returns: float32 [B, C].
    """
    if self.config.long_texts != WINDOWS:
      return model(batch, training=training, seed=seed)
    batch_size, num_windows, length = tf.unstack(tf.shape(batch[INPUT_IDS]))
    sequences = {name: tf.reshape(batch[name], [-1, length]) for name in (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)}
    logits = model(sequences, training=training, seed=seed)
    logits = tf.reshape(logits, [batch_size, num_windows, self.num_logits()])
    return pool_windows(logits, batch[OPTION_MASK] > 0, self.config.pooling)

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
    """Converts the outputs of forward to Predictions.scores."""

  def predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Makes the predictions for a split.

    Args:
      split: the name of the split.
      outputs: the outputs of forward, for all examples of the split or for some.
    Returns: the predictions, with labels if the file has them.
    """
    rows, indices = self.cached_rows(split), outputs["example_index"]
    has_labels = bool(self.text_data.formats[split].label)
    return Predictions(
      ids=[rows.ids[i] for i in indices],
      label_names=self.spec.labels,
      scores=self.scores(outputs),
      labels=rows.labels[indices] if has_labels else None,
    )

  def guessing_loss(self) -> float | None:
    """Returns the entropy of the training labels, or the variance of the numbers."""
    return guessing_loss(self.cached_rows(TRAIN).labels)

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the task's metrics (see compute_metrics), and guessing_loss, the lowest loss that ignores the texts."""
    split_predictions = self.predictions(split, outputs)
    assert split_predictions.labels is not None
    metrics = glue_evaluation.compute_metrics(self.spec, split_predictions)
    return metrics | {GUESSING_LOSS: guessing_loss(split_predictions.labels)}

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes predictions, mistakes, the scores of each class, and pictures.

    The pictures are a confusion matrix or a scatter plot, and a reliability diagram if each row has one label.
    """
    split_predictions, rows = self.predictions(split, outputs), self.cached_rows(split)
    indices, names = outputs["example_index"], self.text_data.formats[split].texts
    texts = [(names[0], [rows.first[i] for i in indices])]
    if rows.second is not None:
      texts.append((names[1], [rows.second[i] for i in indices]))
    predictions.write_predictions(directory, split, split_predictions)
    write_mistakes(directory, split, split_predictions, texts)
    if self.spec.labels:
      glue_evaluation.write_class_scores(directory, split, split_predictions)
    if self.spec.positive_metrics:
      label = self.spec.labels[self.spec.positive_class]
      log(f"{split}: {', '.join(self.spec.positive_metrics)} of the label {label!r} (--positive_label)")
    predictions.draw_predictions(directory, split, split_predictions)
    if self.spec.labels and split_predictions.thresholds is None:
      draw_calibration(directory, split, split_predictions)

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the path of each test set's predictions, followed by the path of its submission if it has one."""
    paths: list[str] = []
    splits = self.prediction_splits()
    if predictions_file and len(splits) > 1:
      raise UserError(
        f"--predictions_file={predictions_file} names one file, and {self.spec.name} has the test sets "
        f"{', '.join(splits)}: leave it out, or name the one to predict as --predict_file"
      )
    for split in splits:
      name = self.predictions_name() if split == TEST else split
      paths.append(predictions_file or predictions.predictions_path(directory, name))
      submission_name = self.text_data.submissions[split].name
      if submission_name and predictions_file:
        paths.append(predictions.companion_path(predictions_file, "submission"))
      elif submission_name:
        paths.append(files.join(directory, submission_name))
    return paths

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes the predictions of the test sets, and the files to submit to gluebenchmark.com."""
    del model
    paths = self.prediction_files(directory, predictions_file)
    remaining_paths = iter(paths)
    for split in self.prediction_splits():
      submission = self.text_data.submissions[split]
      split_predictions = self.predictions(split, run_model(self.data(split)))
      predictions.write_predictions(directory, split, split_predictions, next(remaining_paths))
      if submission.name:
        glue_evaluation.write_submission(directory, self.spec, submission, split_predictions, next(remaining_paths))
    return paths

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns for each row of the test sets a ClassAnswer, or the predicted number of a regression."""
    del model
    answers: list[Any] = []
    for split in self.prediction_splits():
      answers += class_answers(self.predictions(split, run_model(self.data(split))))
    return answers
