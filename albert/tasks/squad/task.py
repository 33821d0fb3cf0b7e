"""Questions on paragraphs: SQuAD v1.1 and v2.0 (Rajpurkar et al. 2016 and 2018)."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.io import files
from albert.models.squad_heads import SquadV1Model, SquadV2Model
from albert.tasks.base import Batch, Forward, Outputs, Sum
from albert.tasks.finetuning import DEV, LOSS, TEST, TRAIN, FinetuningTask
from albert.tasks.squad import evaluation as squad_evaluation
from albert.tasks.squad import predictions as squad_predictions
from albert.tasks.squad.data import Question, SquadConfig, read_questions
from albert.tasks.squad.features import END_POSITIONS, IS_IMPOSSIBLE, P_MASK, START_POSITIONS, SquadFeaturizer
from albert.tasks.squad.predictions import SquadPredictions
from albert.weights.names import heads

# B batch, S sequence.

SPAN_LOSS, ANSWERABILITY_LOSS = "span_loss", "answerability_loss"
# How OffsetTokenizer gives the positions of tokens: raised when the same text gets others, which cached features have.
_POSITIONS_VERSION = 2
# Answers named on the screen; the file has all.
_MOST_NAMED = 3


class SquadTask(FinetuningTask):
  """What both versions have in common: files, windows, scores, what is written. An example is a window."""

  name = "squad"
  best_metric = "f1"
  predictions_extension = ".json"
  token_features: ClassVar[Sequence[str]] = (P_MASK,)
  unused_weights = ("bert/pooler/",)
  config: SquadConfig

  def __init__(self, model_config: ModelConfig, config: SquadConfig):
    super().__init__(model_config, config)
    # Heads of other tasks, such as that of AlbertForTokenClassification, are left behind.
    names = {name for head in heads(model_config).values() for name in head.shapes}
    self.ignored_weights = sorted(name for name in names if not name.startswith(tuple(self.head_weights)))
    self._baselines: dict[str, float] | None = None
    self._latest: tuple[Outputs, SquadPredictions] | None = None

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the version, which decides on the head."""
    return super().checkpoint_settings() | {"version_2_with_negative": self.config.version_2_with_negative}

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Lengths, stride, and how positions in the text are given."""
    config = self.config
    settings = {"max_query_length": config.max_query_length, "doc_stride": config.doc_stride}
    return settings | {"positions_version": _POSITIONS_VERSION}

  def data_files(self, split: str) -> Sequence[str]:
    """The files that a flag gives."""
    config = self.config
    flag, spec = {
      TRAIN: ("--train_file", config.train_file),
      DEV: ("--eval_file", config.eval_file) if config.eval_file else ("--predict_file", config.predict_file),
      TEST: ("--predict_file", config.predict_file),
    }[split]
    if not spec:
      missing = "--eval_file (or --predict_file)" if split == DEV else flag
      raise UserError(f"{missing} is missing: the {split} set, JSON in the form of SQuAD")
    return files.expand_globs(spec, flag=flag)

  def raw_examples(self, split: str) -> Sequence[Question]:
    """The questions."""
    version_2 = self.config.version_2_with_negative
    return read_questions(self.data_files(split), version_2=version_2, with_answers=split != TEST)

  def featurizer(self, split: str) -> Callable[[Sequence[Any]], TokenizedExamples]:
    """Questions -> windows."""
    del split
    config = self.config
    return SquadFeaturizer(
      self.tokenizer_config,
      config.max_seq_length,
      config.max_query_length,
      config.doc_stride,
    )

  def examples(self, split: str) -> TokenizedExamples:
    """The windows of a split. The first time, tells of answers that the labels miss."""
    is_new = split not in self._examples
    examples = super().examples(split)
    if is_new and split != TEST:
      self._report_unaligned(split, examples)
    return examples

  def _report_unaligned(self, split: str, examples: TokenizedExamples) -> None:
    questions = self.raw(split)
    found = squad_evaluation.unaligned(questions, examples)
    if not found:
      return
    named = [
      f"{question.id} {question.answers[0].text!r}" + (f" as {text!r}" if text else "")
      for question, text in found[:_MOST_NAMED]
    ]
    where = ""
    if self.config.cache_dir:
      path = files.join(self.config.cache_dir, f"unaligned_{split}.tsv")
      try:
        files.makedirs(self.config.cache_dir)
        squad_evaluation.write_unaligned(path, found)
        where = f"; all of them: {path}"
      except (OSError, UserError) as error:
        where = f"; their list is not written ({error})"
    too_long = sum(text is None for _, text in found)
    print(
      f"warning: {len(found)} of {sum(bool(q.answers) for q in questions)} answers ({split}) are no whole tokens of a "
      f"window: {len(found) - too_long} are learned as the tokens they touch, {too_long} are longer than a window and "
      f"not learned: {', '.join(named)}{', ...' if len(found) > len(named) else ''}{where}",
      file=sys.stderr,
    )

  def build_model(self) -> keras.Model:
    """A built model of the version."""
    model = self._new_model()
    ids = tf.zeros([1, 2], tf.int32)
    self._call(model, dict.fromkeys((INPUT_IDS, INPUT_MASK, SEGMENT_IDS, P_MASK), ids) | {START_POSITIONS: ids[:, 0]})
    return model

  @abc.abstractmethod
  def _new_model(self) -> keras.Model:
    """A model that is yet to be built."""

  @abc.abstractmethod
  def _call(self, model: keras.Model, batch: Batch) -> None:
    """Calls the model in a way that builds all of it."""

  @abc.abstractmethod
  def _predictions(
    self, questions: Sequence[Question], outputs: Outputs, examples: TokenizedExamples
  ) -> SquadPredictions:
    """Answers from the outputs of forward."""

  def predictions(self, split: str, outputs: Outputs) -> SquadPredictions:
    """Answers to the questions of a split of which `outputs` has windows."""
    if self._latest is None or self._latest[0] is not outputs:
      self._latest = outputs, self._predictions(self.raw(split), outputs, self.examples(split))
    return self._latest[1]

  def evaluation_metrics(self, split: str, outputs: Outputs) -> dict[str, float]:
    """The official scores in percent, and those of guessing beside them."""
    questions = self.raw(split)
    if self._baselines is None:
      self._baselines = squad_evaluation.baselines(questions, version_2=self.config.version_2_with_negative)
    predictions = self.predictions(split, outputs)
    answers = squad_evaluation.gold_answers_of(questions, predictions)
    return (
      squad_evaluation.compute_scores(answers, predictions, self.config.null_score_diff_threshold) | self._baselines
    )

  def write_evaluation(self, split: str, outputs: Outputs, directory: str) -> None:
    """Writes the official files with _dev in their names, the right answers, and mistakes."""
    predictions = self.predictions(split, outputs)
    squad_evaluation.write_evaluation(directory, self.raw(split), predictions, self.config.null_score_diff_threshold)

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """predictions.json, nbest_predictions.json and, for v2.0, null_odds.json."""
    paths = squad_predictions.paths(directory, "", predictions_file)
    return [path for kind, path in paths.items() if kind != "null_odds" or self.config.version_2_with_negative]

  def predict(
    self, model: keras.Model, run: Callable[[Dataset], Outputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes predictions.json, nbest_predictions.json and, for v2.0, null_odds.json."""
    del model
    predictions = self.predictions(TEST, run(self.data(TEST)))
    return squad_predictions.write(
      directory, "", predictions, self.config.null_score_diff_threshold, predictions_file=predictions_file
    )


