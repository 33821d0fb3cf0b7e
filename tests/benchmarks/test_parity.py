"""The table of parity: its rows, its file, and the exit code if a difference exceeds its tolerance."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from albert.tokenization.tokenizer import Tokenizer
from tests.benchmarks import scripts


def run(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
  return scripts.run("parity.py", f"--output_dir={tmp_path / 'results'}", *flags)


def write_tokens(path: Path, spm_model: str, *, extra: int) -> Path:
  """Writes made-up results of the original tokenizer, with `extra` wrong ids."""
  text = "The teacher sold 1999, letters."
  tokenizer = Tokenizer(spm_model)
  case = {"text": text, "do_lower_case": True, "normalized": text.lower(), "ids": tokenizer.encode(text) + [7] * extra}
  path.write_text(json.dumps([case]))
  return path


@pytest.mark.thorough
def test_the_table_and_what_was_skipped(tmp_path: Path, spm_model: str) -> None:
  tokens = write_tokens(tmp_path / "tokens.json", spm_model, extra=0)
  only = [f"--only={name}" for name in ("optimizers", "conversion", "tokens", "original", "trained")]
  done = run(tmp_path, f"--tokenization_file={tokens}", f"--spm_model_file={spm_model}", *only)
  assert done.returncode == 0, done.stderr
  (written,) = (tmp_path / "results").glob("parity_20*.md")
  table = written.read_text(encoding="utf-8")
  assert table[table.index("| quantity |") :].rstrip() in done.stdout
  rows = [line.split(" | ") for line in table.splitlines() if line.endswith("| yes |")]
  assert len(rows) == 4 + 2 + 2
  assert sum(float(row[2]) == 0 for row in rows) == 4  # bytes and strings
  assert all(float(row[2]) <= float(row[3]) for row in rows)
  skipped = table[table.index("Skipped:") :].splitlines()[2:]
  assert skipped == [
    "- Model, losses and training, against the original: --tf1_dir is not given",
    "- A trained encoder, against Hugging Face's transformers: --huggingface_weights is not given",
  ]
  assert str(tmp_path) not in table


@pytest.mark.thorough
def test_a_number_too_far_off_is_said_and_fails(tmp_path: Path, spm_model: str) -> None:
  tokens = write_tokens(tmp_path / "tokens.json", spm_model, extra=1)
  done = run(tmp_path, f"--tokenization_file={tokens}", f"--spm_model_file={spm_model}", "--only=tokens")
  assert done.returncode == 1
  assert "| 1 strings, normalized: that differ | the original code, recorded | 0 | 0 | yes |" in done.stdout
  assert "| 1 strings, ids: that differ | the original code, recorded | 1 | 0 | NO |" in done.stdout
  assert done.stderr.strip().splitlines()[-1].startswith("error: 1 rows of ")


def test_a_path_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
  done = run(tmp_path, "--tf1_dir=nowhere")
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == "error: --tf1_dir=nowhere: no such file or directory\n"
