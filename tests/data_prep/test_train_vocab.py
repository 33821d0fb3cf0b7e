"""Training a vocabulary: special tokens, sampling, reproducibility and bad input."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece

from albert.errors import UserError
from albert.runs.directory_lock import DirectoryLock
from albert.tokenization.normalization import normalize_text
from albert.tokenization.tokenizer import SPECIAL_PIECES, Tokenizer
from data_prep import train_vocab
from data_prep.train_vocab import sample_lines, train_model
from tests.conftest import english_like_documents


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "-m", "data_prep.train_vocab", *arguments]
  return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(train_vocab.__file__).parents[1])


def test_command_line(tmp_path: Path, corpus_file: str) -> None:
  packed = tmp_path / "corpus.txt.gz"
  packed.write_bytes(gzip.compress(Path(corpus_file).read_bytes()))
  for name, source in (("a", corpus_file), ("b", str(packed))):
    done = run(f"--input_file={source}", f"--output_dir={tmp_path / name}", "--vocab_size=300", "--num_threads=2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1  # only the progress line, and no log of SentencePiece
    assert "300 pieces" in done.stdout
    assert re.search(r"on ([\d,]+) of \1 lines", done.stdout)
  folder = tmp_path / "a"
  assert sorted(path.name for path in folder.iterdir()) == ["spiece.model", "spiece.vocab"]
  for name in ("spiece.model", "spiece.vocab"):
    assert (folder / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
  tokenizer = Tokenizer(str(folder / "spiece.model"))
  assert tokenizer.vocab_size == 300
  assert tuple(tokenizer.pieces[:5]) == SPECIAL_PIECES
  assert tokenizer.is_special.tolist() == [True] * 5 + [False] * 295
  assert tokenizer.pieces[5:13] == list('()"-.–£€')
  assert 1 not in tokenizer.encode("The captain sold a letter from Paris.")
  rows = [line.split("\t") for line in (folder / "spiece.vocab").read_text(encoding="utf-8").splitlines()]
  assert [piece for piece, _ in rows] == tokenizer.pieces
  processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
  assert [float(score) for _, score in rows] == pytest.approx([processor.get_score(i) for i in range(300)], rel=1e-5)


def test_cased_and_prefix(tmp_path: Path, corpus_file: str) -> None:
  prefix = tmp_path / "new" / "cased"
  done = run(
    f"--input_file={corpus_file}", f"--output_prefix={prefix}", "--vocab_size=300", "--nodo_lower_case",
    "--user_defined_symbols=", "--num_threads=1",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert sorted(path.name for path in prefix.parent.iterdir()) == ["cased.model", "cased.vocab"]
  pieces = Tokenizer(f"{prefix}.model", do_lower_case=False).pieces
  assert any(piece.lower() != piece for piece in pieces[5:])
  assert "£" not in pieces


def test_one_process_at_a_time_writes_a_vocabulary(tmp_path: Path, corpus_file: str) -> None:
  with DirectoryLock(str(tmp_path), "training spiece.model", ".spiece.lock"):
    done = run(f"--input_file={corpus_file}", f"--output_dir={tmp_path}", "--vocab_size=400")
  assert done.returncode == 2
  assert "is training spiece.model there" in done.stderr
  assert not list(tmp_path.iterdir())


def test_text_is_normalized_as_for_encoding() -> None:
  lines = [" ".join(document) for document in english_like_documents(100)]
  plain = train_model(lines, vocab_size=200, num_threads=1)
  accented = [line.upper().replace("A", "Á").replace(" ", " \t ") for line in lines]
  assert train_model(accented, vocab_size=200, num_threads=1) == plain


def test_normalizer_is_the_originals() -> None:
  model = train_model(["a few words of text"] * 3, vocab_size=17, keep_ascii=False, num_threads=1)
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  assert b"nmt_nfkc" in model
  # It reads zero-width characters as spaces, and ignores control characters.
  assert processor.encode("a\u200bfew\x01") == processor.encode("a few")


def test_vocabulary_too_large_names_the_largest_that_works() -> None:
  lines = [" ".join(document) for document in english_like_documents(20)]
  with pytest.raises(UserError, match=r"--vocab_size=5000: this text gives at most \d+ pieces") as caught:
    train_model(lines, vocab_size=5000, num_threads=1)
  largest = int(str(caught.value).split("at most ")[1].split()[0])
  model = train_model(lines, vocab_size=largest, num_threads=1)
  assert sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() == largest
  with pytest.raises(UserError, match=f"at most {largest} pieces"):
    train_model(lines, vocab_size=largest + 1, num_threads=1)


@pytest.mark.parametrize("keep_ascii", [True, False])
def test_vocabulary_too_small_names_the_smallest_that_works(keep_ascii: bool) -> None:
  lines = [" ".join(document) for document in english_like_documents(20)]
  settings = {"keep_ascii": keep_ascii, "user_defined_symbols": list('()"-.–£€'), "num_threads": 1}
  with pytest.raises(UserError, match=r"--vocab_size=9: .*: set --vocab_size=\d+ or more") as caught:
    train_model(lines, vocab_size=9, **settings)
  assert ("--nokeep_ascii" in str(caught.value)) == keep_ascii
  smallest = int(str(caught.value).split("set --vocab_size=")[1].split()[0])
  model = train_model(lines, vocab_size=smallest, **settings)
  assert sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() == smallest
  with pytest.raises(UserError, match=f"set --vocab_size={smallest} or more"):
    train_model(lines, vocab_size=smallest - 1, **settings)


RARE = "In 1857 the Prize (of ~5%) went to J. Q. Zweig, @ 10 o'clock; see [x^y] {#2} + $3 & <4>?!"


@pytest.fixture(scope="module")
def lines_of_letters() -> list[str]:
  """Text that consists of lower-case letters only."""
  lines = [" ".join(document) for document in english_like_documents(60)]
  return [re.sub(r"[^a-z]+", " ", line.lower()) for line in lines]


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("symbols", [[], list('()"-.–£€')])
def test_rare_ascii_characters_are_in_the_vocabulary(
  lines_of_letters: list[str], do_lower_case: bool, symbols: list[str]
) -> None:
  settings = {"do_lower_case": do_lower_case, "user_defined_symbols": symbols, "num_threads": 1}
  model = train_model(lines_of_letters, vocab_size=140, **settings)
  kept = sentencepiece.SentencePieceProcessor(model_proto=model)
  printable = "".join(map(chr, range(33, 127)))
  for text in (RARE, printable):
    assert kept.unk_id() not in kept.encode(normalize_text(text, do_lower_case=do_lower_case))
  pieces = {kept.id_to_piece(i) for i in range(140)}
  assert (set("ABCXYZ") & pieces == set()) == do_lower_case  # lower-cased text cannot hold them
  lost = train_model(lines_of_letters, vocab_size=100, keep_ascii=False, **settings)
  assert kept.unk_id() in sentencepiece.SentencePieceProcessor(model_proto=lost).encode("in 1857")


def test_character_coverage_is_the_originals(lines_of_letters: list[str]) -> None:
  """A letter with a share of 1 in 10,000 is kept with the original's coverage of 0.99995, but not with 0.9995."""
  rare = round(sum(map(len, lines_of_letters)) / 10_000)
  lines = [*lines_of_letters, *["æ"] * rare]
  unknown = {}
  for coverage in ({}, {"character_coverage": 0.9995}):
    model = train_model(lines, vocab_size=120, num_threads=1, **coverage)
    unknown[bool(coverage)] = 1 in sentencepiece.SentencePieceProcessor(model_proto=model).encode("the æther")
  assert unknown == {False: False, True: True}


