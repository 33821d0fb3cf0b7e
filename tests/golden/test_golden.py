"""What the commands do is what the golden files say, which were recorded before (see tests/golden/record.py)."""

from __future__ import annotations

import copy
import decimal
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.golden.record import DIRECTORY

ROOT = Path(__file__).parents[2]
NAMES = ("flags", "shards", "runs")
TOLERANCE = 1e-4  # relative: AMX, AVX2 and other instructions round differently
_MAX_LINES = 20
REMEDY = (
  "If these changes are meant, record again with `python -m tests.golden.record`, look at `git diff tests/golden`, and "
  "name each changed case in CHANGELOG.md."
)


def differences(expected: Any, found: Any, place: str) -> list[str]:
  """Returns a line for each difference. Numbers, also those written as texts, may differ by TOLERANCE."""
  if isinstance(expected, dict) and isinstance(found, dict):
    names = {**expected, **found}
    missing = object()
    pairs = [(name, expected.get(name, missing), found.get(name, missing)) for name in names]
    lines = [f"{place}: {name!r} is {'new' if a is missing else 'missing'}" for name, a, b in pairs
             if missing in (a, b)]  # fmt: skip
    return lines + [
      line for name, a, b in pairs if missing not in (a, b) for line in differences(a, b, f"{place}, {name}")
    ]
  if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
    return [
      line
      for index, (a, b) in enumerate(zip(expected, found, strict=True))
      for line in differences(a, b, f"{place}[{index}]")
    ]
  return [] if _are_equal(expected, found) else [f"{place}: {found!r} instead of {expected!r}"]


def _are_equal(expected: Any, found: Any) -> bool:
  if isinstance(expected, float) and isinstance(found, float):
    return math.isclose(expected, found, rel_tol=TOLERANCE)
  if isinstance(expected, str) and isinstance(found, str) and re.fullmatch(r"-?\d+\.\d+", expected):
    if not re.fullmatch(r"-?\d+\.\d+", found):
      return False
    # The last digit may have been rounded up or down.
    unit = decimal.Decimal(expected).as_tuple().exponent
    return math.isclose(float(expected), float(found), rel_tol=TOLERANCE, abs_tol=1.5 * 10.0 ** int(unit))
  return bool(expected == found)


def read_golden(name: str, directory: Path = DIRECTORY) -> dict[str, Any]:
  content: dict[str, Any] = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
  return content


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """A directory with newly recorded files. The recorder forks processes, so it runs in a process of its own."""
  directory = tmp_path_factory.mktemp("golden")
  environment = os.environ | {"TF_USE_LEGACY_KERAS": "1"}
  command = [sys.executable, "-m", "tests.golden.record", str(directory)]
  subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=900)
  return directory


@pytest.mark.thorough
@pytest.mark.skipif(
  importlib.metadata.version("tensorflow").startswith("2.15"),
  reason="TensorFlow 2.15 and its older libraries initialize, train and export other numbers than the recorded ones",
)
@pytest.mark.parametrize("name", NAMES)
def test_the_commands_do_what_was_recorded(recorded: Path, name: str) -> None:
  lines = differences(read_golden(name), read_golden(name, recorded), f"{name}.json")
  shown = lines[:_MAX_LINES] + [f"... and {len(lines) - _MAX_LINES} more"] * (len(lines) > _MAX_LINES)
  assert not lines, "\n".join(["the behaviour has changed:", *shown, REMEDY])


def test_every_change_is_found_and_rounding_is_not() -> None:
  golden = read_golden("runs")
  case = golden["MNLI"]

  def lines_of(change: Any) -> list[str]:
    changed = copy.deepcopy(golden)
    change(changed["MNLI"])
    return differences(golden, changed, "runs.json")

  loss, written = case["metrics"][0]["loss"], case["files"]["predictions_matched.tsv"]["numbers"][0]
  hash_ = case["files"]["MNLI-m.tsv"]["text"]
  other = f"{float(written) * 1.01:.6f}"
  for change, expected in (
    (lambda case: case["metrics"][0].update(loss=loss * 1.00005), []),
    (lambda case: case["metrics"][0].update(loss=loss * 1.0002),
     [f"runs.json, MNLI, metrics[0], loss: {loss * 1.0002!r} instead of {loss!r}"]),
    (lambda case: case["files"]["MNLI-m.tsv"].update(text="0"),
     [f"runs.json, MNLI, files, MNLI-m.tsv, text: '0' instead of {hash_!r}"]),
    (lambda case: case["files"]["predictions_matched.tsv"]["numbers"].__setitem__(0, other),
     [f"runs.json, MNLI, files, predictions_matched.tsv, numbers[0]: {other!r} instead of {written!r}"]),
    (lambda case: case["files"].pop("MNLI-m.tsv"), ["runs.json, MNLI, files: 'MNLI-m.tsv' is missing"]),
    (lambda case: case["files"].update(new={}), ["runs.json, MNLI, files: 'new' is new"]),
    (lambda case: case["batches"].pop(), 1),
  ):  # fmt: skip
    lines = lines_of(change)
    assert len(lines) == expected if isinstance(expected, int) else lines == expected
