"""Generates small files in the format of SQuAD, for the tests of the task, of run_squad.py and of data preparation."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.conftest import english_like_documents


def make_qa(
  question_id: str, question: str, context: str, *answers: str, is_impossible: bool | None = None
) -> dict[str, Any]:
  """Makes an entry of `qas`. Each answer_start is the offset of the answer's first occurrence in the paragraph."""
  entry: dict[str, Any] = {
    "id": question_id,
    "question": question,
    "answers": [{"text": answer, "answer_start": context.index(answer)} for answer in answers],
  }
  return entry if is_impossible is None else entry | {"is_impossible": is_impossible}


def write_squad(path: Path, paragraphs: list[tuple[str, list[dict[str, Any]]]], version: str = "1.1") -> str:
  """Writes a file of paragraphs, given as (context, qas), with two paragraphs in each article. Returns the path."""
  entries = [{"context": context, "qas": qas} for context, qas in paragraphs]
  articles = [{"title": f"T{i}", "paragraphs": entries[i : i + 2]} for i in range(0, len(entries), 2)]
  path.write_text(json.dumps({"version": version, "data": articles}), encoding="utf-8")
  return str(path)


def write_made_up_squad(
  path: Path, num_questions: int, *, version_2: bool = False, seed: int = 0, max_sentences: int = 14
) -> str:
  """Writes made-up paragraphs with questions of the form "N: what follows WORD here?". Returns the path.

  The answer is the two words after WORD. In version 2, every third question is unanswerable: it asks about a word that
  the paragraph does not have.
  """
  rng = random.Random(seed)
  paragraphs: list[tuple[str, list[dict[str, Any]]]] = []
  question_number = 0
  for document in english_like_documents(num_questions, seed=seed):
    context = " ".join(document[:max_sentences])
    words = context.split()
    qas: list[dict[str, Any]] = []
    for _ in range(min(2, num_questions - question_number)):
      word_index = rng.randrange(len(words) - 3)
      answer = " ".join(words[word_index + 1 : word_index + 3])
      answer_start = len(" ".join(words[: word_index + 1])) + 1
      is_impossible = version_2 and question_number % 3 == 2
      word = "elephants" if is_impossible else words[word_index]
      entry: dict[str, Any] = {
        "id": f"q{question_number}",
        "question": f"{question_number}: what follows {word} here?",
        "answers": [] if is_impossible else [{"text": answer, "answer_start": answer_start}],
      }
      if version_2:
        entry["is_impossible"] = is_impossible
      qas.append(entry)
      question_number += 1
    if qas:
      paragraphs.append((context, qas))
  return write_squad(path, paragraphs, "v2.0" if version_2 else "1.1")
