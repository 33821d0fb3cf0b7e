"""Small pretraining runs for the tests of training in stages."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, PretrainingConfig, RunConfig, TrainConfig
from albert.estimator import Estimator
from albert.tasks.pretraining import PretrainingTask
from tests.synthetic import TINY_MODEL, write_shards

STEPS = 8
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
ALBERT = dataclasses.replace(TINY_MODEL, num_hidden_layers=4)
SHALLOW = dataclasses.replace(ALBERT, num_hidden_layers=2, **DROPOUT)
BERT = dataclasses.replace(ALBERT, num_hidden_layers=3, sharing="none")
SHORT_LENGTH = 12


def write_stage_shards(directory: Path) -> dict[str, str]:
  """Writes 80 examples of SEQ_LENGTH tokens ("long") and 40 of SHORT_LENGTH ("short"). Returns name -> glob."""
  write_shards(directory / "long", [30, 20, 30])
  write_shards(directory / "short", [25, 15], length=SHORT_LENGTH, seed=9)
  return {name: f"{directory}/{name}/*" for name in ("long", "short")}


def estimator_of(directory: Path, model: ModelConfig, settings: dict[str, Any], **options: Any) -> Estimator:
  """Makes the estimator of a pretraining run.

  Args:
    directory: its output_dir.
    model: the model.
    settings: fields of PretrainingConfig; `stages` as a list.
    options: fields of TrainConfig; init_checkpoint and do_eval are fields of RunConfig.
  """
  if "stages" in settings:
    settings = {**settings, "stages": json.dumps(settings["stages"])}
  run = {name: options.pop(name) for name in ("init_checkpoint", "do_eval") if name in options}
  train = {"train_batch_size": 8, "num_train_steps": STEPS, "log_every_steps": 3, "save_checkpoints_steps": 1}
  config = RunConfig(
    output_dir=str(directory),
    optimizer=OptimizerConfig(num_warmup_steps=2, learning_rate=0.01),
    train=TrainConfig(**{**train, "keep_checkpoints": 100, **options}),
    **run,
  )
  return Estimator(PretrainingTask(model, PretrainingConfig(**settings)), config)


def claim(directory: Path, model: ModelConfig, settings: dict[str, Any]) -> None:
  """Claims output_dir for a run, as training does first. This fails if the directory holds another run."""
  estimator_of(directory, model, settings).claim_output_dir()
