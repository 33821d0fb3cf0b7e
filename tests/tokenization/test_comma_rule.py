"""The comma rule: a comma after a digit is a token of its own."""

from __future__ import annotations

import sentencepiece

from albert.tokenization.tokenizer import UNK_ID, Tokenizer
from tests.conftest import SaveModel
from tests.tokenization.reference import random_texts, reference_encode, sentence_piece


def test_pieces_that_end_in_a_digit_and_a_comma_are_split(save_model: SaveModel) -> None:
  scores = [("▁", -1.0), ("9", -3.0), ("8", -3.0), (",", -3.0), ("▁9", -3.5), ("▁99,", -1.0), ("9,", -4.0),
            ("8,", -0.5), ("x", -2.0), ("▁99", -4.0), ("x,", -1.0)]  # fmt: skip
  tokenizer = Tokenizer(save_model(scores))
  piece_ids = {piece: tokenizer.pieces.index(piece) for piece, _ in scores}
  # "▁99," -> "▁99" ","
  assert tokenizer.encode("99,") == [piece_ids["▁99"], piece_ids[","]]
  # "8," after "x" has no ▁, so the ▁ that encoding "8" again adds is removed.
  assert tokenizer.encode("x8,") == [piece_ids["▁"], piece_ids["x"], piece_ids["8"], piece_ids[","]]
  # "x," has no digit and is not split.
  assert tokenizer.encode("x,") == [piece_ids["▁"], piece_ids["x,"]]
  assert set(sentence_piece(tokenizer).comma_rule.splits) == {piece_ids["▁99,"], piece_ids["9,"], piece_ids["8,"]}
  # "9," has no ▁. Encoding "9" again gives "▁9"; without its ▁, this is the piece "9".
  assert sentence_piece(tokenizer).comma_rule.splits[piece_ids["9,"]] == [piece_ids["9"], piece_ids[","]]


def test_a_number_that_is_no_piece_without_its_comma_is_unknown(save_model: SaveModel) -> None:
  # Encoding "97" again gives "▁97". Without ▁ this is "97", which is not a piece: <unk>, as in the original.
  tokenizer = Tokenizer(save_model([("▁", -1.0), ("9", -9.0), ("7", -9.0), (",", -9.0), ("▁97", -1.0), ("97,", -1.0)]))
  word_start, comma, number_with_comma = (tokenizer.pieces.index(piece) for piece in ("▁", ",", "97,"))
  assert sentence_piece(tokenizer).comma_rule.splits == {number_with_comma: [UNK_ID, comma]}
  assert tokenizer.encode("97,") == [word_start, UNK_ID, comma]


def test_an_unknown_number_and_comma_are_two_unknown_tokens(save_model: SaveModel) -> None:
  # Neither "," nor "7" are pieces, so SentencePiece gives one <unk> for "7,". The rule splits it.
  model_file = save_model([("▁", -1.0), ("a", -1.0)])
  processor = sentencepiece.SentencePieceProcessor(model_file=model_file)
  tokenizer = Tokenizer(model_file)
  word_start, a = tokenizer.pieces.index("▁"), tokenizer.pieces.index("a")
  assert tokenizer.encode("a7,") == [word_start, a, UNK_ID, UNK_ID]
  assert tokenizer.encode("a,7") == [word_start, a, UNK_ID]
  texts = ["a7,", "7,", "a,7", "7,a 77, a7,,", "z, 7", "", *random_texts(300, seed=2)]
  assert tokenizer.encode_batch(texts) == [reference_encode(processor, tokenizer.normalize(text)) for text in texts]
