"""Plans for tests: one of short Python scripts, and those of the experiments at the smallest scale."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from albert.config.model import ModelConfig
from albert.experiments import catalog, runner
from albert.experiments.catalog import Experiment, Variant, read_scale
from albert.experiments.inputs import Inputs
from albert.experiments.plan import Plan
from albert.experiments.runner import Command, ScoreSource, Trial

# x is the variant's position on the horizontal axis of the figure.
TOY_VARIANTS = [
  Variant(name=name, model="albert_base", fields={}, data={}, x=x, paper={"sop": 86.5})
  for name, x in (("one", 1.0), ("two", 2.0))
]


TOY_EXPERIMENT = Experiment(
  name="toy", title="A toy", source="nowhere", variants=TOY_VARIANTS, intrinsic=["sop"], x="size"
)


# A program that writes a results file. Its arguments are the file and the accuracy.
WRITE_ACCURACY = "import json, sys; json.dump({'sentence_order_accuracy': float(sys.argv[2])}, open(sys.argv[1], 'w'))"


class ToyPlan(Plan):
  """A plan of two variants with two seeds. Each trial is one command, which runs the Python script of its variant.

  The script gets the path of the results file and the accuracy that it should write to it.

  Args:
    directory: output_dir of the plan.
    scripts: variant -> Python script. The default is WRITE_ACCURACY.
    shared: a command that comes first in every trial.
  """

  def __init__(self, directory: Path, scripts: Mapping[str, str] | None = None, shared: Command | None = None):
    super().__init__(TOY_EXPERIMENT, read_scale("smoke"), Inputs(output_dir=str(directory), vocab_size=10, num_seeds=2))
    self._scripts = scripts or {}
    self._shared_commands = [shared] if shared else []

  def preparation_commands(self) -> list[Command]:
    return []

  def _make_trial(self, variant: Variant, seed: int) -> Trial:
    run = Path(self.inputs.output_dir) / f"{variant.name}-{seed}"
    run.mkdir(exist_ok=True)
    results_file = str(run / "eval_results.json")
    script = self._scripts.get(variant.name, WRITE_ACCURACY)
    # 12345 is the first seed of a plan, so its accuracies are 0.5 and 0.75. Those of the second seed are 0.01 higher.
    accuracy = (0.5 if variant.name == "one" else 0.75) + (seed - 12345) / 100
    read_files = [path for command in self._shared_commands for path in command.makes]
    words = (sys.executable, "-c", script, results_file, str(accuracy), *read_files)
    command = Command(f"{variant.name}, seed {seed}: pretraining", words, (results_file,))
    config = ModelConfig(embedding_size=8, hidden_size=8, num_attention_heads=1)
    scores = {"sop": ScoreSource(results_file, "sentence_order_accuracy")}
    return Trial(variant.name, seed, config, [*self._shared_commands, command], scores, str(run))


def read_rows(plan: Plan) -> list[dict[str, Any]]:
  return [json.loads(line) for line in (Path(plan.directory) / runner.RESULTS_FILE).read_text().splitlines()]


def make_plan(tmp_path: Path, name: str, scale: str = "smoke", **inputs: Any) -> Plan:
  """The plan of an experiment, by default at the smallest scale."""
  all_inputs: dict[str, Any] = {"output_dir": str(tmp_path), "vocab_size": 1000, "num_seeds": 1} | inputs
  return Plan(catalog.load(name, reduced=scale != "paper"), read_scale(scale), Inputs(**all_inputs))


def trials_by_variant(plan: Plan) -> dict[str, Trial]:
  """Variant -> its trial, for a plan with one seed."""
  return {trial.variant: trial for trial in plan.trials()}
