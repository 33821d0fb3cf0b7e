"""Precision, recall and F1 of spans of words, computed by seqeval.

A predicted span is right if a span of the text has the same first word, the same last word and the same type, as in
the shared tasks of CoNLL. Importing seqeval takes a while, so it is imported when metrics are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Scheme -> the name of its class in seqeval.scheme.
_SEQEVAL_SCHEMES = {"BIO": "IOB2", "BILOU": "BILOU", "BIOES": "IOBES"}


def span_scores(
  labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], types: Sequence[str], scheme: str
) -> dict[str, float]:
  """Computes the scores of spans of all types together, and F1 of each type. A score that is 0 / 0 is 0.

  Args:
    labels: the correct tags of each text.
    predictions: the predicted tags of the same texts; they must follow the scheme.
    types: all types of spans.
    scheme: "BIO", "BILOU" or "BIOES".
  Returns: precision, recall, f1, and f1_TYPE for each type.
  """
  from seqeval import scheme as seqeval_schemes
  from seqeval.metrics import v1

  # seqeval would strip hyphens from the names of types.
  numbers = {span_type: number for number, span_type in enumerate(types)}

  def numbered(tags: Sequence[str]) -> list[str]:
    return [tag if "-" not in tag else f"{tag[0]}-{numbers[tag[2:]]}" for tag in tags]

  y_true, y_pred = [numbered(tags) for tags in labels], [numbered(tags) for tags in predictions]
  found = sorted({tag[2:] for tags in (*y_true, *y_pred) for tag in tags if tag != "O"})
  scores = dict.fromkeys(("precision", "recall", "f1", *(f"f1_{span_type}" for span_type in types)), 0.0)
  if not found:
    return scores
  seqeval_scheme = getattr(seqeval_schemes, _SEQEVAL_SCHEMES[scheme])
  micro = v1.precision_recall_fscore_support(y_true, y_pred, average="micro", scheme=seqeval_scheme, zero_division=0)
  scores |= dict(zip(("precision", "recall", "f1"), map(float, micro), strict=False))
  of_types = v1.precision_recall_fscore_support(y_true, y_pred, average=None, scheme=seqeval_scheme, zero_division=0)
  return scores | {f"f1_{types[int(number)]}": float(f1) for number, f1 in zip(found, of_types[2], strict=True)}


def accuracies(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
  """Computes the share of words with the right tag, and the share of the most frequent tag.

  Args:
    labels, predictions: int [T], the tags of T > 0 words.
  Returns: accuracy and majority_accuracy.
  """
  majority = float(np.bincount(labels).max() / len(labels))
  return {"accuracy": float((labels == predictions).mean()), "majority_accuracy": majority}
