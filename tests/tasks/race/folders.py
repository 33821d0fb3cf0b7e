"""Generates small folders in the format of RACE."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.conftest import english_like_documents


def passage(num_questions: int, rng: random.Random, sentences: list[str]) -> dict[str, Any]:
  """Generates a passage. Its questions ask which word follows a word of the article."""
  article = " ".join(sentences)
  words = article.split()
  values: dict[str, Any] = {"article": article, "questions": [], "options": [], "answers": [], "id": "any.txt"}
  for _ in range(num_questions):
    index = rng.randrange(len(words) - 3)
    answer = words[index + 2]
    options = [*rng.sample(["zebra", "quartz", "violin", "monsoon"], 3), answer]
    rng.shuffle(options)
    values["questions"].append(
      f"{words[index]} {words[index + 1]} _ ?" if rng.random() < 0.5 else "which word is there?"
    )
    values["options"].append(options)
    values["answers"].append("ABCD"[options.index(answer)])
  return values


def made_up_race(root: Path, num_passages: int, seed: int = 0, sets: tuple[str, ...] = ("train", "dev", "test")) -> str:
  """Writes RACE/{train,dev,test}/{middle,high}/N.txt with two questions for each passage. Returns the path of RACE."""
  rng = random.Random(seed)
  for number, split in enumerate(sets):
    for level in ("middle", "high"):
      folder = root / "RACE" / split / level
      folder.mkdir(parents=True)
      documents = english_like_documents(num_passages, seed=seed + 10 * number + len(level))
      for index, sentences in enumerate(documents):
        (folder / f"{index}.txt").write_text(json.dumps(passage(2, rng, sentences)), encoding="utf-8")
  return str(root / "RACE")
