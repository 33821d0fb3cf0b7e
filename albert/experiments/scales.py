"""How large an experiment is run: the paper's size, hours on a laptop, or a minute."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from albert.config import ModelConfig, from_dict, named_model
from albert.experiments.catalog import Variant

# The initializer of a narrower network is as much wider: at 0.02, one of width 128 learns nothing but frequencies for
# thousands of steps. This is 0.02 at the width of ALBERT-large.
_INITIALIZER = 0.02 * math.sqrt(1024)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
  """What is made of the paper's sizes.

  Attributes:
    width: hidden, embedding and feed-forward sizes are divided by it.
    depths: the paper's number of layers -> ours; empty: the same.
    head_size: of an attention head; 0: the model's.
    vocab_size: of the vocabulary that is trained if none is given.
    max_seq_length, dupe_factor, num_shards, max_megabytes: of data preparation; the last, of the text that is taken
      from installed packages (0: all).
    train: flags of run_pretraining.
    num_seeds: runs of each variant.
    finetuning: flags of fine-tuning in place of the task's recipe.
  """

  width: int = 1
  depths: Mapping[int, int] = dataclasses.field(default_factory=dict)
  head_size: int = 0
  vocab_size: int = 30000
  max_seq_length: int = 512
  dupe_factor: int = 10
  num_shards: int = 256
  max_megabytes: float = 0
  train: Mapping[str, Any]
  num_seeds: int = 1
  finetuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def model(self, variant: Variant, vocab_size: int) -> ModelConfig:
    """The model of a variant at this scale."""
    config = from_dict(ModelConfig, named_model(variant.model).to_dict() | dict(variant.fields), source=variant.name)
    if self.width == 1:
      return dataclasses.replace(config, vocab_size=vocab_size)
    hidden = config.hidden_size // self.width
    return dataclasses.replace(
      config,
      vocab_size=vocab_size,
      hidden_size=hidden,
      embedding_size=max(1, config.embedding_size // self.width),
      intermediate_size=config.intermediate_size // self.width,
      num_hidden_layers=self.depths[config.num_hidden_layers],
      num_attention_heads=max(1, hidden // self.head_size),
      max_position_embeddings=self.max_seq_length,
      initializer_range=round(_INITIALIZER / math.sqrt(hidden), 4),
    )


_DEPTHS = {1: 1, 3: 2, 6: 3, 12: 4, 24: 6, 48: 8}

SCALES: dict[str, Scale] = {
  "smoke": Scale(
    width=32,
    depths=dict.fromkeys(_DEPTHS, 1) | {12: 2, 24: 2, 48: 2},
    head_size=8,
    vocab_size=1000,
    max_seq_length=32,
    dupe_factor=1,
    num_shards=2,
    max_megabytes=0.3,
    train={"train_batch_size": 16, "num_train_steps": 8, "num_warmup_steps": 2, "learning_rate": 0.005},
    finetuning={"num_train_steps": 4, "num_warmup_steps": 1, "learning_rate": 1e-4, "train_batch_size": 16},
  ),
  "small": Scale(
    width=8,
    depths=_DEPTHS,
    head_size=32,
    vocab_size=8000,
    max_seq_length=64,
    dupe_factor=3,
    num_shards=8,
    train={"train_batch_size": 64, "num_train_steps": 2000, "num_warmup_steps": 100, "learning_rate": 0.005},
    num_seeds=2,
    finetuning={
      "num_train_epochs": 3,
      "warmup_proportion": 0.1,
      "learning_rate": 2e-4,
      "train_batch_size": 32,
    },
  ),
  "paper": Scale(
    train={
      "train_batch_size": 4096,
      "num_train_steps": 125000,
      "num_warmup_steps": 3125,
      "learning_rate": 0.00176,
    },
  ),
}
