"""Writes the tokenizer.json of a unigram vocabulary as transformers 5 does, for tests without transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
QUOTES: list[dict[str, Any]] = [
  {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
]


def values(pieces: Mapping[str, float], steps: Iterable[str | dict[str, Any]]) -> dict[str, Any]:
  """Returns the content of a tokenizer.json.

  Args:
    pieces: the pieces after the special ones, and their scores.
    steps: the steps of the normalizer, as they are written; a name stands for a step without settings.
  """
  words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
  return {
    "version": "1.0",
    "added_tokens": [{"id": i, "content": piece, "special": True} for i, piece in enumerate(SPECIAL_PIECES)],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": s} if isinstance(s, str) else s for s in steps]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, words]},
    "post_processor": {"type": "TemplateProcessing"},
    "model": {
      "type": "Unigram",
      "unk_id": 1,
      "vocab": [*((piece, 0.0) for piece in SPECIAL_PIECES), *pieces.items()],
      "byte_fallback": False,
    },
  }


def write_vocabulary(directory: Path, pieces: Mapping[str, float], steps: Iterable[str | dict[str, Any]]) -> str:
  """Writes a tokenizer.json (see `values`), and returns its path."""
  path = directory / "tokenizer.json"
  path.write_text(json.dumps(values(pieces, steps)), encoding="utf-8")
  return str(path)
