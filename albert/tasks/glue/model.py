"""The tasks of GLUE and custom tasks: classification, regression and ranking of texts or of pairs of texts.

B examples in a batch, N examples of a split, C classes or labels, K sequences of an example.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.data.examples import OPTION_MASK
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.data.tables import read_header, read_table
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.metrics.classification import ERRORS, GUESSING_LOSS, guessing_loss
from albert.models.classifier import ClassifierModel
from albert.models.multiple_choice import pool_windows
from albert.runs import output_files
from albert.tasks import predictions
from albert.tasks.answers import class_answers
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ExampleSets, ForwardResult, Task, weighted_sum
from albert.tasks.glue import features, results
from albert.tasks.glue.files import TextData, label_scale
from albert.tasks.glue.flags import RANKING, WINDOWS, ClassifierConfig
from albert.tasks.glue.results import RunThresholds
from albert.tasks.glue.specs import CUSTOM
from albert.tasks.predictions import Predictions
from albert.tasks.splits import DEV, TEST, TRAIN
from albert.weights.names import OUTPUT_SCALE

# For --formulation=ranking: the logit that a sentence is compared with if its question has no other candidates, and the
# logit of padding, which makes its probability 0.
_NO_CANDIDATE_LOGIT = 0.0
_PADDING_LOGIT = -1e9


class TextTask(Task):
  """Classification, regression or ranking of texts.

  Args:
    model_config: the model.
    data: the files, the settings, the labels and the metrics of the task.

  Attributes:
    spec: the labels and the metrics.
    formulation: what the logits mean, and the loss.
    thresholds: if a row may have several labels, the probabilities from which on they are predicted; otherwise None.
  """

  name = "classifier"
  config: ClassifierConfig
  data: TextData

  def __init__(self, model_config: ModelConfig, data: TextData):
    super().__init__(model_config, data)
    self.spec = spec = data.spec
    self.formulation = _make_formulation(data)
    self.runs_flag = "folds" if self.config.folds and not self.config.fold else "num_runs"
    self._output_scale: tf.Variable | None = None  # of a custom regression; [1, 0] if not standardized
    self.thresholds = RunThresholds(self.config.thresholds, spec) if spec.label_separator else None
    config, tokenizer = self.config, (data.tokenizer_config, self.config.max_seq_length)
    featurizer, settings = features.TextFeaturizer(*tokenizer), {}
    self._reads_windows = config.long_texts == WINDOWS
    if self._reads_windows:
      featurizer = features.WindowFeaturizer(*tokenizer, config.doc_stride, config.max_windows)
      settings = {"doc_stride": config.doc_stride, "max_windows": config.max_windows}
    elif config.formulation == RANKING:
      featurizer = features.RankingFeaturizer(*tokenizer, data.spec.labels.index(data.spec.ranking_label))
    is_single_text = len(spec.formats()[0].texts) == 1
    self._has_several_sequences = self._reads_windows or config.formulation == RANKING
    self.sets = ExampleSets(
      self.name,
      data,
      featurizer,
      model_config,
      settings=settings,
      cut_remedy="--long_texts=windows reads them in windows" if is_single_text else "",
      multiple_choice=self._has_several_sequences,
      numbers_vary=self._reads_windows,
    )
    self.output_labels = spec.labels
    main_metric = LOSS if config.best_metric == LOSS else spec.metrics[0]
    splits = data.evaluation_splits
    prefix = f"{splits[0]}_" if len(splits) > 1 else ""
    self.best_metric, self.best_loss = prefix + main_metric, prefix + LOSS
    self.higher_is_better = main_metric not in (LOSS, *ERRORS)

  def head_settings(self) -> dict[str, Any]:
    """Adds the labels, the formulation and multi_label. A head may be reused for a task that has the same ones."""
    settings = self.checkpoint_settings()
    return super().head_settings() | {name: settings[name] for name in ("labels", "formulation", "multi_label")}

  def data_records(self) -> dict[str, str]:
    """Adds, with --eval_share or --folds, which rows are held out."""
    data, records = self.data, super().data_records()
    if data.is_divided(DEV) and DEV in data.summaries():
      table, content = data.rows(DEV).table, data.content(DEV)
      record = {
        "source": data.source_names(DEV),
        "sha256": content.sha256 if table.parts else content.files[0].sha256,
        **{name: getattr(self.config, name) for name in (("folds", "fold") if self.config.folds else ("eval_share",))},
        "eval_seed": self.config.eval_seed,
        f"{table.unit}s": list(map(table.location, range(len(table)))) if table.parts else list(table.row_numbers),
      }
      records[output_files.EVAL_SPLIT] = json.dumps(record, ensure_ascii=False) + "\n"
    return records

  def build_model(self) -> keras.Model:
    """Makes a ClassifierModel."""
    model = ClassifierModel(self.model_config, self.formulation.num_logits)
    ids = tf.zeros([1, 2], tf.int32)
    model({INPUT_IDS: ids, INPUT_MASK: ids, SEGMENT_IDS: ids})
    if self.spec.is_regression and self.spec.name == CUSTOM:  # GLUE's STS-B is trained as in the original
      # Keras must not see this variable: it would save it, but a ClassifierModel, which lacks it, could not load it.
      self._output_scale = tf.Variable([1.0, 0.0], trainable=False, name=OUTPUT_SCALE)
      object.__setattr__(model, OUTPUT_SCALE, self._output_scale)
    return model

  def saved_variables(self, model: keras.Model) -> dict[str, tf.Variable]:
    """Adds the scale of a regression's output: the deviation and the mean of the training labels."""
    scale = getattr(model, OUTPUT_SCALE, None)
    return super().saved_variables(model) | ({} if scale is None else {OUTPUT_SCALE: scale})

  def start_training(self, model: keras.Model, newly_initialized: Collection[str]) -> None:
    """Standardizes a regression's numbers. A head of --init_checkpoint is converted, so it still predicts the same."""
    variables = self.saved_variables(model)
    if OUTPUT_SCALE not in variables:
      return
    deviation, mean = label_scale(self.data.rows(TRAIN).labels)
    variables[OUTPUT_SCALE].assign([deviation, mean])
    weights, bias = variables["output_weights"], variables["output_bias"]
    if "output_weights" not in newly_initialized:
      weights.assign(weights / deviation)
      bias.assign((bias - mean) / deviation)

  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the sum of the weights of the examples in the training loss."""
    return {LOSS: tf.reduce_sum(self.formulation.training_weights(batch))}

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the loss and the output of the formulation. The logits of a text's windows are pooled first."""
    if not self._has_several_sequences:
      logits = model(batch, training=training, seed=seed)
    else:
      batch_size, num_sequences, length = tf.unstack(tf.shape(batch[INPUT_IDS]))
      sequences = {name: tf.reshape(batch[name], [-1, length]) for name in (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)}
      logits = model(sequences, training=training, seed=seed)
      logits = tf.reshape(logits, [batch_size, num_sequences, self.formulation.num_logits])
    if self._reads_windows:
      logits = pool_windows(logits, batch[OPTION_MASK] > 0, self.config.pooling)
    if (scale := getattr(model, OUTPUT_SCALE, None)) is not None:
      batch = {**batch, OUTPUT_SCALE: scale}
    return self.formulation.forward(logits, batch, training=training)

  def guessing_loss(self) -> float | None:
    """Returns the entropy of the weighted training labels; for numbers, the variance of those the model learns."""
    labels = self.data.rows(TRAIN).labels
    if self._output_scale is not None:
      labels = labels / self._output_scale.numpy()[0]
    weights = self.data.class_weights() if self.config.class_weights else np.ones(len(self.spec.labels))
    return guessing_loss(labels, weights, self.config.label_smoothing)

  def make_predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Makes the predictions for a split, without thresholds; with labels if the file has them."""
    rows, indices = self.data.rows(split), outputs["example_index"]
    ids, labels = [rows.ids[i] for i in indices], rows.labels[indices] if self.data.formats[split].label else None
    return Predictions(ids, self.spec.labels, self.formulation.scores(outputs), labels)

  def predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Returns the predictions for a split, see Task.predictions; with thresholds if a row may have several labels."""
    split_predictions: Predictions = super().predictions(split, outputs)
    if self.thresholds is None:
      return split_predictions
    return self.thresholds.apply(split, split_predictions, self.data.content(split).sha256)

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the task's metrics (see compute_metrics), and guessing_loss, the lowest loss that ignores the texts."""
    split_predictions = self.predictions(split, outputs)
    assert split_predictions.labels is not None
    metrics = results.compute_metrics(self.spec, split_predictions)
    labels = split_predictions.labels
    if "deviation" in outputs:  # that of the training labels, by which the loss is standardized
      labels = labels / outputs["deviation"][0]
    return metrics | {GUESSING_LOSS: guessing_loss(labels)}

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes predictions, mistakes, the scores of each class, and pictures; with several labels also the thresholds.

    The pictures are a confusion matrix or a scatter plot, and a reliability diagram if each row has one label.
    """
    if self.thresholds is not None:
      sha256 = self.data.content(split).sha256
      self.thresholds.write_chosen(split, super().predictions(split, outputs), sha256, directory)
    split_predictions, columns = self.predictions(split, outputs), self.data.rows(split).texts
    names, indices = self.data.formats[split].texts, outputs["example_index"]
    texts = [(name, [column[i] for i in indices]) for name, column in zip(names, columns, strict=True)]
    predictions.write_predictions(predictions.predictions_path(directory, split), split_predictions)
    predictions.write_mistakes(directory, split, split_predictions, texts)
    if self.spec.labels:
      results.write_class_scores(directory, split, split_predictions)
    if self.spec.positive_metrics:
      label = self.spec.labels[self.spec.positive_class]
      log(f"{split}: {', '.join(self.spec.positive_metrics)} of the label {label!r} (--positive_label)", is_detail=True)
    results.draw_pictures(directory, split, split_predictions)

  def of_run(self, index: int) -> TextTask:
    """Returns the task of one of several runs, counted from 0. With --folds, each has another development set."""
    return TextTask(self.model_config, self.data.of_fold(index + 1)) if self.runs_flag == "folds" else self

  def finish_runs(self, run_dirs: Sequence[str], output_dir: str) -> None:
    """With --folds, writes the prediction of each training row by the run that was not trained on it."""
    if self.runs_flag != "folds":
      return
    paths = [predictions.predictions_path(directory, DEV) for directory in run_dirs]
    header = read_header(paths[0])
    row_of_id = {row[0]: row for path in paths for row in zip(*read_table(path, header).columns.values(), strict=True)}
    path = predictions.predictions_path(output_dir, "out_of_fold")
    # With --max_eval_steps, a run has not predicted all of its rows.
    predictions.write_table(path, header, [row_of_id[id_] for id_ in self.data.undivided.ids if id_ in row_of_id])
    log(f"wrote {path}")

  def read_run(self, output_dir: str) -> None:
    """Reads the thresholds of a run whose rows may have several labels."""
    if self.thresholds is not None:
      self.thresholds.read(output_dir)

  def prediction_rows(self, data: TableData) -> Rows:
    """Converts texts, or pairs of texts, to rows with the column names of the task's test set."""
    id_column = self.config.id_column
    return rows_of(data, "the data to predict", self.spec.formats()[0].texts, [id_column] if id_column else [])

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the path of each test set's predictions, followed by the path of its submission if it has one."""
    splits = self.data.prediction_splits()
    if predictions_file and len(splits) > 1:
      raise UserError(
        f"--predictions_file={predictions_file} names one file, and {self.spec.name} has the test sets "
        f"{', '.join(splits)}: leave it out, or name the one to predict as --predict_file"
      )
    paths: list[str] = []
    for split in splits:
      name, submission = self.data.predictions_name() if split == TEST else split, self.data.formats[split].submission
      paths.append(predictions_file or predictions.predictions_path(directory, name))
      if submission and predictions_file:
        paths.append(predictions.companion_path(predictions_file, "submission"))
      elif submission:
        paths.append(files.join(directory, submission))
    return paths

  def test_predictions(self, run_model: Callable[[Dataset], DatasetOutputs]) -> dict[str, Predictions]:
    """Returns test set -> its predictions."""
    splits = self.data.prediction_splits()
    return {split: self.predictions(split, run_model(self.sets.dataset(split))) for split in splits}

  def write_test_predictions(self, predictions_of_splits: dict[str, Predictions], paths: Sequence[str]) -> None:
    """Writes the predictions of the test sets, the least sure ones, and the files to submit to gluebenchmark.com."""
    remaining_paths = iter(paths)
    for split, split_predictions in predictions_of_splits.items():
      path = next(remaining_paths)
      predictions.write_predictions(path, split_predictions)
      if self.spec.name == CUSTOM and self.spec.labels:
        columns = dict(zip(self.data.formats[split].texts, self.data.rows(split).texts, strict=True))
        predictions.write_least_sure(predictions.companion_path(path, "unsure"), split_predictions, columns)
      if self.data.formats[split].submission:
        results.write_submission(next(remaining_paths), self.spec, split_predictions)

  def make_answers(self, predictions_of_splits: dict[str, Predictions]) -> list[Any]:
    """Returns for each row of the test sets a ClassAnswer, a LabelsAnswer or the number of a regression."""
    return [answer for each in predictions_of_splits.values() for answer in class_answers(each)]


