"""SentencePieceOffsetGraphTokenizer, which runs in the TensorFlow graph, gives the ids and offsets of Tokenizer.

The last tests are of vocabularies with pieces for the bytes of characters that they lack (byte fallback).
"""

from __future__ import annotations

import random
import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.sentence_piece_graph import SentencePieceOffsetGraphTokenizer
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import TokenizerConfig
from tests.conftest import PieceType, SaveModel, english_like_documents, train_small_model
from tests.thorough import thorough_except
from tests.tokenization.reference import TEXTS, find_differences, random_texts
from tests.tokenization.script_texts import texts_of_all_scripts
from tests.tokenization.test_offsets import CHARACTERS, UNUSUAL_STRINGS, WORDS, ReferenceRanges

HAND_MADE = (
  "The\u00a0 \tcat ", "in 1999, 1999", "a1999,b",
  "éa e\u0301a", "\u0301a", "½", "8½", "İß ΣΑΣ", "東😀京", "▁the", "a▁b", "",
  "a\u0301 b", "a\u00a8b", "``the'' '''", "a'''b ''' ```", " 1,000, ",
)  # fmt: skip

# Words that normalization leaves empty, or that consist of the character with which SentencePiece writes a space.
EMPTY_WORDS = (" \u0301 ", "a \u0301 b", "x ▁", "a ▁ b", "▁")


def unusual_texts(count: int) -> list[str]:
  rng = random.Random(0)
  strings = [string for string in UNUSUAL_STRINGS if string != "\ud800"]  # UTF-8 has no lone surrogates
  return ["".join(rng.choices(strings, k=rng.randrange(12))) for _ in range(count)]


@pytest.mark.thorough
@pytest.mark.parametrize("convert_quotes", [False, True])
def test_ids_and_offsets_are_equal_for_a_hand_made_model(save_model: SaveModel, convert_quotes: bool) -> None:
  texts = [*HAND_MADE, *unusual_texts(300), "x7\u0660,the<x>a"]
  # A comma after an <unk> of two characters, and a user-defined symbol that only its type says.
  model = save_model([*WORDS, *CHARACTERS, ("7\u0660,", -1.0), ("<x>", 0.0)], {"<x>": PieceType.USER_DEFINED})
  assert find_differences(model, texts, convert_quotes=convert_quotes) == []


def test_ids_and_offsets_are_equal_for_a_trained_model(model_file: str) -> None:
  documents = [" ".join(document) for document in english_like_documents(40, seed=5)]
  texts = [*HAND_MADE, *EMPTY_WORDS, *TEXTS, *documents, *random_texts(1000, seed=3), *unusual_texts(300)]
  assert find_differences(model_file, texts) == []


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_special_pieces_may_have_other_ids_names_and_types(model_type: str, tmp_path: Path) -> None:
  special = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": 3, "unk_piece": "[UNK]", "pad_piece": "[PAD]"}
  lines = [line for document in english_like_documents(60) for line in document]
  pieces = {"control_symbols": [], "user_defined_symbols": ["[CLS]", "[SEP]", "<mask>", "("]}
  model_file = train_small_model(tmp_path / "x.model", lines, 280, model_type, **special, **pieces)
  tokenizer = Tokenizer(model_file, do_lower_case=False)
  assert [tokenizer.piece(i) for i in tokenizer.special_ids] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<mask>"]
  texts = [*TEXTS, *random_texts(300, seed=8), "The [CLS]captain<mask> (sold"]
  assert find_differences(model_file, texts, do_lower_case=False) == []
  library = sentencepiece.SentencePieceProcessor(model_file=model_file)
  is_special = ({*tokenizer.special_ids} - {tokenizer.special_ids.unk}).__contains__
  for text in texts:
    ids = tokenizer.encode(text)
    assert not any(map(is_special, ids))
    if model_type == "bpe" and not re.search(r"\[CLS\]|\[SEP\]|<mask>|\d,", text):
      assert ids == library.encode(tokenizer.normalize(text))


def test_ids_and_offsets_are_equal_if_accents_are_kept(spm_model: str) -> None:
  texts = [*HAND_MADE, *EMPTY_WORDS, *TEXTS, *unusual_texts(300)]
  for text, (ids, starts, _), (ids_in_graph, starts_in_graph, _) in find_differences(
    spm_model, texts, keep_accents=True
  ):
    assert (ids, starts) == (ids_in_graph, starts_in_graph)
    # Only ends differ, in texts with a character for which SentencePiece writes several, such as ½.
    assert any(len(unicodedata.normalize("NFKC", character)) > 1 for character in text)


def test_pieces_of_several_words_are_refused(save_model: SaveModel) -> None:
  model = save_model([("▁", -1.0), (",", -1.0), ("▁a▁b", -1.0), ("a", -2.0)])
  with pytest.raises(UserError, match="pieces of several words"):
    SentencePieceOffsetGraphTokenizer(TokenizerConfig(model))


