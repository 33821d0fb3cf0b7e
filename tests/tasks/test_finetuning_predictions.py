"""Tests of the predictions files of a fine-tuning run: a later prediction overwrites an earlier one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from albert.data import manifest
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.estimator import Estimator
from tests.tasks.toy import run_config, toy_task

pytestmark = pytest.mark.usefixtures("eager_steps")

PREDICTION_OPTIONS: dict[str, Any] = {
  "num_train_steps": 4,
  "eval_every_steps": 0,
  "save_checkpoints_steps": 2,
  "do_predict": True,
}


def train_and_predict(tmp_path: Path, spm_file: str) -> Estimator:
  """Trains a run that saves checkpoints at steps 2 and 4, and writes predictions with the weights of step 4."""
  config = run_config(tmp_path / "run", do_train=True, **PREDICTION_OPTIONS)
  estimator = Estimator(toy_task(tmp_path, spm_file), config)
  estimator.run()
  return estimator


@pytest.mark.thorough
def test_a_command_that_trains_and_predicts_replaces_earlier_predictions(tmp_path, spm_file, capsys, monkeypatch):
  hashed_files = []

  def record_and_hash(path: str) -> str:
    hashed_files.append(path)
    return file_sha256(path)

  monkeypatch.setattr(manifest, "file_sha256", record_and_hash)
  estimator = train_and_predict(tmp_path, spm_file)
  path = tmp_path / "run" / "predictions.tsv"
  predictions = path.read_bytes()
  assert f"predicting with {tmp_path}/run/checkpoints/step-4 (step 4, the newest, float32)" in capsys.readouterr().err
  assert hashed_files.count(str(tmp_path / "data" / "test.txt")) == 1

  # Without step-4 the newest checkpoint is step-2. The run continues from there to the same step 4.
  (tmp_path / "run" / "checkpoints" / "step-4").rename(tmp_path / "step-4")
  path.write_text("of other weights")
  estimator.write_predictions()
  assert path.read_bytes().count(b"\n") == predictions.count(b"\n")
  assert "step-2 (step 2, the newest, float32)" in capsys.readouterr().err
  path.write_text("of other weights")
  estimator.run()
  assert path.read_bytes() == predictions


@pytest.mark.thorough
def test_another_content_of_the_file_to_predict_replaces_earlier_predictions(tmp_path, spm_file):
  train_and_predict(tmp_path, spm_file)
  path = tmp_path / "run" / "predictions.tsv"
  predictions = path.read_bytes()
  # The test file now has only five of its examples.
  lines = (tmp_path / "data" / "test.txt").read_text().splitlines(keepends=True)
  (tmp_path / "data" / "test.txt").write_text("".join(lines[:5]))
  predict_config = run_config(tmp_path / "run", **PREDICTION_OPTIONS)
  new_file_config = dataclasses.replace(predict_config, predictions_file=str(tmp_path / "new.tsv"))
  assert Estimator(toy_task(tmp_path, spm_file), new_file_config).write_predictions() == [str(tmp_path / "new.tsv")]
  assert len((tmp_path / "new.tsv").read_text().splitlines()) == 1 + 5
  assert path.read_bytes() == predictions
  (tmp_path / "run" / "prediction_sources.json").write_text("{")  # of an earlier version, and ignored
  assert Estimator(toy_task(tmp_path, spm_file), predict_config).write_predictions() == [str(path)]
  assert path.read_bytes() == (tmp_path / "new.tsv").read_bytes()
  with pytest.raises(UserError, match=r"--predictions_file=new\.csv: give a name that ends in \.tsv"):
    Estimator(toy_task(tmp_path, spm_file), dataclasses.replace(predict_config, predictions_file="new.csv"))
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="file is not a directory"):
    Estimator(
      toy_task(tmp_path, spm_file), dataclasses.replace(predict_config, predictions_file=f"{tmp_path}/file/new.tsv")
    )