class Formulation(abc.ABC):
  """What the logits of a row mean: the loss, and the scores that are predicted.

  Args:
    data: the data half of the task, which has the labels and the class weights.

  Attributes:
    num_logits: the number of logits of each sequence.
  """

  def __init__(self, data: TextData):
    self.num_logits = max(1, len(data.spec.labels))
    self._data = data

  def training_weights(self, batch: Batch) -> tf.Tensor:
    """Returns the weight of each example in the training loss, float32 [B]: 0 for padding."""
    return batch[EXAMPLE_WEIGHT]

  @abc.abstractmethod
  def forward(self, logits: tf.Tensor, batch: Batch, *, training: bool) -> ForwardResult:
    """Computes the loss of a batch and the output that `scores` needs.

    Args:
      logits: float32 [B, C]; [B, K, 1] for a ranking.
      batch: feature name -> [B, ...].
      training: whether class weights and label smoothing are used.
    """

  @abc.abstractmethod
  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Converts the outputs of forward to Predictions.scores."""


class OneOfSeveralClasses(Formulation):
  """Each row has one class. The loss is the cross entropy.

  In training with --label_smoothing=s, the target is (1 - s) * one-hot + s / C (Szegedy et al. 2016).
  """

  def training_weights(self, batch: Batch) -> tf.Tensor:
    """Returns the weights of the examples' classes."""
    if not self._data.config.class_weights:
      return batch[EXAMPLE_WEIGHT]
    return batch[EXAMPLE_WEIGHT] * tf.gather(tf.constant(self._data.class_weights()), batch[features.LABEL_IDS])

  def forward(self, logits: tf.Tensor, batch: Batch, *, training: bool) -> ForwardResult:
    """Computes the cross entropy. The output is logits, float32 [B, C]."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[features.LABEL_IDS], logits=logits)
    weights = self.training_weights(batch) if training else batch[EXAMPLE_WEIGHT]
    if training and (smoothing := self._data.config.label_smoothing):
      even_losses = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)
      losses = (1.0 - smoothing) * losses + smoothing * even_losses
    return ForwardResult({LOSS: weighted_sum(losses, weights)}, {"logits": logits})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the classes, float64 [N, C]."""
    return predictions.softmax(outputs["logits"])