def _cross_entropy(logits: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=positions, logits=logits)


def _means(losses: dict[str, tf.Tensor], batch: Batch) -> dict[str, Sum]:
  """Means of losses [B] over the examples that are no padding."""
  weights = batch[EXAMPLE_WEIGHT]
  return {name: Sum(tf.reduce_sum(values * weights), tf.reduce_sum(weights)) for name, values in losses.items()}


class SquadV1Task(SquadTask):
  """Every question has an answer. A window without it is to point at [CLS]."""

  head_weights: ClassVar[Sequence[str]] = ("cls/squad/",)

  def _new_model(self) -> keras.Model:
    return SquadV1Model(self.model_config)

  def _call(self, model: keras.Model, batch: Batch) -> None:
    model(batch)

  def forward(self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None) -> Forward:
    """Mean of the cross entropies of start and end; outputs start_logits and end_logits [B, S]."""
    spans = model(batch, training=training, seed=seed)
    losses = (_cross_entropy(spans.start, batch[START_POSITIONS]) + _cross_entropy(spans.end, batch[END_POSITIONS])) / 2
    return Forward(_means({LOSS: losses}, batch), {"start_logits": spans.start, "end_logits": spans.end})

  def _predictions(
    self, questions: Sequence[Question], outputs: Outputs, examples: TokenizedExamples
  ) -> SquadPredictions:
    config = self.config
    return squad_predictions.predictions_v1(
      questions, outputs, examples, n_best_size=config.n_best_size, max_answer_length=config.max_answer_length
    )


class SquadV2Task(SquadTask):
  """A question may have no answer. A window without one is to point at [CLS], and to say so."""

  head_weights: ClassVar[Sequence[str]] = ("start_logits/", "end_logits/", "answer_class/")

  def _new_model(self) -> keras.Model:
    return SquadV2Model(self.model_config)

  def _call(self, model: keras.Model, batch: Batch) -> None:
    model(batch, start_positions=batch[START_POSITIONS])

  def metric_names(self) -> Sequence[str]:
    """The loss and its two terms."""
    return (LOSS, SPAN_LOSS, ANSWERABILITY_LOSS)

  def forward(self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None) -> Forward:
    """span_loss, the mean of the cross entropies of start and of end given the right start; half of
    answerability_loss is added. Outputs beams and null_logits [B], in evaluation alone."""
    config = self.config
    found = model(
      batch,
      start_positions=batch[START_POSITIONS],
      num_starts=0 if training else config.start_n_top,
      num_ends=0 if training else config.end_n_top,
      training=training,
      seed=seed,
    )
    spans = (
      _cross_entropy(found.start_logits, batch[START_POSITIONS])
      + _cross_entropy(found.end_logits, batch[END_POSITIONS])
    ) / 2
    is_impossible = tf.cast(batch[IS_IMPOSSIBLE], tf.float32)
    nulls = tf.nn.sigmoid_cross_entropy_with_logits(labels=is_impossible, logits=found.null_logits)
    losses = {LOSS: spans + nulls / 2, SPAN_LOSS: spans, ANSWERABILITY_LOSS: nulls}
    outputs = {} if training else found.beams._asdict() | {"null_logits": found.null_logits}
    return Forward(_means(losses, batch), outputs)

  def _predictions(
    self, questions: Sequence[Question], outputs: Outputs, examples: TokenizedExamples
  ) -> SquadPredictions:
    config = self.config
    return squad_predictions.predictions_v2(
      questions, outputs, examples, n_best_size=config.n_best_size, max_answer_length=config.max_answer_length
    )


def make_task(model_config: ModelConfig, config: SquadConfig) -> SquadTask:
  """The task of the version that the flags ask for."""
  return (SquadV2Task if config.version_2_with_negative else SquadV1Task)(model_config, config)
