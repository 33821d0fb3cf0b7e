"""The tasks of GLUE and custom tasks: classification, regression and ranking of texts or of pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.examples import OPTION_MASK, TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.shard_files.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.tasks import predictions
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, weighted_sum
from albert.tasks.finetuning import LOSS, TRAIN
from albert.tasks.glue.config import RANKING, ClassifierConfig
from albert.tasks.glue.data import TextRows
from albert.tasks.glue.features import LABEL_IDS, SCORES
from albert.tasks.glue.files import TextData
from albert.tasks.glue.own_data.multi_label_task import MultiLabelTask
from albert.tasks.glue.ranking import IS_RIGHT, RankingFeaturizer, make_ranking_examples
from albert.tasks.glue.text_task import TextTask
from albert.tasks.glue.weighted_task import WeightedTask

# B examples in a batch, N examples of a split, C classes, K sequences of an example.

# For --formulation=ranking: the logit that a sentence is compared with if its question has no other candidates, and the
# logit of padding, which makes its probability 0.
_NO_CANDIDATE_LOGIT = 0.0
_PADDING_LOGIT = -1e9


class ClassificationTask(WeightedTask):
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


class RankingTask(TextTask):
  """Ranks the sentence of each row among the candidates of its question (see albert.tasks.glue.ranking).

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
