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
    label: the most probable label. It has the type of the labels in the training data if those were in memory.
    probability: its probability.
    probabilities: label -> probability, for all labels.
  """

  label: Any
  probability: float
  probabilities: Mapping[Any, float]


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
    probability: the probability of the best span among the candidates; 0 if there are none.
    candidates: the best spans, best first. Each has text, probability and the scores of its start and end.
    null_odds: the log odds that the question is unanswerable; None for a model of SQuAD v1.1.
  """

  text: str
  probability: float
  candidates: Sequence[Mapping[str, Any]]
  null_odds: float | None = None


def class_answers(predictions: Predictions) -> list[ClassAnswer] | list[float]:
  """Converts predictions of classes to answers, and those of a regression to numbers."""
  names = predictions.label_names
  if not names:
    return [float(value) for value in predictions.scores]
  answers = []
  for best, row in zip(predictions.predicted, predictions.scores, strict=True):
    values = {name: float(value) for name, value in zip(names, row, strict=True) if not np.isnan(value)}
    answers.append(ClassAnswer(names[best], values[names[best]], values))
  return answers
