"""Compares libraries that split paragraphs into sentences: quality on marked samples, and speed.

  pip install sentencex syntok pysbd blingfire
  python benchmarks/bench_sentences.py [FOLDER]

A sample is a file FOLDER/LANGUAGE.txt with one sentence on each line and a blank line after each paragraph; the default
folder is benchmarks/sentence_samples. Libraries that are not installed are left out. Quality is counted in boundaries
between two sentences of a paragraph. For the speed, one process splits the paragraphs of the sample again and again.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

SAMPLES = Path(__file__).parent / "sentence_samples"
_MEASURED_SECONDS = 0.5  # processor time for which the speed of a library is measured

# The rules with which this project split English text before it used a library.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(]?[A-Z0-9])")
_ABBREVIATION = re.compile(
  r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|al|fig|figs|eq|eqs|sec|no|vol|pp|p|ch|approx|resp|incl|ref|refs|ed|eds"
  r"|dr|mr|mrs|prof|inc|st|w\.r\.t|[A-Z])\.$",
  re.I,
)

Splitter = Callable[[str], Iterable[str]]


def _make_earlier_rules(language: str) -> Splitter:
  del language

  def split(text: str) -> Iterable[str]:
    start = 0
    for match in _SENTENCE_END.finditer(text):
      if not _ABBREVIATION.search(text[start : match.start()]):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]

  return split


def _make_sentencex(language: str) -> Splitter:
  module = importlib.import_module("sentencex")
  return lambda text: module.segment(language, text)


def _make_ours(language: str) -> Splitter:
  return importlib.import_module("data_prep.sentences").SentenceSplitter(language).split


def _make_pysbd(language: str) -> Splitter:
  return importlib.import_module("pysbd").Segmenter(language=language, clean=False).segment


def _make_blingfire(language: str) -> Splitter:
  del language
  module = importlib.import_module("blingfire")
  return lambda text: module.text_to_sentences(text).split("\n")


def _make_syntok(language: str) -> Splitter:
  del language
  module = importlib.import_module("syntok.segmenter")

  def split(text: str) -> Iterable[str]:
    for paragraph in module.analyze(text):
      for sentence in paragraph:
        yield "".join(token.spacing + token.value for token in sentence)

  return split


LIBRARIES: dict[str, Callable[[str], Splitter]] = {
  "earlier rules": _make_earlier_rules,
  "sentencex": _make_sentencex,
  "sentencex with quotations (data_prep.sentences)": _make_ours,
  "syntok": _make_syntok,
  "pysbd": _make_pysbd,
  "blingfire": _make_blingfire,
}


def _boundaries(sentences: Iterable[str]) -> set[int]:
  """Returns the positions between sentences, in characters that are not white space."""
  ends, position = set(), 0
  for sentence in sentences:
    position += len("".join(sentence.split()))
    ends.add(position)
  return ends - {position}


def read_paragraphs(path: Path) -> list[list[str]]:
  """Returns the sentences of each paragraph of a sample."""
  return [block.splitlines() for block in path.read_text(encoding="utf-8").strip().split("\n\n")]


class Quality(NamedTuple):
  """How many boundaries a splitter found, placed wrongly, and missed."""

  found: int
  wrong: int
  missed: int

  @property
  def f1(self) -> float:
    return 2 * self.found / max(1, 2 * self.found + self.wrong + self.missed)


def measure_quality(paragraphs: list[list[str]], split: Splitter) -> Quality:
  """Splits each paragraph, and compares the boundaries with those of the sample."""
  found = wrong = missed = 0
  for paragraph in paragraphs:
    expected, actual = _boundaries(paragraph), _boundaries(split(" ".join(paragraph)))
    found += len(expected & actual)
    wrong += len(actual - expected)
    missed += len(expected - actual)
  return Quality(found, wrong, missed)


def megabytes_per_second(paragraphs: list[list[str]], split: Splitter) -> float:
  """Splits all paragraphs again and again, and returns the speed."""
  texts = [" ".join(paragraph) for paragraph in paragraphs]
  num_bytes = sum(len(text.encode()) for text in texts)
  num_bytes_split, start = 0, time.process_time()
  while time.process_time() - start < _MEASURED_SECONDS:
    for text in texts:
      for _ in split(text):
        pass
    num_bytes_split += num_bytes
  return num_bytes_split / 1e6 / (time.process_time() - start)


def main(folder: Path) -> None:
  print("| language | sentences | library | found | wrong | missed | F1 | MB/s |")
  print("|---|---|---|---|---|---|---|---|")
  for path in sorted(folder.glob("*.txt")):
    paragraphs = read_paragraphs(path)
    num_sentences = sum(map(len, paragraphs))
    for name, make_splitter in LIBRARIES.items():
      try:
        split = make_splitter(path.stem)
      except ImportError:
        continue
      quality = measure_quality(paragraphs, split)
      speed = megabytes_per_second(paragraphs, split)
      numbers = f"{quality.found} | {quality.wrong} | {quality.missed} | {quality.f1:.3f} | {speed:.2f}"
      print(f"| {path.stem} | {num_sentences} | {name} | {numbers} |")


if __name__ == "__main__":
  main(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES)
