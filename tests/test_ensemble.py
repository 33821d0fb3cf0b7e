"""The command albert.ensemble: the averages and metrics it writes, and the runs that it refuses to average."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert import ensemble
from albert.ensemble import ensemble_runs
from albert.errors import UserError
from albert.io import files
from albert.tasks.predictions import Predictions, write_predictions
from tests.tasks.glue.archive import read_tsv_rows

ROOT = Path(__file__).parents[1]


def write_run(directory: Path, probability: float, config: dict[str, Any] | None = None) -> str:
  """Writes a run with the predictions for three sentences. `probability` is that of class 1 for the first sentence."""
  directory.mkdir(parents=True)
  config = config or {"task": "classifier", "data": {"task_name": "SST-2", "labels": "0,1", "max_seq_length": 64}}
  (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
  probabilities = np.array([[1 - probability, probability], [0.75, 0.25], [0.5, 0.5]])
  labels = np.array([1, 0, 1], np.int32)
  write_predictions(
    str(directory / "predictions_dev.tsv"), Predictions(["0", "1", "2"], ("0", "1"), probabilities, labels)
  )
  write_predictions(str(directory / "predictions_test.tsv"), Predictions(["7", "8", "9"], ("0", "1"), probabilities))
  return str(directory)


def test_the_command_writes_averages_and_prints_metrics(tmp_path: Path) -> None:
  write_run(tmp_path / "run-1", 0.25)
  write_run(tmp_path / "run-2", 0.875)
  command = [sys.executable, "-X", "importtime", "-m", "albert.ensemble"]
  average = tmp_path / "average"
  command += [f"--inputs={tmp_path}/run-*", f"--output_dir={average}"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
  assert "accuracy = 0.666667\n" in result.stdout
  assert f"2 runs; wrote {average}\n" in result.stdout
  assert " tensorflow\n" not in result.stderr  # TensorFlow takes seconds to import
  # Columns: id, label, prediction and the probabilities of both classes. (0.25 + 0.875) / 2 = 0.5625.
  assert read_tsv_rows(average / "predictions_dev.tsv")[1] == ["0", "1", "1", "0.4375", "0.5625"]
  assert read_tsv_rows(average / "SST-2.tsv") == [["index", "prediction"], ["7", "1"], ["8", "0"], ["9", "0"]]
  results = json.loads((average / "eval_results.json").read_text())
  assert results == {
    "runs": 2,
    "accuracy": pytest.approx(2 / 3),
    "majority_accuracy": pytest.approx(2 / 3),
    # The probabilities of the predictions are in different intervals: 0.5625 and 0.75 are right, 0.5 is wrong.
    "calibration_error": pytest.approx((0.4375 + 0.25 + 0.5) / 3),
  }
  assert {"confusion_matrix_dev.png", "calibration_dev.png"} <= {path.name for path in average.iterdir()}


RTE_CONFIG = {"task": "classifier", "data": {"task_name": "RTE", "labels": "0,1"}}


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (RTE_CONFIG, r"--inputs: .*b has task_name = 'RTE', .*a has 'SST-2': give runs of one task"),
    ({"task": "pretraining", "data": {}}, r"--inputs: .*b has task = 'pretraining', .*a has 'classifier'"),
  ],
)
def test_runs_of_different_tasks_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
  runs = [write_run(tmp_path / "a", 0.5), write_run(tmp_path / "b", 0.5, config)]
  with pytest.raises(UserError, match=message):
    ensemble_runs(runs, str(tmp_path / "out"))
  assert not (tmp_path / "out").exists()


def test_a_run_without_predictions_is_named_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  runs = [write_run(tmp_path / name, 0.5) for name in ("a", "b")]
  (tmp_path / "b" / "predictions_test.tsv").unlink()
  message = rf"--inputs: {runs[1]} has no predictions_test\.tsv, which {runs[0]} has: write it with --do_predict "
  with pytest.raises(UserError, match=f"{message}--output_dir={runs[1]}, train the run again if"):
    ensemble_runs(runs, str(tmp_path / "out"))
  assert not list((tmp_path / "out").glob("*"))
  # If no run has predicted the test set, only the development set is averaged, and a line says so.
  (tmp_path / "a" / "predictions_test.tsv").unlink()
  assert set(ensemble_runs(runs, str(tmp_path / "out"))) == {"accuracy", "majority_accuracy", "calibration_error"}
  assert "no run has predictions_test.tsv, so the ensemble does not write it" in capsys.readouterr().err


def test_predictions_of_a_file_are_averaged_if_all_runs_have_them(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  runs = [write_run(tmp_path / name, 0.5) for name in ("a", "b")]
  for run in runs:
    (Path(run) / "predictions_test.tsv").rename(Path(run) / "predictions_new.tsv")
  shutil.copy(f"{runs[1]}/predictions_new.tsv", f"{runs[1]}/predictions_more.tsv")
  ensemble_runs(runs, str(tmp_path / "out"))
  assert (tmp_path / "out" / "predictions_new.tsv").exists()
  assert not (tmp_path / "out" / "predictions_more.tsv").exists()
  message = f"{runs[0]} has no predictions_more.tsv, which {runs[1]} has, so the ensemble does not write it\n"
  assert capsys.readouterr().err == message


def test_a_glob_of_remote_runs_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """The remote file system is TensorFlow's file system in memory, ram://."""
  root, averaged = f"ram://{tmp_path.name}/runs", []
  for name in ("run-1", "run-2", "other"):
    files.makedirs(f"{root}/{name}")
  values = types.SimpleNamespace(inputs=f"{root}/run-*", output_dir="both")
  monkeypatch.setattr(ensemble, "flags", types.SimpleNamespace(FLAGS=values))
  monkeypatch.setattr(ensemble, "ensemble_runs", lambda runs, output_dir: averaged.extend(runs) or {})
  ensemble.main()
  assert averaged == [f"{root}/run-1", f"{root}/run-2"]


def test_directories_that_cannot_be_averaged_are_refused(tmp_path: Path) -> None:
  run = write_run(tmp_path / "a", 0.5)
  with pytest.raises(UserError, match=r"--inputs names .*a/ twice: it would count twice"):
    ensemble_runs([run, f"{run}/"], str(tmp_path / "out"))
  with pytest.raises(UserError, match=r"--output_dir=.*z is one of --inputs, whose predictions it would replace"):
    ensemble_runs([run, write_run(tmp_path / "z", 0.5)], str(tmp_path / "z"))
  with pytest.raises(UserError, match=r"--inputs names 1 run\(s\)"):
    ensemble_runs([run], str(tmp_path / "out"))
  with pytest.raises(UserError, match=r"no_run is not the output_dir of a run \(it has no config\.json\)"):
    ensemble_runs([run, str(tmp_path / "no_run")], str(tmp_path / "out"))
  pretraining_runs = [write_run(tmp_path / name, 0.5, {"task": "pretraining"}) for name in ("b", "c")]
  with pytest.raises(UserError, match="is a run of 'pretraining', whose predictions cannot be averaged"):
    ensemble_runs(pretraining_runs, str(tmp_path / "out"))


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["--inputs=a,b"], "error: --output_dir is missing"),
    (["--inputs=/nowhere/*", "--output_dir=x"], "error: --inputs: /nowhere/* does not exist"),
  ],
)
def test_bad_arguments_give_an_error_of_one_line(argv: list[str], message: str) -> None:
  command = [sys.executable, "-m", "albert.ensemble", *argv]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
  assert result.returncode == 2
  assert result.stderr.startswith(message)
  assert result.stderr.count("\n") == 1