@pytest.mark.parametrize(
  "line",
  ["filler " * 150_000 + "the æther", "the \u2585 æther"],
  ids=["long", "reserved"],
)
def test_no_line_is_left_out(line: str) -> None:
  """SentencePiece itself would skip lines over 1 MiB, and lines with the character with which it marks <unk>."""
  lines = [" ".join(document) for document in english_like_documents(20)]
  model = train_model([*lines, line], vocab_size=130, character_coverage=1, num_threads=1)
  assert 1 not in sentencepiece.SentencePieceProcessor(model_proto=model).encode("the æther")


@pytest.mark.parametrize("symbols", [["-", "(", "-"], ["-", "[CLS]"], ["<unk>"]])
def test_symbols_that_the_vocabulary_has_already_are_rejected(symbols: list[str]) -> None:
  with pytest.raises(UserError, match=r"--user_defined_symbols: '(-|\[CLS\]|<unk>)' is in the vocabulary already"):
    train_model(["a few words of text"], vocab_size=90, user_defined_symbols=symbols, num_threads=1)


def test_no_text() -> None:
  with pytest.raises(UserError, match="the files hold no text"):
    train_model(["", " \u3000 "], vocab_size=9, num_threads=1)


def test_sample_is_everything_when_there_is_room() -> None:
  assert sample_lines(iter("abc"), 3, random.Random(0)) == ["a", "b", "c"]
  assert sample_lines(iter("abc"), 9, random.Random(0)) == ["a", "b", "c"]
  assert sample_lines(iter(""), 9, random.Random(0)) == []


def test_sample_is_uniform() -> None:
  lines = [str(i) for i in range(40)]
  rounds, size = 6000, 5
  counts: Counter[str] = Counter()
  for seed in range(rounds):
    sample = sample_lines(iter(lines), size, random.Random(seed))
    assert len(set(sample)) == size
    counts.update(sample)
  # Binomial with mean 750 and standard deviation 25.6: 5 of these are a one in 40,000 chance for any line.
  assert all(abs(counts[line] - rounds * size / 40) < 5 * 25.6 for line in lines)


def test_sample_depends_on_the_seed(tmp_path: Path) -> None:
  lines = [str(i) for i in range(1000)]
  draws = [sample_lines(iter(lines), 10, random.Random(seed)) for seed in (1, 1, 2)]
  assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--output_dir=x"], "--input_file"),
    pytest.param(["--input_file={corpus}"], "give either --output_dir", marks=pytest.mark.thorough),
    pytest.param(
      ["--input_file={corpus}", "--output_dir=x", "--output_prefix=y"],
      "give either --output_dir",
      marks=pytest.mark.thorough,
    ),
    pytest.param(
      ["--input_file={corpus}.nothing", "--output_dir={tmp}/x"], "corpus.txt.nothing", marks=pytest.mark.thorough
    ),
    (["--input_file={corpus}", "--output_dir={tmp}/x", "--vocab_size=30000"], "set --vocab_size="),
    pytest.param(
      ["--input_file={corpus}", "--output_dir={tmp}/x", "--character_coverage=0.9"],
      "character_coverage=0.9",
      marks=pytest.mark.thorough,
    ),
    (["--input_file={tmp}/latin.txt", "--output_dir={tmp}/x"], "latin.txt, line 2: not UTF-8"),
  ],
)
def test_bad_input_is_one_line(tmp_path: Path, corpus_file: str, arguments: list[str], message: str) -> None:
  (tmp_path / "latin.txt").write_bytes("gut\nschön\n".encode("latin-1"))
  done = run(*(argument.format(corpus=corpus_file, tmp=tmp_path) for argument in arguments))
  assert done.returncode == 2
  errors = [line for line in done.stderr.splitlines() if not line.startswith("reading text")]
  assert len(errors) == 1
  assert message in errors[0]
  assert not list(tmp_path.glob("x/*"))
