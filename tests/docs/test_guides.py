"""The commands of the guides run as they are printed there, on the files that the guides show and on small weights."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from albert.config.model import ModelConfig
from albert.weights.names import encoder_shapes
from tests.conftest import english_like_documents
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface, write_tf1
from tests.docs.blocks import ROOT, blocks
from tests.tasks.glue.archive import write_archive
from tests.torture.workplace import Workplace

DOCS = ROOT / "docs"
# The commands of these guides are run. test_flags.py only checks the flags in other documents.
GUIDES = ("own_data.md", "tagging.md", "from_tf1.md", "from_transformers.md")


def lay_out_files(directory: Path, spm_model: str) -> None:
  """Makes the files that the commands of the guides read: files that the guides show, small weights, MRPC, a corpus."""
  directory.mkdir(parents=True, exist_ok=True)
  for script in ROOT.glob("run_*.py"):
    (directory / script.name).symlink_to(script)
  for block in (*blocks(DOCS / "own_data.md"), *blocks(DOCS / "tagging.md")):
    if re.fullmatch(r"[\w.]+", block.title):
      (directory / block.title).write_text(block.text, encoding="utf-8")
  config = ModelConfig(
    vocab_size=sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size(),
    embedding_size=8,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
  )
  rng = np.random.default_rng(0)
  weights = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in encoder_shapes(config).items()}
  vocabulary = Path(spm_model).read_bytes()
  write_huggingface(directory / "downloads" / "albert_base", config, huggingface_tensors(weights))
  (directory / "downloads" / "albert_base" / "spiece.model").write_bytes(vocabulary)
  write_tf1(directory / "albert_base", config, weights)
  for path in (directory / "albert_base").glob("model.ckpt-7*"):
    path.rename(path.with_name(path.name.replace("ckpt-7", "ckpt-best")))
  (directory / "albert_base" / "30k-clean.model").write_bytes(vocabulary)
  write_archive(directory / "glue", ["MRPC"], num_rows=10)
  (directory / "corpus").mkdir()
  documents = english_like_documents(20)
  text = "".join("\n".join(document) + "\n\n" for document in documents)
  (directory / "corpus" / "a.txt").write_text(text, encoding="utf-8")


def shell_blocks(guide: str) -> list[str]:
  """The shell blocks of a guide that have no title: a title says why a block is not run."""
  return [block.text for block in blocks(DOCS / guide) if block.language == "sh" and not block.title]


@pytest.mark.slow
def test_the_guide_to_own_data_gives_the_files_that_it_names(
  commands: Workplace, spm_model: str, tmp_path: Path
) -> None:
  """Runs the guide's first two commands: training with evaluation and prediction, and the prediction of more texts."""
  lay_out_files(tmp_path, spm_model)
  train, predict, *_ = shell_blocks("own_data.md")
  for text in (train, predict):
    python, *words = shlex.split(text.replace("\\\n", " "))
    assert python == "python"
    finished = commands.run(words, cwd=tmp_path)
    assert finished.unexpected_end() is None
  results = json.loads((tmp_path / "run" / "eval_results.json").read_text())
  assert {"accuracy", "matthews_corrcoef", "majority_accuracy"} <= set(results)
  header, *rows = (tmp_path / "answers.tsv").read_text().splitlines()
  assert header.split("\t")[:2] == ["id", "prediction"]
  assert [row.split("\t")[0] for row in rows] == ["201", "202"]  # the ids in the guide's file of texts
  table = next(line for line in (DOCS / "own_data.md").read_text().splitlines() if line.startswith("| `eval_results"))
  assert all(f"`{name}`" in table for name in ("accuracy", "matthews_corrcoef", "f1", "majority_accuracy"))
  _assert_files_are_documented(tmp_path / "run")


def _assert_files_are_documented(run: Path) -> None:
  """Asserts that docs/reference/output_files.md names each file of a run."""
  page = (DOCS / "reference" / "output_files.md").read_text(encoding="utf-8")
  names = {f"{path.name}/" if path.is_dir() else path.name for path in run.iterdir()}
  names = {"checkpoints/step-N/" if name == "checkpoints/" else name for name in names}
  assert [name for name in sorted(names) if f"`{name}`" not in page] == []


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_the_commands_of_a_guide_run_in_a_shell(guide: str, spm_model: str, tmp_path: Path) -> None:
  lay_out_files(tmp_path, spm_model)
  bin_dir = tmp_path / "bin"
  bin_dir.mkdir()
  (bin_dir / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
  (bin_dir / "python").chmod(0o755)
  environment = dict(os.environ) | {
    "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
  }
  texts = shell_blocks(guide)
  assert texts
  for text in texts:
    script = f"set -euo pipefail\n{text}"
    result = subprocess.run(
      ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{text}\n{result.stderr}"


def test_the_messages_in_troubleshooting_are_messages_of_the_code() -> None:
  """Checks the first column of the table of messages, and the messages that begin an item of a list."""
  text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
  rows = re.findall(r"^\| (`.*?) \| ", text.partition("## Messages")[2], re.MULTILINE)
  quoted_messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
  quoted_messages += re.findall(r"^- \*\*`([^`]+)`", text, re.MULTILINE)
  assert len(quoted_messages) > 10
  # "..." and numbers stand for parts that differ from run to run.
  fixed_parts = [part.strip() for message in quoted_messages for part in re.split(r"\.\.\.|\b\d+\b", message)]
  code = _source_with_joined_strings()
  assert [part for part in fixed_parts if part and part not in code] == []


def _source_with_joined_strings() -> str:
  """The source of the library. String literals that are written on several lines are joined to one line."""
  paths = [*ROOT.glob("albert/**/*.py"), *ROOT.glob("data_prep/**/*.py")]
  source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
  return re.sub(r'"\s*\n\s*f?"', "", source)
