"""benchmarks/parity.py prints and writes its table, and fails if a difference exceeds its tolerance."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from albert.tokenization.tokenizer import Tokenizer
from tests.benchmarks import scripts


def run_parity(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
  return scripts.run("parity.py", f"--output_dir={tmp_path / 'results'}", *flags)


def write_recorded_tokens(path: Path, spm_model: str, *, num_wrong_ids: int) -> Path:
  """Writes a file as if it were recorded from the original tokenizer, with some wrong ids at the end."""
  text = "The teacher sold 1999, letters."
  ids = Tokenizer(spm_model).encode(text) + [7] * num_wrong_ids
  path.write_text(json.dumps([{"text": text, "do_lower_case": True, "normalized": text.lower(), "ids": ids}]))
  return path


@pytest.mark.slow
def test_the_table_has_all_rows_and_the_reasons_of_skipped_comparisons(tmp_path: Path, spm_model: str) -> None:
  tokens = write_recorded_tokens(tmp_path / "tokens.json", spm_model, num_wrong_ids=0)
  only = [f"--only={name}" for name in ("optimizers", "conversion", "tokens", "original", "trained")]
  result = run_parity(tmp_path, f"--tokenization_file={tokens}", f"--spm_model_file={spm_model}", *only)
  assert result.returncode == 0, result.stderr
  (table_file,) = (tmp_path / "results").glob("parity_20*.md")
  table = table_file.read_text(encoding="utf-8")
  assert table[table.index("| quantity |") :].rstrip() in result.stdout
  rows = [line.split(" | ") for line in table.splitlines() if line.endswith("| yes |")]
  assert len(rows) == 4 + 2 + 2  # optimizers, conversion, tokens
  differences, tolerances = [float(row[2]) for row in rows], [float(row[3]) for row in rows]
  assert differences.count(0) == 4  # the rows of conversion and tokens
  assert all(difference <= tolerance for difference, tolerance in zip(differences, tolerances, strict=True))
  skipped = table[table.index("Skipped:") :].splitlines()[2:]
  assert skipped == [
    "- Model, losses and training, against the original: --tf1_dir is not given",
    "- A trained encoder, against Hugging Face's transformers: --huggingface_weights is not given",
  ]
  assert str(tmp_path) not in table


@pytest.mark.thorough
def test_a_difference_above_its_tolerance_is_marked_and_fails(tmp_path: Path, spm_model: str) -> None:
  tokens = write_recorded_tokens(tmp_path / "tokens.json", spm_model, num_wrong_ids=1)
  result = run_parity(tmp_path, f"--tokenization_file={tokens}", f"--spm_model_file={spm_model}", "--only=tokens")
  assert result.returncode == 1
  assert "| 1 strings, normalized: that differ | the original code, recorded | 0 | 0 | yes |" in result.stdout
  assert "| 1 strings, ids: that differ | the original code, recorded | 1 | 0 | NO |" in result.stdout
  assert result.stderr.strip().splitlines()[-1].startswith("error: 1 rows of ")
