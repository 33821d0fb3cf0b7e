"""Tests of answers from scores, compared with a search over all spans; of official files, thresholds and averages."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.errors import UserError
from albert.tasks.squad import predictions as squad_predictions
from albert.tasks.squad.data import SquadParagraph, SquadQuestion
from albert.tasks.squad.features import CHAR_ENDS, CHAR_STARTS, IS_MAX_CONTEXT, P_MASK, SquadFeaturizer
from albert.tasks.squad.predictions import SquadPredictions, average_predictions, predictions_v1, predictions_v2
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.tokenizer import SEP_ID, UNK_ID, Tokenizer
from tests.conftest import english_like_documents

MAX_LENGTH = 5


@pytest.fixture(scope="module")
def questions() -> list[SquadQuestion]:
  paragraphs = [SquadParagraph("t", " ".join(document)) for document in english_like_documents(6, seed=8)]
  return [SquadQuestion(f"q{i}", i, "who forgot the letter?", paragraphs[i // 2]) for i in range(12)]


@pytest.fixture(scope="module")
def examples(spm_model: str, questions: list[SquadQuestion]) -> TokenizedExamples:
  return SquadFeaturizer(TokenizerConfig(spm_model), 40, 12, 11)(questions)


def allowed_spans(examples: TokenizedExamples, window: int) -> list[tuple[int, int]]:
  """Returns every span of a window that may be an answer, as positions of its first and its last token."""
  tokens = slice(examples.token_offsets[window], examples.token_offsets[window + 1])
  mask, is_best = examples.token_features[P_MASK][tokens], examples.token_features[IS_MAX_CONTEXT][tokens]
  positions = [i for i in range(1, len(mask)) if not mask[i]]
  return [(i, j) for i in positions for j in positions if i <= j < i + MAX_LENGTH and is_best[i]]


def text_of(examples: TokenizedExamples, questions: list[SquadQuestion], window: int, span: tuple[int, int]) -> str:
  offset = examples.token_offsets[window]
  start = examples.token_features[CHAR_STARTS][offset + span[0]]
  end = examples.token_features[CHAR_ENDS][offset + span[1]]
  return questions[examples.labels["question_index"][window]].paragraph.context[start:end]


def best_texts(scored_texts: list[tuple[float, str]], count: int) -> list[tuple[str, float]]:
  """Returns the `count` best texts with the best score of each, best first. Empty texts are left out."""
  best: dict[str, float] = {}
  for score, text in scored_texts:
    if text:
      best[text] = max(score, best.get(text, -math.inf))
  return sorted(best.items(), key=lambda item: -item[1])[:count]


def assert_same_answers(
  predictions: SquadPredictions, expected: dict[str, list[tuple[str, float]]], score_kind: str
) -> None:
  """Compares the n best answers, their scores and their probabilities with question -> (text, score) of each."""
  assert list(predictions.nbest) == list(expected)
  for question, entries in predictions.nbest.items():
    assert [entry["text"] for entry in entries] == [text for text, _ in expected[question]]
    scores = [score for _, score in expected[question]]
    assert [entry[f"start_{score_kind}"] + entry[f"end_{score_kind}"] for entry in entries] == pytest.approx(
      scores, abs=1e-5
    )
    exponentials = [math.exp(score - max(scores)) for score in scores]
    probabilities = [value / sum(exponentials) for value in exponentials]
    assert [entry["probability"] for entry in entries] == pytest.approx(probabilities, abs=1e-6)


def test_v1_finds_the_best_of_all_spans(examples: TokenizedExamples, questions: list[SquadQuestion]) -> None:
  rng = np.random.default_rng(0)
  order = np.arange(examples.num_examples)
  assert examples.num_examples > 2 * len(questions)
  starts, ends = rng.standard_normal((2, len(order), 40)).astype(np.float32) * 3
  outputs = {EXAMPLE_INDEX: order, "start_logits": starts, "end_logits": ends}
  expected = {}
  for question in questions:
    windows = np.flatnonzero(examples.labels["question_index"] == question.index)
    scored_texts = [
      (float(starts[window, i] + ends[window, j]), text_of(examples, questions, window, (i, j)))
      for window in windows
      for i, j in allowed_spans(examples, window)
    ]
    expected[question.id] = best_texts(scored_texts, 6)
  predictions = predictions_v1(questions, outputs, examples, n_best_size=6, max_answer_length=MAX_LENGTH)
  assert_same_answers(predictions, expected, "logit")
  assert predictions.answers() == {question: entries[0][0] for question, entries in expected.items()}
  for question in questions:
    assert predictions.answers()[question.id] in question.paragraph.context


@pytest.mark.parametrize("version", [1, 2])
def test_a_token_of_one_space_is_not_part_of_an_answer(spm_model: str, version: int) -> None:
  """Before an unknown character there is a token ▁. So two spans give the answer "letter", which counts once."""
  questions = [SquadQuestion("q", 0, "what?", SquadParagraph("t", "nobody sold the letter \u6771"))]
  examples = SquadFeaturizer(TokenizerConfig(spm_model), 40, 12, 11)(questions)
  space = int(np.flatnonzero(examples.input_ids == Tokenizer(spm_model).pieces.index("▁"))[-1])
  assert examples.input_ids[space + 1 :].tolist() == [UNK_ID, SEP_ID]
  first = int(np.flatnonzero(examples.token_features[CHAR_STARTS] == 16)[0])
  scores = {(first, space): 3.0, (first, space - 1): 2.0, (first, space + 1): 1.0}
  limits = {"n_best_size": 3, "max_answer_length": 9}
  if version == 1:
    starts, ends = np.full((2, 1, 40), -99, np.float32)
    starts[0, first] = 0
    for (_, end), score in scores.items():
      ends[0, end] = score
    outputs = {EXAMPLE_INDEX: np.zeros(1, int), "start_logits": starts, "end_logits": ends}
    predictions = predictions_v1(questions, outputs, examples, **limits)
  else:
    outputs = {
      EXAMPLE_INDEX: np.zeros(1, int),
      "start_log_probs": np.zeros([1, 1], np.float32),
      "start_positions": np.array([[first]]),
      "end_log_probs": np.array([[list(scores.values())]], np.float32),
      "end_positions": np.array([[[end for _, end in scores]]]),
      "null_logits": np.zeros(1, np.float32),
    }
    predictions = predictions_v2(questions, outputs, examples, **limits)
  best, second, *_ = predictions.nbest["q"]
  assert (best["text"], second["text"]) == ("letter", "letter \u6771")
  assert best["probability"] > math.exp(3) / (math.exp(3) + math.exp(1)) - 1e-6
  assert all(entry["text"] == entry["text"].strip() for entry in predictions.nbest["q"])


def make_beams(
  examples: TokenizedExamples, rng: np.random.Generator, num_starts: int, num_ends: int
) -> dict[str, np.ndarray]:
  """Makes random beams over all 40 positions. Some of them are no part of the paragraph, or beyond a short window."""
  shape = (examples.num_examples, num_starts)
  return {
    EXAMPLE_INDEX: np.arange(examples.num_examples),
    "start_log_probs": -rng.exponential(size=shape).astype(np.float32),
    "start_positions": rng.integers(0, 40, shape),
    "end_log_probs": -rng.exponential(size=(*shape, num_ends)).astype(np.float32),
    "end_positions": rng.integers(0, 40, (*shape, num_ends)),
    "null_logits": rng.standard_normal(examples.num_examples).astype(np.float32),
  }


def test_v2_keeps_the_beams_that_are_allowed_spans(examples: TokenizedExamples, questions: list[SquadQuestion]) -> None:
  outputs = make_beams(examples, np.random.default_rng(1), 2, 1)
  expected, odds = {}, {}
  for question in questions:
    scored_texts = []
    windows = np.flatnonzero(examples.labels["question_index"] == question.index)
    odds[question.id] = float(min(outputs["null_logits"][window] for window in windows))
    for window in windows:
      spans = set(allowed_spans(examples, window))
      for k, start in enumerate(outputs["start_positions"][window]):
        for m, end in enumerate(outputs["end_positions"][window, k]):
          if (start, end) in spans:
            score = outputs["start_log_probs"][window, k] + outputs["end_log_probs"][window, k, m]
            scored_texts.append((float(score), text_of(examples, questions, window, (start, end))))
    expected[question.id] = best_texts(scored_texts, 4)
  predictions = predictions_v2(questions, outputs, examples, n_best_size=4, max_answer_length=MAX_LENGTH)
  assert_same_answers(predictions, expected, "log_prob")
  assert predictions.null_odds == odds
  assert {len(entries) for entries in predictions.nbest.values()} > {4}  # some questions have fewer allowed beams
  threshold = float(np.median(list(odds.values())))
  answers = predictions.answers(threshold)
  assert {q for q, answer in answers.items() if not answer} >= {q for q, value in odds.items() if value > threshold}
  assert {q: a for q, a in answers.items() if a} == {
    q: expected[q][0][0] for q, value in odds.items() if value <= threshold and expected[q]
  }


def test_only_questions_with_windows_in_the_outputs_are_answered(
  examples: TokenizedExamples, questions: list[SquadQuestion]
) -> None:
  outputs = make_beams(examples, np.random.default_rng(1), 9, 8)
  rows = np.flatnonzero(np.isin(examples.labels["question_index"], [3, 7]))
  some_outputs = {name: values[rows] for name, values in outputs.items()}
  part = predictions_v2(questions, some_outputs, examples, n_best_size=4, max_answer_length=MAX_LENGTH)
  whole = predictions_v2(questions, outputs, examples, n_best_size=4, max_answer_length=MAX_LENGTH)
  assert list(part.nbest) == ["q3", "q7"]
  assert all(part.nbest[question] == whole.nbest[question] for question in part.nbest)


def test_a_paragraph_without_tokens_has_no_answer(spm_model: str) -> None:
  questions = [SquadQuestion("q", 0, "what?", SquadParagraph("t", " \n"))]
  examples = SquadFeaturizer(TokenizerConfig(spm_model), 40, 12, 11)(questions)
  logits = np.zeros((1, 40), np.float32)
  outputs = {EXAMPLE_INDEX: np.zeros(1, int), "start_logits": logits, "end_logits": logits}
  predictions = predictions_v1(questions, outputs, examples, n_best_size=3, max_answer_length=5)
  assert (predictions.nbest, predictions.answers()) == ({"q": []}, {"q": ""})


def make_entry(text: str, probability: float) -> dict[str, object]:
  return {"text": text, "probability": probability}


def test_probabilities_and_null_odds_are_averaged() -> None:
  first = SquadPredictions({"a": [make_entry("x", 0.6), make_entry("y", 0.4)], "b": []}, {"a": 1.0, "b": -2.0})
  second = SquadPredictions(
    {"a": [make_entry("y", 0.7), make_entry("z", 0.3)], "b": [make_entry("w", 1.0)]}, {"a": -2.0, "b": 4.0}
  )
  average = average_predictions([first, second])
  assert [(entry["text"], entry["probability"]) for entry in average.nbest["a"]] == [
    ("y", 0.55),
    ("x", 0.3),
    ("z", 0.15),
  ]
  assert average.null_odds == {"a": -0.5, "b": 1.0}
  assert average.answers() == {"a": "y", "b": ""}
  assert average.answers(1.0) == {"a": "y", "b": "w"}
  assert average_predictions([first]).answers() == first.answers()


def test_different_questions_or_versions_are_not_averaged() -> None:
  predictions = SquadPredictions({"a": [], "b": []})
  with pytest.raises(UserError, match=r"members 1 and 2 of the ensemble answer different questions \(for example b\)"):
    average_predictions([predictions, SquadPredictions({"a": []})])
  with pytest.raises(UserError, match="members 1 and 2 of the ensemble are for different SQuAD versions"):
    average_predictions([predictions, SquadPredictions({"a": [], "b": []}, {"a": 0.0, "b": 0.0})])


def test_the_official_files_are_written_and_read(tmp_path: Path) -> None:
  predictions = SquadPredictions({"a": [make_entry("é", 1.0)], "b": [make_entry("w", 1.0)]}, {"a": -1.0, "b": 0.5})
  paths = squad_predictions.write(str(tmp_path), "", predictions, 0.0)
  names = ["predictions.json", "nbest_predictions.json", "null_odds.json"]
  assert [Path(path).name for path in paths] == names
  assert [json.loads((tmp_path / name).read_text()) for name in names] == [
    {"a": "é", "b": ""}, predictions.nbest, {"a": -1.0, "b": 0.5}
  ]  # fmt: skip
  assert squad_predictions.read(str(tmp_path), "") == predictions
  v1 = SquadPredictions({"a": []})
  assert [Path(p).name for p in squad_predictions.write(str(tmp_path), "dev", v1, 0.0)] == [
    "predictions_dev.json",
    "nbest_predictions_dev.json",
  ]
  assert squad_predictions.read(str(tmp_path), "dev") == v1
  (tmp_path / "nbest_predictions_dev.json").write_text('{"a": [{"text": "x"}]}')
  with pytest.raises(UserError, match=r"nbest_predictions_dev\.json: \$\.a\[0\] lacks 'probability': predict again"):
    squad_predictions.read(str(tmp_path), "dev")
