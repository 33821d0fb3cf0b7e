"""Tests of running a plan. Finished commands are not repeated, and failed and stopped commands are reported."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.model import ModelConfig
from albert.errors import RunError, Stopped, UserError
from albert.experiments import catalog, curve_figures, late_flags, layers, runner, tables
from albert.experiments.catalog import Experiment, Variant
from albert.experiments.commands import Command
from albert.experiments.inputs import DownstreamTask, Inputs
from albert.experiments.plan import Plan, ScoreSource, Trial
from albert.experiments.scales import SCALES
from albert.io import figures
from albert.runs.directory_lock import DirectoryLock
from albert.tasks.squad.data import SquadConfig

# x is the variant's position on the horizontal axis of the figure.
_VARIANTS = [
  Variant(name=name, model="albert_base", fields={}, data={}, x=x, paper={"sop": 86.5})
  for name, x in (("one", 1.0), ("two", 2.0))
]
TOY_EXPERIMENT = Experiment(
  name="toy", title="A toy", source="nowhere", variants=_VARIANTS, intrinsic=["sop"], x="size"
)
# A program that writes a results file. Its arguments are the file and the accuracy.
WRITE_ACCURACY = "import json, sys; json.dump({'sentence_order_accuracy': float(sys.argv[2])}, open(sys.argv[1], 'w'))"


class _ToyPlan(Plan):
  """A plan of two variants with two seeds. Each trial is one command, which runs the Python script of its variant.

  The script gets the path of the results file and the accuracy that it should write to it.

  Args:
    directory: output_dir of the plan.
    scripts: variant -> Python script. The default is WRITE_ACCURACY.
    shared: a command that comes first in every trial.
  """

  def __init__(self, directory: Path, scripts: Mapping[str, str] | None = None, shared: Command | None = None):
    super().__init__(TOY_EXPERIMENT, SCALES["smoke"], Inputs(output_dir=str(directory), vocab_size=10, num_seeds=2))
    self._scripts = scripts or {}
    self._shared_commands = [shared] if shared else []

  def preparation_commands(self) -> list[Command]:
    return []

  def _make_trial(self, variant: Variant, seed: int) -> Trial:
    run = Path(self.inputs.output_dir) / f"{variant.name}-{seed}"
    run.mkdir(exist_ok=True)
    results_file = str(run / "eval_results.json")
    script = self._scripts.get(variant.name, WRITE_ACCURACY)
    # 12345 is the first seed of a plan, so its accuracies are 0.5 and 0.75. Those of the second seed are 0.01 higher.
    accuracy = (0.5 if variant.name == "one" else 0.75) + (seed - 12345) / 100
    words = (sys.executable, "-c", script, results_file, str(accuracy))
    command = Command(f"{variant.name}, seed {seed}: pretraining", words, results_file)
    config = ModelConfig(embedding_size=8, hidden_size=8, num_attention_heads=1)
    scores = {"sop": ScoreSource(results_file, "sentence_order_accuracy")}
    return Trial(variant, seed, f"{variant.name}{seed}", config, [*self._shared_commands, command], scores, str(run))


def _read_rows(plan: Plan) -> list[dict[str, Any]]:
  """The rows of results.jsonl."""
  return [json.loads(line) for line in (Path(plan.directory) / runner.RESULTS_FILE).read_text().splitlines()]


def test_only_one_process_at_a_time_runs_a_plan(tmp_path: Path):
  plan = _ToyPlan(tmp_path)
  with DirectoryLock(plan.directory, "running experiments"), pytest.raises(UserError, match="is running experiments"):
    runner.run_plan(plan)


def test_a_plan_continues_after_a_failed_trial_and_keeps_the_finished_rows(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
  failing_plan = _ToyPlan(tmp_path, {"two": "print('first'); print('the reason'); raise SystemExit(3)"})
  with pytest.raises(RunError, match=r"two, seed 12345: pretraining ended with code 3 \(the reason\); .*logs/two-"):
    runner.run_plan(failing_plan)
  assert [row["variant"] for row in _read_rows(failing_plan)] == ["one"]
  command_log = Path(failing_plan.directory) / "log.txt"
  with (Path(failing_plan.directory) / runner.RESULTS_FILE).open("a") as rows_file:
    rows_file.write('{"variant": "cut o')  # as if the process was killed while it wrote a row
  command_log.unlink()
  rows = runner.run_plan(_ToyPlan(tmp_path))
  assert [(row["variant"], row["seed"], row["scores"]["sop"]) for row in rows] == [
    ("one", 12345, 50.0),
    ("two", 12345, 75.0),
    ("one", 12346, 51.0),
    ("two", 12346, 76.0),
  ]
  assert _read_rows(failing_plan) == rows
  assert command_log.read_text().count("$ ") == 3
  capsys.readouterr()
  assert runner.run_plan(_ToyPlan(tmp_path)) == rows
  assert capsys.readouterr().out == "toy: 4 of 4 trials are done\n"
  assert command_log.read_text().count("$ ") == 3


def test_variants_with_the_same_commands_are_computed_once_and_each_have_a_row(tmp_path: Path):
  """At the scale smoke, 2, 4 and 12 groups of layers are the same model."""
  plan = _make_plan(tmp_path, "groups")
  trials = plan.trials()
  assert len({trial.digest for trial in trials}) == 2
  row: dict[str, Any] = {"seed": 12345, "parameters": 1, "examples_per_second": None, "scores": {}}
  lines = [json.dumps({"variant": trial.variant.name, "digest": trial.digest, **row}) for trial in trials[:2]]
  Path(plan.directory).mkdir()
  (Path(plan.directory) / runner.RESULTS_FILE).write_text("\n".join(lines) + "\n")
  rows = runner.run_plan(plan)
  assert [row["variant"] for row in rows] == ["1 group", "2 groups", "4 groups", "12 groups"]


def test_a_command_that_refuses_its_input_is_an_error_of_the_input(tmp_path: Path):
  plan = _ToyPlan(tmp_path, {"two": "print('error: no such file'); raise SystemExit(2)"})
  with pytest.raises(UserError, match=r"two, seed 12345: pretraining ended with code 2 \(error: no such file\); "):
    runner.run_plan(plan)
  assert [row["variant"] for row in _read_rows(plan)] == ["one"]
  assert len(runner.run_plan(_ToyPlan(tmp_path))) == 4


def test_a_signal_is_passed_to_the_running_command(tmp_path: Path):
  wait_for_signal = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open(sys.argv[1] + '.up', 'w')
time.sleep(60)
"""
  plan = _ToyPlan(tmp_path, {"two": wait_for_signal})
  started_file = tmp_path / "two-12345" / "eval_results.json.up"

  def send_signal() -> None:
    while not started_file.exists():
      time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=send_signal, daemon=True).start()
  handler = signal.getsignal(signal.SIGTERM)
  with pytest.raises(Stopped, match="stopped in two, seed 12345: pretraining; the same command continues there"):
    runner.run_plan(plan)
  assert signal.getsignal(signal.SIGTERM) is handler
  assert len(runner.run_plan(_ToyPlan(tmp_path))) == 4


