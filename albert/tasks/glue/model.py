"""The tasks of GLUE and custom tasks: classification, regression and ranking of texts or of pairs of texts.

B examples in a batch, N examples of a split, C classes or labels, K sequences of an example.
"""

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
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import DataSource, Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import join_names
from albert.metrics.classification import ERRORS, GUESSING_LOSS, guessing_loss
from albert.models.classifier import ClassifierModel
from albert.models.multiple_choice import pool_windows
from albert.runs import output_files
from albert.tasks import predictions
from albert.tasks.answers import class_answers
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ForwardResult, weighted_sum
from albert.tasks.finetuning import FinetuningTask
from albert.tasks.glue import results
from albert.tasks.glue.features import (
  IS_RIGHT,
  LABEL_IDS,
  SCORES,
  RankingExamples,
  RankingFeaturizer,
  TextFeaturizer,
  WindowFeaturizer,
  make_ranking_examples,
)
from albert.tasks.glue.files import (
  TextData,
  TextRows,
  combined_label_warning,
  damage_warnings,
  duplicate_warnings,
  duplicates,
  empty_text_warnings,
  split_record,
  summary,
  summary_line,
)
from albert.tasks.glue.flags import (
  BALANCED,
  RANKING,
  WINDOWS,
  ClassifierConfig,
  fixed_threshold,
  format_labels,
  parse_class_weights,
)
from albert.tasks.glue.results import (
  DEFAULT_THRESHOLD,
  ChosenThresholds,
  choose_thresholds,
  read_thresholds,
)
from albert.tasks.glue.specs import CUSTOM
from albert.tasks.predictions import Predictions, write_mistakes
from albert.tasks.splits import DEV, TEST, TRAIN

# For --formulation=ranking: the logit that a sentence is compared with if its question has no other candidates, and the
# logit of padding, which makes its probability 0.
_NO_CANDIDATE_LOGIT = 0.0
_PADDING_LOGIT = -1e9
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
    self._has_logged_data = self._has_logged_labels = False
    # The training rows and the class weights that were computed for them.
    self._weighted_rows: tuple[TextRows, np.ndarray] | None = None
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
    """Returns the data of a split, see TextData.sources."""
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
    """Logs the number of rows of each labeled file that was read, with a summary of its labels."""
    splits = self.text_data.splits
    for split, (rows, table) in splits.items():
      if self.text_data.formats[split].label:
        log(summary_line(split, summary(rows, table, self.spec)))
    if self.spec.name == CUSTOM and splits.keys() >= {TRAIN, DEV}:
      pairs = duplicates(splits[TRAIN].rows, splits[DEV].rows)
      for warning in duplicate_warnings(splits[TRAIN].table, splits[DEV].table, pairs):
        log(f"warning: {warning}")

  def data_records(self) -> dict[str, str]:
    """Returns a summary of the labeled rows, and with --eval_share which rows are held out."""
    data = self.text_data
    labeled = {split: rows for split, rows in data.splits.items() if data.formats[split].label}
    summaries = {split: summary(*rows, self.spec) for split, rows in labeled.items()}
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
    warnings = [*damage_warnings(table)]
    if self.text_data.formats[split].label and self.spec.name == CUSTOM:
      warnings += empty_text_warnings(rows, table)
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

  def training_data(self) -> Dataset:
    """Returns the training set. Logs once the class weights, and labels that seem to be several labels."""
    if not self._has_logged_labels:
      self._has_logged_labels = True
      if self.config.class_weights:
        log(f"class weights: {describe_class_weights(self.class_weights(), self.spec.labels)}")
      is_single_label = self.spec.name == CUSTOM and not self.spec.label_separator
      warning = combined_label_warning(self.spec.labels) if is_single_label else None
      if warning:
        log(f"warning: {', '.join(map(str, self.sources(TRAIN)))}: {warning}")
    return super().training_data()

  def class_weights(self) -> np.ndarray:
    """Returns the weights of --class_weights for the rows that are trained on, float32 [C]."""
    rows = self.cached_rows(TRAIN)
    if self._weighted_rows is None or self._weighted_rows[0] is not rows:
      self._weighted_rows = rows, make_class_weights(self.config.class_weights, self.spec.labels, rows.labels)
    return self._weighted_rows[1]

  def guessing_loss(self) -> float | None:
    """Returns the entropy of the training labels, with their weights, or the variance of the numbers."""
    weights = self.class_weights() if self.config.class_weights else None
    return guessing_loss(self.cached_rows(TRAIN).labels, weights)

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the task's metrics (see compute_metrics), and guessing_loss, the lowest loss that ignores the texts."""
    split_predictions = self.predictions(split, outputs)
    assert split_predictions.labels is not None
    metrics = results.compute_metrics(self.spec, split_predictions)
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
      results.write_class_scores(directory, split, split_predictions)
    if self.spec.positive_metrics:
      label = self.spec.labels[self.spec.positive_class]
      log(f"{split}: {', '.join(self.spec.positive_metrics)} of the label {label!r} (--positive_label)")
    predictions.draw_predictions(directory, split, split_predictions)
    if self.spec.labels and split_predictions.thresholds is None:
      results.draw_calibration(directory, split, split_predictions)

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
        results.write_submission(directory, self.spec, submission, split_predictions, next(remaining_paths))
    return paths

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns for each row of the test sets a ClassAnswer, or the predicted number of a regression."""
    del model
    answers: list[Any] = []
    for split in self.prediction_splits():
      answers += class_answers(self.predictions(split, run_model(self.data(split))))
    return answers


class ClassificationTask(TextTask):
  """Predicts one of several classes for each row."""

  def _training_weights(self, batch: Batch) -> tf.Tensor:
    """The weights of the examples in the training loss, float32 [B]: those of their classes, and 0 for padding."""
    if not self.config.class_weights:
      return batch[EXAMPLE_WEIGHT]
    return batch[EXAMPLE_WEIGHT] * tf.gather(tf.constant(self.class_weights()), batch[LABEL_IDS])

  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the sum of the weights of the examples in the training loss."""
    return {LOSS: tf.reduce_sum(self._training_weights(batch))}

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the cross entropy, in training with class weights. The output is logits, float32 [B, C]."""
    logits = self.row_logits(model, batch, training=training, seed=seed)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[LABEL_IDS], logits=logits)
    weights = self._training_weights(batch) if training else batch[EXAMPLE_WEIGHT]
    return ForwardResult({LOSS: weighted_sum(losses, weights)}, {"logits": logits})

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
    values = self.row_logits(model, batch, training=training, seed=seed)[:, 0]
    loss = weighted_sum(tf.square(values - batch[SCORES]), batch[EXAMPLE_WEIGHT])
    return ForwardResult({LOSS: loss}, {"values": values})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the predicted numbers, float32 [N]."""
    return outputs["values"]


