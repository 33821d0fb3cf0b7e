"""examples/fine_tune_embeddings.py writes an encoder whose cosines fit the scores better."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import albert
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config, write_google

ROOT = Path(__file__).parents[2]
PAIRS = [("nobody", "the garden"), ("her sister", "a letter from paris"), ("the captain", "the house"), ("a", "one")]
SCORES = [5.0, 0.0, 5.0, 0.0]


def squared_error(checkpoint: str) -> float:
  first, second = (albert.encode([pair[i] for pair in PAIRS], checkpoint) for i in (0, 1))
  norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
  return float(np.mean(np.square((first * second).sum(axis=1) / norms - np.array(SCORES) / 5)))


@pytest.mark.slow
def test_the_cosines_are_trained(tmp_path: Path, spm_model: str) -> None:
  config = small_config(spm_model)
  weights = write_google(tmp_path / "x", config, random_weights(config, seed=3), spm_model)
  rows = [f"{first}\t{second}\t{score}" for (first, second), score in zip(PAIRS, SCORES, strict=True)]
  (tmp_path / "train.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows, ""]))
  flags = [f"--checkpoint={weights}", f"--train_file={tmp_path}/train.tsv", f"--output_dir={tmp_path}/out"]
  command = [sys.executable, str(ROOT / "examples" / "fine_tune_embeddings.py"), *flags]
  settings = ["--epochs=30", "--batch_size=4", "--learning_rate=0.01"]
  ended = subprocess.run([*command, *settings], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
  assert ended.returncode == 0, ended.stderr
  assert "epoch 30 of 30: mean squared error" in ended.stderr
  assert squared_error(f"{tmp_path}/out") < 0.5 * squared_error(weights)
  ended = subprocess.run([*command, "--train_file=absent"], cwd=ROOT, capture_output=True, text=True, check=False)
  assert ended.returncode == 2
  assert ended.stderr.splitlines()[-1].startswith("error: absent: ")
