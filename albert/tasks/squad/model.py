"""Questions about paragraphs: SQuAD v1.1 and v2.0 (Rajpurkar et al. 2016 and 2018)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.models.squad_heads import SquadV1Model, SquadV2Model
from albert.tasks.answers import SpanAnswer
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ExampleSets, ForwardResult, Task, weighted_sum
from albert.tasks.definitions import flat_squad
from albert.tasks.splits import DEV, TEST
from albert.tasks.squad import results
from albert.tasks.squad.features import (
  END_POSITIONS,
  IS_IMPOSSIBLE,
  P_MASK,
  QUESTION_INDEX,
  START_POSITIONS,
  SquadFeaturizer,
)
from albert.tasks.squad.files import SquadData
from albert.tasks.squad.flags import SquadConfig
from albert.tasks.squad.nbest import SquadPredictions, predictions_v1, predictions_v2
from albert.weights.names import heads

# B windows in a batch, S tokens of a window.

SPAN_LOSS, ANSWERABILITY_LOSS = "span_loss", "answerability_loss"
# Part of the cache key of the tokenized windows. Increase it if Tokenizer.encode_with_offsets finds other positions.
_POSITIONS_VERSION = 2


class SquadTask(Task):
  """Answers questions with spans of paragraphs. An example is one window of a paragraph with a question.

  Args:
    model_config: the model.
    data: the questions and the settings.
  """

  name = "squad"
  best_metric = "f1"
  predictions_extension = ".json"
  unused_weights = ("bert/pooler/",)
  config: SquadConfig
  data: SquadData

  def __init__(self, model_config: ModelConfig, data: SquadData):
    config = data.config
    self.version = SquadV2(config) if config.version_2_with_negative else SquadV1()
    self.head_weights = self.version.head_weights
    super().__init__(model_config, data)
    # The heads of other tasks in a checkpoint, such as that of AlbertForTokenClassification, are ignored.
    names = {name for head in heads(model_config).values() for name in head.shapes}
    self.ignored_weights = sorted(name for name in names if not name.startswith(tuple(self.head_weights)))
    self.sets = ExampleSets(
      self.name,
      data,
      SquadFeaturizer(data.tokenizer_config, config.max_seq_length, config.max_query_length, config.doc_stride),
      model_config,
      settings={
        "max_query_length": config.max_query_length,
        "doc_stride": config.doc_stride,
        "positions_version": _POSITIONS_VERSION,
      },
      report=self._report,
      token_features=(P_MASK,),
      group_label=QUESTION_INDEX,
    )
    # The argument and the result of the last call of `predictions`, so that metrics and files share one computation.
    self._latest_outputs: DatasetOutputs | None = None
    self._latest_predictions = SquadPredictions({})

  def _report(self, split: str, examples: TokenizedExamples) -> None:
    if split != TEST:
      results.warn_of_unaligned_answers(split, self.data.rows(split), examples, self.config.cache_dir)

  def build_model(self) -> keras.Model:
    """Makes a SquadV1Model or a SquadV2Model."""
    return self.version.build_model(self.model_config)

  def metric_names(self) -> Sequence[str]:
    """Returns "loss"; for v2.0 also "span_loss" and "answerability_loss"."""
    return self.version.metric_names

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the losses and the outputs of the version."""
    return self.version.forward(model, batch, training=training, seed=seed)

  def predictions(self, split: str, outputs: DatasetOutputs) -> SquadPredictions:
    """Returns the answers to the questions of a split.

    Args:
      split: the name of the split.
      outputs: the outputs of forward, for the windows of all questions or of some.
    """
    if self._latest_outputs is not outputs:
      config = self.config
      self._latest_predictions = self.version.find_answers(
        self.data.rows(split),
        outputs,
        self.sets.examples(split),
        n_best_size=config.n_best_size,
        max_answer_length=config.max_answer_length,
      )
      self._latest_outputs = outputs
    return self._latest_predictions

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the official scores and the scores of simple baselines, in percent."""
    predictions = self.predictions(split, outputs)
    answers = results.collect_gold_answers(self.data.rows(split), predictions)
    return results.compute_scores(answers, predictions, self.config.null_score_diff_threshold) | self._baselines

  @functools.cached_property
  def _baselines(self) -> dict[str, float]:
    return results.baselines(self.data.rows(DEV), version_2=self.config.version_2_with_negative)

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes the official files with _dev in their names, the correct answers, and mistakes."""
    predictions = self.predictions(split, outputs)
    results.write_evaluation(directory, self.data.rows(split), predictions, self.config.null_score_diff_threshold)

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of questions with their contexts."""
    return rows_of(flat_squad(data), "the data to predict", ["question", "context"], ["id", "title"])

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns a SpanAnswer for each question of the test set."""
    del model
    predictions = self.predictions(TEST, run_model(self.sets.dataset(TEST)))
    texts = predictions.answers(self.config.null_score_diff_threshold)
    null_odds = predictions.null_odds or {}
    answers: list[Any] = []
    for question in self.data.rows(TEST):
      candidates = predictions.nbest[question.id]
      probability = candidates[0]["probability"] if candidates else 0.0
      answers.append(SpanAnswer(texts[question.id], probability, candidates, null_odds.get(question.id)))
    return answers

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the paths of predictions_NAME.json, nbest_predictions_NAME.json and, for v2.0, null_odds_NAME.json."""
    paths = results.prediction_paths(directory, self.data.predictions_name(), predictions_file)
    if not self.config.version_2_with_negative:
      del paths["null_odds"]
    return list(paths.values())

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes the predictions of the test set."""
    del model
    predictions = self.predictions(TEST, run_model(self.sets.dataset(TEST)))
    name, threshold = self.data.predictions_name(), self.config.null_score_diff_threshold
    return results.write_predictions(directory, name, predictions, threshold, predictions_file=predictions_file)


