"""The flags of the run_* scripts."""

from __future__ import annotations

import pytest

from albert.cli.script_flags import given_flags
from albert.tasks.registry import TASKS
from tests.script_flags import parsed_flags, script_flags


@pytest.mark.parametrize("task_name", TASKS)
@pytest.mark.parametrize("flag_name", ["seed", "random_seed"])
def test_seed_and_random_seed_are_one_flag(task_name: str, flag_name: str) -> None:
  with script_flags(task_name), parsed_flags(f"--{flag_name}=7"):
    assert given_flags(task_name) == {"seed": 7}


@pytest.mark.parametrize("task_name", TASKS)
def test_vocab_file_is_spm_model_file(task_name: str) -> None:
  with script_flags(task_name), parsed_flags("--vocab_file=vocab.txt"):
    assert given_flags(task_name) == {"spm_model_file": "vocab.txt"}
