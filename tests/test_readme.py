"""The commands and the Python code of the README run as they are printed there, on small files and weights."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.docs.smaller_commands import run_block, write_python
from tests.docs.test_guides import lay_out_files
from tests.tasks.squad.question_files import write_made_up_squad

README = ROOT / "README.md"
# Script or module -> flags that are added to its commands, to make them small. The last value of a flag counts.
SMALL_FLAGS = {
  "run_classifier.py": "",
  "data_prep.train_vocab": "--vocab_size=200",
  "data_prep.create_pretraining_data": "--max_seq_length=64 --num_shards=2 --eval_share=0.2",
  "run_pretraining.py": "--num_train_steps=10",
  "run_squad.py": "--num_train_steps=2 --train_batch_size=4 --max_seq_length=128",
  "albert.export": "",
  "albert.predict": "",
}


@pytest.mark.slow
def test_the_readme_runs_as_printed(spm_model: str, tmp_path: Path) -> None:
  lay_out_files(tmp_path, spm_model)
  for name, size in (("train", 12), ("dev", 6)):
    write_made_up_squad(tmp_path / f"{name}-v2.0.json", size, version_2=True)
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  write_python(tmp_path / "bin" / "python", SMALL_FLAGS)
  outputs = []
  for block in blocks(README):
    if block.language == "sh" and "make setup" not in block.text:
      text = block.text
    elif block.language == "python":
      program = f"{block.text}\nassert vectors.shape[0] == 2"
      text = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    else:
      continue
    outputs.append(run_block(text, tmp_path, tmp_path / "bin"))
  assert len(outputs) == 4  # three blocks of commands and one of Python
  assert {"accuracy", "majority_accuracy"} <= set(json.loads((tmp_path / "run" / "eval_results.json").read_text()))
  assert (tmp_path / "run" / "predictions_new.tsv").exists()
  assert (tmp_path / "models" / "kind" / "1" / "saved_model.pb").exists()
  assert "answer" in json.loads(outputs[-1].splitlines()[-1])