def test_a_run_of_unknown_characters_of_any_length_is_one_unknown_token(spm_model: str) -> None:
  rng = random.Random(5)
  unknown = ["東", "京都", "\U0010fffd", "\ue000x", "ⴰ", "\u2028東", "각", "ᄀ", "क़", "x\u0301東", "か", "東\x01"]

  def random_run() -> str:
    return rng.choice(unknown) * rng.choice((1, 2, 40, 200)) + rng.choice(("", " ", "a", "1,", " the "))

  texts = ["".join(random_run() for _ in range(rng.randrange(1, 7))) for _ in range(60)]
  assert find_differences(spm_model, [*texts, "東京" * (1 << 14) + " the river", "", "the " + "x" * (1 << 14)]) == []


# The first and the last letter of scripts.
SCRIPTS = {
  "Greek": "αω", "Cyrillic": "ая", "Hebrew": "את", "Arabic": "اي", "Devanagari": "कह", "Bengali": "কহ", "Tamil": "கஹ",
  "Thai": "กฮ", "Tibetan": "ཀཧ", "Myanmar": "ကအ", "Georgian": "აჰ", "Ethiopic": "ሀፐ", "Khmer": "កអ", "Han": "一龥",
  "hiragana": "かん", "katakana": "カン", "Hangul": "가힣", "Hangul letters": "ᄀᇂ", "Yi": "ꀀꒌ", "emoji": "😀🙏",
}  # fmt: skip
# Characters that are dropped or composed, and spaces.
UNUSUAL_TEXTS = {"dropped": "東\x01", "marks": "か\u3099", "vowel signs": "\u09c7\u09be", "▁": "▁", "spaces": "¨"}


def megabyte(letters: str) -> tf.Tensor:
  """Returns a text of a megabyte without spaces."""
  return tf.constant([letters * (1 + 2**20 // len(letters.encode()))])


def seconds(function: Callable[[tf.Tensor], object], text: tf.Tensor) -> float:
  start = time.process_time()
  function(text)
  return time.process_time() - start


@pytest.fixture(scope="module")
def graph(spm_model: str) -> SentencePieceOffsetGraphTokenizer:
  return SentencePieceOffsetGraphTokenizer(TokenizerConfig(spm_model))


@pytest.fixture(scope="module")
def seconds_for_latin(graph: SentencePieceOffsetGraphTokenizer) -> float:
  graph.tokenize_with_offsets(tf.constant(["the"]))  # the first call makes the tables of characters
  return seconds(graph.tokenize_with_offsets, megabyte("abcdefghijklmnopqrstuvwxyz"))


@pytest.mark.parametrize("name", thorough_except(["Hangul"], [*SCRIPTS, *UNUSUAL_TEXTS]))
def test_the_time_for_a_megabyte_without_spaces_does_not_depend_on_the_script(
  name: str, graph: SentencePieceOffsetGraphTokenizer, seconds_for_latin: float
) -> None:
  text = UNUSUAL_TEXTS.get(name) or "".join(map(chr, range(ord(SCRIPTS[name][0]), ord(SCRIPTS[name][1]) + 1)))
  # If the time grew with the square of the length, it would be more than 50 times that for Latin letters.
  assert seconds(graph.tokenize_with_offsets, megabyte(text)) < 12 * seconds_for_latin
  if name == "Hangul":
    assert seconds(graph.tokenize, megabyte(text)) < 12 * seconds_for_latin


@pytest.fixture(params=["unigram", "bpe"])
def byte_model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
  """The path of a trained model with byte fallback, which knows English letters, digits and a few Han characters."""
  lines = [line.lower() for document in english_like_documents(40) for line in document]
  lines += ["中国 in 1999, 9,9,9 ( 2,500 )."] * 9
  is_unigram = request.param == "unigram"
  return train_small_model(
    tmp_path / "bytes.model",
    lines,
    vocab_size=500,
    model_type=request.param,
    byte_fallback=True,
    character_coverage=1,
    hard_vocab_limit=not is_unigram,
  )


@pytest.mark.slow
def test_offsets_equal_the_slow_reference_in_texts_of_all_scripts(byte_model: str) -> None:
  tokenizer = Tokenizer(byte_model)
  num_texts = num_byte_tokens = 0
  for text in (text.replace(",", "") for text in texts_of_all_scripts(12_500, seed=31)):
    if len(text) > 400 or "," in tokenizer.normalize(text):
      continue  # the reference takes seconds for long texts, and lacks the comma rule; the test below has such texts
    num_texts += 1
    tokens = tokenizer.encode_with_offsets(text)
    assert tokens.ids.tolist() == tokenizer.encode(text)
    ranges = list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True))
    assert ranges == ReferenceRanges(tokenizer, text).ranges(), text
    num_byte_tokens += sum(tokenizer.piece(i).startswith("<0x") for i in tokens.ids.tolist())
  assert num_texts >= 10_000
  assert num_byte_tokens > 100_000


@pytest.mark.slow
def test_a_graph_gives_the_same_offsets_in_texts_of_all_scripts(byte_model: str) -> None:
  tokenizer = Tokenizer(byte_model)
  # In longer words of a unigram model the sums of scores are rounded, and the two versions of SentencePiece may choose
  # different pieces of equal score, with and without byte fallback (SentencePieceVocabulary.max_part_chars).
  longest = 90
  texts = [*TEXTS, "川の中国🙂 99,", *texts_of_all_scripts(13_000, seed=32)]
  texts = [text for text in texts if all(len(word) <= longest for word in tokenizer.normalize(text).split())]
  assert len(texts) >= 10_000
  assert find_differences(byte_model, texts) == []
