"""The flags of the run_* scripts, and their help."""

from __future__ import annotations

import pytest

from albert.cli.script_flags import given_flags, help_page
from albert.command_help import render
from albert.config.base import GROUPS
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


@pytest.mark.parametrize("task_name", TASKS)
def test_every_flag_is_listed_once_and_under_a_heading(task_name: str) -> None:
  page = help_page(task_name)
  assert len({flag.name for flag in page.flags}) == len(page.flags)
  help_text = render("run_x.py", "", page)
  assert [line[:-1] for line in help_text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
  assert "--[no]do_lower_case " in help_text


def test_help_shows_the_declared_defaults_whatever_the_recipe() -> None:
  expected = {"optimizer": "lamb", "num_train_steps": "125000", "hidden_size": "768", "recipe": "", "do_train": ""}
  with script_flags("race"), parsed_flags("--recipe=race_v2", "--learning_rate=1"):
    defaults = {flag.name: flag.default for flag in help_page("race").flags}
  assert defaults | expected | {"learning_rate": "0.00176"} == defaults
