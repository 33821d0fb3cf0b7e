"""docs/tpu.md: each training command fits the TPU of its block and finds its files, and the page's error is the code's.

test_flags.py checks the flags of the commands.
"""

from __future__ import annotations

import dataclasses
import re
import shlex

import pytest

from albert.cli import given_flags
from albert.config.model import MODELS
from albert.errors import UserError
from albert.settings.dry_run import print_plan
from albert.settings.resolve import resolve_settings
from albert.settings.tpu_memory import activation_bytes, parse_slice, read_table
from albert.weights.names import encoder_shapes, num_parameters
from tests.docs.blocks import ROOT, Block, Invocation, blocks, invocations_in
from tests.script_flags import parsed_flags, script_flags

GUIDE = ROOT / "docs" / "tpu.md"
TASKS = {"run_pretraining.py": "pretraining", "run_squad.py": "squad"}
# Flags that say which files to use, or on which device; --dry_run --chip needs none of them.
FILE_FLAG = re.compile(r"--(\w+_(file|dir)|init_checkpoint|do_\w+|tpu)(=|$)")


def training_commands() -> list[tuple[str, Invocation]]:
  """Returns each TPU that the title of a block names, with the training commands of the block."""
  commands = []
  for block in blocks(GUIDE):
    for tpu in re.findall(r"v\d\w*-\d+", block.title):
      commands += [(tpu, invocation) for line in lines(block) for invocation in invocations_in(line)]
  return commands


def lines(block: Block) -> list[str]:
  """Returns the commands of a block, each on one line, also if it is split with backslashes."""
  return re.sub(r"\\\n", " ", block.text).splitlines()


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


def test_each_file_is_in_the_bucket_before_a_command_reads_it() -> None:
  in_bucket: set[str] = set()
  for line in (line for block in blocks(GUIDE) if block.language == "sh" for line in lines(block)):
    if copied := re.fullmatch(r"gcloud storage cp (?:-r )?(.*) gs://\$BUCKET/", line):
      in_bucket.update(copied[1].split())
    words = [word for invocation in invocations_in(line) for word in invocation.words]
    for flag, path in re.findall(r"(--\w+)=(\S*/\S*|\S*\.json)", " ".join(words) if "--do_train" in words else ""):
      assert path.startswith("gs://$BUCKET/")
      name = path.split("/")[3]
      assert flag == "--output_dir" or name in in_bucket
      in_bucket.add(name)
  assert in_bucket >= {"shards_512", "vocab", "base", "xxlarge", "squad"}


def test_chip_takes_every_accelerator_type_of_the_guide() -> None:
  rows = re.findall(r"^\| `(v[\w-]+)`.*\| (\d+) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
  assert len(rows) == 6
  assert [parse_slice(name, read_table()).num_cores for name, _ in rows] == [int(cores) for _, cores in rows]


def test_the_batches_that_fit_a_gpu_are_those_of_the_estimate() -> None:
  """Computes the table of docs/gpu.md as the text below it says, rounded down to two digits."""
  rows = re.findall(r"^\| (\w+) \| (128|512) \| ([\d,/| ]+) \|$", (ROOT / "docs" / "gpu.md").read_text(), re.MULTILINE)
  assert len(rows) == 8
  for name, length, cells in rows:
    model = dataclasses.replace(MODELS[name], attention_probs_dropout_prob=0.1)
    weights = 16 * num_parameters(encoder_shapes(model))
    for gib, cell in zip((16, 24, 40, 80), cells.split(" | "), strict=True):
      for recompute_grad, number in enumerate(cell.replace(",", "").split("/")):
        sequence = 2 * activation_bytes(model, int(length), recompute_grad=bool(recompute_grad))
        fitting = str((((gib - 1) << 30) - weights) // sequence)
        assert number == fitting[:2] + "0" * (len(fitting) - 2), (name, length, gib)


def test_the_error_that_the_guide_shows_is_that_of_its_command() -> None:
  texts = [block.text for block in blocks(GUIDE)]
  (index,) = [index for index, text in enumerate(texts) if "--dry_run" in text]
  words = shlex.split(texts[index])
  assert words[:2] == ["python", "run_pretraining.py"]
  with pytest.raises(UserError) as error:
    check_memory("pretraining", words[2:])
  assert f"error: {error.value}" == " ".join(texts[index + 1].split())
