"""Questions about paragraphs: SQuAD v1.1 and v2.0 (Rajpurkar et al. 2016 and 2018)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import DataSource, Rows, TableData, rows_of
from albert.data.shard_files.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.io import files
from albert.models.squad_heads import SquadV1Model, SquadV2Model
from albert.tasks.answers import SpanAnswer
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, weighted_sum
from albert.tasks.finetuning import LOSS, TEST, FinetuningTask
from albert.tasks.question_definitions import flat_squad
from albert.tasks.squad import results
from albert.tasks.squad.features import (
  END_POSITIONS,
  IS_IMPOSSIBLE,
  P_MASK,
  QUESTION_INDEX,
  START_POSITIONS,
  SquadFeaturizer,
)
from albert.tasks.squad.files import SquadData, SquadQuestion
from albert.tasks.squad.flags import SquadConfig
from albert.tasks.squad.nbest import SquadPredictions, predictions_v1, predictions_v2
from albert.weights.names import heads

# B windows in a batch, S tokens of a window.

SPAN_LOSS, ANSWERABILITY_LOSS = "span_loss", "answerability_loss"
# Part of the cache key of the tokenized windows. Increase it if Tokenizer.encode_with_offsets finds other positions.
_POSITIONS_VERSION = 2
# Maximum number of unaligned answers that the warning names. A file lists all of them.
_MAX_NAMED_ANSWERS = 3
_SquadTaskT = TypeVar("_SquadTaskT", bound="SquadTask")


class SquadTask(FinetuningTask):
  """The base class for SQuAD v1.1 and v2.0. An example is one window of a paragraph with a question.

  Args:
    model_config: the model.
    squad_data: the questions and the settings.
  """

  name = "squad"
  best_metric = "f1"
  predictions_extension = ".json"
  token_features: ClassVar[Sequence[str]] = (P_MASK,)
  group_label = QUESTION_INDEX
  unused_weights = ("bert/pooler/",)
  # predictions_v1 or predictions_v2: finds the answers in the outputs of forward.
  find_answers: Callable[..., SquadPredictions]
  config: SquadConfig

  def __init__(self, model_config: ModelConfig, squad_data: SquadData):
    super().__init__(model_config, squad_data.config)
    # The heads of other tasks in a checkpoint, such as that of AlbertForTokenClassification, are ignored.
    names = {name for head in heads(model_config).values() for name in head.shapes}
    self.ignored_weights = sorted(name for name in names if not name.startswith(tuple(self.head_weights)))
    self._set_data(squad_data)

  def _set_data(self, squad_data: SquadData) -> None:
    self.squad_data = squad_data
    self._baselines: dict[str, float] | None = None
    # The argument and the result of the last call of `predictions`, so that metrics and files share one computation.
    self._latest_outputs: DatasetOutputs | None = None
    self._latest_predictions = SquadPredictions({})

  def with_data(self: _SquadTaskT, split: str, source: DataSource, *, cache: bool = True) -> _SquadTaskT:
    """Returns a copy of the task that has other data for a split."""
    task = super().with_data(split, source, cache=cache)
    task._set_data(self.squad_data.with_source(split, source))
    return task

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the version of SQuAD, which determines the head."""
    return super().checkpoint_settings() | {"version_2_with_negative": self.config.version_2_with_negative}

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Returns the length of questions, the stride, and the version of the code that finds offsets."""
    config = self.config
    settings = {"max_query_length": config.max_query_length, "doc_stride": config.doc_stride}
    return settings | {"positions_version": _POSITIONS_VERSION}

  def data_files(self, split: str) -> Sequence[DataSource]:
    """Returns the files of a split, or its rows in memory."""
    return self.squad_data.sources(split)

  def raw_examples(self, split: str) -> Sequence[SquadQuestion]:
    """Returns the questions of a split."""
    return self.squad_data.rows(split)

  def featurizer(self, split: str) -> Callable[[Sequence[Any]], TokenizedExamples]:
    """Returns the function that makes the windows of questions."""
    del split
    config = self.config
    return SquadFeaturizer(
      self.tokenizer_config,
      config.max_seq_length,
      config.max_query_length,
      config.doc_stride,
    )

  def examples(self, split: str) -> TokenizedExamples:
    """Returns the windows of a split. The first call prints a warning if answers differ from what the labels mark."""
    is_new = split not in self._examples
    examples = super().examples(split)
    if is_new and split != TEST:
      self._warn_of_unaligned_answers(split, examples)
    return examples

  def _warn_of_unaligned_answers(self, split: str, examples: TokenizedExamples) -> None:
    """Prints a warning if answers differ from what the labels mark, and lists them in a file in the cache directory."""
    questions = self.squad_data.rows(split)
    unaligned = results.find_unaligned_answers(questions, examples)
    if not unaligned:
      return
    shown_answers = [
      f"{question.id} {question.answers[0].text!r}" + (f" as {text!r}" if text else "")
      for question, text in unaligned[:_MAX_NAMED_ANSWERS]
    ]
    if len(unaligned) > len(shown_answers):
      shown_answers.append("...")
    num_answers = sum(bool(question.answers) for question in questions)
    num_too_long = sum(answer.label_text is None for answer in unaligned)
    note = self._write_unaligned(split, unaligned)
    print(
      f"warning: {len(unaligned)} of {num_answers} answers ({split}) are not whole tokens of a window: "
      f"{len(unaligned) - num_too_long} are learned as the tokens they touch, {num_too_long} are longer than a window "
      f"and not learned: {', '.join(shown_answers)}{note}",
      file=sys.stderr,
    )

  def _write_unaligned(self, split: str, unaligned: Sequence[results.UnalignedAnswer]) -> str:
    """Writes unaligned answers to a file in the cache directory. Returns the end of the warning, which names it."""
    if not self.config.cache_dir:
      return ""
    path = files.join(self.config.cache_dir, f"unaligned_{split}.tsv")
    try:
      files.makedirs(self.config.cache_dir)
      results.write_unaligned(path, unaligned)
    except (OSError, UserError) as error:
      return f"; the list of them could not be written ({error})"
    return f"; all of them are in {path}"

  def predictions(self, split: str, outputs: DatasetOutputs) -> SquadPredictions:
    """Returns the answers to the questions of a split.

    Args:
      split: the name of the split.
      outputs: the outputs of forward, for the windows of all questions or of some.
    """
    if self._latest_outputs is not outputs:
      config = self.config
      self._latest_predictions = self.find_answers(
        self.squad_data.rows(split),
        outputs,
        self.examples(split),
        n_best_size=config.n_best_size,
        max_answer_length=config.max_answer_length,
      )
      self._latest_outputs = outputs
    return self._latest_predictions

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the official scores and the scores of simple baselines, in percent."""
    questions = self.squad_data.rows(split)
    if self._baselines is None:
      self._baselines = results.baselines(questions, version_2=self.config.version_2_with_negative)
    predictions = self.predictions(split, outputs)
    answers = results.collect_gold_answers(questions, predictions)
    return results.compute_scores(answers, predictions, self.config.null_score_diff_threshold) | self._baselines

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes the official files with _dev in their names, the correct answers, and mistakes."""
    predictions = self.predictions(split, outputs)
    results.write_evaluation(directory, self.squad_data.rows(split), predictions, self.config.null_score_diff_threshold)

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of questions with their contexts."""
    return rows_of(flat_squad(data), "the data to predict", ["question", "context"], ["id", "title"])

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns a SpanAnswer for each question of the test set."""
    del model
    predictions = self.predictions(TEST, run_model(self.data(TEST)))
    texts = predictions.answers(self.config.null_score_diff_threshold)
    null_odds = predictions.null_odds or {}
    answers: list[Any] = []
    for question in self.squad_data.rows(TEST):
      candidates = predictions.nbest[question.id]
      probability = candidates[0]["probability"] if candidates else 0.0
      answers.append(SpanAnswer(texts[question.id], probability, candidates, null_odds.get(question.id)))
    return answers

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the paths of predictions_NAME.json, nbest_predictions_NAME.json and, for v2.0, null_odds_NAME.json."""
    paths = results.prediction_paths(directory, self.predictions_name(), predictions_file)
    if not self.config.version_2_with_negative:
      del paths["null_odds"]
    return list(paths.values())

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes the predictions of the test set."""
    del model
    predictions, threshold = self.predictions(TEST, run_model(self.data(TEST))), self.config.null_score_diff_threshold
    name = self.predictions_name()
    return results.write_predictions(directory, name, predictions, threshold, predictions_file=predictions_file)


def _small_batch() -> Batch:
  """Returns one window of two tokens, which a model is called with to create its weights."""
  return dict.fromkeys((INPUT_IDS, INPUT_MASK, SEGMENT_IDS, P_MASK), tf.zeros([1, 2], tf.int32))


def _cross_entropy(logits: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=positions, logits=logits)


class SquadV1Task(SquadTask):
  """SQuAD v1.1: every question has an answer. In a window that does not contain the answer, the labels mark [CLS]."""

  head_weights: ClassVar[Sequence[str]] = ("cls/squad/",)
  find_answers = staticmethod(predictions_v1)

  def build_model(self) -> keras.Model:
    """Makes a SquadV1Model."""
    model = SquadV1Model(self.model_config)
    model(_small_batch())
    return model

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the mean of the cross entropies of start and end. The outputs are start_logits and end_logits [B, S]."""
    spans = model(batch, training=training, seed=seed)
    losses = (_cross_entropy(spans.start, batch[START_POSITIONS]) + _cross_entropy(spans.end, batch[END_POSITIONS])) / 2
    return ForwardResult(
      {LOSS: weighted_sum(losses, batch[EXAMPLE_WEIGHT])}, {"start_logits": spans.start, "end_logits": spans.end}
    )


