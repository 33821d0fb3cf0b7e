"""Makes requests for each served form from any texts, for the tests of exported models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.conftest import english_like_documents


def make_requests(form: str, texts: Sequence[str], seed: int = 0) -> list[dict[str, Any]]:
  """Makes one request from each text. If a request has several fields, its other fields hold other texts of the list.

  fill_mask gets masks in its texts, and race gets blanks in its questions.
  """
  rng = random.Random(seed)
  other_texts = rng.sample(texts, len(texts))
  if form in ("classifier", "multi_label", "embeddings", "tagging"):
    return [{"text": text} for text in texts]
  if form == "fill_mask":
    return [{"text": _insert_masks(rng, text)} for text in texts]
  if form in ("sentence_order", "regression"):
    return [{"text_a": a, "text_b": b} for a, b in zip(texts, other_texts, strict=True)]
  if form in ("squad_v1", "squad_v2"):
    # Every fourth context ends with characters that no token has, and with 東, before which a space is a token.
    endings = ["", "", "", " 東 \u200bletter\x01 ﷺ 京\u200d"]
    contexts = [" ".join([text, *rng.sample(texts, rng.randrange(3))]) + rng.choice(endings) for text in texts]
    return [{"question": question, "context": context} for question, context in zip(other_texts, contexts, strict=True)]
  assert form == "race"
  return [
    {
      "article": " ".join([text, *rng.sample(texts, 2)]),
      "question": other + rng.choice(["", " _ ", "___", "_ or _"]),
      # An option must not be empty, but a text may be.
      "options": [option or "." for option in rng.sample(texts, rng.randrange(2, 5))],
    }
    for text, other in zip(texts, other_texts, strict=True)
  ]


def _insert_masks(rng: random.Random, text: str) -> str:
  """Inserts one to three masks at random positions."""
  for _ in range(rng.randrange(1, 4)):
    position = rng.randrange(len(text) + 1)
    text = text[:position] + rng.choice(["[MASK]", " [MASK] ", " [MASK]", "[MASK]."]) + text[position:]
  return text


def english_like_texts(count: int) -> list[str]:
  """Makes English-like texts of one to four sentences."""
  documents = english_like_documents(count, seed=11)
  return [" ".join(document[: 1 + i % 4]) for i, document in enumerate(documents)]
