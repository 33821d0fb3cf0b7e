"""Data preparation takes its seed as --random_seed and as --seed, the name that training uses."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from absl import flags

from data_prep import create_pretraining_data, train_vocab


@pytest.mark.parametrize("define_flags", [create_pretraining_data._define_flags, train_vocab._define_flags])
@pytest.mark.parametrize("flag_name", ["random_seed", "seed"])
def test_each_of_the_two_flags_sets_the_seed(
  monkeypatch: pytest.MonkeyPatch, define_flags: Callable[[], None], flag_name: str
) -> None:
  monkeypatch.setattr(sys, "argv", ["test_seed_flag"])  # absl registers the flags under this name
  define_flags()
  try:
    flags.FLAGS(
      ["test_seed_flag", "--input_file=a", "--output_dir=b", "--spm_model_file=c", f"--{flag_name}=7"], known_only=True
    )
    assert flags.FLAGS.random_seed == 7
  finally:  # remove the flags, which are global
    for flag in list(flags.FLAGS.flags_by_module_dict()["test_seed_flag"]):
      delattr(flags.FLAGS, flag.name)
    flags.FLAGS.unparse_flags()
