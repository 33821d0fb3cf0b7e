"""Generates small files in the format of SQuAD."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.conftest import english_like_documents


def qa(
  question_id: str, question: str, context: str, *answers: str, is_impossible: bool | None = None
) -> dict[str, Any]:
  """Makes a question. The offset of an answer is that of its first occurrence in the paragraph."""
  values: dict[str, Any] = {
    "id": question_id,
    "question": question,
    "answers": [{"text": answer, "answer_start": context.index(answer)} for answer in answers],
  }
  return values if is_impossible is None else values | {"is_impossible": is_impossible}


def squad_file(path: Path, paragraphs: list[tuple[str, list[dict[str, Any]]]], version: str = "1.1") -> str:
  """Writes a file with two paragraphs, each given as (context, qas), in every article. Returns the path."""
  values = [{"context": context, "qas": qas} for context, qas in paragraphs]
  articles = [{"title": f"T{i}", "paragraphs": values[i : i + 2]} for i in range(0, len(values), 2)]
  path.write_text(json.dumps({"version": version, "data": articles}), encoding="utf-8")
  return str(path)


def made_up_squad(
  path: Path, num_questions: int, *, version_2: bool = False, seed: int = 0, max_sentences: int = 14
) -> str:
  """Writes made-up paragraphs with questions "N: what follows WORD here?". The answer is the two words after WORD.

  In version 2, every third question is unanswerable: it asks about a word that the paragraph does not have.
  """
  rng = random.Random(seed)
  paragraphs: list[tuple[str, list[dict[str, Any]]]] = []
  number = 0
  for document in english_like_documents(num_questions, seed=seed):
    context = " ".join(document[:max_sentences])
    words = context.split()
    qas: list[dict[str, Any]] = []
    for _ in range(min(2, num_questions - number)):
      index = rng.randrange(len(words) - 3)
      answer = " ".join(words[index + 1 : index + 3])
      is_impossible = version_2 and number % 3 == 2
      word = "elephants" if is_impossible else words[index]
      start = len(" ".join(words[: index + 1])) + 1
      values: dict[str, Any] = {
        "id": f"q{number}",
        "question": f"{number}: what follows {word} here?",
        "answers": [] if is_impossible else [{"text": answer, "answer_start": start}],
      }
      qas.append(values | ({"is_impossible": is_impossible} if version_2 else {}))
      number += 1
    if qas:
      paragraphs.append((context, qas))
  return squad_file(path, paragraphs, "v2.0" if version_2 else "1.1")
