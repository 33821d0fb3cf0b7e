"""Made-up sentences with tagged words: the words of a span and those outside of spans are from different lists."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from albert.tasks.tagging.schemes import SCHEMES, Span

PLACES = ("Berlin", "Paris", "Lake Garda", "New York City")
PEOPLE = ("Anna", "John Smith", "Mary Ann Jones")
OTHER_WORDS = ("the", "river", "saw", "old", "houses", "quickly", ",", "met", "and", "bread", "sold")


def make_up_sentences(num_sentences: int, *, seed: int, max_words: int = 9) -> list[tuple[list[str], list[Span]]]:
  """Returns sentences, as lists of words, with their spans. Each type of span occurs in the first two sentences."""
  rng = np.random.default_rng(seed)
  sentences = []
  for index in range(num_sentences):
    words: list[str] = []
    spans: list[Span] = []
    while len(words) < max_words or not spans:
      if rng.random() < 0.6:
        words.append(str(rng.choice(OTHER_WORDS)))
        continue
      is_place = index == 0 if index < 2 else rng.random() < 0.5
      name = str(rng.choice(PLACES if is_place else PEOPLE)).split()
      spans.append(Span(len(words), len(words) + len(name), "LOC" if is_place else "PER"))
      words += name
    sentences.append((words, spans))
  return sentences


def write_columns(path: Path, num_sentences: int, *, seed: int, scheme: str = "BIO", max_words: int = 9) -> str:
  """Writes made-up sentences in two columns, with two documents. Returns the path."""
  lines = []
  for index, (words, spans) in enumerate(make_up_sentences(num_sentences, seed=seed, max_words=max_words)):
    if index in (0, num_sentences // 2):
      lines += ["-DOCSTART- O", ""]
    tags = SCHEMES[scheme].tags_of_spans(spans, len(words))
    lines += [f"{word} {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
  path.write_text("\n".join(lines))
  return str(path)


def write_json_lines(path: Path, num_sentences: int, *, seed: int, scheme: str = "BILOU") -> str:
  lines = []
  for index, (words, spans) in enumerate(make_up_sentences(num_sentences, seed=seed)):
    tags = SCHEMES[scheme].tags_of_spans(spans, len(words))
    lines.append(json.dumps({"id": f"s{index}", "tokens": words, "tags": tags}))
  path.write_text("\n".join(lines) + "\n")
  return str(path)
