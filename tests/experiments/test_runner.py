"""A plan runs its commands: finished ones are not repeated, and failed or stopped ones are reported."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.model import ModelConfig
from albert.errors import RunError, Stopped, UserError
from albert.experiments import catalog, layers, runner, tables
from albert.experiments.catalog import Experiment, Variant
from albert.experiments.plan import Cell, FinetuningTask, Inputs, Plan, Result, Step
from albert.experiments.scales import SCALES
from albert.runs.directory_lock import DirectoryLock

_VARIANTS = [
  Variant(name=name, model="albert_base", fields={}, data={}, x=x, paper={"sop": 86.5})
  for name, x in (("one", 1.0), ("two", 2.0))
]
EXPERIMENT = Experiment(name="toy", title="A toy", source="nowhere", variants=_VARIANTS, intrinsic=["sop"], x="size")
WRITE = "import json, sys; json.dump({'sentence_order_accuracy': float(sys.argv[2])}, open(sys.argv[1], 'w'))"


class _ToyPlan(Plan):
  """Two variants with two seeds. Each cell is one command, the script of its variant, after the step `shared`."""

  def __init__(self, directory: Path, scripts: Mapping[str, str] | None = None, shared: Step | None = None):
    super().__init__(EXPERIMENT, SCALES["smoke"], Inputs(output_dir=str(directory), vocab_size=10, num_seeds=2))
    self._scripts = scripts or {}
    self._first = [shared] if shared else []

  def preparation(self) -> list[Step]:
    return []

  def _cell(self, variant: Variant, seed: int) -> Cell:
    run = Path(self.inputs.output_dir) / f"{variant.name}-{seed}"
    run.mkdir(exist_ok=True)
    done = str(run / "eval_results.json")
    script = self._scripts.get(variant.name, WRITE)
    value = (0.5 if variant.name == "one" else 0.75) + (seed - 12345) / 100
    step = Step(f"{variant.name}, seed {seed}: pretraining", (sys.executable, "-c", script, done, str(value)), done)
    config = ModelConfig(embedding_size=8, hidden_size=8, num_attention_heads=1)
    results = {"sop": Result(done, "sentence_order_accuracy")}
    return Cell(variant, seed, f"{variant.name}{seed}", config, [*self._first, step], results, str(run))


def _rows(plan: Plan) -> list[dict[str, Any]]:
  return [json.loads(line) for line in (Path(plan.directory) / runner.ROWS).read_text().splitlines()]


def test_one_process_at_a_time(tmp_path: Path):
  plan = _ToyPlan(tmp_path)
  with DirectoryLock(plan.directory, "running experiments"), pytest.raises(UserError, match="is running experiments"):
    runner.run_plan(plan)


def test_rows_come_one_at_a_time_and_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
  fails = _ToyPlan(tmp_path, {"two": "print('first'); print('the reason'); raise SystemExit(3)"})
  with pytest.raises(RunError, match=r"two, seed 12345: pretraining ended with code 3 \(the reason\); .*logs/two-"):
    runner.run_plan(fails)
  assert [row["variant"] for row in _rows(fails)] == ["one"]
  log = Path(fails.directory) / "log.txt"
  with (Path(fails.directory) / runner.ROWS).open("a") as rows:
    rows.write('{"variant": "cut o')  # a kill while a row was written
  log.unlink()
  rows = runner.run_plan(_ToyPlan(tmp_path))
  assert [(row["variant"], row["seed"], row["scores"]["sop"]) for row in rows] == [
    ("one", 12345, 50.0),
    ("two", 12345, 75.0),
    ("one", 12346, 51.0),
    ("two", 12346, 76.0),
  ]
  assert _rows(fails) == rows
  assert log.read_text().count("$ ") == 3
  capsys.readouterr()
  assert runner.run_plan(_ToyPlan(tmp_path)) == rows
  assert capsys.readouterr().out == "toy: 4 of 4 cells are done\n"
  assert log.read_text().count("$ ") == 3


def test_a_signal_is_passed_to_the_running_command(tmp_path: Path):
  waits = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); "
    "open(sys.argv[1] + '.up', 'w'); time.sleep(60)"
  )
  plan = _ToyPlan(tmp_path, {"two": waits})
  up = tmp_path / "two-12345" / "eval_results.json.up"

  def stop() -> None:
    while not up.exists():
      time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=stop, daemon=True).start()
  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(Stopped, match="stopped in two, seed 12345: pretraining; the same command continues there"):
    runner.run_plan(plan)
  assert signal.getsignal(signal.SIGTERM) is before
  assert len(runner.run_plan(_ToyPlan(tmp_path))) == 4


def test_parallel_cells_share_the_processors_and_run_no_step_twice(tmp_path: Path):
  """Each command of the first seed waits for the file of the other. Only one of them runs the shared step."""
  meets = (
    "import json, os, sys, time; me = os.path.dirname(sys.argv[1]); assert os.path.exists('{dir}/shared')\n"
    "open(me + '/up', 'w')\n"
    "while not os.path.exists(me.replace('{me}', '{other}') + '/up'): time.sleep(0.01)\n"
    "json.dump({{'sentence_order_accuracy': float(os.environ['TF_NUM_INTRAOP_THREADS'])}}, open(sys.argv[1], 'w'))"
  )
  scripts = {
    me: meets.format(dir=tmp_path, me=f"{me}-", other=f"{other}-") for me, other in (("one", "two"), ("two", "one"))
  }
  once = "import sys, time; time.sleep(0.3); open(sys.argv[1], 'x')"  # refuses to make it again
  shared = Step("shared", (sys.executable, "-c", once, str(tmp_path / "shared")), str(tmp_path / "shared"))
  rows = runner.run_plan(_ToyPlan(tmp_path, scripts, shared), jobs=2)
  threads = 100.0 * max(1, (os.cpu_count() or 1) // 2)
  assert [row["scores"]["sop"] for row in rows] == [threads] * 4
  assert sorted(_rows(_ToyPlan(tmp_path)), key=str) == sorted(rows, key=str)


def test_a_cell_that_fails_stops_the_parallel_cells(tmp_path: Path):
  saves = (
    "import signal, sys, time; signal.signal(15, lambda *_: (open(sys.argv[1] + '.saved', 'w'), sys.exit(143))); "
    "open(sys.argv[1] + '.up', 'w'); time.sleep(60)"
  )
  up = tmp_path / "one-12345" / "eval_results.json.up"
  fails = f"import os, time\nwhile not os.path.exists({str(up)!r}): time.sleep(0.01)\nprint('the reason'); exit(3)"
  with pytest.raises(RunError, match=r"two, seed 12345: pretraining ended with code 3 \(the reason\)"):
    runner.run_plan(_ToyPlan(tmp_path, {"one": saves, "two": fails}), jobs=2)
  assert up.with_suffix(".saved").exists()
  assert not (tmp_path / "toy" / runner.ROWS).exists()


def test_the_table_has_our_numbers_beside_the_papers(tmp_path: Path):
  plan = _ToyPlan(tmp_path)
  text = tables.write(plan, runner.run_plan(plan), scale="smoke")
  assert text.splitlines()[-2:] == [
    "| one | 0.297M | 50.5 ± 0.7 | 86.5 |",
    "| two | 0.297M | 75.5 ± 0.7 | 86.5 |",
  ]
  assert "Scale smoke; 2 seeds, mean ± standard deviation" in text
  directory = Path(plan.directory)
  assert (directory / tables.TABLE).read_text() == text
  assert (directory / tables.NUMBERS).read_text().splitlines()[1].startswith("one,12345,")
  assert (directory / tables.FIGURE).read_bytes().startswith(b"\x89PNG")


def _plan(tmp_path: Path, name: str, **inputs: Any) -> Plan:
  given = {"output_dir": str(tmp_path), "vocab_size": 1000, "num_seeds": 1} | inputs
  return Plan(catalog.load(name), SCALES["smoke"], Inputs(**given))


def _commands(plan: Plan) -> dict[str, list[tuple[str, ...]]]:
  return {cell.variant.name: [step.command for step in cell.steps] for cell in plan.cells()}


def test_experiments_share_their_common_steps(tmp_path: Path):
  runs = {cell.run for name in ("embedding_size", "sharing") for cell in _plan(tmp_path, name).cells()}
  assert len(runs) == 8 + 8 - 4  # E 128 and 768, all or nothing shared
  same = {"sharing": "E=128 all-shared", "masking": "static", "sentence_loss": "SOP"}
  cells = [cell for name in same for cell in _plan(tmp_path, name).cells() if cell.variant.name == same[name]]
  assert (len(cells), len({cell.run for cell in cells})) == (3, 1)
  dynamic = _commands(_plan(tmp_path, "masking"))
  shards = f"--input_file={tmp_path}/shared/shards-main-sop-none-segments-"
  assert [shards in " ".join(c) for c in dynamic["dynamic"]].count(True) == 1


def test_a_deeper_network_starts_from_the_shallower_one(tmp_path: Path):
  cells = {cell.variant.name: cell for cell in _plan(tmp_path, "depth").cells()}
  three = cells["3 layers"]
  assert f"--init_checkpoint={cells['1 layer'].run}" in three.steps[-1].command
  assert cells["1 layer"].steps[-1] in three.steps
  assert len(cells["48 layers"].steps) == len(cells["1 layer"].steps) + 5


def test_each_model_is_evaluated_on_all_sentence_tasks(tmp_path: Path):
  tasks = {
    "sst2": FinetuningTask("run_classifier", {"task_name": "SST-2", "data_dir": "glue"}, {"sst2": ("accuracy", 100.0)})
  }
  cells = {cell.variant.name: cell for cell in _plan(tmp_path, "sentence_loss", tasks=tasks).cells()}
  assert {name: sorted(cell.results) for name, cell in cells.items()} == {
    "none": ["mlm", "nsp", "sop", "sst2"],
    "NSP": ["mlm", "nsp", "sop", "sst2"],
    "SOP": ["mlm", "nsp", "sop", "sst2"],
  }
  assert cells["SOP"].results["nsp"].file == f"{cells['SOP'].run}/nsp/eval_results.json"


def test_other_text_or_another_scale_uses_other_folders(tmp_path: Path):
  given = {"output_dir": str(tmp_path), "vocab_size": 1000, "num_seeds": 1}
  plans = [
    Plan(catalog.load("masking"), SCALES[scale], Inputs(**given, **texts))
    for scale in ("smoke", "small")
    for texts in ({}, {"corpus": "a.txt", "heldout_corpus": "b.txt"}, {"corpus": "c.txt", "heldout_corpus": "b.txt"})
  ]
  assert len({plan.vocabulary for plan in plans}) == 4  # that of a.txt is for both scales, as is that of c.txt
  folders = [{step.last_file for cell in plan.cells() for step in cell.steps} for plan in plans]
  for n, one in enumerate(folders):
    assert all(one.isdisjoint(other) for other in folders[n + 1 :])


def test_held_out_text_is_made_from_the_development_sets(tmp_path: Path):
  question_flags = {"squad_file": "dev.json", "race_file": "RACE/dev"}
  plan = _plan(tmp_path, "dropout", corpus="a.txt", question_flags=question_flags)
  (step,) = [step for step in plan.preparation() if "data_prep.question_texts" in step.command]
  assert {f"--output_file={step.last_file}", "--squad_file=dev.json", "--race_file=RACE/dev"} <= set(step.command)
  held_out = plan.cells()[0].steps[1].command
  assert f"--input_file={step.last_file}" in held_out
  given = _plan(tmp_path, "dropout", corpus="a.txt", question_flags=question_flags, heldout_corpus="b.txt")
  assert not any("data_prep.question_texts" in step.command for step in given.preparation())
  assert "--input_file=b.txt" in given.cells()[0].steps[1].command


def test_missing_text_is_reported(tmp_path: Path):
  with pytest.raises(UserError, match="--corpus without --heldout_corpus"):
    _plan(tmp_path, "dropout", corpus="a.txt")
  with pytest.raises(
    UserError, match=r"--run=additional_data trains some variants on additional text: .*--additional_corpus"
  ):
    _plan(tmp_path, "additional_data")


def test_distances_of_layers_whose_angle_is_known():
  before = np.array([[[3.0, 0.0], [1.0, 0.0]]])
  after = np.array([[[0.0, 4.0], [9.0, 9.0]]])
  measured = layers.distances([before, after, after], np.array([[1, 0]]))
  np.testing.assert_allclose(measured["l2"], [5.0, 0.0], atol=1e-12)
  np.testing.assert_allclose(measured["degrees"], [90.0, 0.0], atol=1e-5)
