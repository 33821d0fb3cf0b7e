"""The comparison of engines prints its table, with a row for each engine, also for one that fails."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from albert.errors import UserError
from benchmarks.engines import registry, report
from benchmarks.engines.client import EngineProcess, Measurement
from benchmarks.engines.registry import CALLS, ENGINES, REFERENCE, Engine
from tests.benchmarks import scripts

_NO_LOADER = dataclasses.replace(ENGINES[REFERENCE], loader="load_nothing")


def _measured(engine: Engine, directory: Path, *, seconds: float, probability: float) -> EngineProcess:
  """An engine with the given results, without a measurement."""
  process = EngineProcess(engine, directory, directory / "batches.npz", threads=0, time_limit=60)
  process.close()
  process.failure = ""
  process.start, process.memory = {"import": 1.0, "load": 2.0}, 300.0
  process.turns = {name: [Measurement(seconds, 2 * seconds)] * 3 for name in CALLS}
  process.probabilities = {name: np.array([[probability, 1 - probability]]) for name in CALLS}
  return process


@pytest.fixture
def models_directory(tmp_path: Path) -> Path:
  registry.save_batches(str(tmp_path / "batches.npz"), registry.make_batches(100))
  return tmp_path


def test_an_engine_that_fails_has_a_row_with_the_reason(models_directory: Path) -> None:
  broken = dataclasses.replace(ENGINES["torch"], loader="load_nothing")
  failed = EngineProcess(broken, models_directory, models_directory / "batches.npz", threads=0, time_limit=60)
  failed.measure("1 x 16", is_counted=True)
  failed.close()
  assert failed.failure == "exit code 1 KeyError: 'load_nothing'"
  processes = {REFERENCE: _measured(_NO_LOADER, models_directory, seconds=0.25, probability=0.5), "torch": failed}
  header, _, *rows = report.format_table(processes, {REFERENCE: 47_500_000, "torch": 0})
  assert header.startswith("| engine | 1 x 16, ms | 1 x 128, ms | 1 x 512, ms | 8 x 128, texts/s | 8 mixed, texts/s | ")
  assert rows[0] == "| SavedModel | 250.0 | 250.0 | 250.0 | 32.00 | 32.00 | 1.0 | 2.0 | 300 | 47.5 | 0.0e+00 |"
  assert rows[1].startswith("| transformers on torch | failed: exit code 1 KeyError: 'load_nothing' | ")
  assert rows[1].count("|") == header.count("|")


@pytest.mark.parametrize(("is_approximate", "num_lines"), [(False, 1), (True, 0)])
def test_only_a_float32_engine_must_have_the_answers_of_the_saved_model(
  models_directory: Path, is_approximate: bool, num_lines: int
) -> None:
  engine = dataclasses.replace(_NO_LOADER, is_approximate=is_approximate)
  processes = {
    REFERENCE: _measured(_NO_LOADER, models_directory, seconds=0.25, probability=0.5),
    "other": _measured(engine, models_directory, seconds=0.25, probability=0.502),
  }
  lines = report.wrong_answers(processes)
  assert len(lines) == num_lines
  assert all("differs by 0.002 " in line for line in lines)


def test_the_table_of_a_guide_is_replaced() -> None:
  guide = "before\n<!-- table of bench_engines.py -->\nold\n<!-- end of the table -->\nafter\n"
  expected = "before\n<!-- table of bench_engines.py -->\n\n| new |\n\n<!-- end of the table -->\nafter\n"
  assert report.replace_table(guide, ["| new |"], "guide.md") == expected
  with pytest.raises(UserError, match=r"--guide=guide\.md: has no lines"):
    report.replace_table("before\nafter\n", [], "guide.md")


def test_the_guide_has_a_table_to_replace() -> None:
  path = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
  report.replace_table(path.read_text(encoding="utf-8"), [], str(path))


def test_the_batches_are_always_the_same() -> None:
  first, second = registry.make_batches(100), registry.make_batches(100)
  assert list(first) == list(CALLS)
  assert [first[name]["input_ids"].shape for name in CALLS] == [(1, 16), (1, 128), (1, 512), (8, 128), (8, 132)]
  assert all((first[name]["input_ids"] == second[name]["input_ids"]).all() for name in CALLS)
  assert first[registry.MIXED]["input_mask"].sum(axis=1).tolist() == [84, 123, 83, 22, 132, 91, 41, 101]


@pytest.mark.slow
def test_the_table_has_a_row_for_each_installed_engine(tmp_path: Path) -> None:
  output = tmp_path / "engines.md"
  result = scripts.run("bench_engines.py", "--model=albert_tiny", "--rounds=1", f"--output={output}")
  assert result.returncode == 0, result.stderr
  text = output.read_text()
  assert result.stdout == text + "\n"
  rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 10]
  engines = {ENGINES[name].title: ENGINES[name] for name in registry.DEFAULT_ENGINES}
  installed = [title for title, engine in engines.items() if not engine.missing_packages()]
  assert [row[0] for row in rows] == ["| engine", *(f"| {title}" for title in installed)]
  assert all(float(cell) > 0 for row in rows[1:] for cell in row[1:10])
  left_out = [line for line in result.stderr.splitlines() if line.startswith("Left out")]
  assert all(title in left_out[0] for title in engines if title not in installed)
