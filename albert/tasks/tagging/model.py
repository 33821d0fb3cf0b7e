"""Token classification: finds spans of words, such as names and phrases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import Rows, TableData, rows_of
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.io import files
from albert.metrics.classification import GUESSING_LOSS, guessing_loss
from albert.models.tagger import TaggingModel
from albert.tasks.answers import TagAnswer, TaggedSpan
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ExampleSets, ForwardResult, Task, weighted_sum
from albert.tasks.definitions import columns_of_texts
from albert.tasks.splits import TEST, TRAIN
from albert.tasks.tagging import results
from albert.tasks.tagging.features import TEXT_INDEX, WORD_TAGS, TaggingFeaturizer
from albert.tasks.tagging.files import TaggingData, write_predictions
from albert.tasks.tagging.flags import TaggingConfig
from albert.tasks.tagging.results import TagPrediction

# B windows in a batch, S tokens of a window, C tags.


class TaggingTask(Task):
  """Predicts a tag for each word. An example is one window of a text; the tag is learned at the word's first piece.

  Args:
    model_config: the model.
    data: the texts, the settings and the tags.
  """

  name = "tagging"
  best_metric = "f1"
  usual_steps = 400  # 120 sentences and small weights learned nothing in 200 steps, and F1 0.99 in 400
  usual_rates: Mapping[str, tuple[float, float, float]] = {"adamw": (2e-5, 5e-5, 2e-4)}
  unused_weights = ("bert/pooler/",)
  config: TaggingConfig
  data: TaggingData

  def __init__(self, model_config: ModelConfig, data: TaggingData):
    super().__init__(model_config, data)
    config, stride = data.config, data.config.doc_stride
    self.sets = ExampleSets(
      self.name,
      data,
      TaggingFeaturizer(data.tokenizer_config, config.max_seq_length, stride, data.scheme, data.tags),
      model_config,
      settings={"doc_stride": stride},
      token_features=(WORD_TAGS,),
      group_label=TEXT_INDEX,
    )
    self.output_labels = data.tags
    self.predictions_extension = data.extension(TEST)

  def head_settings(self) -> dict[str, Any]:
    """Adds the scheme and the types of spans. A head may be reused if they are the same."""
    return super().head_settings() | {"scheme": self.config.scheme, "labels": self.config.labels}

  def build_model(self) -> keras.Model:
    """Makes a TaggingModel."""
    model = TaggingModel(self.model_config, len(self.data.tags))
    ids = tf.zeros([1, 2], tf.int32)
    model({INPUT_IDS: ids, INPUT_MASK: ids, SEGMENT_IDS: ids})
    return model

  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the number of words in the batch that are learned."""
    return {LOSS: tf.reduce_sum(_word_weights(batch))}

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the cross entropy of the words' tags. The output is log_probabilities, float32 [B, S, C].

    The loss is the mean over words. A word counts once, in the window that has the most context around it.
    """
    logits = model(batch, training=training, seed=seed)
    tags = tf.maximum(batch[WORD_TAGS] - 1, 0)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tags, logits=logits)  # [B, S]
    loss = weighted_sum(losses, _word_weights(batch))
    return ForwardResult({LOSS: loss}, {} if training else {"log_probabilities": tf.nn.log_softmax(logits)})

  def make_predictions(self, split: str, outputs: DatasetOutputs) -> list[TagPrediction]:
    """Finds the tags of those texts of a split that have outputs."""
    data = self.data
    return results.predict_tags(outputs, self.sets.examples(split), data.rows(split), data.scheme, data.tags)

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes precision, recall and F1 of spans, F1 of each type, the share of words with the right tag, and the loss
    of guessing for all words of the split."""
    metrics = results.compute_metrics(self.predictions(split, outputs), self.data)
    return metrics | {GUESSING_LOSS: self._guessing_loss(split)}

  def guessing_loss(self) -> float | None:
    """Returns the training loss of giving each tag its share of the words as its probability, at every word."""
    return self._guessing_loss(TRAIN)

  def _guessing_loss(self, split: str) -> float:
    data = self.data
    return guessing_loss(results.tag_numbers(results.gold_tags(data.rows(split), data.scheme), data.tags))

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes predictions in the form of the input, and mistakes."""
    split_predictions = self.predictions(split, outputs)
    if len(split_predictions) == len(self.data.rows(split)):  # not with --max_eval_steps
      self._write(split, split_predictions, files.join(directory, f"predictions_{split}{self.data.extension(split)}"))
    results.write_mistakes(files.join(directory, f"mistakes_{split}.tsv"), split_predictions)

  def _write(self, split: str, predictions: Sequence[TagPrediction], path: str) -> None:
    tags, spans = [found.tags for found in predictions], [found.json_spans() for found in predictions]
    write_predictions(self.data.sources(split)[0], self.config, path, tags, spans)

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of texts or of lists of words."""
    columns = columns_of_texts(data, self.config.word_column, with_tags=False)
    return rows_of(data, "the data to predict", columns, ["id"])

  def make_answers(self, predictions: Sequence[TagPrediction]) -> list[Any]:
    """Returns a TagAnswer for each text of the test set."""
    return [
      TagAnswer([TaggedSpan(**span) for span in found.json_spans()], found.text.words, found.tags)
      for found in predictions
    ]

  def write_test_predictions(self, predictions: Sequence[TagPrediction], paths: Sequence[str]) -> None:
    """Writes the predictions in the form of the test set's file."""
    self._write(TEST, predictions, paths[0])


def _word_weights(batch: Batch) -> tf.Tensor:
  """Returns 1 for the first pieces of words that are learned, 0 for other tokens and padding, float32 [B, S]."""
  return tf.cast(batch[WORD_TAGS] > 0, tf.float32) * batch[EXAMPLE_WEIGHT][:, tf.newaxis]
