"""A command overwrites predictions only with predictions of the same weights for the same input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.training.prediction_sources import PredictionSource, PredictionSources, hash_inputs


def make_sources(run: Path, input_file: Path, predictions_file: Path | None = None) -> PredictionSources:
  """Makes the sources of a command that predicts an input file, by default into predictions_test.tsv of the run."""
  predictions_file = predictions_file or run / "predictions_test.tsv"
  return PredictionSources(str(run), [str(predictions_file)], hash_inputs([str(input_file)]))


@pytest.fixture
def run(tmp_path: Path) -> Path:
  """A run that has predicted a.txt with weights whose hash is "weights"."""
  directory = tmp_path / "run"  # does not exist yet, as if predictions are made with --init_checkpoint
  (tmp_path / "a.txt").write_text("a")
  sources = make_sources(directory, tmp_path / "a.txt")
  sources.write(PredictionSource("run/checkpoints/step-8", 8, "weights", sources.inputs))
  (directory / "predictions_test.tsv").write_text("id\n")
  return directory


def test_the_same_input_may_be_predicted_again_with_the_same_weights(run: Path, tmp_path: Path) -> None:
  (tmp_path / "copy.txt").write_text("a")  # the content counts, not the path
  sources = make_sources(run, tmp_path / "copy.txt")
  sources.check("weights")
  assert sources.are_complete()
  shutil.copytree(run, tmp_path / "moved")  # a run may be moved
  make_sources(tmp_path / "moved", tmp_path / "a.txt").check("weights")


REMEDY = "give another file as --predictions_file, or move the existing one away"


def test_predictions_for_another_input_or_of_other_weights_are_not_replaced(run: Path, tmp_path: Path) -> None:
  (tmp_path / "b.txt").write_text("b")
  sources_of_other_input = make_sources(run, tmp_path / "b.txt")
  message = rf"predictions_test\.tsv holds predictions for .*a\.txt, not for .*b\.txt: {REMEDY}"
  with pytest.raises(UserError, match=message):
    sources_of_other_input.check()
  assert not sources_of_other_input.are_complete()
  sources = make_sources(run, tmp_path / "a.txt")
  message = rf"holds predictions made with another checkpoint, run/checkpoints/step-8: {REMEDY}"
  with pytest.raises(UserError, match=message):
    sources.check("other weights")
  with pytest.raises(UserError, match=rf"holds predictions made before this training: {REMEDY}"):
    sources.check_before_training()


def test_files_whose_source_is_not_recorded_are_not_replaced(run: Path, tmp_path: Path) -> None:
  message = rf"a\.txt already exists, and the input and weights of its predictions are not recorded: {REMEDY}"
  with pytest.raises(UserError, match=message):
    make_sources(run, tmp_path / "a.txt", predictions_file=tmp_path / "a.txt").check()
  (run / "prediction_sources.json").unlink()
  with pytest.raises(UserError, match=r"predictions_test\.tsv already exists"):
    make_sources(run, tmp_path / "a.txt").check()


def test_each_predictions_file_has_its_own_source(run: Path, tmp_path: Path) -> None:
  (tmp_path / "b.txt").write_text("b")
  sources = make_sources(run, tmp_path / "b.txt", predictions_file=tmp_path / "out" / "b.tsv")
  sources.check_writable()
  sources.check("other weights")
  sources.write(PredictionSource("run/checkpoints/step-9", 9, "other weights", sources.inputs))
  assert not sources.are_complete()  # b.tsv does not exist yet
  make_sources(run, tmp_path / "a.txt").check("weights")  # the source of predictions_test.tsv is still recorded
  (tmp_path / "out").write_text("")
  with pytest.raises(UserError, match="out is not a directory"):
    sources.check_writable()
