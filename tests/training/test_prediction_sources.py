"""A command overwrites predictions only with those of the same weights for the same input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.training.prediction_sources import PredictionSource, PredictionSources, hash_inputs


def sources_of(run: Path, text: Path, *paths: Path) -> PredictionSources:
  return PredictionSources(
    str(run), [str(path) for path in paths or [run / "predictions_test.tsv"]], hash_inputs([str(text)])
  )


@pytest.fixture
def run(tmp_path: Path) -> Path:
  """A run that has predicted a.txt with weights "w"."""
  directory = tmp_path / "run"  # does not exist yet, as when predictions are made with --init_checkpoint
  (tmp_path / "a.txt").write_text("a")
  sources = sources_of(directory, tmp_path / "a.txt")
  sources.write(PredictionSource("run/checkpoints/step-8", 8, "w", sources.inputs))
  (directory / "predictions_test.tsv").write_text("id\n")
  return directory


def test_the_same_input_by_the_same_weights_may_be_predicted_again(run: Path, tmp_path: Path) -> None:
  (tmp_path / "copy.txt").write_text("a")  # the content counts, not the path
  sources = sources_of(run, tmp_path / "copy.txt")
  sources.check("w")
  assert sources.are_complete()
  shutil.copytree(run, tmp_path / "moved")  # a run may be moved
  sources_of(tmp_path / "moved", tmp_path / "a.txt").check("w")


def test_other_predictions_are_not_replaced(run: Path, tmp_path: Path) -> None:
  (tmp_path / "b.txt").write_text("b")
  other = sources_of(run, tmp_path / "b.txt")
  remedy = "give another file as --predictions_file, or move the existing one away"
  with pytest.raises(
    UserError, match=rf"predictions_test\.tsv holds predictions for .*a\.txt, not for .*b\.txt: {remedy}"
  ):
    other.check()
  assert not other.are_complete()
  same = sources_of(run, tmp_path / "a.txt")
  with pytest.raises(
    UserError, match=rf"holds predictions made with another checkpoint, run/checkpoints/step-8: {remedy}"
  ):
    same.check("v")
  with pytest.raises(UserError, match=rf"holds predictions made before this training: {remedy}"):
    same.check_before_training()
  # A file that is no predictions file is not overwritten either.
  with pytest.raises(
    UserError, match=rf"a\.txt already exists, and the input and weights of its predictions are not recorded: {remedy}"
  ):
    sources_of(run, tmp_path / "a.txt", tmp_path / "a.txt").check()
  (run / "prediction_sources.json").unlink()
  with pytest.raises(UserError, match=r"predictions_test\.tsv already exists"):
    sources_of(run, tmp_path / "a.txt").check()


def test_each_file_keeps_its_own_source(run: Path, tmp_path: Path) -> None:
  (tmp_path / "b.txt").write_text("b")
  other = sources_of(run, tmp_path / "b.txt", tmp_path / "out" / "b.tsv")
  other.check_writable()
  other.check("v")
  other.write(PredictionSource("run/checkpoints/step-9", 9, "v", other.inputs))
  assert not other.are_complete()  # the file itself is not there yet
  sources_of(run, tmp_path / "a.txt").check("w")
  (tmp_path / "out").write_text("")
  with pytest.raises(UserError, match="out is not a directory"):
    other.check_writable()
