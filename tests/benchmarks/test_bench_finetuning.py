"""The benchmark of padding in fine-tuning prints its table. The speed is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from tests.benchmarks import scripts
from tests.tasks.glue.archive import write_archive


@pytest.mark.slow
def test_the_table_has_seconds_and_equal_losses_for_both_kinds_of_padding(tmp_path: Path, spm_model: str) -> None:
  write_archive(tmp_path, ["MRPC"], num_rows=10)
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  size_flags = ["--model=albert_tiny", f"--vocab_size={vocab_size}", "--batch_size=2", "--max_seq_length=64"]
  round_flags = ["--steps=1", "--rounds=1", "--compared=4"]
  result = scripts.run(
    "bench_finetuning.py",
    f"--data_dir={tmp_path}",
    f"--spm_model_file={spm_model}",
    "--tasks=MRPC",
    *size_flags,
    *round_flags,
  )
  assert result.returncode == 0, result.stderr
  row = result.stdout.splitlines()[2].strip("| ").split(" | ")
  task, mean_length, seconds_by_length, seconds_at_full_length, _, largest_difference = row
  assert task == "MRPC"
  assert 0 < float(mean_length) <= 64
  assert float(seconds_by_length.split()[0]) > 0
  assert float(seconds_at_full_length.split()[0]) > 0
  assert float(largest_difference) < 1e-4
