"""The commands and the Python code of the README run as printed, at the smallest sizes, on small weights."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.docs.test_guides import lay_out_files
from tests.tasks.squad.question_files import made_up_squad

README = ROOT / "README.md"
# Flags that are added to a command, to make it small. The last value of a flag counts.
SMALL = {
  "run_classifier.py": "",
  "data_prep.train_vocab": "--vocab_size=200",
  "data_prep.create_pretraining_data": "--max_seq_length=64 --num_shards=2",
  "run_pretraining.py": "--model=albert_tiny --vocab_size=200 --train_batch_size=8 --num_train_steps=2 "
  "--num_warmup_steps=1",
  "run_squad.py": "--num_train_steps=2 --num_warmup_steps=1 --train_batch_size=4 --max_seq_length=128",
  "albert.export": "",
  "albert.predict": "",
}


def _write_python(path: Path) -> None:
  """Writes a program `python` that adds the flags of SMALL to the command it runs."""
  cases = "".join(f'  "{name}"|"-m {name}") set -- "$@" {flags} ;;\n' for name, flags in SMALL.items())
  path.write_text(
    f'#!/bin/sh\ncase "$1 $2" in -m*) command="$1 $2" ;; *) command="$1" ;; esac\ncase "$command" in\n{cases}'
    f'  *) echo "$command is not in SMALL" >&2; exit 1 ;;\nesac\nexec {shlex.quote(sys.executable)} "$@"\n'
  )
  path.chmod(0o755)


@pytest.mark.slow
def test_the_readme_runs_as_printed(spm_model: str, tmp_path: Path) -> None:
  lay_out_files(tmp_path, spm_model)
  for name, size in (("train", 12), ("dev", 6)):
    made_up_squad(tmp_path / f"{name}-v2.0.json", size, version_2=True)
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  (tmp_path / "bin").mkdir()
  _write_python(tmp_path / "bin" / "python")
  path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
  environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
  printed = []
  for block in blocks(README):
    if block.language == "sh" and "make setup" not in block.text:
      command = ["bash", "-c", f"set -euo pipefail\n{block.text}"]
    elif block.language == "python":
      command = [sys.executable, "-c", f"{block.text}\nassert vectors.shape[0] == 2"]
    else:
      continue
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{block.text}\n{result.stderr}"
    printed.append(result.stdout)
  assert len(printed) == 4
  assert {"accuracy", "majority_accuracy"} <= set(json.loads((tmp_path / "run" / "eval_results.json").read_text()))
  assert (tmp_path / "run" / "predictions_test.tsv").exists()
  assert (tmp_path / "models" / "kind" / "1" / "saved_model.pb").exists()
  assert "answer" in json.loads(printed[-1].splitlines()[-1])