class MultiLabelTask(TextTask):
  """Predicts any number of labels for each row: those whose probability is at least their threshold.

  The thresholds are chosen on the development set, and chosen anew whenever it is evaluated. For other data, such as a
  test set, those of the run are used.
  """

  # Whether thresholds are chosen on the development set. If not, those of the run are used for it, too.
  chooses_thresholds = True
  # The thresholds in thresholds.json of the run.
  _stored: ChosenThresholds | None = None

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the binary cross entropy, as the mean over the labels. The output is logits, float32 [B, C].

    In training, the term of a label that a row has is multiplied by the label's class weight.
    """
    logits = self.row_logits(model, batch, training=training, seed=seed)
    labels = tf.cast(batch[LABEL_IDS], tf.float32)
    weights = self.class_weights() if training and self.config.class_weights else 1.0
    losses = tf.nn.weighted_cross_entropy_with_logits(labels, logits, pos_weight=tf.constant(weights))
    mean_losses = tf.reduce_mean(losses, axis=1)
    return ForwardResult({LOSS: weighted_sum(mean_losses, batch[EXAMPLE_WEIGHT])}, {"logits": logits})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the labels, float64 [N, C]."""
    return 1.0 / (1.0 + np.exp(-outputs["logits"].astype(np.float64)))

  def predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Makes the predictions for a split, with the thresholds for it."""
    return self._with_thresholds(split, super().predictions(split, outputs))

  def _with_thresholds(self, split: str, split_predictions: Predictions) -> Predictions:
    chosen = self._choose(split, split_predictions)
    fixed = fixed_threshold(self.config.thresholds)
    default = DEFAULT_THRESHOLD if fixed is None else fixed
    thresholds = [chosen.thresholds[label] if chosen else default for label in self.spec.labels]
    return split_predictions.with_thresholds(np.array(thresholds), self.spec.label_separator)

  def _choose(self, split: str, split_predictions: Predictions) -> ChosenThresholds | None:
    """The thresholds for a split: chosen on it if it is the development set of the run, else those of the run."""
    choice, labels = self.config.thresholds, split_predictions.labels
    if fixed_threshold(choice) is not None:
      return None
    is_other_data = self._stored is not None and self._stored.data_sha256 != self.content(split).sha256
    if labels is None or is_other_data or not self.chooses_thresholds:
      return self._stored
    values = choose_thresholds(choice, labels, split_predictions.scores)
    thresholds = dict(zip(self.spec.labels, values.tolist(), strict=True))
    return ChosenThresholds(choice, split, self.content(split).sha256, thresholds)

  def read_run(self, output_dir: str) -> None:
    """Reads thresholds.json of a run."""
    self._stored = read_thresholds(output_dir, self.spec.labels)

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Also writes thresholds.json, if the thresholds were chosen on this split."""
    chosen = self._choose(split, super().predictions(split, outputs))
    if chosen is not None and chosen is not self._stored:
      chosen.write(directory)
      self._stored = chosen
    elif chosen is not None:
      log(f"{split}: the thresholds are those that were chosen on the run's development set ({chosen.choice})")
    super().write_evaluation(split, outputs, directory)


