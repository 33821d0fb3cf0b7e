"""Exact match and F1 of SQuAD answers (Rajpurkar et al. 2016, section 6.1; Rajpurkar et al. 2018, section 5).

The numbers equal those of the official evaluation scripts of v1.1 and v2.0. Scores are in percent.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from albert.errors import UserError
from albert.io.text import name_and_others

# Question id -> texts of its gold answers; an empty sequence if the question is unanswerable. The questions are in the
# order of the dataset, because sums in floating point depend on the order.
GoldAnswers = Mapping[str, Sequence[str]]

THRESHOLD_GAIN = 5.0  # if another threshold raises the F1 of v2.0 by more, the threshold was at fault, not the model
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_REMOVE_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
  """Normalizes an answer as the official scripts do.

  Converts to lower case, removes ASCII punctuation and the articles a, an and the, and joins words by single spaces.
  """
  return " ".join(_ARTICLES.sub(" ", text.lower().translate(_REMOVE_PUNCTUATION)).split())


def exact_match(gold: str, prediction: str) -> int:
  """Returns 1 if both answers are equal after `normalize_answer`, else 0.

  Args:
    gold: the gold answer.
    prediction: the predicted answer.
  """
  return int(normalize_answer(gold) == normalize_answer(prediction))


def f1_v1(gold: str, prediction: str) -> float:
  """Computes F1 of the words, from 0 to 1, as in v1.1: 0 if one of the answers has no words after normalization.

  Args:
    gold: the gold answer.
    prediction: the predicted answer.
  """
  gold_words, predicted_words = normalize_answer(gold).split(), normalize_answer(prediction).split()
  num_shared = sum((collections.Counter(predicted_words) & collections.Counter(gold_words)).values())
  if not num_shared:
    return 0
  precision = 1.0 * num_shared / len(predicted_words)
  recall = 1.0 * num_shared / len(gold_words)
  return (2 * precision * recall) / (precision + recall)


def f1_v2(gold: str, prediction: str) -> float:
  """Computes F1 as in v2.0: like f1_v1, but 1 if both answers have no words after normalization."""
  return f1_v1(gold, prediction) or exact_match(gold, prediction)


def evaluate_v1(answers: GoldAnswers, predictions: Mapping[str, str]) -> dict[str, float]:
  """Computes the scores of SQuAD v1.1.

  Args:
    answers: the gold answers, at least one for each question.
    predictions: question id -> text. A question without a prediction counts as wrong.

  Returns:
    exact (exact_match in the official output) and f1 in percent, and total, the number of questions.

  Raises:
    UserError: there are no questions, or a question has no answer.

  Example:
    >>> import albert
    >>> albert.evaluate_squad_v1({"q1": ["the pub", "a pub"], "q2": ["Paris"]}, {"q1": "Pub.", "q2": "in Paris"})
    {'exact': 50.0, 'f1': 83.33333333333333, 'total': 2}
  """
  _check_not_empty(answers)
  exact = f1 = 0.0
  # Scores are added one by one, as in the official script of v1.1. Since Python 3.12, `sum` gives other last digits.
  for question, texts in answers.items():
    if not texts:
      raise UserError(f"question {question} has no answer to compare with: evaluate it as SQuAD v2.0")
    if question in predictions:
      exact += max(exact_match(text, predictions[question]) for text in texts)
      f1 += max(f1_v1(text, predictions[question]) for text in texts)
  total = len(answers)
  return {"exact": 100.0 * exact / total, "f1": 100.0 * f1 / total, "total": total}


def evaluate_v2(
  answers: GoldAnswers,
  predictions: Mapping[str, str],
  null_odds: Mapping[str, float] | None = None,
  threshold: float = 1.0,
) -> dict[str, float]:
  """Computes the scores of SQuAD v2.0.

  Args:
    answers: the gold answers; an empty sequence for an unanswerable question.
    predictions: question id -> predicted text, "" for no answer. It must have all questions.
    null_odds: question id -> score that the question has no answer. It must have all questions. If it is given,
      questions with a score above `threshold` count as predicted "", and the best thresholds are computed.
    threshold: see null_odds. The official script's default is 1.0.

  Returns:
    In the official order: exact and f1 in percent, and total, the number of questions; the same with the prefixes
    HasAns_ and NoAns_ for the questions with and without an answer, if there are any; with null_odds also best_exact,
    best_exact_thresh, best_f1 and best_f1_thresh.

  Raises:
    UserError: there are no questions, or a question has no prediction or no score.

  Example:
    >>> import albert
    >>> scores = albert.evaluate_squad_v2({"q1": ["the pub"], "q2": []}, {"q1": "Pub.", "q2": "Paris"})
    >>> scores["exact"], scores["HasAns_exact"], scores["NoAns_exact"]
    (50.0, 100.0, 0.0)
  """
  _check_not_empty(answers)
  _check_complete(answers, predictions, "prediction")
  if null_odds is not None:
    _check_complete(answers, null_odds, "null score")
  has_answer = {question: bool(texts) for question, texts in answers.items()}
  # Metric -> question -> the best score over its gold answers. An unanswerable question has the gold answer "".
  scores: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
  for question, texts in answers.items():
    # The official script ignores gold answers that consist of articles and punctuation only.
    gold_texts = [text for text in texts if normalize_answer(text)] or [""]
    scores["exact"][question] = max(exact_match(text, predictions[question]) for text in gold_texts)
    scores["f1"][question] = max(f1_v2(text, predictions[question]) for text in gold_texts)
  # A question with null odds above the threshold has the prediction "": its score is 1 if it has no answer, else 0.
  left_empty = {question for question, odds in (null_odds or {}).items() if odds > threshold}
  metrics: dict[str, float] = {}
  for prefix, kinds in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
    questions = [question for question in answers if has_answer[question] in kinds]
    if questions:
      for name, of_questions in scores.items():
        final_scores = [float(not has_answer[q]) if q in left_empty else of_questions[q] for q in questions]
        # The scores are added with `sum`, as in the official script of v2.0.
        metrics[prefix + name] = 100.0 * sum(final_scores) / len(questions)
      metrics[f"{prefix}total"] = len(questions)
  if null_odds is not None:
    odds_of_questions = {question: odds for question, odds in null_odds.items() if question in answers}
    for name, of_questions in scores.items():
      best_score, threshold_of_best = _best_threshold(predictions, of_questions, odds_of_questions, has_answer)
      metrics |= {f"best_{name}": best_score, f"best_{name}_thresh": threshold_of_best}
  return metrics


def _check_not_empty(answers: GoldAnswers) -> None:
  if not answers:
    raise UserError("there are no questions to evaluate: give a file that has some")


def _check_complete(answers: GoldAnswers, predicted: Mapping[str, Any], kind: str) -> None:
  """Raises UserError if a question has no predicted value. `kind` names the values in the message."""
  missing = [question for question in answers if question not in predicted]
  if missing:
    raise UserError(f"no {kind} of question {name_and_others(missing[0], len(missing) - 1)}: predict all questions")


def _best_threshold(
  predictions: Mapping[str, str],
  scores: Mapping[str, float],
  null_odds: Mapping[str, float],
  has_answer: Mapping[str, bool],
) -> tuple[float, float]:
  """Finds the threshold of null_odds with the best mean score.

  At first the prediction for every question is "". The official script reports this as threshold 0. Then one question
  after the other gets its own prediction, in the order of their null_odds. The mean score is computed after each.

  Returns:
    The best mean score in percent, and the null_odds of the question after which this score was first reached.
  """
  score_sum: float = sum(1 for is_answerable in has_answer.values() if not is_answerable)
  best_sum, threshold = score_sum, 0.0
  for question in sorted(null_odds, key=lambda question: null_odds[question]):
    if has_answer[question]:
      score_sum += scores[question]
    elif predictions[question]:
      score_sum -= 1
    if score_sum > best_sum:
      best_sum, threshold = score_sum, null_odds[question]
  return 100.0 * best_sum / len(scores), threshold
