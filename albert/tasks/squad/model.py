"""Questions about paragraphs: SQuAD v1.1 and v2.0 (Rajpurkar et al. 2016 and 2018)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.models.squad_heads import SquadV1Model, SquadV2Model
from albert.tasks.answers import SpanAnswer
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ExampleSets, ForwardResult, Task, weighted_sum
from albert.tasks.definitions import flat_squad
from albert.tasks.splits import DEV, TEST
from albert.tasks.squad import features, results
from albert.tasks.squad.files import SquadData
from albert.tasks.squad.flags import SquadConfig
from albert.tasks.squad.nbest import SquadPredictions, find_answers

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
    is_v2 = config.version_2_with_negative
    self.head_weights = ("start_logits/", "end_logits/", "answer_class/") if is_v2 else ("cls/squad/",)
    super().__init__(model_config, data)
    windows = {"max_query_length": config.max_query_length, "doc_stride": config.doc_stride}
    self.sets = ExampleSets(
      self.name,
      data,
      features.SquadFeaturizer(data.tokenizer_config, config.max_seq_length, **windows),
      model_config,
      settings={**windows, "positions_version": _POSITIONS_VERSION},
      report=self._report,
      token_features=(features.P_MASK,),
      group_label=features.QUESTION_INDEX,
    )

  def _report(self, split: str, examples: TokenizedExamples) -> None:
    if split != TEST:
      results.warn_of_unaligned_answers(split, self.data.rows(split), examples, self.config.cache_dir)

  def build_model(self) -> keras.Model:
    """Makes a SquadV1Model or a SquadV2Model."""
    # The weights are created by a call with one window of two tokens.
    window = dict.fromkeys((INPUT_IDS, INPUT_MASK, SEGMENT_IDS, features.P_MASK), tf.zeros([1, 2], tf.int32))
    if not self.config.version_2_with_negative:
      model = SquadV1Model(self.model_config)
      model(window)
    else:
      model = SquadV2Model(self.model_config)
      model(window, start_positions=tf.zeros([1], tf.int32))
    return model

  def metric_names(self) -> Sequence[str]:
    """Returns "loss"; for v2.0 also "span_loss" and "answerability_loss"."""
    return (LOSS, SPAN_LOSS, ANSWERABILITY_LOSS) if self.config.version_2_with_negative else (LOSS,)

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the losses and the outputs. In a window that does not contain the answer, the labels mark [CLS].

    v1.1: the loss is the mean of the cross entropies of start and end. The outputs are start_logits and end_logits,
    [B, S].

    v2.0: loss = span_loss + answerability_loss / 2. span_loss is the mean of two cross entropies: of the start, and of
    the end given the correct start. A second head learns whether a window has an answer. The outputs are the results of
    the beam search and null_logits [B]. In training there are no outputs.
    """
    losses: dict[str, tf.Tensor]
    outputs: dict[str, tf.Tensor] = {}
    if not self.config.version_2_with_negative:
      spans = model(batch, training=training, seed=seed)
      losses = {LOSS: _span_losses(spans.start, spans.end, batch)}
      outputs = {"start_logits": spans.start, "end_logits": spans.end}
    else:
      output = model(
        batch,
        start_positions=batch[features.START_POSITIONS],
        num_starts=0 if training else self.config.start_n_top,
        num_ends=0 if training else self.config.end_n_top,
        training=training,
        seed=seed,
      )
      span_losses = _span_losses(output.start_logits, output.end_logits, batch)
      is_impossible = tf.cast(batch[features.IS_IMPOSSIBLE], tf.float32)
      answerability_losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=is_impossible, logits=output.null_logits)
      losses = {LOSS: span_losses + answerability_losses / 2, SPAN_LOSS: span_losses}
      losses[ANSWERABILITY_LOSS] = answerability_losses
      if not training:
        outputs = output.beams._asdict() | {"null_logits": output.null_logits}
    sums = {name: weighted_sum(values, batch[EXAMPLE_WEIGHT]) for name, values in losses.items()}
    return ForwardResult(sums, outputs)

  def make_predictions(self, split: str, outputs: DatasetOutputs) -> SquadPredictions:
    """Finds the answers to the questions that have windows in the outputs."""
    examples = self.sets.examples(split)
    limits = {"n_best_size": self.config.n_best_size, "max_answer_length": self.config.max_answer_length}
    return find_answers(self.data.rows(split), outputs, examples, **limits)

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

  def make_answers(self, predictions: SquadPredictions) -> list[Any]:
    """Returns a SpanAnswer for each question of the test set."""
    texts = predictions.answers(self.config.null_score_diff_threshold)
    null_odds = predictions.null_odds or {}
    answers: list[Any] = []
    for question in self.data.rows(TEST):
      text, candidates = texts[question.id], predictions.nbest[question.id]
      probability = predictions.probability(question.id, text)
      answers.append(SpanAnswer(text, probability, candidates, null_odds.get(question.id)))
    return answers

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the paths of predictions_NAME.json, nbest_predictions_NAME.json and, for v2.0, null_odds_NAME.json."""
    paths = results.prediction_paths(directory, self.data.predictions_name(), predictions_file)
    return paths if self.config.version_2_with_negative else paths[:2]

  def write_test_predictions(self, predictions: SquadPredictions, paths: Sequence[str]) -> None:
    """Writes the answers, the n best answers and, for v2.0, the null odds."""
    results.write_predictions(paths, predictions, self.config.null_score_diff_threshold)


def _span_losses(start_logits: tf.Tensor, end_logits: tf.Tensor, batch: Batch) -> tf.Tensor:
  """Returns the mean of the cross entropies of the start and the end of each window, [B]."""
  cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
  start_losses = cross_entropy(labels=batch[features.START_POSITIONS], logits=start_logits)
  return (start_losses + cross_entropy(labels=batch[features.END_POSITIONS], logits=end_logits)) / 2
