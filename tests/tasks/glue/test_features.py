"""Tests of the features of texts, pairs and candidates, compared with the tokenizer and with others."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from albert.data.examples import TokenizedExamples
from albert.tasks.glue.features import RankingFeaturizer, TextFeaturizer
from albert.tasks.glue.files import TextRows, with_candidates
from albert.tasks.glue.model import TextTask
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import CLS_ID, SEP_ID, UNK_ID, TokenizerConfig
from tests.conftest import english_like_documents
from tests.tasks.glue.conftest import MakeTask

NUM_ROWS = 40
FIRST_TEXTS = [" ".join(document) for document in english_like_documents(NUM_ROWS, seed=2)]
SECOND_TEXTS = ["", *reversed(FIRST_TEXTS[1:])]
MAX_SEQ_LENGTH = 45


def make_rows(labels: np.ndarray, second: list[str] | None = SECOND_TEXTS) -> TextRows:
  texts = [FIRST_TEXTS] if second is None else [FIRST_TEXTS, second]
  return TextRows([str(i) for i in range(NUM_ROWS)], texts, labels)


def split_sequences(examples: TokenizedExamples) -> list[list[int]]:
  ends = np.cumsum(examples.sequence_lengths)
  return [sequence.tolist() for sequence in np.split(examples.input_ids, ends[:-1])]


def test_pairs_lose_the_last_tokens_of_the_longer_text(spm_model: str) -> None:
  rows = make_rows(np.arange(NUM_ROWS, dtype=np.int32) % 3)
  featurizer = pickle.loads(pickle.dumps(TextFeaturizer(TokenizerConfig(spm_model), MAX_SEQ_LENGTH)))
  examples = featurizer(rows)
  tokenizer = Tokenizer(spm_model)
  expected = []
  for first_text, second_text in zip(FIRST_TEXTS, SECOND_TEXTS, strict=True):
    first_ids, second_ids = tokenizer.encode(first_text), tokenizer.encode(second_text)
    while len(first_ids) + len(second_ids) > MAX_SEQ_LENGTH - 3:
      longer_ids = first_ids if len(first_ids) > len(second_ids) else second_ids
      longer_ids.pop()
    expected.append([CLS_ID, *first_ids, SEP_ID, *second_ids, SEP_ID])
  assert split_sequences(examples) == expected
  assert examples.sequence_counts.tolist() == [1] * NUM_ROWS
  num_tokens = [len(tokenizer.encode(a)) + len(tokenizer.encode(b)) for a, b in zip(*rows.texts, strict=True)]
  assert examples.cut_tokens.tolist() == [max(0, number - MAX_SEQ_LENGTH + 3) for number in num_tokens]
  assert np.any(examples.cut_tokens)
  assert examples.labels["label_ids"].tolist() == rows.labels.tolist()


def test_single_texts_lose_their_last_tokens_and_keep_their_scores(spm_model: str) -> None:
  rows = make_rows(np.linspace(0, 5, NUM_ROWS, dtype=np.float32), second=None)
  examples = TextFeaturizer(TokenizerConfig(spm_model), MAX_SEQ_LENGTH)(rows)
  tokenizer = Tokenizer(spm_model)
  expected = [[CLS_ID, *tokenizer.encode(text)[: MAX_SEQ_LENGTH - 2], SEP_ID] for text in FIRST_TEXTS]
  assert split_sequences(examples) == expected
  np.testing.assert_array_equal(examples.labels["scores"], rows.labels)
  num_tokens = [len(tokenizer.encode(text)) for text in FIRST_TEXTS]
  assert examples.cut_tokens.tolist() == [max(0, number - MAX_SEQ_LENGTH + 2) for number in num_tokens]


def test_ranking_examples_have_a_sequence_for_each_candidate(spm_model: str) -> None:
  texts = [["Who sold it?", "And the garden?"], ["Nobody sold it.", "Yes."]]
  rows = TextRows(["a", "b"], texts, np.array([0, 1], np.int32), [["The captain."], []])
  pair_featurizer = TextFeaturizer(TokenizerConfig(spm_model), MAX_SEQ_LENGTH)
  examples = RankingFeaturizer(TokenizerConfig(spm_model), MAX_SEQ_LENGTH, right_class=0)(rows[:])
  pairs = [["Who sold it?", "Who sold it?", "And the garden?"], ["Nobody sold it.", "The captain.", "Yes."]]
  expected = pair_featurizer(TextRows(["", "", ""], pairs, np.zeros(3, np.int32)))
  np.testing.assert_array_equal(examples.input_ids, expected.input_ids)
  np.testing.assert_array_equal(examples.sequence_lengths, expected.sequence_lengths)
  assert examples.sequence_counts.tolist() == [2, 1]
  assert examples.labels["is_right"].tolist() == [1, 0]


def make_pairs(*pairs: tuple[str, str]) -> TextRows:
  texts = [list(column) for column in zip(*pairs, strict=True)]
  return TextRows([str(i) for i in range(len(pairs))], texts, np.zeros(len(pairs), np.int32))


def test_sentences_of_the_same_question_are_candidates() -> None:
  rows = make_pairs(("Who?", "Nobody."), ("Who?", "The captain."), ("When?", "At noon."), ("Why?", "So."))
  with_others = with_candidates(rows)
  assert list(with_others.candidates) == [["The captain."], ["Nobody."], [], []]
  assert with_others[1:3].candidates == [["Nobody."], []]
  assert with_others[1:3].ids == ["1", "2"]


def test_sentences_of_another_file_are_candidates_too() -> None:
  rows = make_pairs(("When?", "At noon."), ("Why?", "So."))
  more_rows = make_pairs(("When?", "In March."), ("Where?", "Here."), ("Why?", "So."))
  assert list(with_candidates(rows, more_rows).candidates) == [["In March."], []]


def test_at_most_seven_other_candidates_are_kept() -> None:
  rows = make_pairs(*(("Who?", f"Number {i}.") for i in range(10)))
  assert with_candidates(rows).candidates[9] == [f"Number {i}." for i in range(7)]


def test_unknown_characters_give_a_warning(
  make_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  path = tmp_path / "train.tsv"
  path.write_text("text\tlabel\n老师了\t0\nthe river\t1\n")
  task = make_task(train_file=str(path))
  ids = task.sets.examples("train").input_ids.tolist()
  share = ids.count(UNK_ID) / (len(ids) - ids.count(CLS_ID) - ids.count(SEP_ID))
  warning = capsys.readouterr().err.splitlines()[-1]
  assert warning.startswith(f"warning: {path}: {share:.1%} of the tokens are <unk>, since characters of this")
  assert ", such as '老' (U+8001), '师' (U+5E08), '了' (U+4E86): give weights and their vocabulary" in warning
  TextTask(task.model_config, task.data).sets.examples("train")
  assert "<unk>" not in capsys.readouterr().err  # once for each file, also if it is read for several predictions
