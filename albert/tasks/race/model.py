"""Multiple-choice questions about articles: RACE (Lai et al. 2017), or your own with any number of options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.examples import OPTION_MASK
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.metrics.classification import GUESSING_LOSS
from albert.models.multiple_choice import MultipleChoiceModel
from albert.tasks.answers import ChoiceAnswer
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ExampleSets, ForwardResult, Task, weighted_sum
from albert.tasks.predictions import Predictions, predictions_path, write_mistakes, write_predictions
from albert.tasks.race import results
from albert.tasks.race.features import LABEL_IDS, RaceFeaturizer
from albert.tasks.race.files import ChoiceQuestion, RaceData
from albert.tasks.splits import TEST, TRAIN

# B questions in a batch, K options of a question, S tokens of a sequence.


class RaceTask(Task):
  """Chooses one of several options for each question. An example is a question; each option is one of its sequences."""

  name = "race"
  best_metric = "accuracy"
  data: RaceData

  def __init__(self, model_config: ModelConfig, data: RaceData):
    super().__init__(model_config, data)
    config = data.config
    featurizer = RaceFeaturizer(data.tokenizer_config, config.max_seq_length, config.max_qa_length)
    settings = {"max_qa_length": config.max_qa_length}
    self.sets = ExampleSets(self.name, data, featurizer, model_config, settings=settings, multiple_choice=True)

  def build_model(self) -> keras.Model:
    """Makes a MultipleChoiceModel."""
    model = MultipleChoiceModel(self.model_config)
    ids = tf.zeros([1, 1, 2], tf.int32)
    model({INPUT_IDS: ids, INPUT_MASK: ids, SEGMENT_IDS: ids, OPTION_MASK: tf.ones([1, 1])})
    return model

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the cross entropy over the options. The outputs are logits and option_mask, float32 [B, K]."""
    logits = model(batch, training=training, seed=seed)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[LABEL_IDS], logits=logits)
    loss = weighted_sum(losses, batch[EXAMPLE_WEIGHT])
    return ForwardResult({LOSS: loss}, {"logits": logits, OPTION_MASK: batch[OPTION_MASK]})

  def make_predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Makes the predictions for a split, with labels except for the test set."""
    return results.make_predictions(self._questions(split, outputs), outputs["logits"], outputs[OPTION_MASK] > 0)

  def _questions(self, split: str, outputs: DatasetOutputs) -> list[ChoiceQuestion]:
    """The questions that have outputs."""
    return [self.data.rows(split)[i] for i in outputs["example_index"]]

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the accuracies (see compute_metrics), and the loss of guessing for all questions of the split."""
    metrics = results.compute_metrics(self.predictions(split, outputs))
    return metrics | {GUESSING_LOSS: results.guessing_loss(self.data.rows(split))}

  def guessing_loss(self) -> float | None:
    """Returns the training loss of giving all options of a question the same probability."""
    return results.guessing_loss(self.data.rows(TRAIN))

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes predictions and mistakes."""
    split_predictions, questions = self.predictions(split, outputs), self._questions(split, outputs)
    texts = [
      ("question", [question.text for question in questions]),
      ("options", [" | ".join(question.options) for question in questions]),
    ]
    write_predictions(predictions_path(directory, split), split_predictions)
    write_mistakes(directory, split, split_predictions, texts)

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of questions with their articles and options."""
    return rows_of(data, "the data to predict", ["article", "question", "options"], ["id"])

  def make_answers(self, predictions: Predictions) -> list[Any]:
    """Returns a ChoiceAnswer for each question of the test set."""
    answers: list[Any] = []
    for question, best, scores in zip(self.data.rows(TEST), predictions.predicted, predictions.scores, strict=True):
      probabilities = scores[: len(question.options)].tolist()
      answers.append(ChoiceAnswer(question.options[best], int(best), probabilities))
    return answers

  def write_test_predictions(self, predictions: Predictions, paths: Sequence[str]) -> None:
    """Writes the predictions of the test set."""
    write_predictions(paths[0], predictions)
