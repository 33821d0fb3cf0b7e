"""The best answers of each question, compared with a search over all spans."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.tasks.squad.features import CHAR_ENDS, CHAR_STARTS, IS_MAX_CONTEXT, P_MASK, SquadFeaturizer
from albert.tasks.squad.files import SquadParagraph, SquadQuestion
from albert.tasks.squad.nbest import SquadPredictions, find_answers
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import SEP_ID, UNK_ID, TokenizerConfig
from tests.conftest import english_like_documents

MAX_SEQ_LENGTH = 40
MAX_ANSWER_LENGTH = 5


def make_examples(spm_model: str, questions: list[SquadQuestion]) -> TokenizedExamples:
  featurizer = SquadFeaturizer(TokenizerConfig(spm_model), MAX_SEQ_LENGTH, max_query_length=12, doc_stride=11)
  return featurizer(questions)


@pytest.fixture(scope="module")
def questions() -> list[SquadQuestion]:
  """Two questions about each of six paragraphs."""
  paragraphs = [SquadParagraph("t", " ".join(document)) for document in english_like_documents(6, seed=8)]
  return [SquadQuestion(f"q{i}", i, "who forgot the letter?", paragraphs[i // 2]) for i in range(12)]


@pytest.fixture(scope="module")
def examples(spm_model: str, questions: list[SquadQuestion]) -> TokenizedExamples:
  return make_examples(spm_model, questions)


def best_answers(
  questions: list[SquadQuestion], examples: TokenizedExamples, count: int, score_of: Callable[[int, int, int], float]
) -> dict[str, dict[str, float]]:
  """Returns for each question the `count` best texts of all allowed spans, best first, with the best score of each.

  score_of: (window, first token, last token) -> score of a span, -inf if it is not a candidate.
  """
  answers = {}
  for question in questions:
    scores: dict[str, float] = {}
    for window in np.flatnonzero(examples.labels["question_index"] == question.index):
      tokens = slice(examples.token_offsets[window], examples.token_offsets[window + 1])
      features = {name: values[tokens] for name, values in examples.token_features.items()}
      mask = features[P_MASK]
      for start in range(1, len(mask)):
        for end in range(start, min(start + MAX_ANSWER_LENGTH, len(mask))):
          text = question.paragraph.context[features[CHAR_STARTS][start] : features[CHAR_ENDS][end]]
          score = score_of(window, start, end)
          if text and score > -math.inf and features[IS_MAX_CONTEXT][start] and not mask[start] and not mask[end]:
            scores[text] = max(score, scores.get(text, -math.inf))
    answers[question.id] = dict(sorted(scores.items(), key=lambda item: -item[1])[:count])
  return answers


def assert_same_answers(predictions: SquadPredictions, expected: dict[str, dict[str, float]], score_kind: str) -> None:
  """Compares the n best answers of each question; the names of their scores end in `score_kind`."""
  assert list(predictions.nbest) == list(expected)
  for question, entries in predictions.nbest.items():
    expected_scores = list(expected[question].values())
    assert [entry["text"] for entry in entries] == list(expected[question])
    scores = [entry[f"start_{score_kind}"] + entry[f"end_{score_kind}"] for entry in entries]
    assert scores == pytest.approx(expected_scores, abs=1e-5)
    exponentials = [math.exp(score - max(expected_scores)) for score in expected_scores]
    softmax = [exponential / sum(exponentials) for exponential in exponentials]
    assert [entry["probability"] for entry in entries] == pytest.approx(softmax, abs=1e-6)


def test_v1_finds_the_best_of_all_spans(examples: TokenizedExamples, questions: list[SquadQuestion]) -> None:
  rng = np.random.default_rng(0)
  num_windows = examples.num_examples
  assert num_windows > 2 * len(questions)
  start_logits, end_logits = rng.standard_normal((2, num_windows, MAX_SEQ_LENGTH)).astype(np.float32) * 3
  outputs = {EXAMPLE_INDEX: np.arange(num_windows), "start_logits": start_logits, "end_logits": end_logits}
  expected = best_answers(questions, examples, 6, lambda w, start, end: start_logits[w, start] + end_logits[w, end])
  predictions = find_answers(questions, outputs, examples, n_best_size=6, max_answer_length=MAX_ANSWER_LENGTH)
  assert_same_answers(predictions, expected, "logit")
  assert predictions.answers() == {question: next(iter(answers)) for question, answers in expected.items()}


def outputs_of_v1(end_logits: dict[int, float], start: int) -> dict[str, np.ndarray]:
  """Makes the outputs of v1 for one window: the logits of the last tokens of answers that start at one position."""
  starts, ends = np.full((2, 1, MAX_SEQ_LENGTH), -99, np.float32)
  starts[0, start] = 0
  for end, logit in end_logits.items():
    ends[0, end] = logit
  return {EXAMPLE_INDEX: np.zeros(1, int), "start_logits": starts, "end_logits": ends}


def outputs_of_v2(end_log_probs: dict[int, float], start: int) -> dict[str, np.ndarray]:
  """Makes the outputs of v2 with the scores of outputs_of_v1: one start, and a beam for each end."""
  return {
    EXAMPLE_INDEX: np.zeros(1, int),
    "start_log_probs": np.zeros([1, 1], np.float32),
    "start_positions": np.array([[start]]),
    "end_log_probs": np.array([[list(end_log_probs.values())]], np.float32),
    "end_positions": np.array([[list(end_log_probs)]]),
    "null_logits": np.zeros(1, np.float32),
  }


@pytest.mark.parametrize("version", [1, 2])
def test_a_token_of_one_space_is_not_part_of_an_answer(spm_model: str, version: int) -> None:
  """Before an unknown character there is a token ▁. So two spans give the answer "letter", which counts once."""
  context = "nobody sold the letter \u6771"
  questions = [SquadQuestion("q", 0, "what?", SquadParagraph("t", context))]
  examples = make_examples(spm_model, questions)
  # The positions of the token ▁ before the unknown character, and of the answer's first token.
  space = int(np.flatnonzero(examples.input_ids == Tokenizer(spm_model).pieces.index("▁"))[-1])
  assert examples.input_ids[space + 1 :].tolist() == [UNK_ID, SEP_ID]
  start = int(np.flatnonzero(examples.token_features[CHAR_STARTS] == context.index("letter"))[0])
  # The ends give "letter" with the token of a space, "letter" without it, and "letter \u6771".
  end_scores = {space: 3.0, space - 1: 2.0, space + 1: 1.0}
  outputs = outputs_of_v1(end_scores, start) if version == 1 else outputs_of_v2(end_scores, start)
  predictions = find_answers(questions, outputs, examples, n_best_size=3, max_answer_length=9)
  best, second, *_ = predictions.nbest["q"]
  assert (best["text"], second["text"]) == ("letter", "letter \u6771")
  # "letter" has the score 3, and the only other answer has 1. The score 2 does not reduce the probability.
  assert best["probability"] > math.exp(3) / (math.exp(3) + math.exp(1)) - 1e-6
  assert all(entry["text"] == entry["text"].strip() for entry in predictions.nbest["q"])


def make_beams(
  examples: TokenizedExamples, rng: np.random.Generator, num_starts: int, num_ends: int
) -> dict[str, np.ndarray]:
  """Makes random beams over all positions. Some positions are outside the paragraph, or beyond a short window."""
  shape = (examples.num_examples, num_starts)
  return {
    EXAMPLE_INDEX: np.arange(examples.num_examples),
    "start_log_probs": -rng.exponential(size=shape).astype(np.float32),
    "start_positions": rng.integers(0, MAX_SEQ_LENGTH, shape),
    "end_log_probs": -rng.exponential(size=(*shape, num_ends)).astype(np.float32),
    "end_positions": rng.integers(0, MAX_SEQ_LENGTH, (*shape, num_ends)),
    "null_logits": rng.standard_normal(examples.num_examples).astype(np.float32),
  }


def test_v2_keeps_the_beams_that_are_allowed_spans(examples: TokenizedExamples, questions: list[SquadQuestion]) -> None:
  num_starts, num_ends = 2, 1
  outputs = make_beams(examples, np.random.default_rng(1), num_starts, num_ends)
  beams: dict[tuple[int, ...], float] = {}  # window, first token, last token -> best score
  for window, s, e in np.ndindex(examples.num_examples, num_starts, num_ends):  # s: start, e: end of a beam
    span = (window, int(outputs["start_positions"][window, s]), int(outputs["end_positions"][window, s, e]))
    score = float(outputs["start_log_probs"][window, s] + outputs["end_log_probs"][window, s, e])
    beams[span] = max(score, beams.get(span, -math.inf))
  expected = best_answers(questions, examples, 4, lambda *span: beams.get(span, -math.inf))
  windows = [examples.labels["question_index"] == question.index for question in questions]
  null_odds = {q.id: float(outputs["null_logits"][mine].min()) for q, mine in zip(questions, windows, strict=True)}
  predictions = find_answers(questions, outputs, examples, n_best_size=4, max_answer_length=MAX_ANSWER_LENGTH)
  assert_same_answers(predictions, expected, "log_prob")
  assert predictions.null_odds == null_odds
  assert {len(entries) for entries in predictions.nbest.values()} > {4}  # some questions have fewer allowed beams

  # A question gets its best answer, unless its null odds are above the threshold or it has no allowed beam.
  threshold = float(np.median(list(null_odds.values())))
  expected_answers = {
    question: next(iter(expected[question]), "") if odds <= threshold else "" for question, odds in null_odds.items()
  }
  assert predictions.answers(threshold) == expected_answers


def test_only_questions_with_windows_in_the_outputs_are_answered(
  examples: TokenizedExamples, questions: list[SquadQuestion]
) -> None:
  outputs = make_beams(examples, np.random.default_rng(1), num_starts=9, num_ends=8)
  windows = np.flatnonzero(np.isin(examples.labels["question_index"], [3, 7]))
  outputs_of_two_questions = {name: array[windows] for name, array in outputs.items()}
  limits = {"n_best_size": 4, "max_answer_length": MAX_ANSWER_LENGTH}
  answers_of_two = find_answers(questions, outputs_of_two_questions, examples, **limits).nbest
  answers_of_all = find_answers(questions, outputs, examples, **limits).nbest
  assert list(answers_of_two) == ["q3", "q7"]
  assert answers_of_two == {"q3": answers_of_all["q3"], "q7": answers_of_all["q7"]}


def test_a_paragraph_without_tokens_has_no_answer(spm_model: str) -> None:
  questions = [SquadQuestion("q", 0, "what?", SquadParagraph("t", " \n"))]
  examples = make_examples(spm_model, questions)
  logits = np.zeros((1, MAX_SEQ_LENGTH), np.float32)
  outputs = {EXAMPLE_INDEX: np.zeros(1, int), "start_logits": logits, "end_logits": logits}
  predictions = find_answers(questions, outputs, examples, n_best_size=3, max_answer_length=5)
  assert (predictions.nbest, predictions.answers()) == ({"q": []}, {"q": ""})
