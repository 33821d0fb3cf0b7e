"""The commands of the guides run as they are printed there, on the files that the guides show and on small weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import english_like_documents
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface
from tests.docs.blocks import ROOT, blocks
from tests.docs.smaller_commands import run_block, write_python
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config, write_google
from tests.tasks.glue.archive import write_archive

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
  config = small_config(spm_model, max_position_embeddings=512)
  weights = random_weights(config, seed=3)
  write_huggingface(directory / "downloads" / "albert_base", config, huggingface_tensors(weights))
  shutil.copyfile(spm_model, directory / "downloads" / "albert_base" / "spiece.model")
  write_google(directory / "albert_base", config, weights, spm_model)
  write_archive(directory / "glue", ["MRPC"], num_rows=10)
  (directory / "corpus").mkdir()
  documents = english_like_documents(20)
  text = "".join("\n".join(document) + "\n\n" for document in documents)
  (directory / "corpus" / "a.txt").write_text(text, encoding="utf-8")


def shell_blocks(guide: str) -> list[str]:
  """The shell blocks of a guide that have no title: a title says why a block is not run."""
  return [block.text for block in blocks(DOCS / guide) if block.language == "sh" and not block.title]


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_the_commands_of_a_guide_run_in_a_shell(guide: str, spm_model: str, tmp_path: Path) -> None:
  lay_out_files(tmp_path, spm_model)
  write_python(tmp_path / "bin" / "python", {}, allows_others=True)
  texts = shell_blocks(guide)
  assert texts
  for text in texts:
    run_block(text, tmp_path, tmp_path / "bin")
  if guide == "own_data.md":
    _check_files_of_own_data(tmp_path / "run", tmp_path / "answers.tsv")


def _check_files_of_own_data(run: Path, predictions: Path) -> None:
  """Checks the files that the guide's first two commands write. output_files.md names each of those in `run`."""
  results = json.loads((run / "eval_results.json").read_text())
  assert {"accuracy", "matthews_corrcoef", "majority_accuracy"} <= set(results)
  table = next(line for line in (DOCS / "own_data.md").read_text().splitlines() if line.startswith("| `eval_results"))
  assert all(f"`{name}`" in table for name in ("accuracy", "matthews_corrcoef", "f1", "majority_accuracy"))
  header, *rows = predictions.read_text().splitlines()
  assert header.split("\t")[:2] == ["id", "prediction"]
  assert [row.split("\t")[0] for row in rows] == ["201", "202"]  # the ids in the guide's file of texts
  page = (DOCS / "reference" / "output_files.md").read_text(encoding="utf-8")
  names = {f"{path.name}/" if path.is_dir() else path.name for path in run.iterdir()}
  names = {"checkpoints/step-N/" if name == "checkpoints/" else name for name in names}
  assert [name for name in sorted(names) if f"`{name}`" not in page] == []


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
