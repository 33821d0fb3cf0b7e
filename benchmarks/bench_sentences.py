"""Compares libraries that split paragraphs into sentences: quality on marked samples, and speed.

  pip install sentencex syntok pysbd blingfire
  python benchmarks/bench_sentences.py [FOLDER]

A sample is a file FOLDER/LANGUAGE.txt with one sentence on each line and a blank line after each paragraph; the default
folder is benchmarks/sentence_samples. Libraries that are not installed are left out. Quality is counted in boundaries
between two sentences of a paragraph. The speed is that of one process on paragraphs of the sample, again and again.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

SAMPLES = Path(__file__).parent / "sentence_samples"
_SECONDS = 0.5

# The splitter of this project before it used a library: English only.
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
  "rules of before": _make_earlier_rules,
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
  """Reads a sample: for each paragraph its sentences."""
  return [block.splitlines() for block in path.read_text(encoding="utf-8").strip().split("\n\n")]


def quality(paragraphs: list[list[str]], split: Splitter) -> tuple[int, int, int]:
  """Returns how many boundaries were found, wrongly found, and missed."""
  found = wrong = missed = 0
  for paragraph in paragraphs:
    expected, actual = _boundaries(paragraph), _boundaries(split(" ".join(paragraph)))
    found += len(expected & actual)
    wrong += len(actual - expected)
    missed += len(expected - actual)
  return found, wrong, missed


def megabytes_per_second(paragraphs: list[list[str]], split: Splitter) -> float:
  texts = [" ".join(paragraph) for paragraph in paragraphs]
  num_bytes = sum(len(text.encode()) for text in texts)
  total, start = 0, time.process_time()
  while time.process_time() - start < _SECONDS:
    for text in texts:
      for _ in split(text):
        pass
    total += num_bytes
  return total / 1e6 / (time.process_time() - start)


def main(folder: Path) -> None:
  print("| language | sentences | library | found | wrong | missed | F1 | MB/s |")
  print("|---|---|---|---|---|---|---|---|")
  for path in sorted(folder.glob("*.txt")):
    paragraphs = read_paragraphs(path)
    for name, make in LIBRARIES.items():
      try:
        split = make(path.stem)
      except ImportError:
        continue
      found, wrong, missed = quality(paragraphs, split)
      f1 = 2 * found / max(1, 2 * found + wrong + missed)
      speed = megabytes_per_second(paragraphs, split)
      size = sum(map(len, paragraphs))
      print(f"| {path.stem} | {size} | {name} | {found} | {wrong} | {missed} | {f1:.3f} | {speed:.2f} |")


if __name__ == "__main__":
  main(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES)
