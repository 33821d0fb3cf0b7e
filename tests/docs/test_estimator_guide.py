"""Runs the Python blocks of docs/estimator.md, and the examples in the docstrings of Estimator and the tasks."""

from __future__ import annotations

import doctest
import importlib
import shutil
from typing import Any

import pytest

import albert
from tests.conftest import english_like_documents
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface
from tests.docs.blocks import ROOT, blocks
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config
from tests.synthetic import write_shards

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("all_steps_eager")]

GUIDE = ROOT / "docs" / "estimator.md"
# The blocks run in order, and may use the names of earlier ones.
NUM_BLOCKS = 12


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> Any:
  """The namespace of all blocks. The current directory has the files that they read."""
  directory = tmp_path_factory.mktemp("guide")
  weights = directory / "downloads" / "albert_base"
  config = small_config(spm_model, max_position_embeddings=512)
  write_huggingface(weights, config, huggingface_tensors(random_weights(config, seed=3)))
  shutil.copyfile(spm_model, weights / "spiece.model")
  sentences = [sentence for document in english_like_documents(3, seed=1) for sentence in document][:20]
  rows = [f'"{sentence}",{kind}' for sentence, kind in zip(sentences, ["praise", "complaint"] * 10, strict=True)]
  (directory / "reviews.csv").write_text("\n".join(["comment,kind", *rows]) + "\n")
  (path,) = write_shards(directory / "shards", [8])
  (directory / "shards" / "heldout").mkdir()
  shutil.copyfile(path, directory / "shards" / "heldout" / "part-00.tfrecord")
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(directory)
    yield {}


@pytest.mark.parametrize("block_number", range(NUM_BLOCKS))
def test_a_block_of_the_guide_runs_and_prints_what_the_guide_says(
  block_number: int, namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
  programs = [block.text for block in blocks(GUIDE) if block.language == "python"]
  assert len(programs) == NUM_BLOCKS
  exec(compile(programs[block_number], f"{GUIDE.name}, block {block_number}", "exec"), namespace)
  printed = capsys.readouterr().out
  assert printed or "print(" not in programs[block_number]
  if "except albert.UserError" in programs[block_number]:
    assert f"```\n{printed}```" in GUIDE.read_text()


@pytest.mark.parametrize("module", ["estimator", "tasks.definitions"])
def test_the_examples_in_docstrings_run(module: str, namespace: dict[str, Any]) -> None:
  num_failures, num_examples = doctest.testmod(
    importlib.import_module(f"albert.{module}"), extraglobs={"albert": albert}
  )
  assert num_examples
  assert num_failures == 0