def test_parallel_trials_share_the_processors_and_run_no_command_twice(tmp_path: Path):
  """The commands of both variants wait for each other, so they must run in parallel. The shared command runs once."""
  wait_for_other = """
import json, os, sys, time
own_dir = os.path.dirname(sys.argv[1])
other_dir = own_dir.replace('two-', 'one-') if 'two-' in own_dir else own_dir.replace('one-', 'two-')
assert os.path.exists(os.path.dirname(own_dir) + '/shared')
open(own_dir + '/up', 'w')
while not os.path.exists(other_dir + '/up'):
  time.sleep(0.01)
num_threads = float(os.environ['TF_NUM_INTRAOP_THREADS'])
json.dump({'sentence_order_accuracy': num_threads}, open(sys.argv[1], 'w'))
"""
  create_file = "import sys, time; time.sleep(0.3); open(sys.argv[1], 'x')"  # mode x fails if the file exists
  shared_file = str(tmp_path / "shared")
  shared = Command("shared", (sys.executable, "-c", create_file, shared_file), shared_file)
  rows = runner.run_plan(_ToyPlan(tmp_path, {"one": wait_for_other, "two": wait_for_other}, shared), jobs=2)
  num_threads = max(1, (os.cpu_count() or 1) // 2)
  assert [row["scores"]["sop"] for row in rows] == [100.0 * num_threads] * 4  # scores are in percent
  assert sorted(_read_rows(_ToyPlan(tmp_path)), key=str) == sorted(rows, key=str)


def test_a_trial_that_fails_stops_the_parallel_trials(tmp_path: Path):
  save_on_signal = """
import signal, sys, time
def save(*_):
  open(sys.argv[1] + '.saved', 'w')
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + '.up', 'w')
time.sleep(60)
"""
  started_file = tmp_path / "one-12345" / "eval_results.json.up"
  fail = f"""
import os, time
while not os.path.exists({str(started_file)!r}):
  time.sleep(0.01)
print('the reason')
exit(3)
"""
  with pytest.raises(RunError, match=r"two, seed 12345: pretraining ended with code 3 \(the reason\)"):
    runner.run_plan(_ToyPlan(tmp_path, {"one": save_on_signal, "two": fail}), jobs=2)
  assert started_file.with_suffix(".saved").exists()
  assert not (tmp_path / "toy" / runner.RESULTS_FILE).exists()


def test_the_table_has_our_numbers_beside_the_papers(tmp_path: Path):
  plan = _ToyPlan(tmp_path)
  text = tables.write(plan, runner.run_plan(plan), scale="smoke")
  # The mean of 50 and 51 percent, and of 75 and 76 percent. The standard deviation of both is sqrt(0.5) = 0.7.
  assert text.splitlines()[-2:] == [
    "| one | 0.297M | 50.5 ± 0.7 | 86.5 |",
    "| two | 0.297M | 75.5 ± 0.7 | 86.5 |",
  ]
  assert "Scale smoke; 2 seeds, mean ± standard deviation" in text
  directory = Path(plan.directory)
  assert (directory / tables.TABLE_FILE).read_text() == text
  assert (directory / tables.CSV_FILE).read_text().splitlines()[1].startswith("one,12345,")
  assert (directory / tables.FIGURE_FILE).read_bytes().startswith(b"\x89PNG")


def test_bars_start_at_guessing():
  experiment = dataclasses.replace(
    TOY_EXPERIMENT, x="", variants=[dataclasses.replace(variant, x=None) for variant in _VARIANTS]
  )
  axes = figures.new_figure(4.0, 3.0).subplots()
  tables.draw_panel(axes, experiment, {"one": [47.0, 49.0], "two": [60.0, 70.0]}, guessing=50.0)
  # The bars end at the means, 48 and 65.
  bars: list[Any] = list(axes.patches)
  assert [(bar.get_y(), bar.get_height()) for bar in bars] == [(50.0, -2.0), (50.0, 15.0)]
  lowest, highest = axes.get_ylim()
  assert lowest < 47.0
  assert highest > 70.0


def _make_plan(tmp_path: Path, name: str, **inputs: Any) -> Plan:
  """The plan of an experiment at the smallest scale."""
  all_inputs: dict[str, Any] = {"output_dir": str(tmp_path), "vocab_size": 1000, "num_seeds": 1} | inputs
  return Plan(catalog.load(name), SCALES["smoke"], Inputs(**all_inputs))


def _trials(plan: Plan) -> dict[str, Trial]:
  """Variant -> its trial, for a plan with one seed."""
  return {trial.variant.name: trial for trial in plan.trials()}


def test_experiments_share_their_common_commands(tmp_path: Path):
  runs = {trial.run for name in ("embedding_size", "sharing") for trial in _make_plan(tmp_path, name).trials()}
  assert len(runs) == 8 + 8 - 4  # both experiments have E=128 and E=768, with all parameters shared and with none
  shared_run = _trials(_make_plan(tmp_path, "sharing"))["E=128 all-shared"].run
  assert _trials(_make_plan(tmp_path, "sentence_loss"))["SOP"].run == shared_run
  static_run = _trials(_make_plan(tmp_path, "masking"))["static"].run
  assert _trials(_make_plan(tmp_path, "input_format"))["segment pairs, NSP"].run == static_run
  # The shards of dynamic masking have no masks.
  shards = f"--input_file={tmp_path}/shared/shards-main-nsp-none-segments-"
  commands = _trials(_make_plan(tmp_path, "masking"))["dynamic"].commands
  assert sum(shards in " ".join(command.words) for command in commands) == 1


def test_a_deeper_network_starts_from_the_shallower_one(tmp_path: Path):
  trials = _trials(_make_plan(tmp_path, "depth"))
  one_layer, three_layers = trials["1 layer"], trials["3 layers"]
  assert f"--init_checkpoint={one_layer.run}" in three_layers.commands[-1].words
  assert one_layer.commands[-1] in three_layers.commands
  # Five more trainings: 3, 6, 12, 24 and 48 layers, each of which starts from the one before.
  assert len(trials["48 layers"].commands) == len(one_layer.commands) + 5


def test_a_variant_with_the_time_of_another_one_is_trained_after_it(tmp_path: Path):
  trials = _trials(_make_plan(tmp_path, "equal_time"))
  reference, timed = trials["ALBERT-xxlarge"], trials["BERT-large"]
  assert reference.commands[-1] in timed.commands[:-1]
  assert timed.commands[-1].late_flag == late_flags.TrainingSeconds(reference.run)
  assert timed.run != reference.run
  # The scale has 8 steps and a warm-up of 2. The time ends the run before the upper bound of 20 x 8 steps.
  assert {"--num_train_steps=160", "--num_warmup_steps=2"} <= set(timed.commands[-1].words)
  run = Path(reference.run)
  run.mkdir(parents=True)
  with pytest.raises(UserError, match=r"metrics\.jsonl has no examples_per_second: delete .* to train it again"):
    late_flags.training_seconds(str(run))
  speeds = [3.0, 16.0, 4.0, 16.0]  # the first one includes the time to build the graph
  lines = [json.dumps({"step": 2 * index + 2, "examples_per_second": speed}) for index, speed in enumerate(speeds)]
  (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
  (run / "config.json").write_text(json.dumps({"train": {"train_batch_size": 10}}))
  assert timed.commands[-1].late_flag.word() == "--max_train_seconds=5.000"  # 80 examples at a median of 16 a second


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_questions_of_squad_fit_into_the_sequences_of_every_scale(tmp_path: Path, scale: str):
  flags = SCALES[scale].finetuning_flags("run_squad")
  assert "max_query_length" not in SCALES[scale].finetuning_flags("run_race")
  config = SquadConfig(max_seq_length=flags["max_seq_length"], max_query_length=flags["max_query_length"])
  assert config.max_query_length >= 8
  assert SCALES["paper"].finetuning_flags("run_squad") == {}
  task = DownstreamTask("run_squad", {"train_file": "t"}, {"squad_v1_f1": ("f1", 1.0)})
  inputs = Inputs(output_dir=str(tmp_path), vocab_size=9, num_seeds=1, tasks={"squad_v1": task})
  words = Plan(catalog.load("sharing"), SCALES[scale], inputs).trials()[0].commands[-1].words
  assert {f"--max_query_length={flags['max_query_length']}", f"--doc_stride={flags['doc_stride']}"} <= set(words)


def test_batches_of_other_sizes_see_as_many_examples(tmp_path: Path):
  plan = Plan(catalog.load("batch_size"), SCALES["paper"], Inputs(output_dir=str(tmp_path), vocab_size=9, num_seeds=1))
  flags = {variant.name: plan.training_flags(variant) for variant in plan.experiment.variants}
  sizes = {name: (values["train_batch_size"], values["num_train_steps"]) for name, values in flags.items()}
  # RoBERTa, table 3: 1M steps of 256, 125K of 2K, 31K of 8K.
  assert sizes["batch 256, rate x 1"] == (256, 1_000_000)
  assert sizes["batch 2K, rate x 1"] == (2048, 125_000)
  assert sizes["batch 8K, rate x 1"] == (8192, 31_250)
  rates = [flags[f"batch 8K, rate x {factor}"]["learning_rate"] for factor in ("0.5", "1", "2")]
  assert rates == pytest.approx([0.00176 * 2**0.5 * factor for factor in (0.5, 1, 2)])


def _row(variant: str, seed: int, perplexity: float) -> dict[str, Any]:
  """A row of results with a perplexity."""
  scores = {"mlm": perplexity / 2, "ppl": perplexity}
  return {"variant": variant, "seed": seed, "parameters": 1e6, "examples_per_second": 1.0, "scores": scores}


def test_a_row_of_the_table_shows_the_candidate_with_the_lowest_perplexity():
  candidates = {"a": "small", "b": "small", "c": "large", "d": ""}
  variants = [
    dataclasses.replace(_VARIANTS[0], name=name, candidate_for=row, paper={"ppl": 3.99})
    for name, row in candidates.items()
  ]
  experiment = dataclasses.replace(TOY_EXPERIMENT, variants=variants, intrinsic=["mlm", "ppl"])
  perplexities = {"a": (8.0, 12.0), "b": (9.0, 9.2), "c": (math.nan, 3.0), "d": (20.0, 22.0)}
  rows = [_row(name, seed, value) for name, values in perplexities.items() for seed, value in enumerate(values)]
  lines = tables.format_table(experiment, rows, scale="smoke").splitlines()
  assert [line.split(" | ")[0] for line in lines[-3:]] == ["| b", "| c", "| d"]
  assert lines[-3].split(" | ")[3:] == ["9.1 ± 0.1", "3.99 |"]
  assert "percent, except for perplexity" in lines[2]
  # Without the good run of c, another candidate for the same row would be chosen.
  other = dataclasses.replace(variants[0], name="e", candidate_for="large")
  experiment = dataclasses.replace(experiment, variants=[*variants, other])
  chosen = tables.select_candidates(experiment, [*rows, _row("e", 0, 1000.0)])
  assert [variant.name for variant in chosen.variants] == ["b", "e", "d"]


def test_the_curves_of_a_figure_are_those_of_the_logs(tmp_path: Path):
  run = tmp_path / "run"
  run.mkdir()
  (run / "eval_metrics.jsonl").write_text('{"step": 5, "masked_lm_accuracy": 0.25, "loss": 3}\n')
  (run / "metrics.jsonl").write_text('{"step": 2, "loss": 9.5}\n{"step": 4, "loss": null}\n')
  assert curve_figures.accuracies(str(run)) == ([5], [25.0])
  assert curve_figures.losses(str(run)) == ([2], [9.5])


@pytest.mark.parametrize(("name", "steps"), [("dropout", 50_000), ("degradation", 6_250)])
def test_a_figure_of_curves_needs_evaluations_during_training(tmp_path: Path, name: str, steps: int):
  """20 of them."""
  inputs = Inputs(output_dir=str(tmp_path), vocab_size=9, num_seeds=1)
  plan = Plan(catalog.load(name), SCALES["paper"], inputs)
  assert {plan.training_flags(variant)["eval_every_steps"] for variant in plan.experiment.variants} == {steps}


def test_each_model_is_evaluated_on_all_sentence_tasks(tmp_path: Path):
  # The score sst2 is the metric accuracy times 100.
  scores = {"sst2": ("accuracy", 100.0)}
  tasks = {"sst2": DownstreamTask("run_classifier", {"task_name": "SST-2", "data_dir": "glue"}, scores)}
  trials = _trials(_make_plan(tmp_path, "sentence_loss", tasks=tasks))
  assert {name: sorted(trial.scores) for name, trial in trials.items()} == {
    "none": ["mlm", "nsp", "sop", "sst2"],
    "NSP": ["mlm", "nsp", "sop", "sst2"],
    "SOP": ["mlm", "nsp", "sop", "sst2"],
  }
  assert trials["SOP"].scores["nsp"].file == f"{trials['SOP'].run}/nsp/eval_results.json"


def test_other_text_or_another_scale_uses_other_folders(tmp_path: Path):
  plans = [
    Plan(
      catalog.load("masking"),
      SCALES[scale],
      Inputs(output_dir=str(tmp_path), vocab_size=1000, num_seeds=1, corpus=corpus, heldout_corpus=heldout_corpus),
    )
    for scale in ("smoke", "small")
    for corpus, heldout_corpus in (("", ""), ("a.txt", "b.txt"), ("c.txt", "b.txt"))
  ]
  # Four vocabularies: of a.txt and of c.txt at any scale, and without a given text one for each scale, which takes its
  # own sample of the installed packages.
  assert len({plan.vocabularies.path("unigram") for plan in plans}) == 4
  written_files: set[str] = set()
  for plan in plans:
    files_of_plan = {command.completion_file for trial in plan.trials() for command in trial.commands}
    assert files_of_plan.isdisjoint(written_files)
    written_files |= files_of_plan


@pytest.mark.parametrize("num_predictions", [0, 5])
def test_all_shards_have_the_number_of_masked_tokens_that_the_inputs_give(tmp_path: Path, num_predictions: int):
  plan = _make_plan(tmp_path, "sentence_loss", max_predictions_per_seq=num_predictions)
  commands = {command for trial in plan.trials() for command in trial.commands}
  shards = [command.words for command in commands if "data_prep.create_pretraining_data" in command.words]
  assert len(shards) == 3 + 3  # of the training text, and of the held-out text for SOP, NSP and none
  flags = [word for words in shards for word in words if word.startswith("--max_predictions_per_seq=")]
  assert flags == (["--max_predictions_per_seq=5"] * len(shards) if num_predictions else [])


def _written_files(plan: Plan) -> set[str]:
  """The files that the commands of a plan write last."""
  commands = [*plan.preparation_commands(), *(command for trial in plan.trials() for command in trial.commands)]
  return {command.completion_file for command in commands}


def test_changed_contents_of_the_users_files_use_other_folders(tmp_path: Path):
  """Each kind of file changes what is made from it, and nothing else. The same contents give the same folders."""
  for name in ("text", "more", "heldout", "vocab", "dev.json"):
    (tmp_path / name).write_text("earlier")
  (tmp_path / "glue" / "SST-2").mkdir(parents=True)
  (tmp_path / "glue" / "SST-2" / "train.tsv").write_text("earlier")
  data = str(tmp_path / "glue" / "SST-2")
  task = DownstreamTask("run_classifier", {"data_dir": "glue"}, {"sst2": ("accuracy", 100.0)}, data)
  inputs = {
    "corpus": f"{tmp_path}/tex*",
    "additional_corpus": f"{tmp_path}/more",
    "spm_model_file": f"{tmp_path}/vocab",
    "tasks": {"sst2": task},
  }
  heldout = {"heldout_corpus": f"{tmp_path}/heldout"}
  from_questions = {"question_flags": {"squad_file": f"{tmp_path}/dev.json"}}

  def digests_and_files(heldout_inputs: dict[str, Any]) -> tuple[list[str], set[str]]:
    plan = _make_plan(tmp_path, "additional_data", **inputs, **heldout_inputs)
    return [trial.digest for trial in plan.trials()], _written_files(plan)

  first_digests, _ = digests_and_files(heldout)
  for name, heldout_inputs in (
    ("text", heldout),
    ("more", heldout),
    ("heldout", heldout),
    ("vocab", heldout),
    ("dev.json", from_questions),
    ("glue/SST-2/train.tsv", heldout),
  ):
    digests, written_files = digests_and_files(heldout_inputs)
    (tmp_path / name).write_text("changed")
    new_digests, new_files = digests_and_files(heldout_inputs)
    new_files -= written_files
    assert new_digests != digests
    if name.startswith("glue"):
      assert all("/sst2-" in path for path in new_files)
    else:
      assert any("/shared/" in path for path in new_files)
      assert any(path.endswith("eval_results.json") for path in new_files)
    if name == "more":
      assert not any("/shards-main-" in path for path in new_files)
    (tmp_path / name).write_text("earlier")
  assert digests_and_files(heldout)[0] == first_digests


def test_the_digest_of_a_trial_does_not_depend_on_the_python_interpreter(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
  digests = [trial.digest for trial in _make_plan(tmp_path, "masking").trials()]
  monkeypatch.setattr(sys, "executable", "/another/python")
  trials = _make_plan(tmp_path, "masking").trials()
  assert trials[0].commands[0].words[0] == "/another/python"
  assert [trial.digest for trial in trials] == digests


def test_held_out_text_is_made_from_the_development_sets(tmp_path: Path):
  question_flags = {"squad_file": "dev.json", "race_file": "RACE/dev"}
  plan = _make_plan(tmp_path, "dropout", corpus="a.txt", question_flags=question_flags)
  (text_command,) = [command for command in plan.preparation_commands() if "data_prep.question_texts" in command.words]
  text_flags = {f"--output_file={text_command.completion_file}", "--squad_file=dev.json", "--race_file=RACE/dev"}
  assert text_flags <= set(text_command.words)
  heldout_shards_command = plan.trials()[0].commands[1]
  assert f"--input_file={text_command.completion_file}" in heldout_shards_command.words
  plan = _make_plan(tmp_path, "dropout", corpus="a.txt", question_flags=question_flags, heldout_corpus="b.txt")
  assert not any("data_prep.question_texts" in command.words for command in plan.preparation_commands())
  assert "--input_file=b.txt" in plan.trials()[0].commands[1].words


def test_a_plan_without_the_text_that_it_needs_is_refused(tmp_path: Path):
  with pytest.raises(UserError, match="--corpus without --heldout_corpus"):
    _make_plan(tmp_path, "dropout", corpus="a.txt")
  with pytest.raises(
    UserError, match=r"--run=additional_data trains some variants on additional text: .*--additional_corpus"
  ):
    _make_plan(tmp_path, "additional_data")


def test_distances_and_angles_between_layers_are_means_over_unmasked_tokens():
  layer_0 = np.array([[[3.0, 0.0], [1.0, 0.0]]])
  layer_1 = np.array([[[0.0, 4.0], [9.0, 9.0]]])
  input_mask = np.array([[1, 0]])
  distances = layers.mean_distances([layer_0, layer_1, layer_1], input_mask)
  np.testing.assert_allclose(distances["l2"], [5.0, 0.0], atol=1e-12)
  np.testing.assert_allclose(distances["degrees"], [90.0, 0.0], atol=1e-5)
