"""SQuAD scores: cases worked out by hand, and the scores of transformers where it is installed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

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
    ("the-end", "theend"),  # punctuation goes first, and joins words
    ("£5—the “end”", "£5— “end”"),  # only ASCII punctuation goes; a dash ends a word
    ("\tA\u00a0B\u2003C\n", "b c"),
    ("İstanbul ẞ", "i̇stanbul ß"),
    ("The, a: an.", ""),
    ("", ""),
  ],
)
def test_normalized_answers(text: str, normalized: str) -> None:
  assert squad.normalize_answer(text) == normalized


def test_f1_counts_repeated_words_as_often_as_both_have_them() -> None:
  # Shared: new once, york twice. Precision 3/4, recall 3/5.
  f1 = squad.f1_v2("New York, New York, York", "york new york city")
  assert f1 == pytest.approx(2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5), abs=1e-15)
  assert squad.f1_v1("New York, New York, York", "york new york city") == f1
  assert squad.f1_v2("cat", "dog") == squad.f1_v1("cat", "dog") == 0


def test_answers_without_words_agree_in_v2_alone() -> None:
  assert squad.f1_v2("the", "an!") == 1
  assert squad.f1_v1("the", "an!") == 0
  assert squad.f1_v2("the", "cat") == squad.f1_v2("cat", "") == 0
  assert squad.exact_match("the", "an!") == 1


def test_scores_of_v1() -> None:
  answers = {"a": ["Paris", "in Paris"], "b": ["the 1990s"], "c": ["seven"], "d": ["left out"]}
  predictions = {"a": "In Paris.", "b": "late 1990s", "c": "eight", "unknown": "left out"}
  # a: exact; b: 1 word of 2 and of 1, F1 2/3; c and d: wrong.
  assert squad.evaluate_v1(answers, predictions) == {
    "exact": 25.0,
    "f1": pytest.approx(100 * (1 + 2 / 3) / 4, abs=1e-12),
    "total": 4,
  }


ANSWERS = {"a": ["Paris"], "b": ["the 1990s", "1990s and later"], "c": [], "d": [], "e": ["the"]}
PREDICTIONS = {"a": "paris", "b": "late 1990s", "c": "", "d": "something", "e": ""}


def test_scores_of_v2() -> None:
  results = squad.evaluate_v2(ANSWERS, PREDICTIONS)
  # a 1 and 1; b 0 and 2/3; c 1 and 1; d 0 and 0; e: "the" is no answer to the script, so "" is right.
  f1 = {"f1": 100 * (1 + 2 / 3 + 1 + 1) / 5, "HasAns_f1": 100 * (1 + 2 / 3 + 1) / 3, "NoAns_f1": 50.0}
  expected = {"exact": 60.0, "f1": f1["f1"], "total": 5}
  expected |= {"HasAns_exact": 200 / 3, "HasAns_f1": f1["HasAns_f1"], "HasAns_total": 3}
  expected |= {"NoAns_exact": 50.0, "NoAns_f1": f1["NoAns_f1"], "NoAns_total": 2}
  assert list(results) == list(expected)
  assert results == pytest.approx(expected, abs=1e-12)


def test_thresholds_of_v2() -> None:
  odds = {"a": 0.1, "b": 0.6, "c": 0.9, "d": 0.5, "e": 0.7}
  results = squad.evaluate_v2(ANSWERS, PREDICTIONS, odds, threshold=0.55)
  # b, c and e count as "": b and e are wrong then, for they have answers; d is answered, so wrong.
  assert results["exact"] == results["f1"] == pytest.approx(40.0)
  # Nothing answered: 2 of 5 (c, d). Then a: +1; d: -1; b: +0 exact, +2/3 F1; e: +1; c: "" costs nothing.
  assert (results["best_exact"], results["best_exact_thresh"]) == (pytest.approx(60.0), 0.1)
  assert (results["best_f1"], results["best_f1_thresh"]) == (pytest.approx(100 * (2 + 2 / 3 + 1) / 5), 0.7)
  assert list(results)[-4:] == ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]


def test_nothing_answered_is_the_best_with_threshold_zero() -> None:
  results = squad.evaluate_v2({"a": [], "b": []}, {"a": "x", "b": "y"}, {"a": -3.0, "b": 2.0})
  assert (results["best_exact"], results["best_exact_thresh"]) == (100.0, 0.0)
  assert "HasAns_exact" not in results
  assert (results["NoAns_exact"], results["NoAns_total"]) == (50.0, 2)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: squad.evaluate_v1({}, {}), "no questions"),
    (lambda: squad.evaluate_v1({"q7": []}, {}), "question q7 has no answer"),
    (lambda: squad.evaluate_v2({}, {}), "no questions"),
    (lambda: squad.evaluate_v2({"q7": []}, {}), "question q7 and 0 others have no prediction"),
    (lambda: squad.evaluate_v2({"q7": []}, {"q7": ""}, {}), "question q7 and 0 others have no null score"),
  ],
)
def test_what_cannot_be_scored_is_named(call: Any, message: str) -> None:
  with pytest.raises(UserError, match=message):
    call()


WORDS = ("the", "a", "an", "The", "cat", "Cat's", "1,999", "U.S.", "—", "“x”", "naïve", "İ", "東京", "'s", "\u00a0")
text = st.one_of(
  st.text(max_size=12),
  st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join),
  st.lists(st.sampled_from(WORDS), max_size=6).map("".join),
)
questions = st.lists(st.tuples(st.lists(text, max_size=4), text, st.floats(-9, 9)), min_size=1, max_size=9)


@settings(max_examples=400, deadline=None)
@given(questions, st.floats(-9, 9), st.randoms(use_true_random=False))
def test_the_scores_of_transformers_to_the_last_digit(
  cases: list[tuple[list[str], str, float]], threshold: float, rng: random.Random
) -> None:
  transformers_metrics = pytest.importorskip("transformers.data.metrics.squad_metrics")
  answers = {f"q{i}": golds for i, (golds, _, _) in enumerate(cases)}
  predictions = {f"q{i}": rng.choice([*golds, guess]) for i, (golds, guess, _) in enumerate(cases)}
  odds = {f"q{i}": value for i, (_, _, value) in enumerate(cases)}
  examples = [SimpleNamespace(qas_id=q, answers=[{"text": t} for t in golds]) for q, golds in answers.items()]
  expected = transformers_metrics.squad_evaluate(examples, predictions, odds, threshold)
  results = squad.evaluate_v2(answers, predictions, odds, threshold)
  assert list(results.items()) == list(expected.items())
