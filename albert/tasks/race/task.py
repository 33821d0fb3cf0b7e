"""Multiple-choice questions on articles: RACE (Lai et al. 2017), and the user's own with any number of options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.data.dataset import Dataset
from albert.data.examples import OPTION_MASK, TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.errors import UserError
from albert.io import files
from albert.models.multiple_choice import MultipleChoiceModel
from albert.tasks import predictions
from albert.tasks.base import Batch, Forward, Outputs, Sum
from albert.tasks.finetuning import DEV, LOSS, TEST, TRAIN, FinetuningTask
from albert.tasks.predictions import Predictions
from albert.tasks.race import evaluation as race_evaluation
from albert.tasks.race.data import ChoiceQuestion, RaceConfig, option_name, passages_in, read_questions
from albert.tasks.race.features import LABEL_IDS, RaceFeaturizer

# B batch, K options, S sequence.

_FLAGS = {TRAIN: "train_file", DEV: "eval_file", TEST: "predict_file"}


class RaceTask(FinetuningTask):
  """One of several options for each question. An example is a question, a sequence an option."""

  name = "race"
  best_metric = "accuracy"
  multiple_choice: ClassVar[bool] = True
  config: RaceConfig

  def feature_settings(self, split: str) -> dict[str, Any]:
    """The length of question and option."""
    del split
    return {"max_qa_length": self.config.max_qa_length}

  def data_files(self, split: str) -> Sequence[str]:
    """The files that a flag gives (a folder: its passages), or those of data_dir."""
    config, flag = self.config, f"--{_FLAGS[split]}"
    spec = getattr(config, _FLAGS[split])
    if spec:
      return passages_in(spec, flag) if files.is_dir(spec) else files.expand_globs(spec, flag=flag)
    if not config.data_dir:
      raise UserError(f"--data_dir is missing: the folder RACE with its {split} set (or give {flag})")
    # The original's --data_dir is the folder that holds RACE.
    roots = (config.data_dir, files.join(config.data_dir, "RACE"))
    folders = [files.join(root, split) for root in roots]
    return passages_in(next(filter(files.is_dir, folders), folders[0]), "--data_dir")

  def raw_examples(self, split: str) -> Sequence[ChoiceQuestion]:
    """The questions."""
    return read_questions(self.data_files(split), with_answers=split != TEST)

  def featurizer(self, split: str) -> Callable[[Sequence[Any]], TokenizedExamples]:
    """Questions -> ids, a sequence for each option."""
    del split
    config = self.config
    return RaceFeaturizer(
      self.tokenizer_config,
      config.max_seq_length,
      config.max_qa_length,
    )

  def build_model(self) -> keras.Model:
    """A built MultipleChoiceModel."""
    model = MultipleChoiceModel(self.model_config)
    ids = tf.zeros([1, 1, 2], tf.int32)
    model({INPUT_IDS: ids, INPUT_MASK: ids, SEGMENT_IDS: ids, OPTION_MASK: tf.ones([1, 1])})
    return model

  def forward(self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None) -> Forward:
    """Cross entropy over the options; outputs logits [B, K] and option_mask [B, K]."""
    logits = model(batch, training=training, seed=seed)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[LABEL_IDS], logits=logits)
    weights = batch[EXAMPLE_WEIGHT]
    loss = Sum(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))
    return Forward({LOSS: loss}, {"logits": logits, OPTION_MASK: batch[OPTION_MASK]})

  def predictions(self, split: str, outputs: Outputs) -> Predictions:
    """Probabilities of the options of the questions in `outputs`; labels except for the test set."""
    questions = [self.raw(split)[i] for i in outputs["example_index"]]
    is_there = outputs[OPTION_MASK] > 0
    logits = np.where(is_there, outputs["logits"].astype(np.float64), -np.inf)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = np.where(is_there, exponentials / exponentials.sum(axis=1, keepdims=True), np.nan)
    labels = None if split == TEST else np.array([question.answer for question in questions])
    names = tuple(option_name(place) for place in range(logits.shape[1]))
    return Predictions([question.id for question in questions], names, probabilities, labels)

  def evaluation_metrics(self, split: str, outputs: Outputs) -> dict[str, float]:
    """Accuracy of all questions, of RACE's middle and high, and of guessing."""
    return race_evaluation.compute_metrics(self.predictions(split, outputs))

  def write_evaluation(self, split: str, outputs: Outputs, directory: str) -> None:
    """Writes predictions, and the most confident mistakes."""
    result = self.predictions(split, outputs)
    predictions.write_predictions(directory, split, result)
    predictions.write_mistakes(directory, split, result, self._shown(split, outputs))

  def _shown(self, split: str, outputs: Outputs) -> Sequence[tuple[str, Sequence[str]]]:
    questions = [self.raw(split)[i] for i in outputs["example_index"]]
    return [
      ("question", [question.text for question in questions]),
      ("options", [" | ".join(question.options) for question in questions]),
    ]

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """The predictions of the test set."""
    return [predictions_file or predictions.predictions_path(directory, TEST)]

  def predict(
    self, model: keras.Model, run: Callable[[Dataset], Outputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes predictions of the test set."""
    del model
    result = self.predictions(TEST, run(self.data(TEST)))
    return [predictions.write_predictions(directory, TEST, result, predictions_file)]