class Number(Formulation):
  """Each row has a number. The loss is the squared error of the standardized numbers, (number - mean) / deviation.

  The batch has OUTPUT_SCALE, the deviation and the mean; without it, the numbers are learned as they are.
  """

  def forward(self, logits: tf.Tensor, batch: Batch, *, training: bool) -> ForwardResult:
    """Computes the mean squared error. The outputs are values, and the deviation for each of them, float32 [B]."""
    del training
    numbers = logits[:, 0]
    deviation, mean = tf.unstack(batch.get(OUTPUT_SCALE, tf.constant([1.0, 0.0])))
    errors = numbers - (batch[features.SCORES] - mean) / deviation
    loss = weighted_sum(tf.square(errors), batch[EXAMPLE_WEIGHT])
    outputs = {"values": numbers * deviation + mean, "deviation": tf.fill(tf.shape(numbers), deviation)}
    return ForwardResult({LOSS: loss}, outputs)

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the predicted numbers, float32 [N]."""
    return outputs["values"]


class SeveralLabels(Formulation):
  """Each row has any number of labels. The loss is the binary cross entropy, as the mean over the labels.

  In training, the term of a label that a row has is multiplied by the label's class weight.
  """

  def forward(self, logits: tf.Tensor, batch: Batch, *, training: bool) -> ForwardResult:
    """Computes the binary cross entropy. The output is logits, float32 [B, C]."""
    labels = tf.cast(batch[features.LABEL_IDS], tf.float32)
    weights = self._data.class_weights() if training and self._data.config.class_weights else 1.0
    losses = tf.nn.weighted_cross_entropy_with_logits(labels, logits, pos_weight=tf.constant(weights))
    mean_losses = tf.reduce_mean(losses, axis=1)
    return ForwardResult({LOSS: weighted_sum(mean_losses, batch[EXAMPLE_WEIGHT])}, {"logits": logits})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the labels, float64 [N, C]."""
    return 1.0 / (1.0 + np.exp(-outputs["logits"].astype(np.float64)))


