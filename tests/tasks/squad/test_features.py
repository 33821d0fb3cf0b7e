"""Tests of the windows of questions, compared with a simple loop, and of the offsets of answers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from albert.metrics.squad import evaluate_v1
from albert.tasks.squad.data import SquadAnswer, SquadParagraph, SquadQuestion, read_questions
from albert.tasks.squad.features import (
  CHAR_ENDS,
  CHAR_STARTS,
  END_POSITIONS,
  IS_IMPOSSIBLE,
  IS_MAX_CONTEXT,
  P_MASK,
  QUESTION_INDEX,
  START_POSITIONS,
  SquadFeaturizer,
  answer_tokens,
  gold_texts,
  max_context_windows,
  window_starts,
)
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.offsets import OffsetTokenizer, TokensWithOffsets
from albert.tokenization.tokenizer import load_tokenizer
from tests.tasks.squad.question_files import made_up_squad

CLS, SEP = 2, 3


def make_windows(num_tokens: int, room: int, stride: int) -> list[range]:
  """Makes the windows one by one, as ranges of tokens."""
  windows = [range(0, min(room, num_tokens))]
  while windows[-1].stop < num_tokens:
    start = windows[-1].start + min(room, stride)
    windows.append(range(start, min(start + room, num_tokens)))
  return windows


@pytest.mark.parametrize(
  ("num_tokens", "room", "stride"),
  [
    (0, 5, 2),
    (1, 5, 2),
    (5, 5, 2),
    (6, 5, 2),
    (7, 5, 2),
    (8, 5, 2),
    (23, 5, 2),
    (24, 5, 4),
    (23, 5, 9),
    (300, 128, 37),
  ],
)
def test_windows_and_maximum_context(num_tokens: int, room: int, stride: int) -> None:
  windows = make_windows(num_tokens, room, stride)
  starts = window_starts(num_tokens, room, stride)
  assert starts == [window.start for window in windows]
  best = max_context_windows(num_tokens, starts, room)
  for token in range(num_tokens):
    scores = {
      index: min(token - window.start, window.stop - 1 - token) + 0.01 * len(window)
      for index, window in enumerate(windows)
      if token in window
    }
    assert best[token] == max(scores, key=lambda index: scores[index])  # max returns the first of equal windows


def make_answer(context: str, text: str) -> SquadAnswer:
  return SquadAnswer(text, context.index(text))


CONTEXT = (
  "In 1999, the teacher of Ávila described the old garden behind the house; nobody remembered the 12,500 letters."
)


@pytest.fixture
def questions() -> list[SquadQuestion]:
  first, second, empty = (
    SquadParagraph("t", CONTEXT),
    SquadParagraph("t", "a short letter from paris"),
    SquadParagraph("t", " "),
  )
  return [
    SquadQuestion("a", 0, "when did the teacher describe it?", first, (make_answer(CONTEXT, "1999"),)),
    SquadQuestion(
      "b", 1, "how many letters were there in the whole village?", first, (make_answer(CONTEXT, "12,500"),)
    ),
    SquadQuestion(
      "c", 2, "?", first, (make_answer(CONTEXT, "garden behind the house"), make_answer(CONTEXT, "garden"))
    ),
    SquadQuestion("d", 3, "who?", second, (), True),
    SquadQuestion("e", 4, "where from?", second, (make_answer(second.context, "paris"),)),
    SquadQuestion("f", 5, "nothing?", empty, (), True),
  ]


def featurizer(spm_model: str, **changes: int) -> SquadFeaturizer:
  settings = {"max_seq_length": 30, "max_query_length": 8, "doc_stride": 7} | changes
  return SquadFeaturizer(TokenizerConfig(spm_model), **settings)


# Characters that belong to no token: zero-width ones, a byte-order mark, control characters, a combining accent.
WITHOUT_TOKEN = ("\u200b", "\u200d", "\u200e", "\ufeff", "\x00", "\x01", "\x7f", "\u0301")
word = st.lists(st.sampled_from((*WITHOUT_TOKEN, "the", "Ávila", "1999", "ﷺ", "½", "ß", ".")), min_size=1, max_size=5)


@settings(
  max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(word.map("".join), min_size=1, max_size=6), st.sampled_from([" ", "\n\n"]), st.data())
def test_answers_of_whole_words_are_returned_exactly(
  spm_model: str, words: list[str], gap: str, data: st.DataObject
) -> None:
  context = gap.join(words)
  first = data.draw(st.integers(0, len(words) - 1))
  last = data.draw(st.integers(first, len(words) - 1))
  # A word of such characters alone has no token.
  assume(all(set(words[index]).difference(*WITHOUT_TOKEN) for index in (first, last)))
  start = sum(len(text) + len(gap) for text in words[:first])
  answer = SquadAnswer(gap.join(words[first : last + 1]), start)
  tokens = load_tokenizer(TokenizerConfig(spm_model), OffsetTokenizer).encode_with_offsets(context)
  begin, end = answer_tokens(tokens, answer)
  assert context[tokens.starts[begin] : tokens.ends[end]] == answer.text


def test_every_window_equals_a_plain_loop(spm_model: str, questions: list[SquadQuestion]) -> None:
  tokenizer = OffsetTokenizer(spm_model)
  examples = featurizer(spm_model)(questions)
  row = 0
  for question in questions:
    query = tokenizer.encode(question.text)[:8]
    ids, starts, ends = tokenizer.encode_with_offsets(question.paragraph.context)
    windows = make_windows(len(ids), 30 - 3 - len(query), 7)
    best = max_context_windows(len(ids), [window.start for window in windows], 30 - 3 - len(query))
    for index, window in enumerate(windows):
      tokens = slice(examples.token_offsets[row], examples.token_offsets[row + 1])
      part = slice(window.start, window.stop)
      assert examples.input_ids[tokens].tolist() == [CLS, *query, SEP, *ids[part], SEP]
      outside = [0] * (len(query) + 2)
      features = {name: values[tokens].tolist() for name, values in examples.token_features.items()}
      assert features == {
        P_MASK: [0, *[1] * (len(query) + 1), *[0] * len(window), 1],
        CHAR_STARTS: [*outside, *starts[part], 0],
        CHAR_ENDS: [*outside, *ends[part], 0],
        IS_MAX_CONTEXT: [*outside, *(int(best[token] == index) for token in window), 0],
      }
      assert examples.labels[QUESTION_INDEX][row] == question.index
      row += 1
  assert row == examples.num_examples
  assert examples.sequence_lengths.max() == 30
  assert min(np.bincount(examples.labels[QUESTION_INDEX])[:3]) > 5


def test_labels_mark_the_first_answer_in_windows_that_contain_it(
  spm_model: str, questions: list[SquadQuestion]
) -> None:
  examples = featurizer(spm_model)(questions)
  labels = examples.labels
  questions_with_answer = set()
  for window in range(examples.num_examples):
    question = questions[labels[QUESTION_INDEX][window]]
    begin, end = examples.token_offsets[window : window + 2]
    starts, ends = examples.token_features[CHAR_STARTS][begin:end], examples.token_features[CHAR_ENDS][begin:end]
    first, last = labels[START_POSITIONS][window], labels[END_POSITIONS][window]
    if labels[IS_IMPOSSIBLE][window]:
      assert first == last == 0
      for answer in question.answers[:1]:
        assert not ((starts <= answer.start) & (ends > answer.start)).any() or ends.max() < answer.start + len(
          answer.text
        )
    else:
      questions_with_answer.add(question.id)
      assert question.paragraph.context[starts[first] : ends[last]] == question.answers[0].text
      assert examples.token_features[P_MASK][begin + first] == examples.token_features[P_MASK][begin + last] == 0
  assert questions_with_answer == {"a", "b", "c", "e"}
  assert gold_texts(questions, examples) == {0: "1999", 1: "12,500", 2: "garden behind the house", 4: "paris"}


def test_every_token_has_maximum_context_in_exactly_one_window(spm_model: str, questions: list[SquadQuestion]) -> None:
  examples = featurizer(spm_model)(questions)
  windows = np.repeat(np.arange(examples.num_examples), examples.sequence_lengths)
  question_indices = examples.labels[QUESTION_INDEX][windows]
  is_best = examples.token_features[IS_MAX_CONTEXT] == 1
  tokenizer = OffsetTokenizer(spm_model)
  for question in questions:
    tokens = tokenizer.encode_with_offsets(question.paragraph.context)
    char_starts = examples.token_features[CHAR_STARTS][is_best & (question_indices == question.index)]
    assert sorted(char_starts.tolist()) == tokens.starts.tolist()


def test_answers_that_end_inside_a_token_are_labelled_with_the_whole_token() -> None:
  # 'the' 0-3, '' 4-4, 'sixth' 4-9, 'one' 10-13
  tokens = TokensWithOffsets(np.array([5, 6, 7, 8]), np.array([0, 4, 4, 10]), np.array([3, 4, 9, 13]))
  assert answer_tokens(tokens, SquadAnswer("six", 4)) == (2, 2)
  assert answer_tokens(tokens, SquadAnswer("th on", 7)) == (2, 3)
  assert answer_tokens(tokens, SquadAnswer(" sixth ", 3)) == (1, 2)
  assert answer_tokens(tokens, SquadAnswer("the", 0)) == (0, 0)
  assert answer_tokens(tokens, SquadAnswer(" ", 3)) == (1, 1)  # no token overlaps with it, so the next one
  assert answer_tokens(tokens, SquadAnswer("!", 13)) == (3, 3)
  empty = np.zeros(0, np.int32)
  assert answer_tokens(TokensWithOffsets(empty, empty, empty), SquadAnswer("x", 0)) is None


def test_concatenated_chunks_equal_the_whole(spm_model: str, tmp_path: Path) -> None:
  path = made_up_squad(tmp_path / "squad.json", 21)
  questions = read_questions([path], version_2=False, with_answers=True)
  featurize = pickle.loads(pickle.dumps(featurizer(spm_model)))
  whole, parts = featurize(questions), [featurize(questions[:9]), featurize(questions[9:])]
  np.testing.assert_array_equal(whole.input_ids, np.concatenate([part.input_ids for part in parts]))
  for name, values in whole.labels.items():
    np.testing.assert_array_equal(values, np.concatenate([part.labels[name] for part in parts]))
  golds = gold_texts(questions, whole)
  assert {q.index: q.answers[0].text for q in questions} == golds


def test_the_processes_that_make_features_do_not_import_tensorflow() -> None:
  code = "import sys, albert.tasks.squad.features; sys.exit('tensorflow' in sys.modules)"
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="ALBERT_DATA_DIR is not set")
@pytest.mark.parametrize(
  ("name", "version_2", "num_unaligned"),
  [
    pytest.param("squad_v1.1_train_subset", False, 42, marks=pytest.mark.thorough),
    ("xquad.en", False, 1),
    pytest.param("train-v2.0-first10articles", True, 28, marks=pytest.mark.thorough),
    pytest.param("dev-v2.0-first8articles", True, 1, marks=pytest.mark.thorough),
  ],
)
def test_gold_answers_of_real_data_are_returned_unless_they_end_inside_a_word(
  name: str, version_2: bool, num_unaligned: int
) -> None:
  data = Path(os.environ["ALBERT_DATA_DIR"])
  questions = read_questions([str(data / "squad" / f"{name}.json")], version_2=version_2, with_answers=True)
  vocabulary = str(data / "vocab" / "30k-clean.model")
  golds = gold_texts(questions, SquadFeaturizer(TokenizerConfig(vocabulary), 384, 64, 128)(questions))
  answerable = [question for question in questions if question.answers]
  assert len(golds) == len(answerable)
  unaligned = [
    (question.answers[0], golds[question.index], question.paragraph.context)
    for question in answerable
    if evaluate_v1({"id": [question.answers[0].text]}, {"id": golds[question.index]})["exact"] < 100
  ]
  assert len(unaligned) == num_unaligned
  for answer, label_text, context in unaligned:
    end = answer.start + len(answer.text)
    assert answer.text in label_text
    assert context[answer.start - 1 : answer.start + 1].isalnum() or context[end - 1 : end + 1].isalnum()
