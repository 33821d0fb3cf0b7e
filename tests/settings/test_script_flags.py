"""The flags of the run_* scripts, and their help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from albert import app
from albert.cli import given_flags
from albert.config.base import GROUPS, option_fields
from albert.config.run import RunConfig
from albert.errors import UserError
from albert.runs.logs import training_seconds
from albert.tasks.registry import TASKS
from tests.script_flags import parsed_flags, script_flags


@pytest.mark.parametrize("task_name", TASKS)
def test_the_seed_and_the_vocabulary_have_two_names(task_name: str) -> None:
  with script_flags(task_name), parsed_flags("--random_seed=7", "--vocab_file=vocab.txt"):
    assert given_flags(task_name) == {"seed": 7, "spm_model_file": "vocab.txt"}


@pytest.mark.parametrize("task_name", TASKS)
def test_every_flag_is_listed_once_and_under_a_heading(task_name: str, capsys: pytest.CaptureFixture[str]) -> None:
  with script_flags(task_name):
    app.print_help(lambda: None, "Trains.")
  lines = capsys.readouterr().out.splitlines()
  names = [name for line in lines for name in re.findall(r"^  --(?:\[no\])?(\w+)", line)]
  assert len(set(names)) == len(names)
  assert {*option_fields(RunConfig), *option_fields(TASKS[task_name].config_class), "model"} <= {*names}
  assert [line[:-1] for line in lines if line[:-1] in GROUPS] == list(GROUPS)


def test_help_shows_the_values_of_the_default_recipe(capsys: pytest.CaptureFixture[str]) -> None:
  with script_flags("race"), parsed_flags("--recipe=race_v2", "--learning_rate=1"):
    app.print_help(lambda: None, "Trains.")
  text = " ".join(capsys.readouterr().out.split())
  for shown in ("(default: adamw)", "--num_train_steps=N number of updates of the weights (default: 12000)", " 2e-05)"):
    assert shown in text
  assert "--[no]do_train train the model --" in text
  with script_flags("classifier"):  # its default recipe gives epochs instead of steps
    app.print_help(lambda: None, "Trains.")
  assert "--num_train_steps=N number of updates of the weights --" in " ".join(capsys.readouterr().out.split())


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


def test_the_time_of_a_run_counts_each_stage_with_its_own_batch_size_and_speed(tmp_path: Path) -> None:
  lines = [{"step": 2 * i + 2, "stage": 1 + i // 2, "examples_per_second": 10.0 * (1 + i // 2)} for i in range(4)]
  (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
  stages = [
    {"first_step": 0, "last_step": 4, "train_batch_size": 5},
    {"first_step": 4, "last_step": 9, "train_batch_size": 15},  # the run has stopped at step 8
  ]
  (tmp_path / "config.json").write_text(json.dumps({"train": {"train_batch_size": 15}, "stages": stages}))
  (tmp_path / "training_loss.json").touch()
  assert training_seconds(str(tmp_path)) == 4 * 5 / 10 + 4 * 15 / 20
