"""The answers that Estimator.predict returns. Importing this module does not import TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.tasks.predictions import Predictions


@dataclasses.dataclass(frozen=True)
class ClassAnswer:
  """The class of a text or of a pair of texts.

  Attributes:
    label: the most probable label. If the training data was in memory, it has the same type as the labels there.
    probability: the probability of this label.
    probabilities: label -> probability, for all labels that the model gives a probability.
  """

  label: Any
  probability: float
  probabilities: Mapping[Any, float]


@dataclasses.dataclass(frozen=True)
class LabelsAnswer:
  """The labels of a text or of a pair of texts, if it may have several.

  Attributes:
    labels: the labels whose probability is at least their threshold, the most probable first. If the training data was
      in memory, they have the same type as the labels there.
    probabilities: label -> probability, for all labels.
    thresholds: label -> threshold.
  """

  labels: Sequence[Any]
  probabilities: Mapping[Any, float]
  thresholds: Mapping[Any, float]


@dataclasses.dataclass(frozen=True)
class ChoiceAnswer:
  """The chosen option of a question.

  Attributes:
    option: the text of the most probable option.
    index: its index, from 0.
    probabilities: the probability of each option, in their order.
  """

  option: str
  index: int
  probabilities: Sequence[float]


@dataclasses.dataclass(frozen=True)
class SpanAnswer:
  """The answer to a question about a context.

  Attributes:
    text: the answer, a substring of the context; "" if the question is unanswerable (SQuAD v2.0).
    probability: that of the best span among the candidates, or of "" with null odds that it is unanswerable; else 0.
    candidates: the best spans, best first. Each has text, probability and the scores of its start and end.
    null_odds: the log odds that the question is unanswerable; None for a model of SQuAD v1.1.
  """

  text: str
  probability: float
  candidates: Sequence[Mapping[str, Any]]
  null_odds: float | None = None


@dataclasses.dataclass(frozen=True)
class TaggedSpan:
  """A span that was found in a text.

  Attributes:
    label: its type.
    start, end: its first character, from 0, and the one after its last; or the same for its words, if words were given.
    text: the text of the span; its words with spaces between them, if words were given.
    probability: the product of the probabilities of its words' tags.
  """

  label: str
  start: int
  end: int
  text: str
  probability: float


@dataclasses.dataclass(frozen=True)
class TagAnswer:
  """The spans of a text.

  Attributes:
    spans: the spans, in order.
    words: the words of the text.
    tags: the tag of each word. Together they follow the scheme.
  """

  spans: Sequence[TaggedSpan]
  words: Sequence[str]
  tags: Sequence[str]


def class_answers(predictions: Predictions) -> list[Any]:
  """Converts predictions to a ClassAnswer or a LabelsAnswer for each example, or to a number of a regression."""
  labels = predictions.label_names
  if not labels:
    return [float(number) for number in predictions.scores]
  answers: list[Any] = []
  for predicted, scores in zip(predictions.predicted, predictions.scores, strict=True):
    probabilities = {label: float(score) for label, score in zip(labels, scores, strict=True) if not np.isnan(score)}
    if predictions.thresholds is None:
      answers.append(ClassAnswer(labels[predicted], probabilities[labels[predicted]], probabilities))
    else:
      found = [labels[i] for i in np.argsort(-scores, kind="stable") if predicted[i]]
      thresholds = dict(zip(labels, predictions.thresholds.tolist(), strict=True))
      answers.append(LabelsAnswer(found, probabilities, thresholds))
  return answers
