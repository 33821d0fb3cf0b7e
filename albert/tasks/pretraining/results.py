"""The results of pretraining: filled [MASK] tokens, and the accuracies of guessing on held-out shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.data import schema
from albert.data.schema import FeatureSpec
from albert.io import records
from albert.metrics.classification import GUESSING_LOSS, guessing_loss
from albert.tasks.pretraining.files import MaskedLine
from albert.tokenization.tokenizer import Tokenizer

NUM_CANDIDATES = 5


def fill_line(model: keras.Model, tokenizer: Tokenizer, line: MaskedLine) -> Iterator[dict[str, float]]:
  """Yields for each [MASK] of a line the five most probable pieces -> their probabilities, the most probable first.

  Args:
    model: a PretrainingModel with its weights loaded.
    tokenizer: the tokenizer.
    line: the line.
  """
  if not line.positions:
    return
  input_ids = tf.constant([line.ids])
  output = model(
    {
      "input_ids": input_ids,
      "input_mask": tf.ones_like(input_ids),
      "segment_ids": tf.zeros_like(input_ids),
      "masked_lm_positions": tf.constant([line.positions]),
    }
  )
  of_pieces = tf.nn.softmax(output.masked_lm_logits[0])[:, : tokenizer.vocab_size]  # not of padded embeddings
  candidates = tf.math.top_k(of_pieces, k=NUM_CANDIDATES)
  for probabilities, ids in zip(candidates.values.numpy(), candidates.indices.numpy(), strict=True):
    pieces = (tokenizer.piece(int(token_id)) for token_id in ids)
    yield {piece: round(float(probability), 6) for piece, probability in zip(pieces, probabilities, strict=True)}


def guessing_metrics(
  paths: Sequence[str],
  features: Sequence[FeatureSpec],
  vocab_size: int,
  sentence_metric: str | None,
  max_records: int | None = None,
) -> dict[str, float]:
  """Computes the accuracies and the loss of a model that ignores its input. Checks each record that it reads.

  Args:
    paths: the shards.
    features: the features that each record must have.
    vocab_size: number of pieces of the vocabulary.
    sentence_metric: the prefix of the metrics of the sentence objective; None if there is none.
    max_records: number of records to read; None for all.
  Returns: masked_lm_baseline_accuracy; SENTENCE_METRIC_baseline_accuracy if there is a sentence objective; and
    guessing_loss, the loss of giving each masked token and each label its share as its probability.
  Raises:
    UserError: a record lacks a feature, or a feature has a wrong length or value.
  """
  token_counts = np.zeros(vocab_size, np.int64)
  label_counts = np.zeros(2, np.int64)
  numbered = ((path, *pair) for path in paths for pair in enumerate(records.read_records(path)))
  for path, number, record in itertools.islice(numbered, max_records):
    example = schema.check_record(path, number, record, features)
    masked_ids = example["masked_lm_ids"][example["masked_lm_weights"] > 0]
    # Shards without masks are masked during training, where any token may be hidden.
    ids = masked_ids if masked_ids.size else example["input_ids"][example["input_mask"] > 0]
    token_counts += np.bincount(ids, minlength=vocab_size)
    if sentence_metric:
      label_counts[example["next_sentence_labels"][0]] += 1
  metrics = {"masked_lm_baseline_accuracy": float(token_counts.max() / token_counts.sum())}
  # The tokens, each once, with their counts as weights.
  metrics[GUESSING_LOSS] = guessing_loss(np.arange(vocab_size), token_counts)
  if sentence_metric:
    metrics[f"{sentence_metric}_baseline_accuracy"] = float(label_counts.max() / label_counts.sum())
    metrics[GUESSING_LOSS] += guessing_loss(np.arange(2), label_counts)
  return metrics