def _small_batch() -> Batch:
  """Returns one window of two tokens, which a model is called with to create its weights."""
  return dict.fromkeys((INPUT_IDS, INPUT_MASK, SEGMENT_IDS, P_MASK), tf.zeros([1, 2], tf.int32))


def _cross_entropy(logits: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=positions, logits=logits)


class SquadV1:
  """SQuAD v1.1: every question has an answer. In a window that does not contain the answer, the labels mark [CLS]."""

  head_weights: Sequence[str] = ("cls/squad/",)
  metric_names: Sequence[str] = (LOSS,)
  find_answers = staticmethod(predictions_v1)

  def build_model(self, model_config: ModelConfig) -> keras.Model:
    """Makes a SquadV1Model."""
    model = SquadV1Model(model_config)
    model(_small_batch())
    return model

  def forward(self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None) -> ForwardResult:
    """Computes the mean of the cross entropies of start and end. The outputs are start_logits and end_logits [B, S]."""
    spans = model(batch, training=training, seed=seed)
    losses = (_cross_entropy(spans.start, batch[START_POSITIONS]) + _cross_entropy(spans.end, batch[END_POSITIONS])) / 2
    return ForwardResult(
      {LOSS: weighted_sum(losses, batch[EXAMPLE_WEIGHT])}, {"start_logits": spans.start, "end_logits": spans.end}
    )


class SquadV2:
  """SQuAD v2.0: a question may be unanswerable.

  In a window without an answer, the labels mark [CLS]. A second head learns whether a window has an answer.

  Args:
    config: the flags, which limit the beam search.
  """

  head_weights: Sequence[str] = ("start_logits/", "end_logits/", "answer_class/")
  metric_names: Sequence[str] = (LOSS, SPAN_LOSS, ANSWERABILITY_LOSS)
  find_answers = staticmethod(predictions_v2)

  def __init__(self, config: SquadConfig):
    self.config = config

  def build_model(self, model_config: ModelConfig) -> keras.Model:
    """Makes a SquadV2Model."""
    model = SquadV2Model(model_config)
    model(_small_batch(), start_positions=tf.zeros([1], tf.int32))
    return model

  def forward(self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None) -> ForwardResult:
    """Computes loss = span_loss + answerability_loss / 2.

    span_loss is the mean of two cross entropies: of the start, and of the end given the correct start. The outputs are
    the results of the beam search and null_logits [B]. In training there are no outputs.
    """
    output = model(
      batch,
      start_positions=batch[START_POSITIONS],
      num_starts=0 if training else self.config.start_n_top,
      num_ends=0 if training else self.config.end_n_top,
      training=training,
      seed=seed,
    )
    span_losses = (
      _cross_entropy(output.start_logits, batch[START_POSITIONS])
      + _cross_entropy(output.end_logits, batch[END_POSITIONS])
    ) / 2
    is_impossible = tf.cast(batch[IS_IMPOSSIBLE], tf.float32)
    answerability_losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=is_impossible, logits=output.null_logits)
    losses = {
      LOSS: span_losses + answerability_losses / 2,
      SPAN_LOSS: span_losses,
      ANSWERABILITY_LOSS: answerability_losses,
    }
    outputs = {} if training else output.beams._asdict() | {"null_logits": output.null_logits}
    return ForwardResult(
      {name: weighted_sum(values, batch[EXAMPLE_WEIGHT]) for name, values in losses.items()}, outputs
    )
