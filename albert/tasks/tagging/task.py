"""Token classification: finds spans of words, such as names and phrases."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import DataSource, Rows, TableData
from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.io import files
from albert.metrics.classification import GUESSING_LOSS, guessing_loss
from albert.models.tagger import TaggingModel
from albert.tasks.answers import TagAnswer, TaggedSpan
from albert.tasks.base import Batch, DatasetOutputs, ForwardResult, weighted_sum
from albert.tasks.definitions import rows_to_predict
from albert.tasks.finetuning import LOSS, TEST, TRAIN, FinetuningTask
from albert.tasks.glue.flags import parse_labels
from albert.tasks.tagging import data as tagging_data
from albert.tasks.tagging import predictions
from albert.tasks.tagging.data import TaggedText, TaggingConfig
from albert.tasks.tagging.features import TEXT_INDEX, WORD_TAGS, TaggingFeaturizer
from albert.tasks.tagging.predictions import TagPredictions
from albert.tasks.tagging.schemes import SCHEMES
from albert.weights.names import heads

# B windows in a batch, S tokens of a window, C tags.

_TaggingTaskT = TypeVar("_TaggingTaskT", bound="TaggingTask")
# The extension of a predictions file, if the file to predict has none.
_DEFAULT_EXTENSION = ".conll"


class TaggingTask(FinetuningTask):
  """Predicts a tag for each word. An example is one window of a text; the tag is learned at the word's first piece.

  Args:
    model_config: the model.
    config: the task's settings, with the types of spans as labels.

  Attributes:
    scheme: how tags mark spans.
    types: the types of spans.
    tags: all tags, in the order of the logits.
  """

  name = "tagging"
  best_metric = "f1"
  token_features: ClassVar[Sequence[str]] = (WORD_TAGS,)
  group_label = TEXT_INDEX
  unused_weights = ("bert/pooler/",)
  config: TaggingConfig

  def __init__(self, model_config: ModelConfig, config: TaggingConfig):
    super().__init__(model_config, config)
    names = {name for head in heads(model_config).values() for name in head.shapes}
    self.ignored_weights = sorted(name for name in names if not name.startswith(tuple(self.head_weights)))
    self.scheme = SCHEMES[config.scheme]
    self.types = parse_labels(config.labels, minimum=1)
    self.tags = self.scheme.tags(self.types)
    self._set_extension()
    # The argument and the result of the last call of `predictions`, so that metrics and files share one computation.
    self._latest_outputs: DatasetOutputs | None = None
    self._latest_predictions = TagPredictions((), (), ())

  def _set_extension(self) -> None:
    """Sets the extension of predictions files: that of the file to predict."""
    extension = os.path.splitext(self.config.predict_file)[1]
    self.predictions_extension = tagging_data.JSON_EXTENSION if TEST in self._rows else extension or _DEFAULT_EXTENSION

  def with_data(self: _TaggingTaskT, split: str, source: DataSource, *, cache: bool = True) -> _TaggingTaskT:
    """Returns a copy of the task that has other data for a split."""
    task = super().with_data(split, source, cache=cache)
    task._set_extension()
    task._latest_outputs = None
    return task

  def checkpoint_settings(self) -> dict[str, Any]:
    """Adds the scheme and the types of spans, which determine the head."""
    return super().checkpoint_settings() | {"scheme": self.config.scheme, "labels": self.config.labels}

  def head_settings(self) -> dict[str, Any]:
    """Adds the scheme and the types of spans. A head may be reused if they are the same."""
    return super().head_settings() | {"scheme": self.config.scheme, "labels": self.config.labels}

  def feature_settings(self, split: str) -> dict[str, Any]:
    """Returns the columns that are read, the rule for words, and the stride of windows."""
    del split
    config = self.config
    names = ("word_column", "tag_column", "word_rule", "doc_stride")
    return {name: getattr(config, name) for name in names}

  def data_files(self, split: str) -> Sequence[str]:
    """Returns the file that a flag gives."""
    return tagging_data.find_files(self.config, split)

  def raw_examples(self, split: str) -> Sequence[TaggedText]:
    """Reads the texts of a split."""
    (source,) = self.sources(split)
    return tagging_data.read_texts(source, self.config, with_tags=split != TEST, types=self.types)

  def featurizer(self, split: str) -> Callable[[Sequence[Any]], TokenizedExamples]:
    """Returns the function that makes the windows of texts."""
    del split
    config = self.config
    return TaggingFeaturizer(self.tokenizer_config, config.max_seq_length, config.doc_stride, self.scheme, self.tags)

  def build_model(self) -> keras.Model:
    """Makes a TaggingModel."""
    model = TaggingModel(self.model_config, len(self.tags))
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

  def predictions(self, split: str, outputs: DatasetOutputs) -> TagPredictions:
    """Returns the tags of those texts of a split that have outputs.

    Args:
      split: the name of the split.
      outputs: the outputs of forward, for the windows of all texts or of some.
    """
    if self._latest_outputs is not outputs:
      texts = self.cached_raw_examples(split)
      self._latest_predictions = predictions.predict_tags(outputs, self.examples(split), texts, self.scheme, self.tags)
      self._latest_outputs = outputs
    return self._latest_predictions

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes precision, recall and F1 of spans, F1 of each type, the share of words with the right tag, and the loss
    of guessing for all words of the split."""
    metrics = predictions.compute_metrics(self.predictions(split, outputs), self.scheme, self.types, self.tags)
    return metrics | {GUESSING_LOSS: self._guessing_loss(split)}

  def guessing_loss(self) -> float | None:
    """Returns the training loss of giving each tag its share of the words as its probability, at every word."""
    return self._guessing_loss(TRAIN)

  def _guessing_loss(self, split: str) -> float:
    numbers = {tag: number for number, tag in enumerate(self.tags)}
    texts = self.cached_raw_examples(split)
    tags = [tag for text in texts for tag in self.scheme.tags_of_spans(text.spans, len(text.words))]
    return guessing_loss(np.array([numbers[tag] for tag in tags]))

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes predictions in the form of the input, and mistakes."""
    split_predictions = self.predictions(split, outputs)
    if len(split_predictions.texts) == len(self.cached_raw_examples(split)):  # not with --max_eval_steps
      self._write(split, split_predictions, self._path(directory, split))
    predictions.write_mistakes(files.join(directory, f"mistakes_{split}.tsv"), split_predictions)

  def _path(self, directory: str, split: str) -> str:
    """Returns the path of the predictions of a split, with the extension of its file."""
    (source,) = self.sources(split)
    extension = (
      tagging_data.JSON_EXTENSION if isinstance(source, Rows) else os.path.splitext(source)[1] or _DEFAULT_EXTENSION
    )
    name = self.predictions_name() if split == TEST else split
    return files.join(directory, f"predictions_{name}{extension}")

  def _write(self, split: str, split_predictions: TagPredictions, path: str) -> None:
    (source,) = self.sources(split)
    tagging_data.write_predictions(source, self.config, path, split_predictions.tags, split_predictions.json_spans())

  def prediction_rows(self, data: TableData) -> Rows:
    """Makes rows of texts or of lists of words."""
    return rows_to_predict(data, self.config.word_column)

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Returns a TagAnswer for each text of the test set."""
    del model
    found = self.predictions(TEST, run_model(self.data(TEST)))
    answers: list[Any] = []
    for text, tags, spans in zip(found.texts, found.tags, found.json_spans(), strict=True):
      answers.append(TagAnswer([TaggedSpan(**span) for span in spans], text.words, tags))
    return answers

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the path of the predictions of the test set."""
    return [predictions_file or self._path(directory, TEST)]

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes the predictions of the test set, in the form of its file."""
    del model
    paths = self.prediction_files(directory, predictions_file)
    self._write(TEST, self.predictions(TEST, run_model(self.data(TEST))), paths[0])
    return paths


def _word_weights(batch: Batch) -> tf.Tensor:
  """Returns 1 for the first pieces of words that are learned, 0 for other tokens and padding, float32 [B, S]."""
  return tf.cast(batch[WORD_TAGS] > 0, tf.float32) * batch[EXAMPLE_WEIGHT][:, tf.newaxis]


def make_task(model_config: ModelConfig, config: TaggingConfig) -> TaggingTask:
  """Makes the task, with the types of spans that --labels lists or that the training file has.

  Args:
    model_config: the model.
    config: the flags.
  Raises:
    UserError: the training file cannot be used.
  """
  return TaggingTask(model_config, tagging_data.with_labels(config))
