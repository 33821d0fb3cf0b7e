"""Two replicas (MirroredStrategy) give the same results as one device on the same global batch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SaveModel
from tests.synthetic import VOCAB_SIZE, write_shards
from tests.tasks.toy import write_toy_files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
  "task_kind",
  [
    pytest.param("pretraining", marks=pytest.mark.thorough),
    pytest.param("compiled", marks=pytest.mark.slow),
    pytest.param("sharded", marks=pytest.mark.slow),
    pytest.param("float16", marks=pytest.mark.slow),
    pytest.param("finetuning", marks=pytest.mark.slow),
  ],
)
def test_two_devices_give_the_results_of_one(tmp_path: Path, save_model: SaveModel, task_kind: str):
  if task_kind != "finetuning":
    write_shards(tmp_path / "shards", [30, 20, 30])
    data_path = str(tmp_path / "shards" / "*")
  else:
    data_path = str(tmp_path / "data")
    write_toy_files(data_path)
    # As many pieces as the model has embeddings. save_model adds the 5 special tokens.
    pieces = [(f"▁{chr(0x61 + i // 26)}{chr(0x61 + i % 26)}", -1.0 - i) for i in range(VOCAB_SIZE - 5)]
    shutil.copy(save_model(pieces), f"{data_path}/spiece.model")
  command = [sys.executable, "-m", "tests.integration.mirrored", task_kind, data_path, str(tmp_path)]
  environment = os.environ | {"TF_USE_LEGACY_KERAS": "1"}  # as in a command; TensorFlow is then imported faster
  ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900)
  assert ended.returncode == 0, ended.stderr
  one_device = np.load(tmp_path / "devices-1" / "weights.npz")
  two_devices = np.load(tmp_path / "devices-2" / "weights.npz")
  assert one_device.files == two_devices.files
  assert any(name.startswith("output:") for name in one_device.files) == (task_kind == "finetuning")
  assert sum(name.startswith("checkpoint:") for name in one_device.files) > 40  # two moments of each weight
  if task_kind == "float16":  # the gradients of half a batch are smaller, so other steps overflow
    for arrays in (one_device, two_devices):
      assert 1 <= arrays["log:skipped_steps"] <= 5
      assert arrays["log:loss_scale"] == 2.0 ** (20 - arrays["log:skipped_steps"])
      assert all(np.isfinite(arrays[name]).all() for name in arrays.files)
    return
  for name in one_device.files:
    np.testing.assert_allclose(two_devices[name], one_device[name], rtol=0, atol=2e-5, err_msg=name)
