"""Small pretraining runs for the tests of training in stages (test_stages.py and test_stage_data.py)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.estimator import Estimator
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from tests.synthetic import DROPOUT, TINY_MODEL, write_shards

STEPS = 8
# Models: four shared layers, two shared layers with dropout, and three layers without sharing.
ALBERT = dataclasses.replace(TINY_MODEL, num_hidden_layers=4)
SHALLOW_ALBERT = dataclasses.replace(ALBERT, num_hidden_layers=2, **DROPOUT)
BERT = dataclasses.replace(ALBERT, num_hidden_layers=3, sharing="none")
SHORT_LENGTH = 12


def write_stage_shards(directory: Path) -> dict[str, str]:
  """Writes 80 examples of SEQ_LENGTH tokens ("long") and 40 of SHORT_LENGTH ("short"). Returns name -> glob."""
  write_shards(directory / "long", [30, 20, 30])
  write_shards(directory / "short", [25, 15], length=SHORT_LENGTH, seed=9)
  return {name: f"{directory}/{name}/*" for name in ("long", "short")}


def make_estimator(output_dir: Path, model: ModelConfig, settings: dict[str, Any], **options: Any) -> Estimator:
  """Makes the estimator of a pretraining run of 8 steps.

  `settings` are fields of PretrainingConfig, with `stages` as a list. `options` are fields of TrainConfig, or
  init_checkpoint, a field of RunConfig.
  """
  if "stages" in settings:
    settings = {**settings, "stages": json.dumps(settings["stages"])}
  init_checkpoint = options.pop("init_checkpoint", "")
  train = {"train_batch_size": 8, "num_train_steps": STEPS, "log_every_steps": 3, "save_checkpoints_steps": 1}
  config = RunConfig(
    output_dir=str(output_dir),
    init_checkpoint=init_checkpoint,
    optimizer=OptimizerConfig(num_warmup_steps=2, learning_rate=0.01),
    train=TrainConfig(**{**train, "keep_checkpoints": 100, **options}),
  )
  return Estimator(PretrainingTask(model, PretrainingConfig(**settings)), config)


def claim(output_dir: Path, model: ModelConfig, settings: dict[str, Any]) -> None:
  """Claims output_dir for a run, as training does first. This fails if the directory holds another run."""
  make_estimator(output_dir, model, settings).claim_output_dir()
