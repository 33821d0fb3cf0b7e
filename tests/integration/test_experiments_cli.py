"""The experiments command makes a table from text, and continues an experiment that was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from albert.experiments import catalog

pytestmark = pytest.mark.slow


def _command(output_dir: Path, corpus: str, spm_model: str, *words: str) -> list[str]:
  return [
    *(sys.executable, "-m", "albert.experiments", "--scale=smoke", "--num_seeds=1", f"--output_dir={output_dir}"),
    *(f"--corpus={corpus}", f"--heldout_corpus={corpus}", f"--spm_model_file={spm_model}", *words),
  ]


def _rows(path: Path) -> list[dict[str, object]]:
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_stopped_experiment_continues(tmp_path: Path, corpus_file: str, spm_model: str):
  command = _command(tmp_path, corpus_file, spm_model, "--run=sentence_loss")
  results = tmp_path / "sentence_loss" / "results.jsonl"
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  while process.poll() is None and not _rows(results):
    time.sleep(0.2)
  process.send_signal(signal.SIGTERM)
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 143, errors
  assert errors.splitlines()[-1].startswith("stopped in ")
  first = _rows(results)
  log = tmp_path / "sentence_loss" / "log.txt"
  started = log.read_text().count("run_pretraining --output_dir")
  finished = subprocess.run(command, capture_output=True, text=True, check=True)
  assert f"sentence_loss: {len(first)} of 3 trials are done" in finished.stdout
  rows = _rows(results)
  assert rows[: len(first)] == first
  assert [row["variant"] for row in rows] == ["none", "NSP", "SOP"]
  assert all(set(row["scores"]) == {"mlm", "nsp", "sop"} for row in rows)  # type: ignore[call-overload]
  # Finished trials are not repeated. The trial that was stopped is.
  assert log.read_text().count("run_pretraining --output_dir") <= 3 + (started > len(first))
  assert "paper: MLM" in (tmp_path / "sentence_loss" / "table.md").read_text()
  assert os.listdir(tmp_path / "runs")


@pytest.mark.parametrize("names", ["masking,layer_distances", "depth"])
def test_from_text_to_table_two_at_a_time(tmp_path: Path, corpus_file: str, spm_model: str, names: str):
  command = _command(tmp_path, corpus_file, spm_model, f"--run={names}", "--jobs=2")
  subprocess.run(command, capture_output=True, text=True, check=True)
  for name in names.split(","):
    rows = _rows(tmp_path / name / "results.jsonl")
    assert {row["variant"] for row in rows} == {variant.name for variant in catalog.load(name).variants}
    assert (tmp_path / name / "figure.png").read_bytes().startswith(b"\x89PNG")
