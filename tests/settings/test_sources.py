"""Tests of settings: each one comes from a flag, from the run in output_dir, from the recipe, or is the default."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.base import from_dict
from albert.config.model import named_model
from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.settings.resolve import resolve_settings
from albert.settings.sources import Settings
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.specs import make_spec
from albert.weights.files import WeightLocation
from tests.synthetic import TINY_MODEL

# Task -> the section "data" in the config.json of a run of the task.
RECORDED_DATA = {
  "classifier": {"task_name": "RTE", "data_dir": "/data", "max_seq_length": 48, "labels": "entailment,not_entailment"},
  "squad": {
    "version_2_with_negative": True,
    "max_seq_length": 48,
    "max_query_length": 8,
    "eval_file": "/data/dev.json",
  },
  "race": {"data_dir": "/data", "max_seq_length": 48, "max_qa_length": 16},
  "tagging": {"train_file": "/data/train.conll", "max_seq_length": 48, "scheme": "BILOU", "labels": "LOC,PER"},
  "pretraining": {
    "input_file": "/data/*",
    "max_seq_length": 48,
    "masking": "static",
    "spm_model_file": "/data/s.model",
  },
}


def write_run(directory: Path, task: str, *, with_checkpoint: bool = True, **changes: Any) -> Path:
  """Writes the files of a run: its config.json, its vocabulary and an empty checkpoint. Returns its directory.

  The config.json names no recipe. `changes` replace its sections.
  """
  config: dict[str, Any] = {
    "task": task,
    "model": TINY_MODEL.to_dict(),
    "optimizer": {"optimizer": "adamw", "learning_rate": 0.25, "num_warmup_steps": 2, "warmup_proportion": 0.0},
    "train": {
      "train_batch_size": 4,
      "eval_batch_size": 8,
      "num_train_steps": 7,
      "num_train_epochs": 0.0,
      "select_checkpoint": "best",
      "seed": 3,
      "precision": "bfloat16",
      "tpu": "local",
      "distribution_strategy": "tpu",
      "input_parts": 2,
    },
    "data": {**RECORDED_DATA[task], "cache_dir": "/old/cache", "num_processes": 3},
    "init_checkpoint": "/weights",
    "init_from_shallower": False,
  }
  directory.mkdir(parents=True)
  (directory / "config.json").write_text(json.dumps(config | changes))
  (directory / "spiece.model").write_bytes(b"the vocabulary of the run")
  if with_checkpoint:
    (directory / "checkpoints" / "step-7").mkdir(parents=True)
  return directory


@pytest.mark.parametrize("task", RECORDED_DATA)
def test_later_commands_use_the_settings_of_the_run(tmp_path: Path, task: str) -> None:
  run = write_run(tmp_path / "run", task)
  settings = Settings(task, {"output_dir": str(run), "do_predict": True})
  config, data = settings.run_config(), settings.data_config()
  assert settings.model_config() == TINY_MODEL
  assert (config.optimizer.optimizer, config.optimizer.learning_rate) == ("adamw", 0.25)
  train = config.train
  assert (train.select_checkpoint, train.seed, train.train_batch_size, train.precision) == ("best", 3, 4, "bfloat16")
  # The vocabulary is the copy in output_dir. The training shards are not needed, and may have been deleted.
  expected = {**RECORDED_DATA[task], "spm_model_file": f"{run}/spiece.model"}
  if task == "pretraining":
    expected["input_file"] = ""
  for name, value in expected.items():
    assert getattr(data, name) == value
  # Settings that depend on the machine or on the command are not reused.
  assert (train.tpu, train.distribution_strategy) == ("", "auto")
  assert getattr(data, "num_processes", 0) == 0
  assert data.cache_dir == (str(run) if task == "pretraining" else f"{run}/features")  # type: ignore[attr-defined]
  # If the checkpoints were deleted, the initial weights must not be used instead of them.
  assert config.init_checkpoint == ""


@pytest.mark.parametrize("task", RECORDED_DATA)
def test_training_is_resumed_with_no_other_flag_than_output_dir(tmp_path: Path, task: str) -> None:
  run = write_run(tmp_path / "run", task)
  config = Settings(task, {"output_dir": str(run), "do_train": True}).run_config()
  assert (config.init_checkpoint, config.from_scratch) == ("/weights", False)
  assert (config.train.num_train_steps, config.train.input_parts) == (7, 2)
  reusable_values = Settings(task, {"output_dir": str(run), "do_train": True}).data_config().reusable_values()
  for name, value in RECORDED_DATA[task].items():
    if name != "spm_model_file":
      assert reusable_values[name] == value
  run_from_scratch = write_run(tmp_path / "scratch", task, init_checkpoint="")
  assert Settings(task, {"output_dir": str(run_from_scratch), "do_train": True}).run_config().from_scratch


def test_the_recipe_of_a_run_gives_the_values_that_the_run_did_not_record(tmp_path: Path) -> None:
  def settings_of_run(name: str, task: str, **changes: Any) -> Settings:
    return Settings(task, {"output_dir": str(write_run(tmp_path / name, task, **changes))})

  settings = settings_of_run("recorded", "classifier", recipe="glue_cola")
  assert settings.run_config().train.eval_every_steps == 500
  settings = settings_of_run("without", "classifier", recipe="none")
  assert settings.run_config().train.eval_every_steps == 0
  # The file of the recipe does not exist any more.
  settings = settings_of_run("gone", "classifier", recipe="/gone.json")
  assert settings.run_config().recipe == "/gone.json"


# Task -> flags that do not affect the training.
FLAGS_THAT_MAY_DIFFER: dict[str, dict[str, Any]] = {
  "classifier": {"eval_batch_size": 5, "precision": "float32", "data_dir": "/other", "task_name": "rte", "tpu": "x"},
  "squad": {"max_eval_steps": 5, "keep_checkpoints": 2, "null_score_diff_threshold": 1.5, "input_parts": 1},
  "race": {"save_checkpoints_steps": 9, "log_every_steps": 3, "predict_file": "/other", "pad_to_max_length": True},
  "tagging": {"eval_file": "/other", "word_column": "1", "tag_column": "2", "log_every_steps": 3},
  "pretraining": {"eval_input_file": "/other", "masking": "auto", "max_seq_length": 0, "steps_per_loop": 2},
}


@pytest.mark.parametrize("task", FLAGS_THAT_MAY_DIFFER)
def test_a_flag_that_does_not_affect_training_replaces_the_value_of_the_run(tmp_path: Path, task: str) -> None:
  run = write_run(tmp_path / "run", task)
  settings = Settings(task, {"output_dir": str(run), "do_eval": True, **FLAGS_THAT_MAY_DIFFER[task]})
  config, data = settings.run_config(), settings.data_config()
  for name, value in FLAGS_THAT_MAY_DIFFER[task].items():
    assert getattr(data if hasattr(data, name) else config.train, name) == value
  settings.check_task_settings(RECORDED_DATA[task])


# Name of the case -> (task, a flag that contradicts the run of the task, the beginning of the error).
REFUSED_FLAGS: dict[str, tuple[str, dict[str, Any], str]] = {
  "checkpoint": ("race", {"select_checkpoint": "newest"}, "--select_checkpoint=newest: .* select_checkpoint = 'best'"),
  "model field": ("squad", {"num_hidden_layers": 3}, "--num_hidden_layers=3: the run in .* has num_hidden_layers = 2"),
  "model": ("race", {"model": "albert_base"}, "--model=albert_base: the run in .* has .* = "),
  "steps": ("pretraining", {"num_train_steps": 9}, "--num_train_steps=9: .* has num_train_steps = 7"),
  "the other of a pair": ("race", {"num_train_epochs": 2.0}, "--num_train_epochs=2.0: .* has num_train_steps = 7"),
  "rate": ("classifier", {"learning_rate": 0.5}, "--learning_rate=0.5: .* has learning_rate = 0.25"),
  "version": ("squad", {"version_2_with_negative": False}, "--noversion_2_with_negative: .* = True"),
  "length": ("race", {"max_qa_length": 8}, "--max_qa_length=8: .* has max_qa_length = 16"),
  "the other warm-up": ("race", {"warmup_proportion": 0.5}, "--warmup_proportion=0.5: .* has num_warmup_steps = 2"),
  "weights": ("squad", {"init_checkpoint": "/x"}, "--init_checkpoint=/x: .* has init_checkpoint = '/weights'"),
  "recipe": ("squad", {"recipe": "squad_v1"}, "--recipe=squad_v1, with .*: the run in"),
}


@pytest.mark.parametrize("case", REFUSED_FLAGS)
def test_a_flag_that_contradicts_the_run_is_an_error(tmp_path: Path, case: str) -> None:
  task, flags, message = REFUSED_FLAGS[case]
  run = write_run(tmp_path / "run", task)
  remedy = rf"\({run}/config\.json\): leave the flag out, or give another --output_dir and .*={run}/checkpoints/step-N$"

  def resolve() -> None:
    settings = Settings(task, {"output_dir": str(run), "do_predict": True, **flags})
    settings.model_config()
    settings.run_config()
    settings.check_task_settings(RECORDED_DATA[task] | settings.data_config().training_settings())

  with pytest.raises(UserError, match=message + ".*" + remedy):
    resolve()


@pytest.mark.parametrize("flag", [{"num_train_epochs": 2.0}, {"num_train_steps": 8}])
def test_the_error_of_a_run_of_epochs_names_them(tmp_path: Path, flag: dict[str, float]) -> None:
  run = write_run(tmp_path / "run", "race", train={"num_train_steps": 7, "num_train_epochs": 3.0})
  with pytest.raises(UserError, match=r"the run in .* has num_train_epochs = 3.0"):
    Settings("race", {"output_dir": str(run), "do_train": True, **flag}).run_config()


def test_a_share_of_the_data_contradicts_the_run_before_the_files_of_the_run_are_used(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "classifier", data={"eval_share": 0.0, "eval_file": "/data/dev.csv"})
  settings = Settings("classifier", {"output_dir": str(run), "do_train": True, "eval_share": 0.1})
  with pytest.raises(UserError, match=rf"--eval_share=0.1: the run in {run} has eval_share = 0.0 "):
    settings.data_config()


def test_flags_that_contradict_a_run_from_random_weights_are_errors(tmp_path: Path) -> None:
  data = {**RECORDED_DATA["race"], "do_lower_case": True}
  run = write_run(tmp_path / "run", "race", init_checkpoint="", data=data)
  flags = {"output_dir": str(run), "do_predict": True}
  with pytest.raises(UserError, match=r"--init_checkpoint=/x: the run in .* has from_scratch = True"):
    Settings("race", flags | {"init_checkpoint": "/x"}).run_config()
  with pytest.raises(UserError, match=r"--nodo_lower_case: the run in .* has do_lower_case = True"):
    Settings("race", flags | {"do_lower_case": False}).data_config()


def test_a_relative_path_and_a_copy_of_the_vocabulary_do_not_contradict_the_run(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  run = write_run(tmp_path / "run", "race", init_checkpoint="weights", recipe="race")
  flags = {"output_dir": "run", "do_train": True, "init_checkpoint": f"{tmp_path}/weights", "num_train_steps": 7}
  settings = Settings("race", {**flags, "recipe": "race", "select_checkpoint": "best", "learning_rate": 0.25})
  assert settings.run_config().init_checkpoint == "weights"
  vocabulary = tmp_path / "same.model"
  vocabulary.write_bytes((run / "spiece.model").read_bytes())
  settings = Settings("race", {**flags, "spm_model_file": str(vocabulary)})
  assert settings.data_config().spm_model_file == str(vocabulary)  # type: ignore[attr-defined]
  vocabulary.write_bytes(b"another vocabulary")
  message = r"--spm_model_file=.*same\.model: the run in run has spm_model_file = 'run/spiece"
  with pytest.raises(UserError, match=message):
    settings.data_config()


def test_a_vocabulary_with_other_merges_contradicts_the_run(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "race")
  (run / "spiece.model").unlink()
  for folder in (run, tmp_path):
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("a b\n")
  settings = Settings("race", {"output_dir": str(run), "spm_model_file": f"{tmp_path}/vocab.json"})
  assert settings.data_config().spm_model_file == f"{tmp_path}/vocab.json"  # type: ignore[attr-defined]
  (tmp_path / "merges.txt").write_text("b a\n")
  with pytest.raises(UserError, match=r"vocab\.json: the run in .* has spm_model_file = '.*run/vocab\.json"):
    settings.data_config()


def test_a_task_without_training_data_uses_the_model_of_another_one(tmp_path: Path) -> None:
  """AX has no training data. It is predicted with a model of MNLI, and has the labels that the run of MNLI recorded."""
  data = {"task_name": "MNLI", "labels": "contradiction,entailment,neutral", "data_dir": "/data"}
  run = write_run(tmp_path / "mnli", "classifier", data=data)
  settings = Settings("classifier", {"output_dir": str(run), "do_predict": True, "task_name": "AX"})
  config = settings.data_config()
  assert isinstance(config, ClassifierConfig)
  spec = make_spec(config)
  assert (spec.name, ",".join(spec.labels), config.data_dir) == ("AX", data["labels"], "/data")
  settings.check_task_settings(config.training_settings() | {"task_name": spec.model_of})
  rte_run = write_run(tmp_path / "rte", "classifier")
  settings = Settings("classifier", {"output_dir": str(rte_run), "task_name": "AX"})
  assert make_spec(settings.data_config()).name == "AX"  # type: ignore[arg-type]
  with pytest.raises(UserError, match=r"--task_name=AX: the run in .*rte has task_name = 'RTE'"):
    settings.check_task_settings({"task_name": spec.model_of})


def test_the_error_names_the_way_to_train_a_finished_run_for_longer(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "race")
  for flags in ({"num_train_steps": 9}, {"num_train_epochs": 2.0}):
    with pytest.raises(UserError, match=rf"give another --output_dir; with --init_checkpoint={run} there, its weights"):
      Settings("race", {"output_dir": str(run), "do_train": True, **flags}).run_config()


def test_the_warm_up_is_a_default_unless_a_flag_or_a_run_gives_it(tmp_path: Path) -> None:
  flags = {"output_dir": str(tmp_path / "new"), "do_train": True}
  assert Settings("race", flags).run_config().warmup_is_default
  assert Settings("race", flags | {"warmup_proportion": 0.0}).run_config().warmup_is_default  # 0: not used
  for warmup_flag in ({"num_warmup_steps": 0}, {"warmup_proportion": 0.1}):
    assert not Settings("race", flags | warmup_flag).run_config().warmup_is_default
  run = write_run(tmp_path / "run", "race")
  assert not Settings("race", {"output_dir": str(run), "do_train": True}).run_config().warmup_is_default


def test_a_run_of_another_script_is_an_error(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "classifier")
  with pytest.raises(UserError, match=r"config\.json: this directory holds a run of the task classifier, but"):
    Settings("squad", {"output_dir": str(run)})


def test_settings_of_a_run_without_checkpoints_are_not_reused(tmp_path: Path) -> None:
  failed = write_run(tmp_path / "failed", "race", with_checkpoint=False)
  (failed / "eval_results.json").write_text('{"step": 0}')  # of its initial weights
  settings = Settings("race", {"output_dir": str(failed), "model": "albert_tiny", "num_train_steps": 9})
  assert (settings.run_config().train.num_train_steps, settings.run_config().train.train_batch_size) == (9, 32)
  assert settings.model_config().hidden_size == named_model("albert_tiny").hidden_size
  weights = WeightLocation("hub", str(tmp_path / "hub"))
  (tmp_path / "hub").mkdir()
  (tmp_path / "hub" / "spiece.model").write_bytes(b"")
  assert settings.data_config(weights).spm_model_file == weights.vocabulary  # type: ignore[attr-defined]


def make_weights(directory: Path, record: str, values: dict[str, Any]) -> WeightLocation:
  """Writes a vocabulary and the file that says how it was made."""
  directory.mkdir()
  (directory / "spiece.model").write_bytes(b"a vocabulary")
  (directory / record).write_text(json.dumps(values))
  return WeightLocation(str(directory), str(directory))


@pytest.mark.parametrize(
  ("record", "values"),
  [
    ("tokenizer_config.json", {"do_lower_case": False, "keep_accents": True}),
    ("config.json", {"task": "pretraining", "data": {"do_lower_case": False, "keep_accents": True}}),
  ],
)
def test_the_case_and_the_accents_are_those_of_the_vocabulary(
  tmp_path: Path, record: str, values: dict[str, Any]
) -> None:
  weights = make_weights(tmp_path / "weights", record, values)
  (tmp_path / "copy.model").write_bytes(b"a vocabulary")  # nothing beside it: the settings are those of the weights
  for flags in ({}, {"do_lower_case": False}, {"spm_model_file": str(tmp_path / "copy.model")}):
    for task in ("race", "pretraining"):
      config = Settings(task, {"output_dir": str(tmp_path / "run"), **flags}).data_config(weights)
      assert (config.do_lower_case, config.keep_accents) == (False, True)  # type: ignore[attr-defined]
  for name, value in {"do_lower_case": True, "keep_accents": False}.items():
    settings = Settings("race", {"output_dir": str(tmp_path / "run"), name: value})
    with pytest.raises(UserError, match=rf"{name}={str(value).lower()} is given, but .*{record}\): leave the flag"):
      settings.data_config(weights)


def test_several_runs_share_the_settings_of_the_first_except_for_the_seed(tmp_path: Path) -> None:
  for seed in (12, 5):
    write_run(tmp_path / f"run-{seed}", "race")
  (tmp_path / "runs.json").write_text('{"seeds": [5, 12], "best_run": "run-12", "metrics": {}}')
  flags = {"output_dir": str(tmp_path), "num_runs": 3, "do_train": True, "do_eval": True}
  config = Settings("race", flags).run_config()
  assert (config.train.seed, config.train.num_train_steps, config.output_dir) == (5, 7, str(tmp_path))
  assert Settings("race", flags | {"seed": 12}).run_config().train.seed == 12
  with pytest.raises(UserError, match=r"--num_train_steps=8: the run in .*run-5 has num_train_steps = 7"):
    Settings("race", flags | {"num_train_steps": 8}).run_config()
  with pytest.raises(UserError, match=r"holds several runs: give one of them, such as --output_dir=.*/run-12$"):
    Settings("race", {"output_dir": str(tmp_path), "do_predict": True})
  with pytest.raises(UserError, match=r"^--num_runs=3: .*run-5/config\.json is of a single run: give another --output"):
    Settings("race", flags | {"output_dir": str(tmp_path / "run-5")})


def test_a_flag_with_another_folder_or_file_drops_the_files_that_the_run_recorded(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "classifier", data=RECORDED_DATA["classifier"] | {"eval_file": "/data/dev.tsv"})
  with_same_folder = Settings("classifier", {"output_dir": str(run), "data_dir": "/data"}).data_config()
  assert with_same_folder.eval_file == "/data/dev.tsv"  # type: ignore[attr-defined]
  with_new_folder = Settings("classifier", {"output_dir": str(run), "data_dir": "/new"}).data_config()
  assert (with_new_folder.data_dir, with_new_folder.eval_file) == ("/new", "")  # type: ignore[attr-defined]
  run = write_run(tmp_path / "squad", "squad", data=RECORDED_DATA["squad"] | {"predict_file": "/old.json"})
  with_new_file = Settings("squad", {"output_dir": str(run), "predict_file": "/new.json"}).data_config()
  assert (with_new_file.predict_file, with_new_file.eval_file) == ("/new.json", "")  # type: ignore[attr-defined]
  both = {"predict_file": "/new.json", "eval_file": RECORDED_DATA["squad"]["eval_file"]}
  assert Settings("squad", {"output_dir": str(run), **both}).data_config().eval_file == both["eval_file"]  # type: ignore[attr-defined]


# The following commands have an output_dir without a run.


def test_a_flag_replaces_its_alternative_in_the_recipe(tmp_path: Path) -> None:
  flags = {"output_dir": str(tmp_path), "task_name": "custom", "text_columns": "text"}
  config = Settings("classifier", flags).run_config()
  assert (config.train.num_train_epochs, config.optimizer.warmup_proportion) == (3.0, 0.1)  # of the recipe
  config = Settings("classifier", flags | {"num_train_steps": 125000, "num_warmup_steps": 0}).run_config()
  assert (config.train.num_train_steps, config.train.num_train_epochs) == (125000, 0.0)
  assert (config.optimizer.num_warmup_steps, config.optimizer.warmup_proportion) == (0, 0.0)
  proportions = {"num_train_epochs": 2.0, "warmup_proportion": 0.5}
  config = Settings("race", {"output_dir": str(tmp_path), **proportions}).run_config()
  assert (config.train.num_train_epochs, config.optimizer.warmup_proportion) == (2.0, 0.5)
  config = Settings("race", {"output_dir": str(tmp_path), "num_train_epochs": 0.0}).run_config()  # 0: not used
  assert config.train.num_train_steps == 12000  # of the recipe


def test_another_masking_than_the_recipes_drops_the_recipes_masking_settings(tmp_path: Path) -> None:
  recipe = tmp_path / "recipe.json"
  recipe.write_text(json.dumps({"data": {"masking": "dynamic", "masked_lm_prob": 0.25}}))
  flags = {"output_dir": str(tmp_path), "recipe": str(recipe)}
  for masking, masked_lm_prob in (("dynamic", 0.25), ("static", 0.0)):
    data = Settings("pretraining", flags | {"masking": masking}).data_config()
    assert (data.masking, data.masked_lm_prob) == (masking, masked_lm_prob)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"num_train_epochs": 3.0, "num_train_steps": 5}, "--num_train_epochs=3.0 and --num_train_steps=5 are both given"),
    (
      {"warmup_proportion": 0.1, "num_warmup_steps": 5},
      "--warmup_proportion=0.1 and --num_warmup_steps=5 are both given",
    ),
    ({"from_scratch": True, "init_checkpoint": "x"}, "--from_scratch and --init_checkpoint=x are both given"),
    (
      {"model": "albert_tiny", "albert_config_file": "x"},
      "--model=albert_tiny and --albert_config_file=x are both given",
    ),
  ],
)
def test_two_alternative_flags_on_one_command_line_are_an_error(flags: dict[str, Any], message: str) -> None:
  with pytest.raises(UserError, match=message + ": give one"):
    Settings("race", flags)


def test_a_new_head_for_a_resumed_run_is_refused(tmp_path: Path) -> None:
  flags = {"output_dir": str(tmp_path), "do_train": True, "fresh_head": True, "resume_from": "x"}
  with pytest.raises(UserError, match="--fresh_head and --resume_from=x are both given: give one"):
    resolve_settings("squad", flags)


def test_a_recipe_changes_only_the_dropout_of_a_model_that_a_flag_names(tmp_path: Path) -> None:
  flags = {"output_dir": str(tmp_path), "recipe": "pretraining_small"}
  small = Settings("pretraining", flags).model_config()
  assert small.hidden_size == 128
  assert Settings("pretraining", flags | {"hidden_size": 64}).model_config() == dataclasses.replace(
    small, hidden_size=64
  )
  changes: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.06}
  expected = dataclasses.replace(named_model("albert_base_v1"), **changes)
  assert Settings("pretraining", flags | {"model": "albert_base_v1"}).model_config() == expected
  flags = {"output_dir": str(tmp_path), "task_name": "MNLI", "model": "albert_base_v1"}
  model = Settings("classifier", flags).model_config()
  assert (model.hidden_size, model.hidden_dropout_prob) == (768, 0.0)


def test_the_case_is_that_of_a_pretraining_run_without_a_vocabulary(tmp_path: Path) -> None:
  checkpoint = tmp_path / "run" / "checkpoints" / "step-7"
  checkpoint.mkdir(parents=True)
  (tmp_path / "run" / "config.json").write_text(json.dumps({"task": "pretraining", "data": {"do_lower_case": False}}))
  weights = WeightLocation(str(checkpoint), str(checkpoint))
  config = Settings("pretraining", {"output_dir": str(tmp_path / "new")}).data_config(weights)
  assert config.do_lower_case is False  # type: ignore[attr-defined]
  (tmp_path / "spiece.model").write_bytes(b"")
  flags = {"output_dir": str(tmp_path / "new"), "spm_model_file": str(tmp_path / "spiece.model"), "do_lower_case": True}
  with pytest.raises(UserError, match="do_lower_case=true is given, but the vocabulary was made with"):
    Settings("race", flags).data_config(weights)


CUSTOM = {"task_name": "Custom", "text_columns": "text"}
CLASSIFIER = {"architectures": ["AlbertForSequenceClassification"], "id2label": {"0": "no", "1": "yes", "2": "so, so"}}


@pytest.mark.parametrize(
  ("task", "flags", "keys", "expected"),
  [
    ("classifier", CUSTOM, CLASSIFIER, {"labels": '["no", "yes", "so, so"]', "multi_label": False}),
    ("classifier", CUSTOM, {**CLASSIFIER, "problem_type": "multi_label_classification"}, {"multi_label": True}),
    ("classifier", CUSTOM, {**CLASSIFIER, "id2label": {"0": "a, b", "1": "c;d|e##f"},
                            "problem_type": "multi_label_classification"}, {"label_separator": "###"}),
    ("classifier", CUSTOM, {**CLASSIFIER, "id2label": {"0": "score"}}, {"labels": "", "regression": True}),
    ("classifier", {**CUSTOM, "labels": "a,b,c"}, CLASSIFIER, {"labels": "a,b,c"}),
    ("classifier", {**CUSTOM, "do_train": True}, CLASSIFIER, {"labels": ""}),
    ("classifier", {"task_name": "mnli"}, CLASSIFIER, {"labels": ""}),
    ("tagging", {}, {"architectures": ["AlbertForTokenClassification"],
                     "id2label": {"0": "U-PER", "1": "B-PER", "2": "O", "3": "I-PER", "4": "L-PER"}},
     {"scheme": "BILOU", "labels": "PER"}),
    ("tagging", {}, {"architectures": ["AlbertForTokenClassification"], "id2label": {"0": "NN", "1": "-LRB-"}},
     {"scheme": "plain", "labels": "NN,-LRB-"}),
    ("classifier", CUSTOM, {"architectures": ["AlbertModel"]}, r"json names AlbertModel, .*: fine-tune it first"),
    ("tagging", {}, CLASSIFIER, "names AlbertForSequenceClassification, which has no head for this task"),
  ],
)  # fmt: skip
def test_a_model_from_elsewhere_has_its_own_labels(
  tmp_path: Path, task: str, flags: dict[str, Any], keys: dict[str, Any], expected: dict[str, Any] | str
) -> None:
  (tmp_path / "config.json").write_text(json.dumps(keys))
  (tmp_path / "spiece.model").write_bytes(b"")
  settings = Settings(task, {"do_eval": True, **flags})
  weights = WeightLocation(str(tmp_path), str(tmp_path))
  if isinstance(expected, str):
    with pytest.raises(UserError, match=expected):
      settings.data_config(weights)
  else:
    config = settings.data_config(weights)
    assert {name: getattr(config, name) for name in expected} == expected


def test_numbers_of_numpy_are_numbers():
  values: dict[str, Any] = {
    "num_train_steps": np.int64(2),
    "num_train_epochs": np.float32(0.5),
    "shard_optimizer_state": np.bool_(True),
  }
  expected: dict[str, Any] = {"num_train_steps": 2, "num_train_epochs": 0.5, "shard_optimizer_state": True}
  for config in (TrainConfig(**values), from_dict(TrainConfig, values, source="test")):
    assert json.dumps(config.to_dict()) == json.dumps(TrainConfig(**expected).to_dict())
  with pytest.raises(UserError, match=r"num_train_steps must be of type int, got array\(\[2\]\)"):
    from_dict(TrainConfig, {"num_train_steps": np.array([2])}, source="test")
