"""Tests of the command's --dry_run and error messages. tests/integration/test_experiments_cli.py runs experiments."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from albert.experiments import catalog, runner
from albert.experiments.catalog import read_scale
from albert.settings.costs import step_flops


def _run_experiments(*words: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "-m", "albert.experiments", *words]
  return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_dry_run_shows_the_cost_of_each_experiment_and_writes_nothing(tmp_path: Path):
  output_dir = tmp_path / "out"
  result = _run_experiments("--run=masking,dropout", f"--output_dir={output_dir}", "--dry_run", "--gflops=10")
  assert result.returncode == 0, result.stderr
  masking, dropout = (text.splitlines() for text in result.stdout.split("\n\n"))
  assert masking[0] == "masking: Masks made once, or anew each time"
  assert [line.split("\t")[0] for line in dropout[2:-1]] == ["with dropout", "without dropout"]
  _, layers, hidden, _, batch, steps, gflop, hours = dropout[2].split("\t")
  assert (layers, hidden, batch) == ("4", "96", "32")  # a reduced albert_base in place of the paper's xxlarge
  # At 10 GFLOP/s. The hours are rounded to two decimals.
  assert float(hours) == pytest.approx(int(steps) * float(gflop) / 10 / 3600, abs=0.006)
  assert dropout[-1].startswith("2 seed(s), ")
  assert not output_dir.exists()


def test_the_commands_that_are_not_done_are_printed_for_a_shell(tmp_path: Path):
  argv = ["--run=equal_time,layer_distances", "--scale=smoke", "--num_seeds=1", f"--output_dir={tmp_path}"]
  argv += ["--corpus=a b.txt", "--heldout_corpus=c.txt", "--print_commands"]
  lines = _run_experiments(*argv).stdout.splitlines()
  commands = [shlex.split(line) for line in lines]
  assert {(words[0], words[1]) for words in commands} == {(sys.executable, "-m")}
  modules = [words[2] for words in commands]
  assert modules[:4] == ["data_prep.train_vocab", *["data_prep.create_pretraining_data"] * 2, "run_pretraining"]
  assert modules.count("run_pretraining") == 4
  assert modules[-1] == "albert.experiments.layers"
  assert "--input_file=a b.txt" in commands[0]
  (reference,) = [word.partition("=")[2] for word in commands[3] if word.startswith("--output_dir=")]
  assert f"--same_time_as={reference}" in commands[4]
  assert not list(tmp_path.iterdir())
  (vocabulary,) = [word.partition("=")[2] for word in commands[0] if word.startswith("--output_dir=")]
  Path(vocabulary).mkdir(parents=True)
  (Path(vocabulary) / "spiece.model").touch()
  assert _run_experiments(*argv).stdout.splitlines() == lines[1:]


@pytest.mark.thorough
def test_the_flag_vocab_size_replaces_the_size_of_the_scale(tmp_path: Path):
  def num_parameters(*flags: str) -> int:
    """Returns the number of parameters in the table's first row."""
    argv = ["--run=sentence_loss", "--scale=smoke", f"--output_dir={tmp_path}", "--dry_run", "--gflops=1", *flags]
    cells = _run_experiments(*argv).stdout.splitlines()[2].split("\t")
    return int(cells[3].replace(",", ""))

  # At this scale, the vocabulary has 1000 pieces, and the embeddings have 4 columns.
  assert num_parameters() - num_parameters("--vocab_size=303") == (1000 - 303) * 4


@pytest.mark.thorough
def test_the_scale_paper_masks_as_many_tokens_as_the_authors_did(tmp_path: Path):
  """At most 20 of 512 tokens. With --max_predictions_per_seq=0 it is 15% of 512, which is 77."""
  plans = {
    flag: _run_experiments(
      "--run=sharing", "--scale=paper", f"--output_dir={tmp_path}", "--dry_run", "--gflops=1", *flag.split()
    )
    for flag in ("", "--max_predictions_per_seq=0")
  }
  gflops = [float(plan.stdout.splitlines()[2].split("\t")[6].replace(",", "")) for plan in plans.values()]
  model = read_scale("paper").model(catalog.load("sharing").variants[0], 30000)
  expected = [
    step_flops(model, batch_size=4096, seq_length=512, predictions=num_predictions) / 1e9
    for num_predictions in (20, 77)
  ]
  assert gflops == pytest.approx(expected, rel=1e-3)


# Wrong flags -> what the message says.
_WRONG_FLAGS = [
  ("", "give --list, or --run=NAME and --output_dir"),
  (
    "--run=masking --output_dir=out --max_predictions_per_seq=65",
    "--max_predictions_per_seq=65 exceeds the 64 tokens of a sequence here",
  ),
  ("--run=masking,depth --output_dir=out --variants=static", "--variants selects from one experiment: give one name"),
  ("--run=masking --output_dir=out --glue_dir=no/glue", "--glue_dir: no/glue does not exist: give the path"),
]
_MORE_WRONG_FLAGS = [
  ("--run=masking", "give --list, or --run=NAME and --output_dir"),
  ("--run=masking --output_dir=gs://bucket/out", "give a local directory"),
  ("--run=masking --output_dir=out --jobs=0", "jobs"),
  ("--run=masking --output_dir=out --dropout=1", "dropout"),
  (
    "--run=masking --output_dir=out --spm_model_file=a.model --vocab_size=300",
    "--vocab_size=300 and --spm_model_file=a.model are both given: give one",
  ),
  ("--run=masking --output_dir=out --glue_dir=docs", "--glue_dir=docs: has no folder SST-2: download the task"),
  ("--run=masking --output_dir=out --squad_v2=no/train.json,no/dev.json", "--squad_v2: no/train.json does not exist"),
  ("--run=masking --output_dir=out --squad_v2=dev.json", "give the train file and the dev file"),
  ("--run=masking --output_dir=out --race_dir=no/RACE", "--race_dir: no/RACE does not exist"),
  ("--run=masking --output_dir=out --glue_dir=glue --glue_tasks=XNLI", "'XNLI' is not one of CoLA, SST-2"),
]


@pytest.mark.parametrize(
  ("words", "message"),
  [*_WRONG_FLAGS, *(pytest.param(*case, marks=pytest.mark.thorough) for case in _MORE_WRONG_FLAGS)],
)
def test_wrong_flags_give_one_line(words: str, message: str):
  result = _run_experiments(*words.split(), "--gflops=10", "--dry_run")
  assert result.returncode == 2
  assert result.stderr.startswith("error: ")
  assert result.stderr.count("\n") == 1
  assert message in result.stderr


def test_an_output_dir_of_another_scale_is_refused(tmp_path: Path):
  runner.check_scale(str(tmp_path / "masking"), "small")
  (tmp_path / "masking").mkdir()
  (tmp_path / "masking" / runner.SCALE_FILE).write_text('{"scale": "small"}')
  runner.check_scale(str(tmp_path / "masking"), "small")
  result = _run_experiments("--run=depth,masking", f"--output_dir={tmp_path}", "--scale=smoke", "--dry_run")
  assert result.returncode == 2
  assert result.stderr.count("\n") == 1
  assert "--scale=smoke: " in result.stderr
  assert "has results of --scale=small: give it, or another --output_dir" in result.stderr
