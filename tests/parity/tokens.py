"""Compares tokenization with recorded results of the original code, and tokenization in the graph with Python."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from albert.tokenization.tokenizer import Tokenizer
from tests.conftest import english_like_documents
from tests.parity.rows import Row
from tests.tokenization.reference import TEXTS, find_differences, random_texts
from tests.tokenization.test_sentence_piece_graph import code_point_texts, repeated_texts


def recorded_rows(tokenization_file: str, spm_model_file: str) -> Iterator[Row]:
  """Compares normalized texts and ids with recorded ones.

  Args:
    tokenization_file: a JSON list of {text, do_lower_case, normalized, ids}.
    spm_model_file: the vocabulary that they were recorded with.
  """
  tokenizers = {do_lower_case: Tokenizer(spm_model_file, do_lower_case) for do_lower_case in (True, False)}
  recorded_texts = json.loads(Path(tokenization_file).read_text(encoding="utf-8"))
  assert recorded_texts
  num_texts_differ = num_ids_differ = 0
  for recorded in recorded_texts:
    tokenizer = tokenizers[recorded["do_lower_case"]]
    if tokenizer.normalize(recorded["text"]) != recorded["normalized"]:
      num_texts_differ += 1
    if tokenizer.encode(recorded["text"]) != recorded["ids"]:
      num_ids_differ += 1
  compared_with = "the original code, recorded"
  yield Row(f"{len(recorded_texts)} strings, normalized: that differ", compared_with, float(num_texts_differ), 0.0)
  yield Row(f"{len(recorded_texts)} strings, ids: that differ", compared_with, float(num_ids_differ), 0.0)


def graph_rows(spm_model_file: str) -> Iterator[Row]:
  """Compares the graph with Python on all assigned code points, sentences, random strings and long words."""
  sentences = list(itertools.chain.from_iterable(english_like_documents(2000, seed=9)))
  texts = TEXTS + sentences + random_texts(20_000, seed=5) + code_point_texts() + repeated_texts(4000)
  for do_lower_case in (True, False):
    num_different = len(find_differences(spm_model_file, texts, with_offsets=False, do_lower_case=do_lower_case))
    case = "lower-cased" if do_lower_case else "cased"
    yield Row(f"in the graph, {len(texts)} strings, {case}: that differ", "in Python", float(num_different), 0.0)