class RankingTask(TextTask):
  """Ranks the sentence of each row among the candidates of its question (see albert.tasks.glue.features).

  The model computes one logit for each candidate. The softmax over the candidates gives the probability p that the
  first candidate, the row's own sentence, answers the question. If there is no other candidate, the sentence is
  compared with the logit 0. The loss is the binary cross entropy: -log(p) if the sentence is labeled as the answer, and
  -log(1 - p) if it is not. With two candidates, this equals the pairwise ranking loss.
  """

  multiple_choice = True

  def num_logits(self) -> int:
    """Returns 1: each sequence has one logit."""
    return 1

  def _right_class(self) -> int:
    """The class of a row whose sentence answers its question."""
    return self.spec.labels.index(self.spec.ranking_label)

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Adds the formulation."""
    return super().feature_settings(split) | {"formulation": self.config.formulation}

  def raw_examples(self, split: str) -> Sequence[Any]:
    """Returns the rows of a split, with the other candidates of each question."""
    rows = super().raw_examples(split)
    assert isinstance(rows, TextRows)
    # The training file, if it exists, is the second source.
    more_rows = self.text_data.rows(TRAIN).rows if len(self.sources(split)) > 1 else None
    return make_ranking_examples(rows, self._right_class(), more_rows)

  def featurizer(self, split: str) -> Callable[[Any], TokenizedExamples]:
    """Returns the function that tokenizes each candidate together with its question."""
    del split
    return RankingFeaturizer(self._text_featurizer())

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the binary cross entropy. The output is log_probabilities, float32 [B, 2]: log(1 - p) and log(p)."""
    mask = batch[OPTION_MASK]  # [B, K]
    length = tf.shape(batch[INPUT_IDS])[2]
    sequences = {name: tf.reshape(batch[name], [-1, length]) for name in (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)}
    logits = tf.reshape(model(sequences, training=training, seed=seed), tf.shape(mask))
    logits = tf.where(mask > 0, logits, _PADDING_LOGIT)
    has_other_candidates = tf.reduce_sum(mask, axis=1, keepdims=True) >= 2  # [B, 1]; the row's own sentence is one
    extra_logits = tf.where(has_other_candidates, _PADDING_LOGIT, _NO_CANDIDATE_LOGIT)
    others_logit = tf.reduce_logsumexp(tf.concat([logits[:, 1:], extra_logits], axis=1), axis=1)
    log_probabilities = tf.nn.log_softmax(tf.stack([others_logit, logits[:, 0]], axis=1))
    losses = -tf.gather(log_probabilities, batch[IS_RIGHT], batch_dims=1)
    return ForwardResult({LOSS: weighted_sum(losses, batch[EXAMPLE_WEIGHT])}, {"log_probabilities": log_probabilities})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the two labels, float64 [N, 2], in the order of spec.labels."""
    probabilities = np.exp(outputs["log_probabilities"].astype(np.float64))
    return probabilities if self._right_class() == 1 else probabilities[:, ::-1]


def make_task(model_config: ModelConfig, config: ClassifierConfig, text_data: TextData | None = None) -> TextTask:
  """Makes the task of --task_name.

  Args:
    model_config: the model.
    config: the flags.
    text_data: the data of these flags, if it was read already.
  Raises:
    UserError: see TextData.
  """
  text_data = text_data or TextData(config)
  spec = text_data.spec
  task_class: type[TextTask] = RegressionTask if spec.is_regression else ClassificationTask
  if spec.label_separator:
    task_class = MultiLabelTask
  elif config.formulation == RANKING:
    task_class = RankingTask
  return task_class(model_config, text_data)


def make_class_weights(text: str, labels: Sequence[str], targets: np.ndarray) -> np.ndarray:
  """Computes the weight of each label. Labels that --class_weights does not name have weight 1.

  "balanced" gives a class N / (C n), where n of the N examples have it, as scikit-learn does: then all classes have the
  same total weight. C is the number of classes that occur. If rows may have several labels, it gives a label the number
  of the rows without it, divided by that of the rows with it; labels that all rows or none have get weight 1.

  Args:
    text: the value of --class_weights.
    labels: the labels of the task.
    targets: the classes of the training examples, int [N], or their labels, int [N, C] of 0 and 1.
  Returns: float32 [C].
  Raises:
    UserError: see parse_class_weights.
  """
  weights = np.ones(len(labels), np.float32)
  if text == BALANCED and targets.ndim == 2:
    counts = targets.sum(axis=0)
    differs = (counts > 0) & (counts < len(targets))
    weights[differs] = (len(targets) - counts[differs]) / counts[differs]
    return weights
  if text == BALANCED:
    counts = np.bincount(targets, minlength=len(labels))
    occurs = counts > 0
    weights[occurs] = len(targets) / (occurs.sum() * counts[occurs])
    return weights
  for label, weight in parse_class_weights(text, labels).items():
    weights[labels.index(label)] = weight
  return weights


def describe_class_weights(weights: np.ndarray, labels: Sequence[str]) -> str:
  """Returns the weights as text, such as "yes 2, no 0.5", for the log."""
  return join_names(f"{label} {weight:.4g}" for label, weight in zip(labels, weights, strict=True))
