"""The size of a deep model is estimated from the sizes of shallower ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from albert.config.model import MODELS
from benchmarks.tpu import depth, search
from benchmarks.tpu.programs import Program

GIB = 1 << 30
PROGRAM = Program(step="pretraining", model="bert_xlarge", length=128, shard_optimizer_state=True)
RESULTS = Path(depth.__file__).resolve().parents[1] / "results"


def made_up_trial(gib: float, *, fits: bool = True) -> dict[str, Any]:
  """Returns the result of a compilation of a program that takes `gib` GiB, of which 0.5 GiB are variables."""
  common = {"seconds": 1.0, "host_peak": 2 * GIB}
  if not fits:
    return {**common, "needs": int(gib * GIB), "limit": 15 * GIB}
  half = GIB // 2
  return {**common, "argument": half, "output": half, "alias": half, "temporary": int(gib * GIB) - half, "code": 0}


def table_rows(tmp_path: Path, gib_at_depth: dict[int, float], **options: Any) -> dict[str, dict[str, str]]:
  """Records trials of these sizes and returns the cells of the table by layers and heading."""
  path = tmp_path / "trials.jsonl"
  for layers, gib in gib_at_depth.items():
    at_depth = dataclasses.replace(PROGRAM, num_hidden_layers=layers)
    search.record_trial(path, at_depth, "v3", "2026-11-23", 8, made_up_trial(gib, **options))
  header, _, *lines = depth.format_table(path).splitlines()
  headings, *rows = ([cell.strip() for cell in line[2:-2].split(" | ")] for line in (header, *lines))
  assert [row[:6] for row in rows] == [["bert_xlarge", "sharded", "128", "8", "1", "v3"]] * len(rows)
  return {row[6]: dict(zip(headings, row, strict=True)) for row in rows}


def test_a_program_has_the_layers_it_names():
  assert PROGRAM.model_config == MODELS["bert_xlarge"]
  shallow = dataclasses.replace(PROGRAM, num_hidden_layers=3).model_config
  assert shallow.num_hidden_layers == 3
  assert dataclasses.replace(shallow, num_hidden_layers=24) == MODELS["bert_xlarge"]


@pytest.mark.parametrize(("per_layer", "verdict"), [(0.5, "yes"), (0.75, "no")])  # 13.25 and 19.25 GiB; 15.48 fit
def test_the_largest_depth_is_predicted_and_the_whole_model_estimated(tmp_path, per_layer, verdict):
  # Not in the order of the depths.
  rows = table_rows(tmp_path, {6: 1.25 + 6 * per_layer, 2: 1.25 + 2 * per_layer, 4: 1.25 + 4 * per_layer})
  assert list(rows) == ["2", "4", "6", "24, estimated"]
  assert rows["2"]["predicted from fewer layers"] == rows["4"]["predicted from fewer layers"] == ""
  assert rows["6"]["predicted from fewer layers"] == rows["6"]["HBM GiB"] == f"{1.25 + 6 * per_layer:.2f}"
  assert (rows["6"]["variables"], rows["6"]["temporaries"]) == ("0.50", f"{0.75 + 6 * per_layer:.2f}")
  assert rows["24, estimated"]["HBM GiB"] == f"{1.25 + 24 * per_layer:.2f}"
  assert rows["24, estimated"]["limit"] == "15.48"  # of v3, in the compiler's message
  assert rows["24, estimated"]["fits"] == verdict


def test_the_prediction_does_not_know_the_size_that_it_is_compared_with(tmp_path):
  rows = table_rows(tmp_path, {2: 2.0, 4: 3.0, 6: 5.0})
  assert (rows["6"]["predicted from fewer layers"], rows["6"]["HBM GiB"]) == ("4.00", "5.00")
  # Least squares: the mean is 10/3 at 4 layers, the slope (5 - 2) / (6 - 2).
  assert rows["24, estimated"]["HBM GiB"] == f"{10 / 3 + 0.75 * 20:.2f}"


def test_a_compiled_whole_model_is_not_estimated(tmp_path):
  rows = table_rows(tmp_path, {2: 2.0, 4: 3.0, 24: 13.0})
  assert list(rows) == ["2", "4", "24"]


def test_sizes_that_do_not_fit_are_no_base_of_an_estimate(tmp_path):
  rows = table_rows(tmp_path, {2: 16.0, 4: 17.0}, fits=False)
  assert list(rows) == ["2", "4"]
  assert [row["fits"] for row in rows.values()] == ["no", "no"]


def test_depths_are_compiled_once_from_the_smallest(tmp_path, monkeypatch):
  compiled = []

  def compile_depth(program: Program, chip: str, batch: int) -> dict[str, Any]:
    compiled.append((program.num_hidden_layers, chip, batch))
    return made_up_trial(3.0)

  monkeypatch.setattr(depth, "compile_depth", compile_depth)
  path = tmp_path / "trials.jsonl"
  depth.compile_depths(PROGRAM, "v3", 4, [5, 2], path)
  depth.compile_depths(PROGRAM, "v3", 4, [2, 3], path)
  depth.compile_depths(PROGRAM, "v3", 1, [2], path)  # another batch is another program
  assert compiled == [(2, "v3", 4), (5, "v3", 4), (3, "v3", 4), (2, "v3", 1)]
  lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  assert [line["program"]["num_hidden_layers"] for line in lines] == [2, 5, 3, 2]


def test_the_committed_table_has_the_committed_compilations():
  trials_file = RESULTS / depth.TRIALS_FILE
  newest_table = max(RESULTS.glob("tpu_depth_2*.md"))
  assert newest_table.read_text(encoding="utf-8").endswith("\n" + depth.format_table(trials_file))
