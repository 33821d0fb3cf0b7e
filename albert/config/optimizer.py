"""The config of the optimizer: LAMB or AdamW, the learning rate, its warm-up and its decay."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from albert.config.base import OPTIMIZER, Config, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
  """LAMB or AdamW with a linear warm-up and a polynomial decay of the learning rate (ALBERT, section 4.1)."""

  help_group: ClassVar[str] = OPTIMIZER

  optimizer: str = option(
    "lamb",
    "optimizer; tfa_lamb: LAMB of tensorflow-addons, which needs the environment of constraints/tf215-tfa.txt",
    choices=("lamb", "adamw", "tfa_lamb"),
  )
  learning_rate: float = option(1.76e-3, "peak learning rate, reached at the end of the warm-up", above=0)
  num_warmup_steps: int = option(
    3125,
    "number of steps in which the learning rate rises linearly from 0 to its peak. A default that would take more than "
    "half of the run becomes a tenth of the run",
    minimum=0,
  )
  warmup_proportion: float = option(
    0.0,
    "length of the warm-up as a fraction of num_train_steps, instead of --num_warmup_steps; 0: not used",
    minimum=0,
    below=1,
    instead_of="num_warmup_steps",
  )
  end_learning_rate: float = option(0.0, "learning rate at the last step", minimum=0)
  decay_power: float = option(1.0, "power of the polynomial decay; 1: linear decay", above=0)
  weight_decay: float = option(0.01, "weight decay; LayerNorm parameters and biases are not decayed", minimum=0)
  beta_1: float = option(0.9, "decay rate of the first moment", minimum=0, below=1)
  beta_2: float = option(0.999, "decay rate of the second moment", minimum=0, below=1)
  epsilon: float = option(
    1e-6, "constant added to the square root of the second moment, against division by zero", above=0
  )
  clip_norm: float = option(
    1.0, "gradients whose global norm is larger are scaled down to this norm; 0: no clipping", minimum=0
  )
  bias_correction: bool = option(
    False, "correct the bias of the moments towards zero in the first steps, which the original code does not"
  )
  layerwise_learning_rate_decay: float = option(
    1.0,
    "each group of layers has the learning rate of the group above it, multiplied by this factor; 1: no decay",
    above=0,
  )
  scale_learning_rate: bool = option(False, "multiply learning_rate by sqrt(train_batch_size / 4096)")
