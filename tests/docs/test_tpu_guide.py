"""docs/tpu.md: each training command fits the TPU of its block, and the error that the page shows is that of the code.

test_flags.py checks the flags of the commands.
"""

from __future__ import annotations

import re
import shlex

import pytest

from albert.cli import given_flags
from albert.errors import UserError
from albert.settings.dry_run import print_plan
from albert.settings.resolve import resolve_settings
from tests.docs.blocks import ROOT, Invocation, blocks, invocations_in
from tests.script_flags import parsed_flags, script_flags

GUIDE = ROOT / "docs" / "tpu.md"
TASKS = {"run_pretraining.py": "pretraining", "run_squad.py": "squad"}
# Flags that say which files to use, or on which device; --dry_run --chip needs none of them.
FILE_FLAG = re.compile(r"--(\w+_(file|dir)|init_checkpoint|do_\w+|tpu)(=|$)")


def training_commands() -> list[tuple[str, Invocation]]:
  """Returns each TPU that the title of a block names, with the training commands of the block."""
  commands = []
  for block in blocks(GUIDE):
    for tpu in re.findall(r"v\d\w?-\d+", block.title):
      for line in re.sub(r"\\\n", " ", block.text).splitlines():
        commands += [(tpu, invocation) for invocation in invocations_in(line)]
  return commands


def check_memory(task_name: str, words: list[str]) -> None:
  """Does what a command with --dry_run does."""
  with script_flags(task_name), parsed_flags(*words):
    print_plan(resolve_settings(task_name, given_flags(task_name)))


@pytest.mark.parametrize(("tpu", "command"), training_commands(), ids=lambda value: getattr(value, "target", value))
def test_each_training_command_fits_its_tpu(tpu: str, command: Invocation, capsys: pytest.CaptureFixture[str]) -> None:
  assert "--do_train" in command.words
  words = [word for word in command.words if not FILE_FLAG.match(word)]
  words.append("--max_seq_length=512" if command.target == "run_pretraining.py" else "--model=albert_base")
  check_memory(TASKS[command.target], [*words, "--dry_run", f"--chip={tpu}"])
  assert re.search(rf" on {tpu}: .* fit; they take .* \(compiled ", capsys.readouterr().out)


def test_the_guide_has_commands_for_several_tpus() -> None:
  commands = training_commands()
  assert {tpu for tpu, _ in commands} >= {"v3-8", "v5e-8"}
  assert {"--model=albert_base", "--model=albert_xxlarge"} <= {
    word for _, command in commands for word in command.words
  }


def test_the_error_that_the_guide_shows_is_that_of_its_command() -> None:
  texts = [block.text for block in blocks(GUIDE)]
  (index,) = [index for index, text in enumerate(texts) if "--dry_run" in text]
  words = shlex.split(texts[index])
  assert words[:2] == ["python", "run_pretraining.py"]
  with pytest.raises(UserError) as error:
    check_memory("pretraining", words[2:])
  assert f"error: {error.value}" == " ".join(texts[index + 1].split())
