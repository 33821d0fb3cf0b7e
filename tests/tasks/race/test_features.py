"""Tests of the sequences of options, compared with those of a simple loop."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from albert.tasks.race.data import ChoiceQuestion, find_passages, read_questions
from albert.tasks.race.features import LABEL_IDS, RaceFeaturizer, with_option
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.tokenizer import Tokenizer
from tests.tasks.race.folders import made_up_race


@pytest.mark.parametrize(
  ("question", "option", "text"),
  [
    ("Why?", "rain", "Why? rain"),
    ("She took _ .", "the bus", "She took the bus ."),
    ("_ and ___ came", "a; b", "a; b and a; b came"),
    ("it _", r"\1 \g<0>", r"it \1 \g<0>"),
    ("", "x", " x"),
  ],
)
def test_the_option_replaces_the_blank(question: str, option: str, text: str) -> None:
  assert with_option(question, option) == text


def test_the_article_is_truncated_at_its_end_and_the_question_at_its_start(spm_model: str) -> None:
  article = "the teacher remembered the garden behind the house"
  long = "why did the old captain of the village carry an orange umbrella and"
  questions = [
    ChoiceQuestion("a", article, "who?", ("nobody", "the teacher", long), 1),
    ChoiceQuestion("b", "", long, ("a", "b")),
    ChoiceQuestion("c", article, f"{long} _ {long}", ("x", "y"), 1),
  ]
  tokenizer = Tokenizer(spm_model)
  examples = RaceFeaturizer(TokenizerConfig(spm_model), 24, 15)(questions)
  assert examples.sequence_counts.tolist() == [3, 2, 2]
  assert examples.labels[LABEL_IDS].tolist() == [1, 0, 1]
  sequence = 0
  for question in questions:
    for option in question.options:
      tokens = examples.input_ids[examples.token_offsets[sequence] : examples.token_offsets[sequence + 1]].tolist()
      question_ids = tokenizer.encode(with_option(question.text, option))[-15:]
      article_ids = tokenizer.encode(question.article)[: 24 - 3 - len(question_ids)]
      assert tokens == [2, *article_ids, 3, *question_ids, 3]
      assert len(tokens) <= 24
      sequence += 1
  assert sequence == len(examples.sequence_lengths)


def test_a_question_that_fills_the_sequence_leaves_no_room_for_the_article(spm_model: str) -> None:
  question = ChoiceQuestion("a", "the garden", "who watched the river and the bridge?", ("nobody", "the captain"), 0)
  examples = RaceFeaturizer(TokenizerConfig(spm_model), 9, 128)([question])
  question_ids = Tokenizer(spm_model).encode("who watched the river and the bridge? nobody")
  assert examples.input_ids[:9].tolist() == [2, 3, *question_ids[-6:], 3]


def test_concatenated_chunks_equal_the_whole(spm_model: str, tmp_path: Path) -> None:
  questions = read_questions(find_passages(made_up_race(tmp_path, 4, sets=("dev",)) + "/dev", "--x"), with_answers=True)
  featurize = pickle.loads(pickle.dumps(RaceFeaturizer(TokenizerConfig(spm_model), 64, 32)))
  whole, parts = featurize(questions), [featurize(questions[:5]), featurize(questions[5:])]
  np.testing.assert_array_equal(whole.input_ids, np.concatenate([part.input_ids for part in parts]))
  np.testing.assert_array_equal(whole.sequence_lengths, np.concatenate([part.sequence_lengths for part in parts]))


def test_the_processes_that_make_features_do_not_import_tensorflow() -> None:
  code = "import sys, albert.tasks.race.features; sys.exit('tensorflow' in sys.modules)"
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
