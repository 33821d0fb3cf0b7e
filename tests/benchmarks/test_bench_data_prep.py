"""The benchmark of data preparation runs, and the frequencies that it measures are those of the paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import scripts


def output_of_benchmark(*flags: str) -> str:
  result = scripts.run("bench_data_prep.py", *flags)
  assert result.returncode == 0, result.stderr
  return result.stdout


@pytest.mark.thorough
def test_speed_up_and_memory_are_measured_and_shards_are_equal(corpus_file: str, spm_model: str) -> None:
  """The baseline is the same code."""
  flags = "--max_seq_length=64", "--megabytes=0.1,0.2", f"--baseline={Path(__file__).parents[2]}"
  printed = output_of_benchmark(f"--input_file={corpus_file}", f"--spm_model_file={spm_model}", *flags)
  rows = [line.split()[:3] for line in printed.splitlines()[1:] if "SHA" not in line]
  codes = [[code, str(number)] for number in (1, 2) for code in ("this", "baseline")]
  assert rows == [[size, *code] for size in ("0.1", "0.2") for code in codes]
  assert printed.count("SHA-256 of all 16 shards equal in all runs: yes") == 2


def test_measured_frequencies_are_near_the_expected_ones(corpus_file: str, spm_model: str) -> None:
  printed = output_of_benchmark(
    f"--input_file={corpus_file}",
    f"--spm_model_file={spm_model}",
    "--max_seq_length=64",
    "--dupe_factor=10",
    "--statistics",
  )
  measured_frequencies, expected_frequencies = {}, {}
  for line in printed.splitlines()[2:]:  # without the line about the text and the header
    name, measured, expected, _ = line.rsplit(maxsplit=3)
    measured_frequencies[name.strip()], expected_frequencies[name.strip()] = float(measured), float(expected)
  # p(n) ~ 1/n for n <= 3, so p(1) = 1 / (1 + 1/2 + 1/3).
  assert expected_frequencies["n = 1: share of n-grams as drawn"] == pytest.approx(6 / 11, abs=1e-5)
  for name, frequency in measured_frequencies.items():
    if "after limits" not in name:
      assert frequency == pytest.approx(expected_frequencies[name], rel=0.05), name


def test_the_profile_divides_the_time_among_all_stages(corpus_file: str, spm_model: str) -> None:
  printed = output_of_benchmark(
    f"--input_file={corpus_file}", f"--spm_model_file={spm_model}", "--max_seq_length=64", "--profile"
  )
  # The name of a stage takes 38 characters. Its share is the last number of the line.
  shares = {line[:38].strip(): float(line.split()[-1].rstrip("%")) for line in printed.splitlines()[1:]}
  assert set(shares) > {"SentencePiece", "masking", "serialization"}
  assert all(share >= 0 for share in shares.values())
  assert sum(shares.values()) == pytest.approx(100, abs=0.5)


@pytest.mark.slow
def test_each_task_opens_each_block_once() -> None:
  """A task reads the rows of its ranges and one slice of each block."""
  printed = output_of_benchmark("--sorting=10,20", "--max_tasks=4")
  rows = [dict(zip(printed.splitlines()[0].split(), line.split(), strict=True)) for line in printed.splitlines()[1:]]
  assert [row["blocks"] for row in rows] == ["10", "20"]
  for row in rows:
    num_blocks = int(row["blocks"])
    assert int(row["opens/task"]) == num_blocks
    assert int(row["reads/task"]) == 2 * num_blocks
    assert row["open"] == "1"
