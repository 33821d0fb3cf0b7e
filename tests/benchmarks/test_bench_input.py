"""The benchmark of the input pipeline: what chips train on, and its tables. The speed is not tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import scripts
from tests.synthetic import VOCAB_SIZE, write_shards

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.mark.slow
def test_the_tables_have_both_masks_and_every_chip(tmp_path: Path, spm_model: str) -> None:
  assert VOCAB_SIZE < 100  # so that the pieces of the shards are pieces of the vocabulary
  write_shards(tmp_path, [3000, 3000])
  flags = ["--batch_size=64", "--windows=1", "--rounds=1", f"--spm_model_file={spm_model}"]
  result = scripts.run("bench_input.py", f"--input_file={tmp_path}/*.tfrecord", *flags)
  assert result.returncode == 0, result.stderr
  rates = dict(re.findall(r"^\| (static|dynamic) \| ([\d,]+) \|", result.stdout, re.MULTILINE))
  assert set(rates) == {"static", "dynamic"}
  # Nothing was compiled for sequences of 16 tokens, so no chip is compared.
  assert not re.findall(r"^\| v\d", result.stdout, re.MULTILINE)


def test_eight_chips_of_v3_have_sixteen_cores_and_train_as_the_table_of_compilations_says() -> None:
  """The numbers of sequences are those of tpu_aot_2026-11-24.md, times the cores of eight chips."""
  page = (RESULTS / "input_2026-11-23.md").read_text()
  table = (RESULTS / "tpu_aot_2026-11-24.md").read_text()
  for chip, cores in (("v3", 16), ("v5e", 8)):
    row = rf"^\| pretraining \| albert_base \| 512 \| {chip} \|.* (\d+) \| \w+ \| [\d-]+ \|$"
    (of_core,) = re.findall(row, table, re.MULTILINE)
    (of_chips,) = re.findall(rf"^\| {chip} \| \d \| albert_base \| ([\d,]+) \|", page, re.MULTILINE)
    assert int(of_chips.replace(",", "")) == pytest.approx(int(of_core) * cores, rel=0.005)
