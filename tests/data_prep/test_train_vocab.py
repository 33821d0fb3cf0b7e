"""The command data_prep.train_vocab: special tokens, rare characters, sampling, reproducibility and bad input."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sentencepiece

from albert.errors import UserError
from albert.runs.directory_lock import DirectoryLock
from albert.tokenization.normalization import normalize_text
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import SPECIAL_PIECES, UNK_ID
from data_prep import train_vocab, vocabulary
from data_prep.vocabulary import sample_lines, train_byte_level_bpe, train_model, train_wordpiece
from tests.conftest import english_like_documents

# The default of --user_defined_symbols.
DEFAULT_SYMBOLS = list('()"-.–£€')


def run_train_vocab(*arguments: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "-m", "data_prep.train_vocab", *arguments]
  return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(train_vocab.__file__).parents[1])


def assert_vocabulary_of_300_pieces(folder: Path) -> None:
  """Checks spiece.model, and that spiece.vocab lists its pieces and scores."""
  tokenizer = Tokenizer(str(folder / "spiece.model"))
  assert tokenizer.vocab_size == 300
  assert tuple(tokenizer.pieces[:5]) == SPECIAL_PIECES
  assert tokenizer.is_special.tolist() == [True] * 5 + [False] * 295
  assert tokenizer.pieces[5 : 5 + len(DEFAULT_SYMBOLS)] == DEFAULT_SYMBOLS
  assert UNK_ID not in tokenizer.encode("The captain sold a letter from Paris.")
  vocab_lines = (folder / "spiece.vocab").read_text(encoding="utf-8").splitlines()
  pieces_and_scores = [line.split("\t") for line in vocab_lines]
  assert [piece for piece, _ in pieces_and_scores] == tokenizer.pieces
  processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
  expected_scores = [processor.get_score(token) for token in range(300)]
  assert [float(score) for _, score in pieces_and_scores] == pytest.approx(expected_scores, rel=1e-5)


def test_the_command_writes_the_same_model_for_plain_and_gzip_text(tmp_path: Path, corpus_file: str) -> None:
  gzip_file = tmp_path / "corpus.txt.gz"
  gzip_file.write_bytes(gzip.compress(Path(corpus_file).read_bytes()))
  for name, source in (("a", corpus_file), ("b", str(gzip_file))):
    completed = run_train_vocab(
      f"--input_file={source}", f"--output_dir={tmp_path / name}", "--vocab_size=300", "--num_threads=2"
    )
    assert completed.returncode == 0, completed.stderr
    assert ".cc:" not in completed.stderr  # no log of SentencePiece
    assert "300 pieces" in completed.stdout
    assert re.search(r"on ([\d,]+) of \1 lines", completed.stdout)  # all lines
  folder = tmp_path / "a"
  assert sorted(path.name for path in folder.iterdir()) == ["spiece.model", "spiece.vocab", "tokenizer_config.json"]
  for name in ("spiece.model", "spiece.vocab"):
    assert (folder / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
  assert_vocabulary_of_300_pieces(folder)


def test_a_vocabulary_that_is_replaced_is_named(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  values = {"input_file": "", "output_dir": str(tmp_path), "type": "unigram"}
  monkeypatch.setattr(train_vocab, "FLAGS", mock.Mock(**values, byte_fallback=False))
  for name in ("formats", "_train"):
    monkeypatch.setattr(train_vocab, name, mock.Mock())
  (tmp_path / "spiece.model").touch()
  train_vocab.main()
  assert f"warning: replacing {tmp_path}/spiece.model, which shards" in capsys.readouterr().err


def test_the_settings_are_recorded_beside_the_vocabulary(tmp_path: Path, corpus_file: str) -> None:
  flags = [f"--input_file={corpus_file}", "--vocab_size=300", "--num_threads=1"]
  flags += [f"--output_dir={tmp_path}", "--user_defined_symbols="]
  completed = run_train_vocab(*flags, "--nodo_lower_case", "--keep_accents")
  assert completed.returncode == 0, completed.stderr
  tokenizer = Tokenizer(tmp_path / "spiece.model")
  assert tokenizer.normalize("Schön") == "Schön"
  assert any(piece.lower() != piece for piece in tokenizer.pieces[5:])
  assert "£" not in tokenizer.pieces
  # Another vocabulary in the same directory has the same settings, because one file records them.
  completed = run_train_vocab(*flags, "--type=wordpiece")
  assert completed.returncode == 2
  assert "do_lower_case=true is given, but the vocabulary was made with do_lower_case=false" in completed.stderr


def test_user_defined_symbols_are_normalized_like_the_text(capsys: pytest.CaptureFixture[str]) -> None:
  lines = ["see <URL> for @User and café ½", *(" ".join(document) for document in english_like_documents(20))]
  symbols = ["<URL>", "@User", "é", "½"]
  for keeps, expected in ((False, ["<url>", "@user", "e", "1⁄2"]), (True, symbols)):
    settings: dict[str, Any] = {"do_lower_case": not keeps, "keep_accents": keeps, "keep_ascii": False}
    model = train_model(lines, vocab_size=80, user_defined_symbols=symbols, num_threads=1, **settings)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = processor.encode(normalize_text(lines[0], do_lower_case=not keeps, keep_accents=keeps), out_type=str)
    assert set(expected) <= set(pieces)
    assert ("--user_defined_symbols: <URL> becomes <url>, as the text" in capsys.readouterr().err) == (not keeps)
  with pytest.raises(UserError, match=r"--user_defined_symbols: '.*' is normalized to ''"):
    train_model(lines, vocab_size=29, user_defined_symbols=["\u0301"])


def test_one_process_at_a_time_writes_a_vocabulary(tmp_path: Path, corpus_file: str) -> None:
  with DirectoryLock(str(tmp_path), "training spiece.model", ".spiece.lock"):
    completed = run_train_vocab(f"--input_file={corpus_file}", f"--output_dir={tmp_path}", "--vocab_size=400")
  assert completed.returncode == 2
  assert "is training spiece.model there" in completed.stderr
  assert not list(tmp_path.iterdir())


def test_text_is_lower_cased_and_loses_accents_before_training() -> None:
  lines = [" ".join(document) for document in english_like_documents(100)]
  model = train_model(lines, vocab_size=200, num_threads=1)
  accented_lines = [line.upper().replace("A", "Á").replace(" ", " \t ") for line in lines]
  assert train_model(accented_lines, vocab_size=200, num_threads=1) == model


def test_the_model_has_the_normalizer_of_the_originals() -> None:
  model = train_model(["a few words of text"] * 3, vocab_size=17, keep_ascii=False, num_threads=1)
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  assert b"nmt_nfkc" in model
  # This normalizer turns zero-width characters into spaces, and ignores control characters.
  assert processor.encode("a\u200bfew\x01") == processor.encode("a few")


def test_the_error_of_a_vocabulary_that_is_too_large_names_the_largest_possible() -> None:
  lines = [" ".join(document) for document in english_like_documents(20)]
  with pytest.raises(UserError, match=r"--vocab_size=5000: this text gives at most \d+ pieces") as caught:
    train_model(lines, vocab_size=5000, num_threads=1)
  largest = int(str(caught.value).split("at most ")[1].split()[0])
  model = train_model(lines, vocab_size=largest, num_threads=1)
  assert sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() == largest
  with pytest.raises(UserError, match=f"at most {largest} pieces"):
    train_model(lines, vocab_size=largest + 1, num_threads=1)


@pytest.mark.parametrize("keep_ascii", [True, False])
def test_the_error_of_a_vocabulary_that_is_too_small_names_the_smallest_possible(keep_ascii: bool) -> None:
  lines = [" ".join(document) for document in english_like_documents(20)]
  settings: dict[str, Any] = {"keep_ascii": keep_ascii, "user_defined_symbols": DEFAULT_SYMBOLS, "num_threads": 1}
  with pytest.raises(UserError, match=r"--vocab_size=9: .*: set --vocab_size=\d+ or more") as caught:
    train_model(lines, vocab_size=9, **settings)
  assert ("--nokeep_ascii" in str(caught.value)) == keep_ascii
  smallest = int(str(caught.value).split("set --vocab_size=")[1].split()[0])
  model = train_model(lines, vocab_size=smallest, **settings)
  assert sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() == smallest
  with pytest.raises(UserError, match=f"set --vocab_size={smallest} or more"):
    train_model(lines, vocab_size=smallest - 1, **settings)


# A text with many digits, capitals and ASCII signs.
TEXT_WITH_RARE_CHARACTERS = "In 1857 the Prize (of ~5%) went to J. Q. Zweig, @ 10 o'clock; see [x^y] {#2} + $3 & <4>?!"


@pytest.fixture(scope="module")
def lines_of_letters() -> list[str]:
  lines = [" ".join(document) for document in english_like_documents(60)]
  return [re.sub(r"[^a-z]+", " ", line.lower()) for line in lines]


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("symbols", [[], DEFAULT_SYMBOLS])
def test_rare_ascii_characters_are_in_the_vocabulary(
  lines_of_letters: list[str], do_lower_case: bool, symbols: list[str]
) -> None:
  settings: dict[str, Any] = {"do_lower_case": do_lower_case, "user_defined_symbols": symbols, "num_threads": 1}
  model = train_model(lines_of_letters, vocab_size=140, **settings)
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  printable_ascii = "".join(map(chr, range(33, 127)))
  for text in (TEXT_WITH_RARE_CHARACTERS, printable_ascii):
    assert UNK_ID not in processor.encode(normalize_text(text, do_lower_case=do_lower_case))
  pieces = {processor.id_to_piece(token) for token in range(140)}
  assert pieces.isdisjoint(["A", "B", "C", "X", "Y", "Z"]) == do_lower_case  # lower-cased text has no capitals
  model_without_ascii = train_model(lines_of_letters, vocab_size=100, keep_ascii=False, **settings)
  assert UNK_ID in sentencepiece.SentencePieceProcessor(model_proto=model_without_ascii).encode("in 1857")


def test_the_default_character_coverage_is_that_of_the_original_albert(lines_of_letters: list[str]) -> None:
  """A letter whose share of all characters is 1/10,000 is kept with the default, 0.99995, but not with 0.9995.

  The rarest characters may be left out until their share of the text is 1 - character_coverage.
  """
  num_rare_letters = round(sum(map(len, lines_of_letters)) / 10_000)
  lines = [*lines_of_letters, *["æ"] * num_rare_letters]
  model = train_model(lines, vocab_size=120, num_threads=1)
  assert UNK_ID not in sentencepiece.SentencePieceProcessor(model_proto=model).encode("the æther")
  model = train_model(lines, vocab_size=120, num_threads=1, character_coverage=0.9995)
  assert UNK_ID in sentencepiece.SentencePieceProcessor(model_proto=model).encode("the æther")


@pytest.mark.parametrize(
  "line",
  ["filler " * 150_000 + "the æther", "the \u2585 æther"],
  ids=["long", "reserved"],
)
def test_no_line_is_left_out(line: str) -> None:
  """SentencePiece alone skips lines of more than 1 MiB, and lines with U+2585, with which it marks unknown text."""
  lines = [" ".join(document) for document in english_like_documents(20)]
  model = train_model([*lines, line], vocab_size=130, character_coverage=1, num_threads=1)
  assert UNK_ID not in sentencepiece.SentencePieceProcessor(model_proto=model).encode("the æther")


@pytest.mark.parametrize("symbols", [["-", "(", "-"], ["-", "[CLS]"], ["<unk>"]])
def test_symbols_that_the_vocabulary_has_already_are_rejected(symbols: list[str]) -> None:
  with pytest.raises(UserError, match=r"--user_defined_symbols: '(-|\[CLS\]|<unk>)' is in the vocabulary already"):
    train_model(["a few words of text"], vocab_size=90, user_defined_symbols=symbols, num_threads=1)


def test_text_without_words_is_an_error() -> None:
  with pytest.raises(UserError, match="the files hold no text"):
    train_model(["", " \u3000 "], vocab_size=9, num_threads=1)


def test_a_sample_of_at_least_all_lines_is_all_lines() -> None:
  lines = ["a", "b", "c"]
  assert sample_lines(iter(lines), 3, random.Random(0)) == (lines, 3)
  assert sample_lines(iter(lines), 9, random.Random(0)) == (lines, 3)
  assert sample_lines(iter([]), 9, random.Random(0)) == ([], 0)


def test_each_line_is_sampled_equally_often() -> None:
  lines = [str(number) for number in range(40)]
  num_samples, sample_size = 6000, 5
  counts: Counter[str] = Counter()
  for seed in range(num_samples):
    sample, num_lines = sample_lines(iter(lines), sample_size, random.Random(seed))
    assert num_lines == 40
    assert len(set(sample)) == sample_size
    counts.update(sample)
  # A count is binomial: mean 6000 * 5 / 40 = 750, standard deviation sqrt(6000 * 5/40 * 35/40) = 25.6. The chance that
  # any of 40 counts is 5 standard deviations off is 1 in 40,000.
  assert all(abs(counts[line] - 750) < 5 * 25.6 for line in lines)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--output_dir=x"], "--input_file"),
    pytest.param(
      ["--input_file={corpus}.nothing", "--output_dir={tmp}/x"], "corpus.txt.nothing", marks=pytest.mark.thorough
    ),
    (["--input_file={corpus}", "--output_dir={tmp}/x", "--vocab_size=30000"], "set --vocab_size="),
    pytest.param(
      ["--input_file={corpus}", "--output_dir={tmp}/x", "--character_coverage=0.9"],
      "character_coverage=0.9",
      marks=pytest.mark.thorough,
    ),
    (
      ["--input_file={corpus}", "--output_dir={tmp}/x", "--type=wordpiece", "--byte_fallback"],
      "--byte_fallback with --type=wordpiece: only unigram and bpe have it",
    ),
    (["--input_file={tmp}/latin.txt", "--output_dir={tmp}/x"], "latin.txt, line 2: not UTF-8"),
  ],
)
def test_bad_input_gives_one_line(tmp_path: Path, corpus_file: str, arguments: list[str], message: str) -> None:
  (tmp_path / "latin.txt").write_bytes("gut\nschön\n".encode("latin-1"))
  completed = run_train_vocab(*(argument.format(corpus=corpus_file, tmp=tmp_path) for argument in arguments))
  assert completed.returncode == 2
  errors = [line for line in completed.stderr.splitlines() if not line.startswith("reading text")]
  assert len(errors) == 1
  assert message in errors[0]
  assert not list(tmp_path.glob("x/*"))


def test_a_bpe_vocabulary_with_byte_fallback_has_no_unknown_characters(tmp_path: Path, corpus_file: str) -> None:
  completed = run_train_vocab(
    f"--input_file={corpus_file}", f"--output_dir={tmp_path}", "--type=bpe", "--vocab_size=600", "--byte_fallback"
  )
  assert completed.returncode == 0, completed.stderr
  tokenizer = Tokenizer(tmp_path / "spiece.model")
  assert tokenizer.vocab_size == 600
  assert UNK_ID not in tokenizer.encode("the captain 船长 sold 🙂")
  assert tokenizer.decode(tokenizer.encode("the captain 船长")) == "the captain 船长"


def test_a_unigram_model_is_that_of_spm_train_with_the_flags_of_the_original_readme(tmp_path: Path) -> None:
  lines = [normalize_text(sentence) for document in english_like_documents(200) for sentence in document]
  text = tmp_path / "text.txt"
  text.write_text("\n".join(lines))
  # The flags in the README of the original ALBERT, with fewer pieces. The symbols are a list here, because newer
  # releases of SentencePiece read the README's \" as the start of a quoted symbol.
  sentencepiece.SentencePieceTrainer.train(
    input=str(text), model_prefix=str(tmp_path / "original"), vocab_size=300, pad_id=0, unk_id=1, eos_id=-1, bos_id=-1,
    control_symbols=["[CLS]", "[SEP]", "[MASK]"], user_defined_symbols=DEFAULT_SYMBOLS, character_coverage=0.99995,
    shuffle_input_sentence=True, input_sentence_size=10_000_000, model_type="unigram", minloglevel=2,
  )  # fmt: skip
  ours = train_model(lines, vocab_size=300, keep_ascii=False, user_defined_symbols=DEFAULT_SYMBOLS)
  original = (tmp_path / "original.model").read_bytes()
  assert vocabulary.format_vocab_file(ours) == vocabulary.format_vocab_file(original)


def test_a_wordpiece_vocabulary_is_the_same_in_every_process(tmp_path: Path, corpus_file: str) -> None:
  pytest.importorskip("tokenizers")
  completed = run_train_vocab(
    f"--input_file={corpus_file}", f"--output_dir={tmp_path}", "--type=wordpiece", "--vocab_size=400"
  )
  assert completed.returncode == 0, completed.stderr
  assert "vocab.txt: 400 pieces" in completed.stdout
  tokenizer = Tokenizer(tmp_path / "vocab.txt")
  ascii_characters = vocabulary.ascii_characters(do_lower_case=True)
  assert tokenizer.pieces == train_wordpiece(
    Path(corpus_file).read_text().splitlines(),
    vocab_size=400,
    do_lower_case=True,
    character_coverage=0.99995,
    required_chars=ascii_characters,
  )
  assert tokenizer.special_ids == (0, 1, 2, 3, 4)
  text = "The captain sold a letter from Paris, {x}~"
  assert tokenizer.special_ids.unk not in tokenizer.encode(text)
  assert tokenizer.piece(tokenizer.encode("captain")[0]) == "captain"


def test_a_wordpiece_vocabulary_that_is_too_small_for_its_characters_is_refused() -> None:
  pytest.importorskip("tokenizers")
  # 7 Han characters and a punctuation mark, a, b, c, ##b and ##c, and the 5 special pieces.
  with pytest.raises(UserError, match="--vocab_size=12: the special pieces and the characters take 17 pieces"):
    train_wordpiece(["船长卖了花园。 船长 abc"], vocab_size=12, do_lower_case=True, character_coverage=1.0)
  with pytest.raises(UserError, match="--input_file: the files hold no text"):
    train_wordpiece([" "], vocab_size=12, do_lower_case=True, character_coverage=1.0)


@pytest.mark.thorough
def test_a_byte_level_bpe_vocabulary_is_the_same_in_every_process(tmp_path: Path, corpus_file: str) -> None:
  pytest.importorskip("tokenizers")
  flags = (f"--input_file={corpus_file}", "--type=byte_level_bpe", "--vocab_size=400")
  completed = run_train_vocab(*flags, f"--output_dir={tmp_path}")
  assert completed.returncode == 0, completed.stderr
  assert "vocab.json: 400 pieces" in completed.stdout
  assert sorted(path.name for path in tmp_path.iterdir()) == ["merges.txt", "vocab.json"]
  lines = [line for line in Path(corpus_file).read_text(encoding="utf-8").splitlines() if line.strip()]
  written = tuple((tmp_path / name).read_bytes() for name in ("vocab.json", "merges.txt"))
  assert written == train_byte_level_bpe(lines, vocab_size=400)
  tokenizer = Tokenizer(tmp_path / "vocab.json")
  assert tokenizer.pieces[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
  assert tokenizer.decode(tokenizer.encode(lines[0])) == lines[0]
  assert any(len(piece) > 4 and piece.startswith("Ġ") for piece in tokenizer.pieces)


@pytest.mark.thorough
def test_the_pieces_of_byte_level_bpe_are_those_of_the_library(tmp_path: Path) -> None:
  """ByteLevelBPETokenizer splits and counts by itself; train_byte_level_bpe counts words first."""
  tokenizers = pytest.importorskip("tokenizers")
  lines = [" ".join(words) for words in english_like_documents(40, seed=3)] + ["船长卖了花园。 it's 1999\t\ta  b"] * 3
  library = tokenizers.ByteLevelBPETokenizer()
  special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
  library.train_from_iterator(
    [f" {line}" for line in lines], vocab_size=500, min_frequency=2, special_tokens=special, show_progress=False
  )
  library.save_model(str(tmp_path))
  expected = tuple((tmp_path / name).read_bytes() for name in ("vocab.json", "merges.txt"))
  assert train_byte_level_bpe(lines, vocab_size=500) == expected


def test_bad_input_for_byte_level_bpe_is_refused() -> None:
  pytest.importorskip("tokenizers")
  with pytest.raises(UserError, match=r"--vocab_size=260: .* take 261 pieces: give 261 or more"):
    train_byte_level_bpe(["a"], vocab_size=260)
  with pytest.raises(UserError, match=r"--input_file: the files hold no text"):
    train_byte_level_bpe([], vocab_size=300)
