"""Tests of the commands of a plan, and of the files that its trials share."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.experiments import catalog
from albert.experiments.catalog import read_scale
from albert.experiments.inputs import DownstreamTask
from albert.experiments.plan import Plan
from albert.tasks.pretraining.flags import PretrainingConfig, format_stages, read_stages
from albert.tasks.squad.flags import SquadConfig
from tests.experiments.plans import make_plan, trials_by_variant


def test_experiments_share_their_common_commands(tmp_path: Path):
  runs = {trial.run for name in ("embedding_size", "sharing") for trial in make_plan(tmp_path, name).trials()}
  assert len(runs) == 8 + 8 - 4  # both experiments have E=128 and E=768, with all parameters shared and with none
  shared_run = trials_by_variant(make_plan(tmp_path, "sharing"))["E=128 all-shared"].run
  assert trials_by_variant(make_plan(tmp_path, "sentence_loss"))["SOP"].run == shared_run
  static_run = trials_by_variant(make_plan(tmp_path, "masking"))["static"].run
  assert trials_by_variant(make_plan(tmp_path, "input_format"))["segment pairs, NSP"].run == static_run
  # The shards of dynamic masking have no masks.
  shards = f"--input_file={tmp_path}/shared/shards-main-nsp-none-segments-"
  commands = trials_by_variant(make_plan(tmp_path, "masking"))["dynamic"].commands
  assert sum(shards in " ".join(command.words) for command in commands) == 1


def test_a_deeper_network_starts_from_the_shallower_one(tmp_path: Path):
  trials = trials_by_variant(make_plan(tmp_path, "depth"))
  one_layer, three_layers = trials["1 layer"], trials["3 layers"]
  assert f"--init_checkpoint={one_layer.run}" in three_layers.commands[-1].words
  assert one_layer.commands[-1] in three_layers.commands
  # Five more trainings: 3, 6, 12, 24 and 48 layers, each of which starts from the one before.
  assert len(trials["48 layers"].commands) == len(one_layer.commands) + 5


def test_a_variant_with_the_time_of_another_one_is_trained_after_it(tmp_path: Path):
  trials = trials_by_variant(make_plan(tmp_path, "equal_time"))
  reference, timed = trials["ALBERT-xxlarge"], trials["BERT-large"]
  assert reference.commands[-1] in timed.commands[:-1]
  assert f"--same_time_as={reference.run}" in timed.commands[-1].words
  assert timed.commands[-1].needs(reference.commands[-1])
  assert timed.run != reference.run
  # The scale has 8 steps and a warm-up of 2. The time ends the run before the upper bound of 20 x 8 steps.
  assert {"--num_train_steps=160", "--num_warmup_steps=2"} <= set(timed.commands[-1].words)


@pytest.mark.parametrize("scale", ["smoke", "small", "medium", "shallow"])
def test_questions_of_squad_fit_into_the_sequences_of_every_scale(tmp_path: Path, scale: str):
  flags = read_scale(scale).finetuning_flags("run_squad")
  assert "max_query_length" not in read_scale(scale).finetuning_flags("run_race")
  config = SquadConfig(max_seq_length=flags["max_seq_length"], max_query_length=flags["max_query_length"])
  assert config.max_query_length >= 8
  assert read_scale("paper").finetuning_flags("run_squad") == {}
  task = DownstreamTask("run_squad", {"train_file": "t"}, {"squad_v1_f1": ("f1", 1.0)})
  words = make_plan(tmp_path, "sharing", scale, tasks={"squad_v1": task}).trials()[0].commands[-1].words
  assert {f"--max_query_length={flags['max_query_length']}", f"--doc_stride={flags['doc_stride']}"} <= set(words)


def test_the_stages_of_a_scale_train_fewer_layers_first(tmp_path: Path):
  scale, depths = read_scale("medium"), {}
  for name in catalog.names():
    plan = make_plan(tmp_path, name, "medium", vocab_size=9, additional_corpus="b.txt")
    for variant in plan.experiment.variants:
      model = scale.model(variant, vocab_size=9)
      stages = plan.stages(model)
      depths[name, variant.name] = [stage.get("num_hidden_layers") for stage in stages]
      # Pretraining refuses a depth that does not suit the model.
      config = PretrainingConfig(input_file="a.tfrecord", stages=format_stages(stages) if stages else "")
      assert len(read_stages(config, model)) == len(stages)
  assert depths["sentence_loss", "SOP"] == [2, 3, None]
  assert depths["groups", "4 groups"] == [3, 3, None]  # multiples of the three groups at this scale
  assert depths["depth", "1 layer"] == []
  assert depths["equal_time", "ALBERT-xxlarge"] == []  # as the model that ends by the clock, which has no stages
  plan = make_plan(tmp_path, "sentence_loss", "medium", vocab_size=9)
  (command,) = [command for command in plan.trials()[0].commands if command.name == "none, seed 12345: pretraining"]
  assert f"--stages={format_stages(plan.stages(scale.model(plan.experiment.variants[0], 9)))}" in command.words


def test_batches_of_other_sizes_see_as_many_examples(tmp_path: Path):
  plan = make_plan(tmp_path, "batch_size", "paper")
  flags = {variant.name: plan.training_flags(variant) for variant in plan.experiment.variants}
  sizes = {name: (values["train_batch_size"], values["num_train_steps"]) for name, values in flags.items()}
  # RoBERTa, table 3: 1M steps of 256, 125K of 2K, 31K of 8K.
  assert sizes["batch 256, rate x 1"] == (256, 1_000_000)
  assert sizes["batch 2K, rate x 1"] == (2048, 125_000)
  assert sizes["batch 8K, rate x 1"] == (8192, 31_250)
  rates = [flags[f"batch 8K, rate x {factor}"]["learning_rate"] for factor in ("0.5", "1", "2")]
  assert rates == pytest.approx([0.00176 * 2**0.5 * factor for factor in (0.5, 1, 2)])


@pytest.mark.parametrize(("name", "steps"), [("dropout", 50_000), ("degradation", 6_250)])
def test_a_figure_of_curves_needs_evaluations_during_training(tmp_path: Path, name: str, steps: int):
  """20 of them."""
  plan = make_plan(tmp_path, name, "paper")
  assert {plan.training_flags(variant)["eval_every_steps"] for variant in plan.experiment.variants} == {steps}


def test_each_model_is_evaluated_on_all_sentence_tasks(tmp_path: Path):
  # The score sst2 is the metric accuracy times 100.
  scores = {"sst2": ("accuracy", 100.0)}
  tasks = {"sst2": DownstreamTask("run_classifier", {"task_name": "SST-2", "data_dir": "glue"}, scores)}
  trials = trials_by_variant(make_plan(tmp_path, "sentence_loss", tasks=tasks))
  assert {name: sorted(trial.scores) for name, trial in trials.items()} == {
    "none": ["mlm", "nsp", "sop", "sst2"],
    "NSP": ["mlm", "nsp", "sop", "sst2"],
    "SOP": ["mlm", "nsp", "sop", "sst2"],
  }
  assert trials["SOP"].scores["nsp"].file == f"{trials['SOP'].run}/nsp/eval_results.json"


def test_a_command_waits_for_those_whose_files_it_reads_and_for_no_others(tmp_path: Path):
  task = DownstreamTask("run_classifier", {"task_name": "SST-2"}, {"sst2": ("accuracy", 100.0)})
  plan = make_plan(tmp_path, "sentence_loss", tasks={"sst2": task})
  preparation = plan.preparation_commands()
  text, vocabulary = preparation
  assert vocabulary.needs(text)
  for trial in plan.trials():
    shards = [command for command in trial.commands if command.name.startswith("shards: ")]
    pretraining, *others = [command for command in trial.commands if command not in shards]
    # No model waits for shards that are made after the pretraining of another one: shards need no pretraining.
    assert len(shards) == {"none": 4, "NSP": 3, "SOP": 3}[trial.variant]  # the held-out text of each task
    assert all(command.needs(text) and command.needs(vocabulary) for command in shards)
    assert [pretraining.needs(command) for command in shards] == [True, True, *[False] * (len(shards) - 2)]
    assert all(command.needs(pretraining) for command in others)
    sentence_tasks = [command for command in others if "sst2" not in command.name]
    assert all(any(map(command.needs, shards[2:])) for command in sentence_tasks)
    assert len(sentence_tasks) == len(shards) - 2
    assert not any(earlier.needs(later) for earlier, later in itertools.combinations(trial.commands, 2))


def test_other_text_or_another_scale_uses_other_folders(tmp_path: Path):
  plans = [
    make_plan(tmp_path, "masking", scale, corpus=corpus, heldout_corpus=heldout_corpus)
    for scale in ("smoke", "small")
    for corpus, heldout_corpus in (("", ""), ("a.txt", "b.txt"), ("c.txt", "b.txt"))
  ]
  # Four vocabularies: of a.txt and of c.txt at any scale, and without a given text one for each scale, which takes its
  # own sample of the installed packages.
  assert len({plan.vocabulary("unigram") for plan in plans}) == 4
  written_files: set[str] = set()
  for plan in plans:
    files_of_plan = {path for trial in plan.trials() for command in trial.commands for path in command.makes}
    assert files_of_plan.isdisjoint(written_files)
    written_files |= files_of_plan


def test_a_run_that_was_evaluated_before_its_end_is_not_done(tmp_path: Path):
  task = DownstreamTask("run_classifier", {}, {"sst2": ("accuracy", 100.0)}, "")
  for command in make_plan(tmp_path, "sharing", tasks={"sst2": task}).trials()[0].commands:
    results_file, *records = map(Path, command.makes)
    results_file.parent.mkdir(parents=True, exist_ok=True)
    results_file.touch()
    assert command.is_done() == ("--do_train" not in command.words)
    for path in records:
      assert path == results_file.parent / "training_loss.json"
      path.touch()
    assert command.is_done()


@pytest.mark.parametrize("num_predictions", [0, 5])
def test_all_shards_have_the_number_of_masked_tokens_that_the_inputs_give(tmp_path: Path, num_predictions: int):
  plan = make_plan(tmp_path, "sentence_loss", max_predictions_per_seq=num_predictions)
  commands = {command for trial in plan.trials() for command in trial.commands}
  shards = [command.words for command in commands if "data_prep.create_pretraining_data" in command.words]
  assert len(shards) == 3 + 3  # of the training text, and of the held-out text for SOP, NSP and none
  flags = [word for words in shards for word in words if word.startswith("--max_predictions_per_seq=")]
  assert flags == (["--max_predictions_per_seq=5"] * len(shards) if num_predictions else [])


def _written_files(plan: Plan) -> set[str]:
  commands = [*plan.preparation_commands(), *(command for trial in plan.trials() for command in trial.commands)]
  return {path for command in commands for path in command.makes}


def test_changed_contents_of_the_users_files_use_other_folders(tmp_path: Path):
  """Each kind of file changes what is made from it, and nothing else. The same contents give the same folders."""
  for name in ("text", "more", "heldout", "vocab", "dev.json"):
    (tmp_path / name).write_text("earlier")
  (tmp_path / "glue" / "SST-2").mkdir(parents=True)
  (tmp_path / "glue" / "SST-2" / "train.tsv").write_text("earlier")
  data = str(tmp_path / "glue" / "SST-2")
  task = DownstreamTask("run_classifier", {"data_dir": "glue"}, {"sst2": ("accuracy", 100.0)}, data)
  inputs: dict[str, Any] = {
    "corpus": f"{tmp_path}/tex*",
    "additional_corpus": f"{tmp_path}/more",
    "spm_model_file": f"{tmp_path}/vocab",
    "tasks": {"sst2": task},
  }
  heldout = {"heldout_corpus": f"{tmp_path}/heldout"}
  from_questions = {"question_flags": {"squad_file": f"{tmp_path}/dev.json"}}

  def digests_and_files(heldout_inputs: dict[str, Any]) -> tuple[list[str], set[str]]:
    plan = make_plan(tmp_path, "additional_data", **inputs, **heldout_inputs)
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
  digests = [trial.digest for trial in make_plan(tmp_path, "masking").trials()]
  monkeypatch.setattr(sys, "executable", "/another/python")
  trials = make_plan(tmp_path, "masking").trials()
  assert trials[0].commands[0].words[0] == "/another/python"
  assert [trial.digest for trial in trials] == digests


def test_held_out_text_is_made_from_the_development_sets(tmp_path: Path):
  question_flags = {"squad_file": "dev.json", "race_file": "RACE/dev"}
  plan = make_plan(tmp_path, "dropout", corpus="a.txt", question_flags=question_flags)
  (text_command,) = [command for command in plan.preparation_commands() if "data_prep.question_texts" in command.words]
  text_flags = {f"--output_file={text_command.makes[0]}", "--squad_file=dev.json", "--race_file=RACE/dev"}
  assert text_flags <= set(text_command.words)
  heldout_shards_command = plan.trials()[0].commands[1]
  assert f"--input_file={text_command.makes[0]}" in heldout_shards_command.words
  plan = make_plan(tmp_path, "dropout", corpus="a.txt", question_flags=question_flags, heldout_corpus="b.txt")
  assert not any("data_prep.question_texts" in command.words for command in plan.preparation_commands())
  assert "--input_file=b.txt" in plan.trials()[0].commands[1].words


def test_a_plan_without_the_text_that_it_needs_is_refused(tmp_path: Path):
  with pytest.raises(UserError, match="--corpus without --heldout_corpus"):
    make_plan(tmp_path, "dropout", corpus="a.txt")
  message = r"--run=additional_data trains some variants on additional text: .*--additional_corpus"
  with pytest.raises(UserError, match=message):
    make_plan(tmp_path, "additional_data")


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_a_model_without_dropout_is_fine_tuned_with_the_recipe_for_it(tmp_path: Path, scale: str):
  task = DownstreamTask("run_race", {"data_dir": "race"}, {"race": ("accuracy", 100.0)}, recipe="race")
  trials = make_plan(tmp_path, "dropout", scale, tasks={"race": task}).trials()
  words = {trial.variant: trial.commands[-1].words for trial in trials}
  assert "--recipe=race_v2" in words["without dropout"]
  assert not [word for word in words["with dropout"] if word.startswith("--recipe")]
