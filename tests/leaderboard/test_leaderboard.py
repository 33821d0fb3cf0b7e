"""The plan of a leaderboard, its table and its submissions. tests/integration/test_leaderboard_cli.py runs it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from albert.config.model import named_model
from albert.config.recipes import configs_directory
from albert.errors import UserError
from albert.experiments import runner
from albert.experiments.catalog import read_scale
from albert.experiments.inputs import DownstreamTask, check_glue_folder, check_race_folder, glue_task, squad_task
from albert.experiments.runner import ScoreSource
from albert.leaderboard import GLUE_TASKS, LeaderboardPlan, format_table, make_benchmark, write_submission
from tests.tasks.glue.archive import write_archive
from tests.tasks.race.folders import write_made_up_race

NAMES = ("RTE", "MNLI", "CoLA")


def make_plan(
  tmp_path: Path, names: tuple[str, ...] = NAMES, *, scale: str = "paper", num_runs: int = 5
) -> LeaderboardPlan:
  """Makes a plan of tasks of GLUE and of SQuAD v2.0."""
  tasks = [make_benchmark(name, glue_task(name, str(tmp_path / "glue"))) for name in names]
  return LeaderboardPlan(
    [*tasks, make_benchmark("squad_v2", squad_task("squad_v2", "train.json", "dev.json"))],
    init_checkpoint="/weights",
    model=named_model("albert_base"),
    scale=read_scale(scale),
    output_dir=str(tmp_path / "out"),
    num_runs=num_runs,
  )


def test_rte_starts_from_the_best_model_of_mnli(tmp_path: Path):
  plan = make_plan(tmp_path)
  trials = {trial.variant: trial for trial in plan.trials()}
  assert list(trials) == ["MNLI", "RTE", "CoLA", "SQuAD2.0"]
  mnli, rte = plan.tasks["MNLI"], trials["RTE"].commands
  assert [command.name for command in rte] == ["MNLI: 5 run(s)", "MNLI: ensemble", "RTE: 5 run(s)", "RTE: ensemble"]
  assert f"--init_checkpoint={mnli.directory}" in rte[2].words  # of several runs it is the best one
  assert rte[2].needs(rte[0])
  assert not rte[0].needs(rte[2])
  assert {"--fresh_head", "--task_name=RTE", "--num_runs=5", "--do_predict"} <= set(rte[2].words)
  assert "--init_checkpoint=/weights" in trials["CoLA"].commands[0].words
  assert {"--select_checkpoint=best", "--eval_every_steps=1000", "--version_2_with_negative"} <= set(
    trials["SQuAD2.0"].commands[0].words
  )
  # Without MNLI, RTE starts from the checkpoint.
  (first, *_) = make_plan(tmp_path, ("RTE",)).trials()[0].commands
  assert "--init_checkpoint=/weights" in first.words
  assert "--fresh_head" not in first.words


def test_a_score_is_a_statistic_of_several_runs(tmp_path: Path):
  metrics = {"accuracy": {"median": 0.75, "mean": None, "values": [0.5, 0.75, 0.75]}}
  content = {"seeds": [1, 2, 3], "best_seed": 2, "best_run": "run-2", "failed_seeds": [], "metrics": metrics}
  (tmp_path / "runs.json").write_text(json.dumps(content))
  assert runner.read_metrics(ScoreSource(str(tmp_path / "runs.json"), "accuracy", 100.0, "median")) == {
    "accuracy": 0.75
  }


def test_other_data_and_another_number_of_runs_have_other_directories(tmp_path: Path):
  (tmp_path / "glue" / "CoLA").mkdir(parents=True)
  data = tmp_path / "glue" / "CoLA" / "train.tsv"
  data.write_text("one")
  first = make_plan(tmp_path).tasks
  assert {name: task.directory for name, task in make_plan(tmp_path).tasks.items()} == {
    name: task.directory for name, task in first.items()
  }
  data.write_text("two")
  changed = {name for name, task in make_plan(tmp_path).tasks.items() if task.directory != first[name].directory}
  assert changed == {"CoLA"}
  fewer = make_plan(tmp_path, num_runs=2).tasks
  assert all(task.directory != first[name].directory for name, task in fewer.items())


def test_a_single_run_is_its_own_result(tmp_path: Path):
  """Its last file is the last submission, or the metrics if there is nothing to predict."""
  plan = make_plan(tmp_path, num_runs=1)
  commands = {trial.variant: trial.commands for trial in plan.trials()}
  assert [command.name for command in commands["RTE"]] == ["MNLI: 1 run(s)", "RTE: 1 run(s)"]
  last_files = {name: Path(commands[name][-1].makes[0]).name for name in ("CoLA", "SQuAD2.0")}
  assert last_files == {"CoLA": "CoLA.tsv", "SQuAD2.0": "eval_results.json"}
  assert all(task.final == task.directory for task in plan.tasks.values())


def test_the_scale_replaces_values_of_the_recipes(tmp_path: Path):
  words = set(make_plan(tmp_path, scale="smoke").trials()[0].commands[0].words)
  assert {"--num_train_steps=4", "--max_seq_length=32", "--eval_every_steps=2", "--select_checkpoint=best"} <= words


def test_the_plan_shows_the_cost_of_each_task(tmp_path: Path):
  header, *lines, total = make_plan(tmp_path).describe(1e12).splitlines()
  rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
  assert [row["starts from"] for row in rows] == ["the checkpoint", "MNLI", "the checkpoint", "the checkpoint"]
  assert [(row["steps"], row["batch"], row["tokens"]) for row in rows[:2]] == [
    ("10000", "128", "512"),
    ("800", "32", "512"),
  ]
  hours = [float(row["hours"].replace(",", "")) for row in rows]
  flop = float(rows[1]["GFLOP per step"].replace(",", "")) * 1e9
  assert hours[1] == pytest.approx(5 * 800 * flop / 1e12 / 3600, abs=0.006)
  assert total.startswith("4 tasks, 20 runs; training takes at most about ")
  assert float(total.split()[9].replace(",", "")) == pytest.approx(sum(hours), abs=0.03)


@pytest.mark.parametrize(
  ("dropout", "race_flag", "race_recipe"), [(0.1, None, "race"), (0.0, "--recipe=race_v2", "race_v2")]
)
def test_the_recipe_is_the_one_for_the_weights(tmp_path: Path, dropout: float, race_flag: str | None, race_recipe: str):
  """RACE has one for weights that were pretrained without dropout (ALBERT v2). Those of SQuAD are for all weights."""
  tasks = [make_benchmark(name, squad_task(name, "train.json", "dev.json")) for name in ("squad_v1", "squad_v2")]
  plan = LeaderboardPlan(
    [*tasks, make_benchmark("race", DownstreamTask("run_race", {}, data="", recipe="race"))],
    init_checkpoint="/weights",
    model=dataclasses.replace(named_model("albert_base"), hidden_dropout_prob=dropout),
    scale=read_scale("paper"),
    output_dir=str(tmp_path / "out"),
    num_runs=1,
  )
  flags = {
    trial.variant: [word for word in trial.commands[0].words if word.startswith("--recipe")] for trial in plan.trials()
  }
  assert flags == {"SQuAD1.1": [], "SQuAD2.0": [], "RACE": [race_flag] if race_flag else []}
  recipes = [line.split("\t")[1] for line in plan.describe(1e12).splitlines()[1:-1]]
  assert recipes == ["squad_v1", "squad_v2", race_recipe]
  # The recipe trains with the dropout of the weights.
  values = json.loads((Path(configs_directory()) / f"{race_recipe}.json").read_text())
  assert values["model"].get("hidden_dropout_prob", 0.1) == dropout


def _write_results(plan: LeaderboardPlan) -> list[dict[str, Any]]:
  """Writes made-up predictions of all tasks, and returns made-up rows."""
  for task in plan.tasks.values():
    Path(task.final).mkdir(parents=True)
    for name in task.benchmark.submission:
      (Path(task.final) / name).write_text(f"{task.benchmark.name} {name}")
  columns = {"median": 80.0, "minimum": 79.0, "maximum": 81.0, "ensemble": 82.5}
  return [
    {
      "variant": name,
      "scores": {f"{m} {column}": value for m in task.benchmark.metrics for column, value in columns.items()},
    }
    for name, task in plan.tasks.items()
  ]


def test_the_table_and_the_submissions(tmp_path: Path):
  plan = make_plan(tmp_path)
  rows = _write_results(plan)
  lines = format_table(plan, rows, "weights").splitlines()
  assert "| RTE | accuracy | 80.0 | 79.0 | 81.0 | 82.5 | 89.2 |" in lines
  assert "| SQuAD2.0 | exact | 80.0 | 79.0 | 81.0 | 82.5 | 87.4 |" in lines
  paths = write_submission(plan)
  submission = tmp_path / "out" / "submission"
  assert sorted(str(Path(path).relative_to(submission)) for path in paths) == [
    "GLUE/CoLA.tsv",
    "GLUE/MNLI-m.tsv",
    "GLUE/MNLI-mm.tsv",
    "GLUE/RTE.tsv",
    "SQuAD2.0/null_odds_dev.json",
    "SQuAD2.0/predictions_dev.json",
    "glue.zip",
  ]
  with zipfile.ZipFile(submission / "glue.zip") as archive:
    assert archive.namelist() == ["CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "RTE.tsv"]
    assert archive.read("MNLI-mm.tsv") == b"MNLI MNLI-mm.tsv"


def test_ax_is_submitted_if_its_file_is_there(tmp_path: Path):
  assert make_plan(tmp_path).tasks["MNLI"].benchmark.submission == ["MNLI-m.tsv", "MNLI-mm.tsv"]
  (tmp_path / "glue" / "diagnostic").mkdir(parents=True)
  (tmp_path / "glue" / "diagnostic" / "diagnostic.tsv").write_text("")
  plan = make_plan(tmp_path)
  assert plan.tasks["MNLI"].benchmark.submission == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
  _write_results(plan)
  write_submission(plan)
  assert (tmp_path / "out" / "submission" / "GLUE" / "AX.tsv").read_text() == "MNLI AX.tsv"


def test_every_task_has_a_metric_and_a_recipe(tmp_path: Path):
  names = tuple(GLUE_TASKS)
  assert sorted(names) == ["CoLA", "MNLI", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI"]
  plan = make_plan(tmp_path, names)
  assert [name for name, task in plan.tasks.items() if task.start == "MNLI"] == ["RTE", "MRPC", "STS-B"]
  assert all(task.recipe.name != "glue_custom" for task in plan.tasks.values())


def test_a_task_without_its_folder_is_refused(tmp_path: Path):
  write_archive(tmp_path, ["RTE"])
  check_glue_folder(str(tmp_path), "RTE", predicts=True)
  check_glue_folder(str(tmp_path / "RTE"), "RTE", predicts=True)  # the files may be in the given folder itself
  with pytest.raises(UserError, match=r"has no folder CoLA: download the task, or leave it out of --glue_tasks"):
    check_glue_folder(str(tmp_path), "CoLA")


def test_a_task_without_one_of_its_files_is_refused(tmp_path: Path):
  """Otherwise a plan would run for hours before the task fails. Only a leaderboard reads test sets; AX is optional."""
  write_archive(tmp_path, ["MNLI"])
  check_glue_folder(str(tmp_path), "MNLI", predicts=True)
  (tmp_path / "MNLI" / "test_mismatched.tsv").unlink()
  check_glue_folder(str(tmp_path), "MNLI")
  with pytest.raises(UserError, match=r"^--glue_dir=.*: MNLI has no test_mismatched.tsv: download the task, or leave"):
    check_glue_folder(str(tmp_path), "MNLI", predicts=True)
  (tmp_path / "MNLI" / "train.tsv").unlink()
  with pytest.raises(UserError, match=r"MNLI has no train.tsv"):
    check_glue_folder(str(tmp_path), "MNLI")


def test_a_folder_of_race_without_a_split_is_refused(tmp_path: Path):
  race = Path(write_made_up_race(tmp_path, num_passages=1))
  for folder in (race, race.parent):  # RACE, or the folder that contains it
    check_race_folder(str(folder), ("train", "dev", "test"))
  shutil.rmtree(race / "test")
  check_race_folder(str(race), ("train", "dev"))
  with pytest.raises(UserError, match=r"^--race_dir: .*RACE/test does not exist: give a folder like"):
    check_race_folder(str(race), ("train", "dev", "test"))