class Ranking(Formulation):
  """Ranks the sentence of each row among the candidates of its question.

  The model computes one logit for each candidate. The softmax over the candidates gives the probability p that the
  first candidate, the row's own sentence, answers the question. If there is no other candidate, the sentence is
  compared with the logit 0. The loss is the binary cross entropy: -log(p) if the sentence is labeled as the answer, and
  -log(1 - p) if it is not. With two candidates, this equals the pairwise ranking loss.
  """

  def __init__(self, data: TextData):
    super().__init__(data)
    self.num_logits = 1

  def forward(self, logits: tf.Tensor, batch: Batch, *, training: bool) -> ForwardResult:
    """Computes the binary cross entropy. The output is log_probabilities, float32 [B, 2]: log(1 - p) and log(p)."""
    del training
    mask = batch[OPTION_MASK]  # [B, K]
    logits = tf.where(mask > 0, tf.reshape(logits, tf.shape(mask)), _PADDING_LOGIT)
    has_other_candidates = tf.reduce_sum(mask, axis=1, keepdims=True) >= 2  # [B, 1]; the row's own sentence is one
    extra_logits = tf.where(has_other_candidates, _PADDING_LOGIT, _NO_CANDIDATE_LOGIT)
    others_logit = tf.reduce_logsumexp(tf.concat([logits[:, 1:], extra_logits], axis=1), axis=1)
    log_probabilities = tf.nn.log_softmax(tf.stack([others_logit, logits[:, 0]], axis=1))
    losses = -tf.gather(log_probabilities, batch[features.IS_RIGHT], batch_dims=1)
    return ForwardResult({LOSS: weighted_sum(losses, batch[EXAMPLE_WEIGHT])}, {"log_probabilities": log_probabilities})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the two labels, float64 [N, 2], in the order of spec.labels."""
    probabilities = np.exp(outputs["log_probabilities"].astype(np.float64))
    spec = self._data.spec
    return probabilities if spec.labels[1] == spec.ranking_label else probabilities[:, ::-1]


def _make_formulation(data: TextData) -> Formulation:
  if data.spec.is_regression:
    return Number(data)
  if data.spec.label_separator:
    return SeveralLabels(data)
  return Ranking(data) if data.config.formulation == RANKING else OneOfSeveralClasses(data)
