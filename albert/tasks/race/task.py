"""Multiple-choice questions about articles: RACE (Lai et al. 2017), or your own with any number of options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.data.dataset import Dataset
from albert.data.examples import OPTION_MASK, TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.metrics.classification import GUESSING_LOSS
from albert.models.multiple_choice import MultipleChoiceModel
from albert.tasks import predictions
from albert.tasks.answers import ChoiceAnswer
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, weighted_sum
from albert.tasks.finetuning import LOSS, TEST, TRAIN, FinetuningTask
from albert.tasks.predictions import Predictions, write_mistakes
from albert.tasks.race import evaluation as race_evaluation
from albert.tasks.race.data import ChoiceQuestion, RaceConfig, find_files, option_name, read_questions
from albert.tasks.race.features import LABEL_IDS, RaceFeaturizer

# B questions in a batch, K options of a question, S tokens of a sequence.


class RaceTask(FinetuningTask):
  """Chooses one of several options for each question. An example is a question; each option is one of its sequences."""

  name = "race"
  best_metric = "accuracy"
  multiple_choice = True
  config: RaceConfig

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Returns the maximum length of a question with its option."""
    del split
    return {"max_qa_length": self.config.max_qa_length}

  def data_files(self, split: str) -> Sequence[str]:
    """Returns the files of a split: those that a flag gives (a file, or a folder of passages), or those in data_dir."""
    return find_files(self.config, split)

  def raw_examples(self, split: str) -> Sequence[ChoiceQuestion]:
    """Reads the questions of a split."""
    return read_questions(self.sources(split), with_answers=split != TEST)

  def featurizer(self, split: str) -> Callable[[Sequence[Any]], TokenizedExamples]:
    """Returns the function that makes one sequence for each option."""
    del split
    config = self.config
    return RaceFeaturizer(
      self.tokenizer_config,
      config.max_seq_length,
      config.max_qa_length,
    )

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

  def predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Makes the predictions for a split.

    Args:
      split: the name of the split.
      outputs: the outputs of forward, for all questions of the split or for some.
    Returns: the probabilities of the options, with labels except for the test set.
    """
    questions = [self.cached_raw_examples(split)[i] for i in outputs["example_index"]]
    has_option = outputs[OPTION_MASK] > 0
    logits = np.where(has_option, outputs["logits"], -np.inf)
    probabilities = np.where(has_option, predictions.softmax(logits), np.nan)
    labels = None if split == TEST else np.array([question.answer for question in questions])
    names = tuple(option_name(index) for index in range(logits.shape[1]))
    return Predictions([question.id for question in questions], names, probabilities, labels)

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes the accuracies (see compute_metrics), and the loss of guessing for all questions of the split."""
    metrics = race_evaluation.compute_metrics(self.predictions(split, outputs))
    return metrics | {GUESSING_LOSS: _guessing_loss(self.cached_raw_examples(split))}

  def guessing_loss(self) -> float | None:
    """Returns the training loss of giving all options of a question the same probability."""
    return _guessing_loss(self.cached_raw_examples(TRAIN))

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes predictions and mistakes."""
    split_predictions = self.predictions(split, outputs)
    predictions.write_predictions(directory, split, split_predictions)
    write_mistakes(directory, split, split_predictions, self._text_columns(split, outputs))

  def _text_columns(self, split: str, outputs: DatasetOutputs) -> Sequence[tuple[str, Sequence[str]]]:
    """The columns with texts in the file of mistakes, as pairs: name of the column, and its text for each question."""
    questions = [self.cached_raw_examples(split)[i] for i in outputs["example_index"]]
    return [
      ("question", [question.text for question in questions]),
      ("options", [" | ".join(question.options) for question in questions]),
    ]

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of questions with their articles and options."""
    return rows_of(data, "the data to predict", ["article", "question", "options"], ["id"])

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns a ChoiceAnswer for each question of the test set."""
    del model
    test_predictions, questions = self.predictions(TEST, run_model(self.data(TEST))), self.cached_raw_examples(TEST)
    answers: list[Any] = []
    for question, best, scores in zip(questions, test_predictions.predicted, test_predictions.scores, strict=True):
      probabilities = scores[: len(question.options)].tolist()
      answers.append(ChoiceAnswer(question.options[best], int(best), probabilities))
    return answers

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the path of the predictions of the test set."""
    return [predictions_file or predictions.predictions_path(directory, self.predictions_name())]

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes the predictions of the test set."""
    del model
    test_predictions = self.predictions(TEST, run_model(self.data(TEST)))
    (path,) = self.prediction_files(directory, predictions_file)
    return [predictions.write_predictions(directory, TEST, test_predictions, path)]


def _guessing_loss(questions: Sequence[ChoiceQuestion]) -> float:
  return float(np.mean([np.log(len(question.options)) for question in questions]))