class SquadV2Task(SquadTask):
  """SQuAD v2.0: a question may be unanswerable.

  In a window without an answer, the labels mark [CLS]. A second head learns whether a window has an answer.
  """

  head_weights: ClassVar[Sequence[str]] = ("start_logits/", "end_logits/", "answer_class/")
  find_answers = staticmethod(predictions_v2)

  def build_model(self) -> keras.Model:
    """Makes a SquadV2Model."""
    model = SquadV2Model(self.model_config)
    model(_small_batch(), start_positions=tf.zeros([1], tf.int32))
    return model

  def metric_names(self) -> Sequence[str]:
    """Returns "loss", "span_loss" and "answerability_loss"."""
    return (LOSS, SPAN_LOSS, ANSWERABILITY_LOSS)

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes loss = span_loss + answerability_loss / 2.

    span_loss is the mean of two cross entropies: of the start, and of the end given the correct start. The outputs are
    the results of the beam search and null_logits [B]. In training there are no outputs.
    """
    config = self.config
    output = model(
      batch,
      start_positions=batch[START_POSITIONS],
      num_starts=0 if training else config.start_n_top,
      num_ends=0 if training else config.end_n_top,
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


def make_task(model_config: ModelConfig, config: SquadConfig, squad_data: SquadData | None = None) -> SquadTask:
  """Makes the task for the version of SQuAD that the flags select.

  Args:
    model_config: the model.
    config: the flags.
    squad_data: the data of these flags, if it was read already.
  """
  task_class = SquadV2Task if config.version_2_with_negative else SquadV1Task
  return task_class(model_config, squad_data or SquadData(config))
