"""Comparisons of tokenization: with recorded results of the original code, and of the graph with Python."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import english_like_documents
from tests.parity.rows import Row
from tests.tokenization.test_graph import code_point_texts, differences, repeated_texts
from tests.tokenization.test_tokenizer import TEXTS, random_texts


def recorded_rows(tokenization_file: str, spm_model_file: str) -> Iterator[Row]:
  """Args:
  tokenization_file: JSON list of {text, do_lower_case, normalized, ids}.
  spm_model_file: the vocabulary it was recorded with.
  """
  tokenizers = {lower: Tokenizer(spm_model_file, lower) for lower in (True, False)}
  cases = json.loads(Path(tokenization_file).read_text(encoding="utf-8"))
  assert cases
  texts = ids = 0
  for case in cases:
    tokenizer = tokenizers[case["do_lower_case"]]
    texts += tokenizer.normalize(case["text"]) != case["normalized"]
    ids += tokenizer.encode(case["text"]) != case["ids"]
  against = "the original code, recorded"
  yield Row(f"{len(cases)} strings, normalized: that differ", against, float(texts), 0.0)
  yield Row(f"{len(cases)} strings, ids: that differ", against, float(ids), 0.0)


def graph_rows(spm_model_file: str) -> Iterator[Row]:
  """Compares all assigned code points, generated sentences, random strings and long words, cased and lower-cased."""
  sentences = list(itertools.chain.from_iterable(english_like_documents(2000, seed=9)))
  texts = TEXTS + sentences + random_texts(20_000, seed=5) + code_point_texts() + repeated_texts(4000)
  for do_lower_case in (True, False):
    found = differences(spm_model_file, texts, do_lower_case)
    case = "lower-cased" if do_lower_case else "cased"
    yield Row(f"in the graph, {len(texts)} strings, {case}: that differ", "in Python", float(len(found)), 0.0)
