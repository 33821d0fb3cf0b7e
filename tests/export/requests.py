"""Requests of every kind that a form takes, of any texts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.conftest import english_like_documents


def requests_of(form: str, texts: Sequence[str], seed: int = 0) -> list[dict[str, Any]]:
  """A request a text, the other fields of which are other texts; with masks, blanks and options where these belong."""
  rng = random.Random(seed)
  others = rng.sample(texts, len(texts))
  if form in ("classifier", "embeddings"):
    return [{"text": text} for text in texts]
  if form == "fill_mask":
    return [{"text": _with_masks(rng, text)} for text in texts]
  if form in ("sentence_order", "regression"):
    return [{"text_a": a, "text_b": b} for a, b in zip(texts, others, strict=True)]
  if form in ("squad_v1", "squad_v2"):
    # A token of space alone in front of 東, and characters that no token has.
    ends = [*[""] * 3, " 東 \u200bletter\x01 ﷺ 京\u200d"]
    contexts = [" ".join([text, *rng.sample(texts, rng.randrange(3))]) + rng.choice(ends) for text in texts]
    return [{"question": q, "context": c} for q, c in zip(others, contexts, strict=True)]
  assert form == "race"
  return [
    {
      "article": " ".join([text, *rng.sample(texts, 2)]),
      "question": other + rng.choice(["", " _ ", "___", "_ or _"]),
      "options": [option or "." for option in rng.sample(texts, rng.randrange(2, 5))],
    }
    for text, other in zip(texts, others, strict=True)
  ]


def _with_masks(rng: random.Random, text: str) -> str:
  for _ in range(rng.randrange(1, 4)):
    place = rng.randrange(len(text) + 1)
    text = text[:place] + rng.choice(["[MASK]", " [MASK] ", " [MASK]", "[MASK]."]) + text[place:]
  return text


def plain_texts(count: int) -> list[str]:
  """English-like texts of one sentence and of several."""
  documents = english_like_documents(count, seed=11)
  return [" ".join(document[: 1 + i % 4]) for i, document in enumerate(documents)]
