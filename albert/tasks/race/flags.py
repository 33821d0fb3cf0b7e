"""The flags of run_race.py that describe its files and features."""

from __future__ import annotations

import dataclasses

from albert.config.base import option
from albert.config.run import FinetuningConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaceConfig(FinetuningConfig):
  """The flags of run_race.py that describe its files."""

  data_dir: str = option(
    "",
    "the folder RACE, or the folder that contains it, with {train,dev,test}/{middle,high}/*.txt",
    affects_training=False,
    resets=("train_file", "eval_file", "predict_file"),
  )
  train_file: str = option(
    "",
    "file of JSON lines, or a folder such as RACE/train, to train on, instead of the one in data_dir",
    affects_training=False,
  )
  eval_file: str = option("", "file or folder to evaluate on, instead of the one in data_dir", affects_training=False)
  predict_file: str = option(
    "", "file or folder to predict, instead of the one in data_dir; it needs no answers", affects_training=False
  )
  max_qa_length: int = option(
    128, "maximum tokens of a question with its option; earlier tokens are dropped", minimum=1
  )
