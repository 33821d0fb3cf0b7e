"""The settings of pretraining that divide a run into stages. albert.config.stages reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config.base import TRAINING, Config, option
from albert.config.ranges import MAX_BATCH_SIZE
from albert.io import json_values


def format_stages(stages: Sequence[Mapping[str, Any]]) -> str:
  """Converts a list of stages, as a recipe or a Python call contains it, to a value of the flag --stages."""
  return json_values.dumps(stages, ensure_ascii=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageFlags(Config):
  """The flags that divide a run into stages: --stages for any stages, --first_* for two."""

  # These flags contain paths, which may differ when a run is resumed, so they do not count as affecting training. The
  # other settings of stages are compared with the key "stages" of config.json.
  stages: str = option(
    "",
    'stages of training as JSON, such as [{"until": 0.5, "num_hidden_layers": 3}, {"until": 1}]; a recipe has them as '
    "its section stages. Each stage lasts until this share of the steps; see docs/staged_pretraining.md",
    affects_training=False,
    resets=("first_input_file", "first_num_hidden_layers", "first_train_batch_size"),
    group=TRAINING,
  )
  first_stage: float = option(
    0.0,
    "share of the steps of the first of two stages, for which the flags --first_* give other values; 0: one stage",
    minimum=0,
    below=1,
    affects_training=False,
    instead_of="stages",
    group=TRAINING,
  )
  first_input_file: str = option(
    "",
    "TFRecord files to train on in the first stage, for example with shorter sequences; by default --input_file",
    affects_training=False,
    group=TRAINING,
  )
  first_num_hidden_layers: int = option(
    0,
    "number of encoder layers to train in the first stage; 0: all",
    minimum=0,
    affects_training=False,
    group=TRAINING,
  )
  first_train_batch_size: int = option(
    0,
    "number of sequences per update in the first stage; 0: --train_batch_size",
    minimum=0,
    maximum=MAX_BATCH_SIZE,
    affects_training=False,
    group=TRAINING,
  )
