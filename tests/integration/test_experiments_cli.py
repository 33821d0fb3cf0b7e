"""The command albert.experiments makes tables and figures from text, and continues an experiment that was stopped."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from albert.experiments import __main__ as experiments
from albert.experiments import catalog
from tests.run_outputs import read_json_lines
from tests.script_flags import defined_flags, parsed_flags

pytestmark = pytest.mark.slow


def _make_command(output_dir: Path, corpus: str, spm_model: str, *flags: str) -> list[str]:
  command = [sys.executable, "-m", "albert.experiments", "--scale=smoke", "--num_seeds=1"]
  files = [f"--output_dir={output_dir}", f"--corpus={corpus}", f"--heldout_corpus={corpus}"]
  return [*command, *files, f"--spm_model_file={spm_model}", *flags]


def _read_rows(path: Path) -> list[dict[str, Any]]:
  """Reads the finished trials of an experiment. There are none before the file exists."""
  return read_json_lines(path) if path.exists() else []


def test_a_stopped_experiment_continues(tmp_path: Path, corpus_file: str, spm_model: str):
  command = _make_command(tmp_path, corpus_file, spm_model, "--run=sentence_loss")
  results = tmp_path / "sentence_loss" / "results.jsonl"
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  while process.poll() is None and not _read_rows(results):
    time.sleep(0.2)
  process.send_signal(signal.SIGTERM)
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 128 + signal.SIGTERM, errors
  assert errors.splitlines()[-1].startswith("stopped in ")
  rows_before_stop = _read_rows(results)
  log = tmp_path / "sentence_loss" / "log.txt"
  num_started_before_stop = log.read_text().count("run_pretraining --output_dir")
  finished = subprocess.run(command, capture_output=True, text=True, check=True)
  assert f"sentence_loss: {len(rows_before_stop)} of 3 trials are done" in finished.stdout
  rows = _read_rows(results)
  assert rows[: len(rows_before_stop)] == rows_before_stop
  assert [row["variant"] for row in rows] == ["none", "NSP", "SOP"]
  assert all(set(row["scores"]) == {"mlm", "nsp", "sop"} for row in rows)
  # Finished trials are not repeated. If the signal stopped a trial, this one is started twice.
  num_allowed_restarts = 1 if num_started_before_stop > len(rows_before_stop) else 0
  assert log.read_text().count("run_pretraining --output_dir") <= 3 + num_allowed_restarts
  assert "paper: MLM" in (tmp_path / "sentence_loss" / "table.md").read_text()
  assert os.listdir(tmp_path / "runs")


@pytest.mark.usefixtures("forked_plans")
def test_models_with_all_types_of_vocabularies_are_trained(tmp_path: Path, corpus_file: str):
  pytest.importorskip("tokenizers")
  words = _make_command(tmp_path, corpus_file, "", "--run=vocabularies", "--vocab_size=300")[3:]
  with defined_flags(experiments.define_flags), parsed_flags(*words):
    experiments.main()
  rows = {row["variant"]: row for row in _read_rows(tmp_path / "vocabularies" / "results.jsonl")}
  assert list(rows) == [variant.name for variant in catalog.load("vocabularies").variants]
  assert all(set(row["scores"]) == {"sop"} for row in rows.values())
  assert "paper:" not in (tmp_path / "vocabularies" / "table.md").read_text()


# Experiments that are run together. Tests of their own run the others.
_RUN_TOGETHER = [
  "masking,layer_distances",
  "sharing,embedding_size",
  "depth",
  "equal_time,groups",
  "degradation,dropout,additional_data",
  "batch_size",
  "more_data,input_format",
  "version_1,overall",
  "width,wide_depth",
]


def test_every_experiment_is_run_by_a_test():
  names = [name for together in _RUN_TOGETHER for name in together.split(",")]
  assert sorted([*names, "sentence_loss", "vocabularies"]) == catalog.names()


@pytest.mark.parametrize("experiment_names", _RUN_TOGETHER)
@pytest.mark.usefixtures("forked_plans")
def test_two_jobs_at_a_time_give_the_rows_and_the_figure_of_each_experiment(
  tmp_path: Path, corpus_file: str, spm_model: str, experiment_names: str
):
  words = _make_command(tmp_path, corpus_file, spm_model, f"--run={experiment_names}", "--jobs=2")[3:]
  with defined_flags(experiments.define_flags), parsed_flags(*words, f"--additional_corpus={corpus_file}"):
    experiments.main()
  for name in experiment_names.split(","):
    with (tmp_path / name / "numbers.csv").open(newline="") as file:
      variants = [row["variant"] for row in csv.DictReader(file)]
    assert variants == [variant.name for variant in catalog.load(name).variants]
    assert (tmp_path / name / "figure.png").read_bytes().startswith(b"\x89PNG")
