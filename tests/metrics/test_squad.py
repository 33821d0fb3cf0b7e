"""SQuAD scores equal values computed by hand, and those of exact fractions."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.metrics import squad


@pytest.mark.parametrize(
  ("text", "normalized"),
  [
    ("The  Cat, the hat & a bat!", "cat hat bat"),
    ("Theatre of an Anthem", "theatre of anthem"),
    ("a.k.a. the U.S.A.", "aka usa"),
    ("the-end", "theend"),  # punctuation is removed before articles, so this is one word
    ("£5—the “end”", "£5— “end”"),  # only ASCII punctuation is removed; a dash ends a word, so "the" is an article
    ("\tA\u00a0B\u2003C\n", "b c"),
    ("İstanbul ẞ", "i̇stanbul ß"),
    ("The, a: an.", ""),
    ("", ""),
  ],
)
def test_answers_are_normalized_as_by_the_official_script(text: str, normalized: str) -> None:
  assert squad.normalize_answer(text) == normalized


def test_answers_without_words_are_equal_in_v2_only() -> None:
  assert (squad.f1_v1("the", "an!"), squad.f1_v2("the", "an!"), squad.exact_match("the", "an!")) == (0, 1, 1)


def test_v1_scores_of_four_questions() -> None:
  answers = {"a": ["Paris", "in Paris"], "b": ["the 1990s"], "c": ["seven"], "d": ["left out"]}
  predictions = {"a": "In Paris.", "b": "late 1990s", "c": "eight", "unknown": "left out"}
  # a: exact. b: "1990s" is one of two predicted words and the only word of the answer, so F1 is 2/3. c is wrong, and
  # d has no prediction.
  assert squad.evaluate_v1(answers, predictions) == {
    "exact": 25.0,
    "f1": pytest.approx(100 * (1 + 2 / 3) / 4, abs=1e-12),
    "total": 4,
  }


ANSWERS = {"a": ["Paris"], "b": ["the 1990s", "1990s and later"], "c": [], "d": [], "e": ["the"]}
PREDICTIONS = {"a": "paris", "b": "late 1990s", "c": "", "d": "something", "e": ""}


def test_v2_scores_at_a_threshold_and_at_the_best_threshold() -> None:
  odds = {"a": 0.1, "b": 0.6, "c": 0.9, "d": 0.5, "e": 0.7}
  results = squad.evaluate_v2(ANSWERS, PREDICTIONS, odds, threshold=0.55)
  # At 0.55, b, c and e count as unanswered. That is right for c only, since b and e have answers. a is right, and d is
  # wrong, since it is answered.
  assert results["exact"] == results["f1"] == pytest.approx(40.0)
  # With no question answered, c and d are right. Raising the threshold answers the questions in the order of their
  # odds. a adds 1, d costs 1, b adds 0 to exact and 2/3 to F1, e adds 1, and c stays right, since its prediction is "".
  assert (results["best_exact"], results["best_exact_thresh"]) == (pytest.approx(60.0), 0.1)
  assert (results["best_f1"], results["best_f1_thresh"]) == (pytest.approx(100 * (2 + 2 / 3 + 1) / 5), 0.7)
  means = [f"{prefix}{name}" for prefix in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")]
  assert list(results) == [*means, "best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: squad.evaluate_v1({}, {}), "no questions"),
    (lambda: squad.evaluate_v1({"q7": []}, {}), "question q7 has no answer"),
    (lambda: squad.evaluate_v2({}, {}), "no questions"),
    (lambda: squad.evaluate_v2({"q7": []}, {}), "no prediction of question q7: predict"),
    (lambda: squad.evaluate_v2({"q7": []}, {"q7": ""}, {}), "no null score of question q7: predict"),
  ],
)
def test_a_question_that_cannot_be_scored_is_named(call: Any, message: str) -> None:
  with pytest.raises(UserError, match=message):
    call()


WORDS = ("the", "a", "an", "The", "cat", "Cat's", "1,999", "U.S.", "—", "“x”", "naïve", "İ", "東京", "'s", "\u00a0")
texts_strategy = st.one_of(
  st.text(max_size=12),
  st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join),
  st.lists(st.sampled_from(WORDS), max_size=6).map("".join),
)
# (answers, a guess, odds that there is no answer) of a question.
question_strategy = st.tuples(st.lists(texts_strategy, max_size=4), texts_strategy, st.floats(-9, 9))


def exact_score_and_f1(texts: list[str], prediction: str) -> tuple[int, Fraction]:
  """The best exact match and F1 of a prediction, with F1 as 2 * shared words / all words of both answers."""
  predicted = squad.normalize_answer(prediction).split()
  f1 = Fraction(0)
  golds = [gold for text in texts if (gold := squad.normalize_answer(text).split())] or [[]]
  for gold in golds:
    shared = sum(min(gold.count(word), predicted.count(word)) for word in set(gold))
    f1 = max(
      f1, Fraction(2 * shared, len(gold) + len(predicted)) if gold and predicted else Fraction(gold == predicted)
    )
  return int(any(squad.normalize_answer(prediction).split() == gold for gold in golds)), f1


@settings(max_examples=400, deadline=None)
@given(st.lists(question_strategy, min_size=1, max_size=9), st.floats(-9, 9), st.randoms(use_true_random=False))
@pytest.mark.thorough
def test_scores_equal_those_of_exact_fractions(
  questions: list[tuple[list[str], str, float]], threshold: float, rng: random.Random
) -> None:
  predictions = [rng.choice([*texts, guess]) for texts, guess, _ in questions]
  odds = np.array([null_odds for _, _, null_odds in questions])
  has_answer = np.array([bool(texts) for texts, _, _ in questions])
  ids = [f"q{number}" for number in range(len(questions))]
  answers = {question: texts for question, (texts, _, _) in zip(ids, questions, strict=True)}
  results = squad.evaluate_v2(
    answers, dict(zip(ids, predictions, strict=True)), dict(zip(ids, odds.tolist(), strict=True)), threshold
  )
  pairs = [exact_score_and_f1(texts, guess) for (texts, _, _), guess in zip(questions, predictions, strict=True)]
  order = np.argsort(odds, kind="stable")
  for name, scores in zip(("exact", "f1"), np.array(pairs, dtype=object).T, strict=True):
    final = np.where(odds > threshold, ~has_answer, scores)
    for prefix, is_used in (("", has_answer | True), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
      assert (f"{prefix}{name}" in results) == is_used.any()
      if is_used.any():
        assert results[f"{prefix}{name}"] == pytest.approx(float(100 * final[is_used].sum() / is_used.sum()))
        assert results[f"{prefix}total"] == is_used.sum()
    # The sum of the scores if the first n questions in the order of their odds keep their predictions, for each n.
    gains = np.where(has_answer, scores, [-bool(prediction) for prediction in predictions])[order]
    sums = np.cumsum([int((~has_answer).sum()), *gains]).astype(float)
    assert results[f"best_{name}"] == pytest.approx(100 * sums.max() / len(questions))
    thresholds = np.array([0.0, *odds[order]])[np.isclose(sums, sums.max())]
    assert results[f"best_{name}_thresh"] in thresholds
