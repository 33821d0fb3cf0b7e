"""Windows of tagged texts, against a simple loop, and the way back from outputs to words."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

from albert.tasks.squad.features import cut_windows
from albert.tasks.tagging.features import TEXT_INDEX, WORD_NUMBERS, WORD_TAGS, TaggingFeaturizer
from albert.tasks.tagging.files import TaggedText, TaggingData
from albert.tasks.tagging.flags import TaggingConfig
from albert.tasks.tagging.results import compute_metrics, log_probabilities_of_words, predict_tags
from albert.tasks.tagging.schemes import SCHEMES, Span
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import CLS_ID, SEP_ID, TokenizerConfig
from albert.tokenization.words import split_words
from tests.tasks.tagging.word_files import make_up_sentences
from tests.tokenization.byte_bpe_reference import write_vocabulary

TAGS = SCHEMES["BIO"].tags(["LOC", "PER"])
# Without pieces: a combining character alone.
NO_PIECES = "\u0301"


@pytest.fixture
def featurizer(spm_model: str) -> TaggingFeaturizer:
  return TaggingFeaturizer(TokenizerConfig(spm_model), 16, 5, SCHEMES["BIO"], TAGS)


@pytest.fixture
def texts() -> list[TaggedText]:
  sentences = make_up_sentences(4, seed=5, max_words=14)
  sentences.insert(2, ([], []))
  sentences.append((["old", NO_PIECES, "bread"], []))
  sentences.append(([NO_PIECES], []))
  return [TaggedText(index, "", words, spans) for index, (words, spans) in enumerate(sentences)]


def test_each_word_is_labeled_once_at_its_first_piece_in_the_window_with_most_context(
  featurizer: TaggingFeaturizer, texts: list[TaggedText]
) -> None:
  examples = pickle.loads(pickle.dumps(featurizer))(texts)
  tokenizer = load_tokenizer(featurizer.tokenizer_config)
  sequence = 0
  num_windows_of_texts = []
  for text in texts:
    pieces = [(piece, number, index) for number, word in enumerate(text.words)
              for index, piece in enumerate(tokenizer.encode(word))]  # fmt: skip
    tags = SCHEMES["BIO"].tags_of_spans(text.spans, len(text.words))
    windows = list(cut_windows(len(pieces), featurizer.max_seq_length - 2, featurizer.doc_stride))
    num_windows_of_texts.append(len(windows))
    for window, is_best in windows:
      tokens = slice(examples.token_offsets[sequence], examples.token_offsets[sequence + 1])
      part = pieces[window]
      assert examples.input_ids[tokens].tolist() == [CLS_ID, *(piece for piece, _, _ in part), SEP_ID]
      numbers = [
        1 + number if index == 0 and best else 0 for (_, number, index), best in zip(part, is_best, strict=True)
      ]
      assert examples.token_features[WORD_NUMBERS][tokens].tolist() == [0, *numbers, 0]
      expected_tags = [1 + TAGS.index(tags[number - 1]) if number else 0 for number in numbers]
      assert examples.token_features[WORD_TAGS][tokens].tolist() == [0, *expected_tags, 0]
      assert examples.labels[TEXT_INDEX][sequence] == text.index
      sequence += 1
  assert sequence == examples.num_examples
  assert max(num_windows_of_texts) > 2
  assert num_windows_of_texts[2] == num_windows_of_texts[-1] == 1  # [CLS] [SEP]


def test_outputs_of_windows_come_back_to_their_words(featurizer: TaggingFeaturizer, texts: list[TaggedText]) -> None:
  examples = featurizer(texts)
  # The output at a token says which text and which word it is.
  outputs = np.full((examples.num_examples, featurizer.max_seq_length, len(TAGS)), np.nan, np.float32)
  expected = []
  for example in range(examples.num_examples):
    tokens = slice(examples.token_offsets[example], examples.token_offsets[example + 1])
    for position, number in enumerate(examples.token_features[WORD_NUMBERS][tokens]):
      if number:
        outputs[example, position] = 1000 * examples.labels[TEXT_INDEX][example] + number
  order = np.arange(examples.num_examples)
  found, values, lengths = log_probabilities_of_words(outputs, order, examples, texts)
  for text in texts:
    expected += [0.0 if word == NO_PIECES else 1000 * text.index + 1 + i for i, word in enumerate(text.words)]
  assert (found, lengths.tolist()) == (texts, [len(text.words) for text in texts])
  np.testing.assert_array_equal(values, np.repeat(np.array(expected)[:, None], len(TAGS), axis=1))
  # The windows of two texts only.
  some = np.flatnonzero(np.isin(examples.labels[TEXT_INDEX], [1, 5]))
  found, values, lengths = log_probabilities_of_words(outputs[some], some, examples, texts)
  assert found == [texts[1], texts[5]]
  assert values[:, 0].tolist() == [*(1001.0 + i for i in range(lengths[0])), 5001.0, 0.0, 5003.0]


def test_the_probability_of_a_span_is_the_product_of_those_of_its_words(featurizer: TaggingFeaturizer) -> None:
  text = TaggedText(0, "", ["Lake", "Garda", "sold"])
  examples = featurizer([text])
  probabilities = np.array([[0.1, 0.6, 0.1, 0.1, 0.1], [0.2, 0.1, 0.5, 0.1, 0.1], [0.8, 0.05, 0.05, 0.05, 0.05]])
  outputs = np.zeros((1, examples.sequence_lengths[0], len(TAGS)))
  for position, number in enumerate(examples.token_features[WORD_NUMBERS]):
    if number:
      outputs[0, position] = np.log(probabilities[number - 1])
  (prediction,) = predict_tags(
    {"log_probabilities": outputs, "example_index": np.array([0])}, examples, [text], SCHEMES["BIO"], TAGS
  )
  assert prediction.tags == ["B-LOC", "I-LOC", "O"]
  (span,) = prediction.json_spans()
  assert span == {"start": 0, "end": 2, "label": "LOC", "text": "Lake Garda", "probability": pytest.approx(0.3)}
  # Correct is "Lake" alone: of the tags B-LOC O O the second one is wrong, and so is the span.
  gold = dataclasses.replace(text, spans=[Span(0, 1, "LOC")])
  data = TaggingData(TaggingConfig(labels="LOC,PER"))
  metrics = compute_metrics([prediction._replace(text=gold)], data)
  zeros = dict.fromkeys(("precision", "recall", "f1", "f1_LOC", "f1_PER"), 0.0)
  assert metrics == {**zeros, "accuracy": 2 / 3, "majority_accuracy": 2 / 3}


@pytest.mark.parametrize(
  ("text", "same_ids_as"),
  [
    ("The captain sold a letter.", "The captain sold a letter."),
    (" \n The\t captain \u3000(sold), a", "The captain (sold), a"),
    ("captains captains,captains. captains", "captains captains,captains. captains"),
    ("captains", "captains"),
    (" ", ""),
  ],
)
def test_words_of_byte_level_bpe_have_the_ids_that_they_have_in_the_text(
  tmp_path: Path, text: str, same_ids_as: str
) -> None:
  """A word after whitespace has the pieces of a word after one space, as in pretraining."""
  config = TokenizerConfig(write_vocabulary(tmp_path))
  featurizer = TaggingFeaturizer(config, 64, 9, SCHEMES["BIO"], TAGS)
  tokenizer = load_tokenizer(config)
  special = tokenizer.special_ids
  ranges = split_words(text)
  words = [text[start:end] for start, end in ranges]
  examples = featurizer([TaggedText(0, "", words, (), text, ranges)])
  assert examples.input_ids.tolist() == [special.cls, *tokenizer.encode(same_ids_as), special.sep]
  of_words = featurizer([TaggedText(0, "", words)])  # the words without the text have spaces between them
  assert of_words.input_ids.tolist() == [special.cls, *tokenizer.encode(" ".join(words)), special.sep]
