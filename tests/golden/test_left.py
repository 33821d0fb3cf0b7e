"""What an earlier commit left (see left/README.md) is continued to its end, evaluated and served by today's code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest
from data_prep import create_pretraining_data
from tests.golden.make_left import COMMANDS, LEFT, TEXTS, argv_of
from tests.golden.test_golden import differences
from tests.run_outputs import checkpoint_steps, read_json, read_json_lines, read_tsv
from tests.script_flags import defined_flags, parsed_flags, run_script, script_flags
from tests.thorough import thorough_except

pytestmark = pytest.mark.usefixtures("all_steps_eager")
# Directory -> name of the script's task.
_TASKS = {"classification": "classifier"} | {name: name for name in ("squad", "race", "tagging", "pretraining")}


def _copy(name: str, tmp_path: Path) -> Path:
  copied = tmp_path / name
  shutil.copytree(LEFT / name, copied)
  return copied


@pytest.mark.parametrize("name", thorough_except(["classification"], _TASKS))
def test_a_stopped_run_is_continued_to_the_recorded_end(
  name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  run = _copy(name, tmp_path)
  assert checkpoint_steps(run)[-1] == 2
  with script_flags(_TASKS[name]):
    run_script(_TASKS[name], *argv_of(name, LEFT / "data", run)[1:])
  assert f"resumed from {run}/checkpoints/step-2" in capsys.readouterr().err
  assert checkpoint_steps(run)[-1] == 4
  losses = [line["loss"] for line in read_json_lines(run / "metrics.jsonl")]
  new = "guessing_loss" if name == "pretraining" else " "  # earlier versions did not have these metrics
  results = {metric: value for metric, value in read_json(run / "eval_results.json").items() if new not in metric}
  found = {"losses": losses, "results": results}
  assert not differences(read_json(LEFT / "expected.json")[name], found, name)


@pytest.mark.thorough
def test_a_finished_run_evaluates_and_predicts_as_recorded(tmp_path: Path) -> None:
  run = _copy("finished", tmp_path)
  data_flags = [word for word in argv_of("classification", LEFT / "data", run) if "_file=" in word]
  (run / "eval_results.json").unlink()
  with script_flags("classifier"):
    run_script("classifier", *data_flags, f"--output_dir={run}", "--do_eval", "--do_predict")
  left = LEFT / "finished"
  assert not differences(read_json(left / "eval_results.json"), read_json(run / "eval_results.json"), "results")
  assert not differences(read_tsv(left / "predictions_test.tsv"), read_tsv(run / "predictions_rows.tsv"), "predictions")


@pytest.mark.thorough
def test_an_export_gives_the_recorded_answers(tmp_path: Path) -> None:
  shutil.unpack_archive(LEFT / "export.tar.xz", tmp_path / "export")
  requests = [PredictRequest(number, {"text": text.encode()}) for number, text in enumerate(TEXTS)]
  answers = ExportedModel(str(tmp_path / "export")).answer(requests)
  assert not differences(read_json(LEFT / "expected.json")["export"], answers, "export")


def test_an_unfinished_preparation_is_refused(tmp_path: Path) -> None:
  output = _copy("preparation", tmp_path)
  names = {path.name for path in output.rglob("*")} - {".lock"}
  message = rf"an unfinished run that another version .* started: remove {output}\S*, or choose another directory"
  words = argv_of("preparation", LEFT / "data", output)[2:]
  refused = pytest.raises(UserError, match=message)
  with defined_flags(create_pretraining_data.define_flags), parsed_flags(*words), refused:
    create_pretraining_data.main()
  assert {path.name for path in output.rglob("*")} == names


def test_every_directory_has_a_test() -> None:
  assert {path.name for path in LEFT.iterdir() if path.is_dir()} == {*COMMANDS, "data", "finished"}
