"""The flags of run_race.py that describe its files and features."""

from __future__ import annotations

import dataclasses

from albert.config.base import changeable_option, option
from albert.config.run import FinetuningConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaceConfig(FinetuningConfig):
  """The flags of run_race.py that describe its files."""

  data_dir: str = changeable_option(
    "",
    "the folder RACE, or the folder that contains it, with {train,dev,test}/{middle,high}/*.txt",
    resets=("train_file", "eval_file", "predict_file"),
  )
  train_file: str = changeable_option(
    "", "file of JSON lines, or a folder such as RACE/train, to train on, instead of the one in data_dir"
  )
  eval_file: str = changeable_option("", "file or folder to evaluate on, instead of the one in data_dir")
  predict_file: str = changeable_option(
    "", "file or folder to predict, instead of the one in data_dir; it needs no answers"
  )
  max_qa_length: int = option(
    128, "maximum tokens of a question with its option; earlier tokens are dropped", minimum=1
  )
