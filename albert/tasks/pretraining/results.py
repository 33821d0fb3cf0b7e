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
from albert.metrics.classification import GUESSING_LOSS, cross_entropy, guessing_loss
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


def count_guessed(
  paths: Sequence[str], features: Sequence[FeatureSpec], vocab_size: int, max_records: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Counts what is predicted in shards, or in their first max_records records. Checks each record that it reads.

  Returns: how often each piece is masked, int [vocab_size], and each label of sentences is given, int [2].
  Raises:
    UserError: a record lacks one of the features, or a feature has a wrong length or value.
  """
  tokens, labels = np.zeros(vocab_size, np.int64), np.zeros(2, np.int64)
  numbered = ((path, *pair) for path in paths for pair in enumerate(records.read_records(path)))
  for path, number, record in itertools.islice(numbered, max_records):
    example = schema.check_record(path, number, record, features)
    masked_ids = example["masked_lm_ids"][example["masked_lm_weights"] > 0]
    # Shards without masks are masked during training, where any token may be hidden.
    ids = masked_ids if masked_ids.size else example["input_ids"][example["input_mask"] > 0]
    tokens += np.bincount(ids, minlength=vocab_size)
    labels += np.bincount(example.get("next_sentence_labels", ()), minlength=2)
  return tokens, labels


def guessing_metrics(
  tokens: np.ndarray, labels: np.ndarray, sentence_metric: str | None, known_tokens: np.ndarray | int = 0
) -> dict[str, float]:
  """Computes the accuracies and the losses of a model that ignores its input.

  Args:
    tokens, labels: the counts of what is predicted; see count_guessed.
    sentence_metric: the prefix of the metrics of the sentence objective; None if there is none.
    known_tokens: counts of further tokens, such as those of training; 0: none. Few held-out tokens lack most rare ones,
      so their own shares would be a better guess than any that a model can learn.
  Returns: masked_lm_baseline_accuracy, of always giving the most frequent token; masked_lm_guessing_loss, of giving
    each token its share as its probability; the same two of SENTENCE_METRIC; and guessing_loss, the sum of the losses.
  """
  known = tokens + known_tokens
  loss = cross_entropy(tokens / tokens.sum(), known / known.sum()).sum()
  metrics = {"masked_lm_baseline_accuracy": tokens.max() / tokens.sum(), f"masked_lm_{GUESSING_LOSS}": loss}
  if sentence_metric:
    metrics[f"{sentence_metric}_baseline_accuracy"] = labels.max() / labels.sum()
    metrics[f"{sentence_metric}_{GUESSING_LOSS}"] = guessing_loss(np.arange(2), labels)
  metrics[GUESSING_LOSS] = sum(value for name, value in metrics.items() if name.endswith(GUESSING_LOSS))
  return {name: float(value) for name, value in metrics.items()}
