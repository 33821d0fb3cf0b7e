"""The flags of the run_* scripts, and their help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert.cli.script_flags import given_flags, help_page
from albert.command_help import render
from albert.config.base import GROUPS
from albert.errors import UserError
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


def test_same_time_as_is_the_time_of_the_steps_of_another_run(tmp_path: Path) -> None:
  flag = f"--same_time_as={tmp_path}"
  with script_flags("pretraining"), parsed_flags(flag):
    with pytest.raises(UserError, match=r"metrics\.jsonl has no examples_per_second: .* delete it to train it again"):
      given_flags("pretraining")
    speeds = [3.0, 16.0, 4.0, 16.0]  # the first one includes the time to build the graph
    lines = [json.dumps({"step": 2 * index + 2, "examples_per_second": speed}) for index, speed in enumerate(speeds)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"train": {"train_batch_size": 10}}))
    with pytest.raises(UserError, match="training has not ended: repeat the command that trains it"):
      given_flags("pretraining")
    (tmp_path / "training_loss.json").touch()
    assert given_flags("pretraining") == {"max_train_seconds": 5.0}  # 80 examples at a median of 16 a second
  message = r"^--same_time_as=.* and --max_train_seconds are both given: "
  with (
    script_flags("pretraining"),
    parsed_flags(flag, "--max_train_seconds=9"),
    pytest.raises(UserError, match=message),
  ):
    given_flags("pretraining")
