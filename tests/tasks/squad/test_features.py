"""Tests of the features of SQuAD: windows, compared with those of a simple loop, and the tokens of answers."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from albert.metrics.squad import evaluate_v1
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
  cut_windows,
  gold_texts,
)
from albert.tasks.squad.files import SquadAnswer, SquadData, SquadParagraph, SquadQuestion, read_questions
from albert.tasks.squad.flags import SquadConfig
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary import CLS_ID, SEP_ID, TokenizerConfig, TokensWithOffsets

MAX_SEQ_LENGTH = 30
MAX_QUERY_LENGTH = 8
DOC_STRIDE = 7


def make_windows(num_tokens: int, window_size: int, stride: int) -> list[range]:
  """Makes the windows one by one, as ranges of tokens."""
  windows = [range(0, min(window_size, num_tokens))]
  while windows[-1].stop < num_tokens:
    start = windows[-1].start + min(window_size, stride)
    windows.append(range(start, min(start + window_size, num_tokens)))
  return windows


@pytest.mark.parametrize(
  ("num_tokens", "window_size", "stride"),
  [*((tokens, 5, 2) for tokens in (0, 1, 5, 6, 7, 8, 23)), (24, 5, 4), (23, 5, 9), (300, 128, 37)],
)
def test_windows_and_the_window_of_maximum_context_equal_a_plain_loop(
  num_tokens: int, window_size: int, stride: int
) -> None:
  windows = make_windows(num_tokens, window_size, stride)
  found = list(cut_windows(num_tokens, window_size, stride))
  assert [range(num_tokens)[part] for part, _ in found] == windows
  for token in range(num_tokens):
    # The score of a window is the number of its tokens before or after the token, whichever is smaller. A hundredth of
    # the window's length is added, as in BERT's code, so that of equal windows the longer one wins.
    scores = {
      index: min(token - window.start, window.stop - 1 - token) + 0.01 * len(window)
      for index, window in enumerate(windows)
      if token in window
    }
    has_most_context = [index for index in scores if found[index][1][token - windows[index].start]]
    assert has_most_context == [max(scores, key=lambda index: scores[index])]  # the first of equal windows


def make_answer(context: str, text: str) -> SquadAnswer:
  return SquadAnswer(text, context.index(text))


CONTEXT = (
  "In 1999, the teacher of Ávila described the old garden behind the house; nobody remembered the 12,500 letters."
)


@pytest.fixture
def questions() -> list[SquadQuestion]:
  """Questions about a long paragraph (a to c), a short one (d and e) and one without tokens (f)."""
  long_paragraph = SquadParagraph("t", CONTEXT)
  short_paragraph = SquadParagraph("t", "a short letter from paris")
  empty_paragraph = SquadParagraph("t", " ")
  garden_answers = (make_answer(CONTEXT, "garden behind the house"), make_answer(CONTEXT, "garden"))
  return [
    SquadQuestion("a", 0, "when did the teacher describe it?", long_paragraph, (make_answer(CONTEXT, "1999"),)),
    SquadQuestion(
      "b", 1, "how many letters were there in the whole village?", long_paragraph, (make_answer(CONTEXT, "12,500"),)
    ),
    SquadQuestion("c", 2, "?", long_paragraph, garden_answers),
    SquadQuestion("d", 3, "who?", short_paragraph),
    SquadQuestion("e", 4, "where from?", short_paragraph, (make_answer(short_paragraph.context, "paris"),)),
    SquadQuestion("f", 5, "nothing?", empty_paragraph),
  ]


def make_featurizer(spm_model: str) -> SquadFeaturizer:
  return SquadFeaturizer(TokenizerConfig(spm_model), MAX_SEQ_LENGTH, MAX_QUERY_LENGTH, DOC_STRIDE)


# Characters that belong to no token: zero-width ones, a byte-order mark, control characters, a combining accent.
CHARACTERS_WITHOUT_TOKEN = ("\u200b", "\u200d", "\u200e", "\ufeff", "\x00", "\x01", "\x7f", "\u0301")
word_parts_strategy = st.sampled_from((*CHARACTERS_WITHOUT_TOKEN, "the", "Ávila", "1999", "ﷺ", "½", "ß", "."))
words_strategy = st.lists(word_parts_strategy, min_size=1, max_size=5).map("".join)


@settings(
  max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(words_strategy, min_size=1, max_size=6), st.sampled_from([" ", "\n\n"]), st.data())
def test_the_tokens_of_an_answer_of_whole_words_give_its_exact_text(
  spm_model: str, words: list[str], gap: str, data: st.DataObject
) -> None:
  first_word = data.draw(st.integers(0, len(words) - 1))
  last_word = data.draw(st.integers(first_word, len(words) - 1))
  # A word has no token if all its characters are in CHARACTERS_WITHOUT_TOKEN.
  assume(all(set(words[index]).difference(*CHARACTERS_WITHOUT_TOKEN) for index in (first_word, last_word)))
  answer_start = sum(len(text) + len(gap) for text in words[:first_word])
  answer = SquadAnswer(gap.join(words[first_word : last_word + 1]), answer_start)
  context = gap.join(words)
  tokens = load_tokenizer(TokenizerConfig(spm_model)).encode_with_offsets(context)
  first_token, last_token = answer_tokens(tokens, answer)
  assert context[tokens.starts[first_token] : tokens.ends[last_token]] == answer.text


def test_every_window_equals_a_plain_loop(spm_model: str, questions: list[SquadQuestion]) -> None:
  tokenizer = Tokenizer(spm_model)
  examples = make_featurizer(spm_model)(questions)
  # Positions of tokens: `window` counts in the paragraph, `row_tokens` in all concatenated sequences.
  row = 0  # index of the window among those of all questions
  for question in questions:
    query = tokenizer.encode(question.text)[:MAX_QUERY_LENGTH]
    ids, char_starts, char_ends = tokenizer.encode_with_offsets(question.paragraph.context)
    window_size = MAX_SEQ_LENGTH - 3 - len(query)  # [CLS] query [SEP] window [SEP]
    for window_tokens, is_best in cut_windows(len(ids), window_size, DOC_STRIDE):
      row_tokens = slice(examples.token_offsets[row], examples.token_offsets[row + 1])
      assert examples.input_ids[row_tokens].tolist() == [CLS_ID, *query, SEP_ID, *ids[window_tokens], SEP_ID]
      zeros_before = [0] * (len(query) + 2)  # for [CLS], the query and [SEP]
      features = {name: array[row_tokens].tolist() for name, array in examples.token_features.items()}
      assert features == {  # P_MASK is 1 where an answer may not be
        P_MASK: [0, *[1] * (len(query) + 1), *[0] * len(is_best), 1],
        CHAR_STARTS: [*zeros_before, *char_starts[window_tokens], 0],
        CHAR_ENDS: [*zeros_before, *char_ends[window_tokens], 0],
        IS_MAX_CONTEXT: [*zeros_before, *map(int, is_best), 0],
      }
      assert examples.labels[QUESTION_INDEX][row] == question.index
      assert examples.cut_tokens[row] == len(tokenizer.encode(question.text)) - len(query)
      row += 1
  assert row == examples.num_examples
  assert examples.sequence_lengths.max() == MAX_SEQ_LENGTH
  num_windows = np.bincount(examples.labels[QUESTION_INDEX])  # of each question
  assert min(num_windows[:3]) > 5  # the first three questions are about the long paragraph
  config = SquadConfig(max_seq_length=MAX_SEQ_LENGTH, max_query_length=MAX_QUERY_LENGTH, doc_stride=DOC_STRIDE)
  data = SquadData(dataclasses.replace(config, spm_model_file=spm_model))
  data._rows["train"] = questions
  assert data.estimate_examples() == row  # what a dry run says


def test_labels_mark_the_first_answer_in_windows_that_contain_it(
  spm_model: str, questions: list[SquadQuestion]
) -> None:
  examples = make_featurizer(spm_model)(questions)
  labels = examples.labels
  questions_with_answer = set()
  for window in range(examples.num_examples):
    question = questions[labels[QUESTION_INDEX][window]]
    sequence_begin, sequence_end = examples.token_offsets[window : window + 2]
    features = {name: array[sequence_begin:sequence_end] for name, array in examples.token_features.items()}
    char_starts, char_ends = features[CHAR_STARTS], features[CHAR_ENDS]  # offsets in the paragraph
    # Positions of the answer's tokens in the sequence; 0 is [CLS].
    first_position, last_position = labels[START_POSITIONS][window], labels[END_POSITIONS][window]
    if labels[IS_IMPOSSIBLE][window]:
      assert first_position == last_position == 0
      for answer in question.answers[:1]:
        contains_start = ((char_starts <= answer.start) & (char_ends > answer.start)).any()
        contains_end = char_ends.max() >= answer.start + len(answer.text)
        assert not (contains_start and contains_end)
    else:
      questions_with_answer.add(question.id)
      assert (
        question.paragraph.context[char_starts[first_position] : char_ends[last_position]] == question.answers[0].text
      )
      assert features[P_MASK][first_position] == features[P_MASK][last_position] == 0
  assert questions_with_answer == {"a", "b", "c", "e"}
  assert gold_texts(questions, examples) == {0: "1999", 1: "12,500", 2: "garden behind the house", 4: "paris"}


def test_answers_that_end_inside_a_token_are_labelled_with_the_whole_token() -> None:
  # The tokens of "the sixth one" and their characters: 'the' 0 to 3, '' 4 to 4, 'sixth' 4 to 9, 'one' 10 to 13.
  tokens = TokensWithOffsets(ids=np.array([5, 6, 7, 8]), starts=np.array([0, 4, 4, 10]), ends=np.array([3, 4, 9, 13]))
  assert answer_tokens(tokens, SquadAnswer("six", 4)) == (2, 2)
  assert answer_tokens(tokens, SquadAnswer("th on", 7)) == (2, 3)
  assert answer_tokens(tokens, SquadAnswer(" sixth ", 3)) == (1, 2)
  assert answer_tokens(tokens, SquadAnswer("the", 0)) == (0, 0)
  assert answer_tokens(tokens, SquadAnswer(" ", 3)) == (1, 1)  # no token overlaps with it, so the next one
  assert answer_tokens(tokens, SquadAnswer("!", 13)) == (3, 3)
  no_tokens = np.zeros(0, np.int32)
  assert answer_tokens(TokensWithOffsets(no_tokens, no_tokens, no_tokens), SquadAnswer("x", 0)) is None


def test_chunks_of_questions_give_the_same_examples_as_all_questions_at_once(
  spm_model: str, questions: list[SquadQuestion]
) -> None:
  featurize = pickle.loads(pickle.dumps(make_featurizer(spm_model)))  # as in a worker process
  examples, chunks = featurize(questions), [featurize(questions[:2]), featurize(questions[2:])]
  np.testing.assert_array_equal(examples.input_ids, np.concatenate([chunk.input_ids for chunk in chunks]))
  for name, labels in examples.labels.items():
    np.testing.assert_array_equal(labels, np.concatenate([chunk.labels[name] for chunk in chunks]))


@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="ALBERT_DATA_DIR is not set")
@pytest.mark.parametrize(
  ("file_name", "version_2", "num_unaligned"),
  [
    pytest.param("squad_v1.1_train_subset", False, 42, marks=pytest.mark.thorough),
    ("xquad.en", False, 1),
    pytest.param("train-v2.0-first10articles", True, 28, marks=pytest.mark.thorough),
    pytest.param("dev-v2.0-first8articles", True, 1, marks=pytest.mark.thorough),
  ],
)
def test_gold_answers_of_real_data_are_returned_unless_they_end_inside_a_word(
  file_name: str, version_2: bool, num_unaligned: int
) -> None:
  data_dir = Path(os.environ["ALBERT_DATA_DIR"])
  questions = read_questions([str(data_dir / "squad" / f"{file_name}.json")], version_2=version_2, with_answers=True)
  tokenizer_config = TokenizerConfig(str(data_dir / "vocab" / "30k-clean.model"))
  featurizer = SquadFeaturizer(tokenizer_config, max_seq_length=384, max_query_length=64, doc_stride=128)
  label_texts = gold_texts(questions, featurizer(questions))
  answerable = [question for question in questions if question.answers]
  assert len(label_texts) == len(answerable)
  actual_num_unaligned = 0
  for question in answerable:
    answer, label_text, context = question.answers[0], label_texts[question.index], question.paragraph.context
    if evaluate_v1({"id": [answer.text]}, {"id": label_text})["exact"] == 100:
      continue
    actual_num_unaligned += 1
    assert answer.text in label_text
    end = answer.start + len(answer.text)
    starts_inside_word = context[answer.start - 1 : answer.start + 1].isalnum()
    ends_inside_word = context[end - 1 : end + 1].isalnum()
    assert starts_inside_word or ends_inside_word
  assert actual_num_unaligned == num_unaligned
