"""The command albert.leaderboard on small made-up files of all tasks, and its continuation after an error."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sentencepiece

from albert import leaderboard
from albert.leaderboard import GLUE_TASKS
from tests.script_flags import defined_flags, parsed_flags
from tests.synthetic import TINY_MODEL_FLAGS, write_shards
from tests.tasks.glue.archive import write_archive
from tests.tasks.race.folders import write_made_up_race
from tests.tasks.squad.question_files import write_made_up_squad
from tests.torture.workplace import Finished

pytestmark = pytest.mark.slow


@pytest.fixture
def run_leaderboard(forked_plans: None, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
  """Calls the command in this process. Returns what it prints."""
  del forked_plans

  def call_main(*words: str) -> str:
    with parsed_flags(*words):
      leaderboard.main()
    return capsys.readouterr().out

  with defined_flags(leaderboard.define_flags):
    yield call_main


@pytest.fixture
def checkpoint(tmp_path: Path, spm_model: str, run_forked: Callable[..., Finished]) -> Path:
  """The output_dir of a pretraining of one step."""
  write_shards(tmp_path / "shards", [8])
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  flags = [*TINY_MODEL_FLAGS, f"--vocab_size={vocab_size}", "--max_position_embeddings=32"]
  shards = [f"--input_file={tmp_path / 'shards'}/*", f"--spm_model_file={spm_model}"]
  short = ["--num_train_steps=1", "--num_warmup_steps=0", "--train_batch_size=4"]
  finished = run_forked(
    "-m", "run_pretraining", "--do_train", f"--output_dir={tmp_path / 'run'}", *flags, *shards, *short
  )
  assert finished.unexpected_end() is None
  return tmp_path / "run"


def test_from_a_checkpoint_to_the_submissions_of_all_tasks(
  tmp_path: Path, checkpoint: Path, run_leaderboard: Callable[..., str]
):
  glue = write_archive(tmp_path / "glue", [*GLUE_TASKS, "diagnostic"], num_rows=8)
  race = write_made_up_race(tmp_path / "race", num_passages=3)
  output_dir = tmp_path / "out"
  words = [f"--init_checkpoint={checkpoint}", f"--glue_dir={glue}", f"--output_dir={output_dir}", f"--race_dir={race}"]
  words += ["--num_runs=2", "--scale=smoke", "--gflops=10"]
  for version in ("squad_v1", "squad_v2"):
    path = write_made_up_squad(tmp_path / f"{version}.json", 12, version_2=version == "squad_v2")
    words.append(f"--{version}={path},{path}")
  printed = run_leaderboard(*words)
  assert "12 tasks, 24 runs; " in printed
  table = (output_dir / "table.md").read_text()
  assert table in printed
  assert all(f"| {name} | " in table for name in (*GLUE_TASKS, "SQuAD1.1", "SQuAD2.0", "RACE"))
  with zipfile.ZipFile(output_dir / "submission" / "glue.zip") as archive:
    names = archive.namelist()
  other_names = [f"{name}.tsv" for name in GLUE_TASKS if name != "MNLI"]
  assert names == sorted(["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", *other_names])
  log = (output_dir / "log.txt").read_text()
  (mnli_run,) = (output_dir / "runs").glob("MNLI-*")
  for name in ("RTE", "STS-B", "MRPC"):
    (line,) = [line for line in log.splitlines() if f"--task_name={name} " in line]
    assert f"--init_checkpoint={mnli_run}" in line.split()  # it stands for the best run
    (config,) = (output_dir / "runs").glob(f"{name}-*/run-12345/config.json")
    assert json.loads(config.read_text())["init_checkpoint"] == str(mnli_run)
  # The same command has nothing left to do.
  assert "leaderboard: 12 of 12 trials are done" in run_leaderboard(*words)
  assert (output_dir / "log.txt").read_text() == log
