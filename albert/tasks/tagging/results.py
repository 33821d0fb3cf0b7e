"""Converts the outputs of a tagger to tags and spans, computes their metrics, and writes mistakes. Needs no TensorFlow.

T words of all texts, N windows, S tokens of the longest window, C tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.metrics.classification import span_scores
from albert.tasks.predictions import MAX_MISTAKES, write_table
from albert.tasks.tagging.features import TEXT_INDEX, WORD_NUMBERS
from albert.tasks.tagging.files import TaggedText, TaggingData
from albert.tasks.tagging.schemes import Scheme, Span, best_tags


class TagPrediction(NamedTuple):
  """The prediction for a text.

  Attributes:
    text: the text.
    tags: the predicted tag of each word. Together they follow the scheme.
    spans: the spans that they mark, each with the product of the probabilities of its words' tags.
  """

  text: TaggedText
  tags: list[str]
  spans: list[tuple[Span, float]]

  def json_spans(self) -> list[dict[str, Any]]:
    """Returns the spans as JSON values.

    start and end are those of characters if the file gives a text, else of words; end is the one after the last.
    """
    return [
      dict(zip(("start", "end"), self.text.offsets(span), strict=True))
      | {"label": span.type, "text": self.text.text_of(span), "probability": probability}
      for span, probability in self.spans
    ]


def log_probabilities_of_words(
  outputs: np.ndarray, example_index: np.ndarray, examples: TokenizedExamples, texts: Sequence[TaggedText]
) -> tuple[list[TaggedText], np.ndarray, np.ndarray]:
  """Finds the log probabilities of the tags of each word, from the window that has the most context around it.

  Args:
    outputs: float [N, S, C], log probabilities of the tags at each token.
    example_index: int [N], the windows that the outputs belong to.
    examples: all windows of the split.
    texts: all texts of the split.
  Returns: the texts that have windows among them; the log probabilities of their words, concatenated, float32 [T, C];
    and the number of words of each text. A word without pieces, such as a control character, has log probability 0 for
    all tags.
  """
  text_indices = examples.labels[TEXT_INDEX][example_index]
  chosen = np.unique(text_indices)
  chosen_texts = [texts[index] for index in chosen]
  lengths = np.array([len(text.words) for text in chosen_texts], np.int64)
  first_words = np.zeros(len(texts), np.int64)
  first_words[chosen] = np.cumsum(lengths) - lengths
  result = np.zeros((int(lengths.sum()), outputs.shape[2]), np.float32)
  for row, (example, text_index) in enumerate(zip(example_index, text_indices, strict=True)):
    tokens = slice(examples.token_offsets[example], examples.token_offsets[example + 1])
    word_numbers = examples.token_features[WORD_NUMBERS][tokens]
    positions = np.flatnonzero(word_numbers)
    result[first_words[text_index] + word_numbers[positions] - 1] = outputs[row, positions]
  return chosen_texts, result, lengths


def predict_tags(
  outputs: dict[str, np.ndarray],
  examples: TokenizedExamples,
  texts: Sequence[TaggedText],
  scheme: Scheme,
  tags: Sequence[str],
) -> list[TagPrediction]:
  """Finds the most probable tags that follow the scheme.

  Args:
    outputs: log_probabilities [N, S, C] and example_index [N].
    examples: all windows of the split.
    texts: all texts of the split.
    scheme: how tags mark spans.
    tags: all tags, in the order of the C logits.
  """
  chosen_texts, log_probabilities, lengths = log_probabilities_of_words(
    outputs["log_probabilities"], outputs[EXAMPLE_INDEX], examples, texts
  )
  best = best_tags(log_probabilities, lengths, scheme.transitions(tags))
  of_best = np.take_along_axis(log_probabilities, best[:, None], axis=1)[:, 0].astype(np.float64)
  predictions: list[TagPrediction] = []
  for text, end in zip(chosen_texts, np.cumsum(lengths), strict=True):
    start = int(end) - len(text.words)
    tags_of_text = [tags[index] for index in best[start:end]]
    spans = [
      (span, float(np.exp(of_best[start + span.start : start + span.end].sum()))) for span in scheme.spans(tags_of_text)
    ]
    predictions.append(TagPrediction(text, tags_of_text, spans))
  return predictions


def gold_tags(texts: Sequence[TaggedText], scheme: Scheme) -> list[list[str]]:
  """Returns the correct tags of texts."""
  return [scheme.tags_of_spans(text.spans, len(text.words)) for text in texts]


def tag_numbers(tags_of_texts: Sequence[Sequence[str]], tags: Sequence[str]) -> np.ndarray:
  """Returns the index among all tags of each word's tag, int32 [T]."""
  index_of = {tag: index for index, tag in enumerate(tags)}
  return np.array([index_of[tag] for tags_of_text in tags_of_texts for tag in tags_of_text], np.int32)


def compute_metrics(predictions: Sequence[TagPrediction], data: TaggingData) -> dict[str, float]:
  """Computes the scores of spans, the share of words with the right tag, and the share of the most frequent tag.

  Args:
    predictions: predictions of texts with at least one word.
    data: the data of the task, which has its tags and types.
  Returns: precision, recall, f1 and f1_TYPE (see span_scores), accuracy and majority_accuracy.
  """
  correct, found = gold_tags([text for text, _, _ in predictions], data.scheme), [tags for _, tags, _ in predictions]
  labels, predicted = tag_numbers(correct, data.tags), tag_numbers(found, data.tags)
  metrics = span_scores(correct, found, data.types, data.scheme.name)
  metrics["accuracy"] = float((labels == predicted).mean())
  metrics["majority_accuracy"] = float(np.bincount(labels).max() / len(labels))
  return metrics


def write_mistakes(path: str, predictions: Sequence[TagPrediction]) -> None:
  """Writes the spans that are not right, the first 1000 in the order of the texts, to a tab-separated file.

  Its columns are location (file and line), span (the words), label (the correct type; empty if there is no such span),
  prediction (the predicted type; empty if it was not found), probability (of the prediction) and text.

  Args:
    path: the file.
    predictions: predictions of texts whose tags are known.
  """
  rows: list[list[str]] = []
  for text, _, spans in predictions:
    predicted = {(span.start, span.end): (span.type, f"{probability:.4f}") for span, probability in spans}
    labels = {(span.start, span.end): span.type for span in text.spans}
    for words in sorted({*predicted, *labels}):
      label, (prediction, probability) = labels.get(words, ""), predicted.get(words, ("", ""))
      if prediction != label:
        span_text, whole_text = text.text_of(Span(*words, "")), text.text or " ".join(text.words)
        rows.append([text.location_of(words[0]), span_text, label, prediction, probability, whole_text])
    if len(rows) >= MAX_MISTAKES:
      break
  write_table(path, ["location", "span", "label", "prediction", "probability", "text"], rows[:MAX_MISTAKES])
