"""Exact match and F1 of SQuAD answers, number for number what the official scripts (v1.1 and v2.0) give.

Rajpurkar et al. 2016, section 6.1, and Rajpurkar et al. 2018, section 5. Scores are in percent.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence

from albert.errors import UserError

# Question id -> its gold answers; none for an unanswerable question. The order is that of the data set.
Answers = Mapping[str, Sequence[str]]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
  """Lower-cases, drops ASCII punctuation, then the articles a, an and the, and joins on single spaces."""
  return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(gold: str, prediction: str) -> int:
  """1 if the two are the same answer after `normalize_answer`, else 0."""
  return int(normalize_answer(gold) == normalize_answer(prediction))


def _overlap(gold: Sequence[str], prediction: Sequence[str]) -> float:
  """F1 of two bags of words that are not both empty."""
  shared = sum((collections.Counter(prediction) & collections.Counter(gold)).values())
  if not shared:
    return 0
  precision = 1.0 * shared / len(prediction)
  recall = 1.0 * shared / len(gold)
  return (2 * precision * recall) / (precision + recall)


def f1_v1(gold: str, prediction: str) -> float:
  """F1 of the words as in v1.1: an answer without words agrees with nothing."""
  return _overlap(normalize_answer(gold).split(), normalize_answer(prediction).split())


def f1_v2(gold: str, prediction: str) -> float:
  """F1 of the words as in v2.0: two answers without words agree, one and another do not."""
  gold_words, predicted_words = normalize_answer(gold).split(), normalize_answer(prediction).split()
  if not gold_words or not predicted_words:
    return int(gold_words == predicted_words)
  return _overlap(gold_words, predicted_words)


def evaluate_v1(answers: Answers, predictions: Mapping[str, str]) -> dict[str, float]:
  """Scores of SQuAD v1.1.

  Args:
    answers: at least one for each question.
    predictions: question id -> text. A question that is missing counts as wrong.
  Returns:
    exact (exact_match in the official output), f1, total.
  Raises:
    UserError: there are no questions, or one has no answer.
  """
  _check_not_empty(answers)
  exact = f1 = 0.0
  # The official script adds one by one, as `sum` does not in every Python.
  for question, texts in answers.items():
    if not texts:
      raise UserError(f"question {question} has no answer to compare with: evaluate it as SQuAD v2.0")
    if question in predictions:
      exact += max(exact_match(text, predictions[question]) for text in texts)
      f1 += max(f1_v1(text, predictions[question]) for text in texts)
  total = len(answers)
  return {"exact": 100.0 * exact / total, "f1": 100.0 * f1 / total, "total": total}


def evaluate_v2(
  answers: Answers,
  predictions: Mapping[str, str],
  null_odds: Mapping[str, float] | None = None,
  threshold: float = 1.0,
) -> dict[str, float]:
  """Scores of SQuAD v2.0.

  Args:
    answers: empty for an unanswerable question.
    predictions: question id -> text, "" for no answer; of every question.
    null_odds: question id -> a score, the higher the less answerable; with it, answers above `threshold` count
      as "", and the best thresholds are looked for.
    threshold: see null_odds; the official script's default is 1.0.
  Returns:
    In the official order: exact, f1, total; the same of the questions with an answer (HasAns_) and of those
    without (NoAns_), if there are any; with null_odds best_exact, best_exact_thresh, best_f1, best_f1_thresh.
  Raises:
    UserError: there are no questions, or a prediction or a score is missing.
  """
  _check_not_empty(answers)
  for values, kind in ((predictions, "prediction"), (null_odds, "null score")):
    missing = [] if values is None else [question for question in answers if question not in values]
    if missing:
      raise UserError(f"question {missing[0]} and {len(missing) - 1} others have no {kind}: predict all questions")
  exact = _raw_scores(answers, predictions, exact_match)
  f1 = _raw_scores(answers, predictions, f1_v2)
  has_answer = {question: bool(texts) for question, texts in answers.items()}

  def thresholded(scores: dict[str, float]) -> dict[str, float]:
    if null_odds is None:
      return scores
    return {q: float(not has_answer[q]) if null_odds[q] > threshold else score for q, score in scores.items()}

  final_exact, final_f1 = thresholded(exact), thresholded(f1)
  results = _means(final_exact, final_f1, answers, "")
  for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
    questions = [question for question, is_answered in has_answer.items() if is_answered is wanted]
    if questions:
      results |= _means(final_exact, final_f1, questions, prefix)
  if null_odds is not None:
    for name, scores in (("exact", exact), ("f1", f1)):
      results[f"best_{name}"], results[f"best_{name}_thresh"] = _best_threshold(
        predictions, scores, {q: null_odds[q] for q in null_odds if q in scores}, has_answer
      )
  return results


def _check_not_empty(answers: Answers) -> None:
  if not answers:
    raise UserError("there are no questions to evaluate: give a file that has some")


def _raw_scores(
  answers: Answers, predictions: Mapping[str, str], score: Callable[[str, str], float]
) -> dict[str, float]:
  """Question -> the best score over its gold answers; the answer of an unanswerable one is ""."""
  return {
    # A gold answer of nothing but articles and punctuation is none, to the official script.
    question: max(score(text, predictions[question]) for text in [t for t in texts if normalize_answer(t)] or [""])
    for question, texts in answers.items()
  }


def _means(
  exact: Mapping[str, float], f1: Mapping[str, float], questions: Iterable[str], prefix: str
) -> dict[str, float]:
  questions = list(questions)
  total = len(questions)
  return {
    f"{prefix}exact": 100.0 * sum(exact[question] for question in questions) / total,
    f"{prefix}f1": 100.0 * sum(f1[question] for question in questions) / total,
    f"{prefix}total": total,
  }


def _best_threshold(
  predictions: Mapping[str, str],
  scores: Mapping[str, float],
  null_odds: Mapping[str, float],
  has_answer: Mapping[str, bool],
) -> tuple[float, float]:
  """(best score in percent, threshold): the question with the highest score that is answered still gives it.

  Everything unanswered is the start (threshold 0, as the official script says); questions are then answered one by
  one, the most answerable first.
  """
  current: float = sum(1 for is_answered in has_answer.values() if not is_answered)
  best, threshold = current, 0.0
  for question in sorted(null_odds, key=lambda q: null_odds[q]):
    if has_answer[question]:
      current += scores[question]
    elif predictions[question]:
      current -= 1
    if current > best:
      best, threshold = current, null_odds[question]
  return 100.0 * best / len(scores), threshold
