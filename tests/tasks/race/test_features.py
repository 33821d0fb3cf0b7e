"""Tests of RACE's features, compared with those of a simple loop, and of its accuracies, computed by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from albert.tasks.predictions import Predictions
from albert.tasks.race.features import LABEL_IDS, RaceFeaturizer, with_option
from albert.tasks.race.files import ChoiceQuestion
from albert.tasks.race.results import compute_metrics
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import CLS_ID, SEP_ID, TokenizerConfig


@pytest.mark.parametrize(
  ("question", "option", "text"),
  [
    ("Why?", "rain", "Why? rain"),
    ("She took _ .", "the bus", "She took the bus ."),
    ("_ and ___ came", "a; b", "a; b and a; b came"),
    ("it _", r"\1 \g<0>", r"it \1 \g<0>"),
  ],
)
def test_the_option_replaces_the_blank(question: str, option: str, text: str) -> None:
  assert with_option(question, option) == text


def test_the_article_is_truncated_at_its_end_and_the_question_at_its_start(spm_model: str) -> None:
  article = "the teacher remembered the garden behind the house"
  long_question = "why did the old captain of the village carry an orange umbrella and"
  questions = [
    ChoiceQuestion("a", article, "who?", ("nobody", "the teacher", long_question), 1),
    ChoiceQuestion("b", "", long_question, ("a", "b")),
    ChoiceQuestion("c", article, f"{long_question} _ {long_question}", ("x", "y"), 1),
  ]
  tokenizer = Tokenizer(spm_model)
  max_seq_length, max_qa_length = 24, 15
  featurizer = RaceFeaturizer(TokenizerConfig(spm_model), max_seq_length, max_qa_length)
  examples = pickle.loads(pickle.dumps(featurizer))(questions)  # as in a worker process
  assert examples.sequence_counts.tolist() == [3, 2, 2]
  assert examples.labels[LABEL_IDS].tolist() == [1, 0, 1]  # question b has no answer
  expected = []
  num_cut: dict[str, int] = {}
  for question in questions:
    for option in question.options:
      question_ids = tokenizer.encode(with_option(question.text, option))[-max_qa_length:]
      article_ids = tokenizer.encode(question.article)[: max_seq_length - 3 - len(question_ids)]
      expected.append([CLS_ID, *article_ids, SEP_ID, *question_ids, SEP_ID])
      texts = (question.article, with_option(question.text, option))
      num_tokens = sum(len(tokenizer.encode(text)) for text in texts)
      num_cut[question.id] = max(num_cut.get(question.id, 0), num_tokens - len(article_ids) - len(question_ids))
  assert max(len(sequence) for sequence in expected) == max_seq_length
  assert examples.sequence_lengths.tolist() == [len(sequence) for sequence in expected]
  assert examples.cut_tokens.tolist() == list(num_cut.values())
  assert all(num_cut.values())
  assert examples.input_ids.tolist() == [token for sequence in expected for token in sequence]


def test_a_question_that_fills_the_sequence_leaves_no_room_for_the_article(spm_model: str) -> None:
  question = ChoiceQuestion("a", "the garden", "who watched the river and the bridge?", ("nobody", "the captain"), 0)
  examples = RaceFeaturizer(TokenizerConfig(spm_model), max_seq_length=9, max_qa_length=128)([question])
  question_ids = Tokenizer(spm_model).encode("who watched the river and the bridge? nobody")
  assert examples.input_ids[:9].tolist() == [CLS_ID, SEP_ID, *question_ids[-6:], SEP_ID]


NAN = np.nan


def make_predictions(ids: list[str]) -> Predictions:
  """Makes predictions for four questions with three or two options. Only the second prediction is wrong."""
  scores = np.array([[0.7, 0.2, 0.1], [0.4, 0.6, NAN], [0.1, 0.2, 0.7], [0.5, 0.5, NAN]])
  return Predictions(ids, ("A", "B", "C"), scores, np.array([0, 0, 2, 0]))


def test_accuracies_overall_of_each_level_and_of_guessing() -> None:
  metrics = compute_metrics(make_predictions(["middle1.txt-0", "high1.txt-0", "high/asc00001.txt-1", "high2.txt-0"]))
  expected = {"accuracy": 3 / 4, "middle_accuracy": 1.0, "high_accuracy": 2 / 3}
  assert metrics == pytest.approx(expected | {"guessing_accuracy": (1 / 3 + 1 / 2 + 1 / 3 + 1 / 2) / 4})
  own_questions = make_predictions(["own", "b", "high-school", "high"])  # their ids give no level
  assert set(compute_metrics(own_questions)) == {"accuracy", "guessing_accuracy"}
