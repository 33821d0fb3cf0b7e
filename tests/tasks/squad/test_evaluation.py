"""Baselines, mistakes, and answers that do not match their labels, compared with values computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert.metrics import squad
from albert.tasks.squad import evaluation as squad_evaluation
from albert.tasks.squad.data import SquadAnswer, SquadParagraph, SquadQuestion
from albert.tasks.squad.features import SquadFeaturizer
from albert.tasks.squad.predictions import SquadPredictions
from albert.tokenization.config import TokenizerConfig

CONTEXT = "The captain sold St. Mary in 1906! Nobody remembered why."
PARAGRAPH = SquadParagraph("t", CONTEXT)


def question(identity: str, index: int, *answers: str) -> SquadQuestion:
  found = tuple(SquadAnswer(text, CONTEXT.index(text)) for text in answers)
  return SquadQuestion(identity, index, f"{identity}?", PARAGRAPH, found, not answers)


def test_baselines_of_v1() -> None:
  questions = [question("a", 0, "The captain sold St."), question("b", 1, "1906"), question("c", 2, "why")]
  found = squad_evaluation.baselines(questions, version_2=False)
  # The first sentence ends at the first stop before a space: "The captain sold St."
  assert found["first_sentence_exact"] == pytest.approx(100 / 3)
  assert found["first_sentence_f1"] == pytest.approx(100 / 3)
  spans = [squad_evaluation._random_span(q) for q in questions]
  assert len(set(spans)) > 1  # of the question, not of the paragraph
  for span in spans:
    assert span in CONTEXT
    assert 1 <= len(span.split()) <= 5
  assert found == squad_evaluation.baselines(questions, version_2=False)
  expected = squad.evaluate_v1({q.id: [q.answers[0].text] for q in questions}, dict(zip("abc", spans, strict=True)))
  assert (found["random_span_exact"], found["random_span_f1"]) == (expected["exact"], expected["f1"])


def test_baselines_for_an_empty_paragraph() -> None:
  questions = [SquadQuestion("q", 0, "?", SquadParagraph("t", " "), (SquadAnswer("x", 0),))]
  assert set(squad_evaluation.baselines(questions, version_2=False).values()) == {0.0}


def test_baselines_of_v2() -> None:
  questions = [question("a", 0, "1906"), question("b", 1), question("c", 2), question("d", 3, "why")]
  assert squad_evaluation.baselines(questions, version_2=True) == {"no_answers_exact": 50.0, "no_answers_f1": 50.0}


def test_answers_that_do_not_match_their_labels_are_found(spm_model: str) -> None:
  questions = [
    question("whole", 0, "in 1906"),
    question("punctuation", 1, "1906!"),
    question("cut", 2, "apta"),
    question("none", 3),
    question("long", 4, CONTEXT),
  ]
  featurizer = SquadFeaturizer(TokenizerConfig(spm_model), max_seq_length=20, max_query_length=4, doc_stride=5)
  found = squad_evaluation.find_unaligned_answers(questions, featurizer(questions))
  assert [(q.id, text) for q, text in found] == [("cut", "captain"), ("long", None)]


def test_mistakes_and_official_files(tmp_path: Path) -> None:
  questions = [question("a", 0, "1906", "in 1906"), question("b", 1), question("c", 2, "why"), question("d", 3, "sold")]
  entries = {
    "a": [{"text": "in 1906!", "probability": 0.5}],
    "b": [{"text": "captain", "probability": 0.9}],
    "c": [{"text": "Nobody\tremembered\nwhy", "probability": 0.7}],
    "d": [],
  }
  predictions = SquadPredictions(entries, {"a": -1.0, "b": -3.0, "c": -0.5, "d": -2.0})
  paths = squad_evaluation.write_evaluation(
    str(tmp_path), [*questions, question("not asked", 4, "why")], predictions, 0.0
  )
  assert [Path(path).name for path in paths] == [
    "predictions_dev.json",
    "nbest_predictions_dev.json",
    "null_odds_dev.json",
    "answers_dev.json",
    "mistakes_dev.tsv",
  ]
  answers = json.loads((tmp_path / "answers_dev.json").read_text())
  assert answers == {"a": ["1906", "in 1906"], "b": [], "c": ["why"], "d": ["sold"]}
  assert squad_evaluation.compute_scores(answers, predictions, 0.0)["exact"] == 25.0
  assert squad_evaluation.compute_scores(answers, predictions, -2.5)["exact"] == 0.0  # b alone is answered, wrongly
  rows = [line.split("\t") for line in (tmp_path / "mistakes_dev.tsv").read_text().splitlines()]
  assert rows == [
    ["id", "answers", "prediction", "f1", "probability", "question"],
    ["b", "", "captain", "0.0000", "0.9000", "b?"],
    ["c", "why", "Nobody remembered why", "0.5000", "0.7000", "c?"],
    ["d", "sold", "", "0.0000", "0.0000", "d?"],
  ]
