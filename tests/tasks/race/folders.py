"""Generates small folders in the format of RACE, for the tests of the task, of run_race.py and of data preparation."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.conftest import english_like_documents


def make_passage(num_questions: int, rng: random.Random, sentences: list[str]) -> dict[str, Any]:
  """Makes a passage. Each question asks for a word of the article; the other options are not in the article."""
  article = " ".join(sentences)
  words = article.split()
  passage: dict[str, Any] = {"article": article, "questions": [], "options": [], "answers": [], "id": "any.txt"}
  for _ in range(num_questions):
    word_index = rng.randrange(len(words) - 3)
    answer = words[word_index + 2]
    options = [*rng.sample(["zebra", "quartz", "violin", "monsoon"], 3), answer]
    rng.shuffle(options)
    has_blank = rng.random() < 0.5
    passage["questions"].append(
      f"{words[word_index]} {words[word_index + 1]} _ ?" if has_blank else "which word is there?"
    )
    passage["options"].append(options)
    passage["answers"].append("ABCD"[options.index(answer)])
  return passage


def write_made_up_race(
  root: Path, num_passages: int, seed: int = 0, splits: tuple[str, ...] = ("train", "dev", "test")
) -> str:
  """Writes RACE/{train,dev,test}/{middle,high}/N.txt with two questions for each passage. Returns the path of RACE."""
  rng = random.Random(seed)
  for split_index, split in enumerate(splits):
    for level in ("middle", "high"):
      folder = root / "RACE" / split / level
      folder.mkdir(parents=True)
      # Each folder has another seed, since the words "middle" and "high" have different lengths.
      documents = english_like_documents(num_passages, seed=seed + 10 * split_index + len(level))
      for index, sentences in enumerate(documents):
        (folder / f"{index}.txt").write_text(json.dumps(make_passage(2, rng, sentences)), encoding="utf-8")
  return str(root / "RACE")
