"""The benchmark of data preparation runs, and its statistics agree with the paper."""

from __future__ import annotations

import re

import pytest

from tests.benchmarks import scripts


def run(*flags: str) -> str:
  result = scripts.run("bench_data_prep.py", *flags)
  assert result.returncode == 0, result.stderr
  return result.stdout


@pytest.mark.thorough
def test_throughput(corpus_file: str, spm_model: str) -> None:
  printed = run(f"--input_file={corpus_file}", f"--spm_model_file={spm_model}", "--max_seq_length=64")
  assert re.search(r"1 process: \d+ examples in .* examples/s per core, .* peak memory of a process \d+ MB", printed)
  assert re.search(r"speed-up with 2 processes: \d", printed)
  assert "SHA-256 of all 16 shards equal for 1 and 2 processes: yes" in printed


def test_statistics(corpus_file: str, spm_model: str) -> None:
  printed = run(
    f"--input_file={corpus_file}",
    f"--spm_model_file={spm_model}",
    "--max_seq_length=64",
    "--dupe_factor=10",
    "--statistics",
  )
  lines = [line.rsplit(maxsplit=3) for line in printed.splitlines()[2:]]
  measured = {name.strip(): (float(value), float(expected)) for name, value, expected, _ in lines}
  assert measured["n = 1: share of n-grams as drawn"][1] == pytest.approx(6 / 11, abs=1e-5)
  for name, (value, expected) in measured.items():
    if "after limits" not in name:
      assert value == pytest.approx(expected, rel=0.05), name


def test_profile(corpus_file: str, spm_model: str) -> None:
  printed = run(f"--input_file={corpus_file}", f"--spm_model_file={spm_model}", "--max_seq_length=64", "--profile")
  shares = {line[:38].strip(): float(line.split()[-1].rstrip("%")) for line in printed.splitlines()[1:]}
  assert set(shares) > {"SentencePiece", "masking", "serialization"}
  assert sum(shares.values()) == pytest.approx(100, abs=1)
  assert all(share >= 0 for share in shares.values())
  assert sum(shares.values()) == pytest.approx(100, abs=0.5)


@pytest.mark.slow
def test_sorting() -> None:
  """Both numbers of files are greater than a process reads at the same time, so there is a merge pass."""
  printed = run("--sorting=400,800")
  rows = [dict(zip(printed.splitlines()[0].split(), line.split(), strict=True)) for line in printed.splitlines()[1:]]
  assert [(row["spills"], row["examples"], row["passes"]) for row in rows] == [
    ("400", "6400", "1"),
    ("800", "12800", "1"),
  ]
  assert float(rows[1]["opens/spill"]) <= float(rows[0]["opens/spill"]) < 4
  assert float(rows[1]["reads/spill"]) <= float(rows[0]["reads/spill"]) < 8
