"""A vocabulary of 61 pieces for the toy task (tests/tasks/toy.py)."""

from __future__ import annotations

import itertools
import string

import pytest

from tests.conftest import SaveModel


@pytest.fixture
def spm_file(save_model: SaveModel) -> str:
  """A vocabulary of 61 pieces: five control symbols and 56 words of two letters (aa, ab, ..., cd)."""
  return save_model(pieces_of_two_letters(string.ascii_lowercase))


def pieces_of_two_letters(second_letters: str) -> list[tuple[str, float]]:
  """Returns 56 pieces with their scores: a and each of the second letters, then b and each of them, and so on."""
  words = itertools.product(string.ascii_lowercase, second_letters)
  return [(f"▁{first}{second}", -1.0 - i) for i, (first, second) in enumerate(itertools.islice(words, 56))]
