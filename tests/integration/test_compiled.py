"""XLA compiles fine-tuning only a few times, though its batches have many lengths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SaveModel
from tests.synthetic import VOCAB_SIZE
from tests.tasks.toy import write_toy_files

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_fine_tuning_is_traced_once_and_compiled_at_most_four_times(tmp_path: Path, save_model: SaveModel) -> None:
  write_toy_files(str(tmp_path / "data"))
  pieces = [(f"▁{chr(0x61 + i // 26)}{chr(0x61 + i % 26)}", -1.0 - i) for i in range(VOCAB_SIZE - 5)]
  shutil.copy(save_model(pieces), tmp_path / "data" / "spiece.model")
  flags = f"--xla_dump_to={tmp_path / 'xla'} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*traced.*"
  command = [sys.executable, "-m", "tests.integration.compiled", str(tmp_path / "data"), str(tmp_path / "run")]
  environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "XLA_FLAGS": flags}
  ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900)
  assert ended.returncode == 0, ended.stderr
  assert ended.stdout.split() == ["1"]
  assert "XLA compiles the step for each of at most 4 lengths" in ended.stderr
  compiled = list((tmp_path / "xla").glob("*before_optimizations.txt"))
  assert 1 <= len(compiled) <= 4
