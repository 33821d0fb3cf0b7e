"""The lines of text whose masks are filled."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert.errors import UserError
from albert.tasks.pretraining.fill_mask import read_masked_lines
from albert.tokenization.tokenizer import Tokenizer


def test_lines_end_with_lf_or_crlf_only(spm_model: str, tmp_path: Path) -> None:
  first = "The [MASK]\u2028is\x85dry\x0band\x0c[MASK]\x1cand\u00a0old."
  path = tmp_path / "masked.txt"
  path.write_bytes(f"\ufeff{first}\r\n\nThe [MASK].".encode())
  lines = read_masked_lines([str(path)], Tokenizer(spm_model), max_length=64)
  assert [(line.number, line.text, len(line.positions)) for line in lines] == [(1, first, 2), (3, "The [MASK].", 1)]


def test_a_line_that_is_not_utf8_is_named(spm_model: str, tmp_path: Path) -> None:
  path = tmp_path / "masked.txt"
  path.write_bytes(b"The [MASK].\nThe \xff[MASK].\n")
  with pytest.raises(UserError, match=r"masked\.txt, line 2: not UTF-8 .* save the file as UTF-8"):
    read_masked_lines([str(path)], Tokenizer(spm_model), max_length=64)
