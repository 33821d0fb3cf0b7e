"""The profile of a step prints its table. The speed is not tested."""

from __future__ import annotations

import re

import pytest

from benchmarks.profile_step import KINDS, find_kind
from tests.benchmarks import scripts


@pytest.mark.slow
def test_the_table_divides_the_time_among_all_kinds_of_operations() -> None:
  result = scripts.run("profile_step.py", "--model=albert_tiny", "--shape=2x16", "--predictions=3", "--steps=1")
  assert result.returncode == 0, result.stderr
  rows = re.findall(r"^\| ([a-z ,]+) \| ([0-9.]+) \| ([0-9.]+)% \|$", result.stdout, re.MULTILINE)
  assert {kind for kind, _, _ in rows} == set(KINDS)
  assert sum(float(share) for _, _, share in rows) == pytest.approx(100, abs=0.5)
  assert all(float(seconds) > 0 for kind, seconds, _ in rows if "products" in kind)


@pytest.mark.parametrize(
  ("operation", "kind"),
  [
    ("_MklNativeFusedMatMul", "matrix products"),
    ("_MklBatchMatMulV2", "products of attention"),
    ("_MklTranspose", "transposes, copies"),
    ("AddN", "sums over rows or tensors"),
    ("AddV2", "element by element"),
  ],
)
def test_the_name_of_an_operation_gives_its_kind(operation: str, kind: str) -> None:
  assert find_kind(operation) == kind


def test_a_bad_shape_is_an_error_of_one_line() -> None:
  result = scripts.run("profile_step.py", "--shape=8")
  assert (result.returncode, result.stderr) == (2, "error: --shape=8: is not BATCHxLENGTH, such as 8x128\n")
