"""Settings: the value of each one comes from a flag, the run in output_dir, the recipe, or the default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.config.model import named_model
from albert.errors import UserError
from albert.settings.sources import Settings
from albert.tasks.glue.data import make_spec
from albert.tasks.glue.specs import ClassifierConfig
from tests.synthetic import TINY_MODEL

DATA = {
  "classifier": {"task_name": "RTE", "data_dir": "/data", "max_seq_length": 48, "labels": "entailment,not_entailment"},
  "squad": {
    "version_2_with_negative": True,
    "max_seq_length": 48,
    "max_query_length": 8,
    "eval_file": "/data/dev.json",
  },
  "race": {"data_dir": "/data", "max_seq_length": 48, "max_qa_length": 16},
  "pretraining": {
    "input_file": "/data/*",
    "max_seq_length": 48,
    "masking": "static",
    "spm_model_file": "/data/s.model",
  },
}


def write_run(directory: Path, task: str, *, checkpoint: bool = True, **changes: Any) -> Path:
  """Writes the config.json of a run, in an older form without the name of the recipe, and an empty checkpoint."""
  values: dict[str, Any] = {
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
    "data": {**DATA[task], "cache_dir": "/old/cache", "num_processes": 3},
    "init_checkpoint": "/weights",
    "init_from_shallower": False,
  }
  directory.mkdir(parents=True)
  (directory / "config.json").write_text(json.dumps(values | changes))
  (directory / "spiece.model").write_bytes(b"the vocabulary of the run")
  if checkpoint:
    (directory / "checkpoints" / "step-7").mkdir(parents=True)
  return directory


@pytest.mark.parametrize("task", DATA)
def test_later_commands_use_the_settings_of_the_run(tmp_path: Path, task: str) -> None:
  run = write_run(tmp_path / "run", task)
  settings = Settings(task, {"output_dir": str(run), "do_predict": True})
  config, data = settings.run_config(), settings.data_config()
  assert settings.model_config() == TINY_MODEL
  assert (config.optimizer.optimizer, config.optimizer.learning_rate) == ("adamw", 0.25)
  train = config.train
  assert (train.select_checkpoint, train.seed, train.train_batch_size, train.precision) == ("best", 3, 4, "bfloat16")
  # The vocabulary is the copy in output_dir. The training shards are not needed, and may have been deleted.
  changed = {"spm_model_file": f"{run}/spiece.model", "input_file": ""}
  for name, value in DATA[task].items():
    assert getattr(data, name) == changed.get(name, value)
  assert data.spm_model_file == f"{run}/spiece.model"  # type: ignore[attr-defined]
  # Settings that depend on the machine or on the command are not reused.
  assert (train.tpu, train.distribution_strategy) == ("", "auto")
  assert getattr(data, "num_processes", 0) == 0
  assert data.cache_dir == (str(run) if task == "pretraining" else f"{run}/features")  # type: ignore[attr-defined]
  # If the checkpoints were deleted, the initial weights must not be used instead of them.
  assert config.init_checkpoint == ""


@pytest.mark.parametrize("task", DATA)
def test_training_is_resumed_with_no_other_flag_than_output_dir(tmp_path: Path, task: str) -> None:
  run = write_run(tmp_path / "run", task)
  config = Settings(task, {"output_dir": str(run), "do_train": True}).run_config()
  assert (config.init_checkpoint, config.from_scratch) == ("/weights", False)
  assert (config.train.num_train_steps, config.train.input_parts) == (7, 2)
  data = Settings(task, {"output_dir": str(run), "do_train": True}).data_config()
  assert (
    data.reusable_values().items() >= {name: v for name, v in DATA[task].items() if name != "spm_model_file"}.items()
  )
  scratch = write_run(tmp_path / "scratch", task, init_checkpoint="")
  assert Settings(task, {"output_dir": str(scratch), "do_train": True}).run_config().from_scratch


def test_the_recipe_of_a_run_gives_the_values_that_the_run_did_not_record(tmp_path: Path) -> None:
  older = write_run(tmp_path / "older", "classifier")
  settings = Settings("classifier", {"output_dir": str(older)})
  assert settings.recipe.name == settings.run_config().recipe == "glue_rte"
  assert settings.run_config().train.eval_every_steps == 100
  recorded = write_run(tmp_path / "recorded", "classifier", recipe="glue_cola")
  assert Settings("classifier", {"output_dir": str(recorded)}).run_config().train.eval_every_steps == 500
  without = write_run(tmp_path / "without", "squad", recipe="none")
  assert Settings("squad", {"output_dir": str(without)}).run_config().train.save_checkpoints_steps == 5000
  gone = write_run(tmp_path / "gone", "classifier", recipe="/gone.json")
  assert Settings("classifier", {"output_dir": str(gone)}).run_config().recipe == "/gone.json"


MAY_DIFFER: dict[str, dict[str, Any]] = {
  "classifier": {"eval_batch_size": 5, "precision": "float32", "data_dir": "/other", "task_name": "rte", "tpu": "x"},
  "squad": {"max_eval_steps": 5, "keep_checkpoints": 2, "null_score_diff_threshold": 1.5, "input_parts": 1},
  "race": {"save_checkpoints_steps": 9, "log_every_steps": 3, "predict_file": "/other", "pad_to_max_length": True},
  "pretraining": {"eval_input_file": "/other", "masking": "auto", "max_seq_length": 0, "steps_per_loop": 2},
}


@pytest.mark.parametrize("task", MAY_DIFFER)
def test_a_flag_that_does_not_affect_training_replaces_the_value_of_the_run(tmp_path: Path, task: str) -> None:
  run = write_run(tmp_path / "run", task)
  settings = Settings(task, {"output_dir": str(run), "do_eval": True, **MAY_DIFFER[task]})
  config, data = settings.run_config(), settings.data_config()
  for name, value in MAY_DIFFER[task].items():
    assert getattr(data if hasattr(data, name) else config.train, name) == value
  settings.check_task_settings(DATA[task])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
  "checkpoint": ("race", {"select_checkpoint": "newest"}, "--select_checkpoint=newest: .* select_checkpoint = 'best'"),
  "model field": ("squad", {"num_hidden_layers": 3}, "--num_hidden_layers=3: the run in .* has num_hidden_layers = 2"),
  "model": ("race", {"model": "albert_base"}, "--model=albert_base: the run in .* has .* = "),
  "steps": ("pretraining", {"num_train_steps": 9}, "--num_train_steps=9: .* has num_train_steps = 7"),
  "the other of a pair": ("race", {"num_train_epochs": 2.0}, "--num_train_epochs=2.0: .* has num_train_steps = 7"),
  "rate": ("classifier", {"learning_rate": 0.5}, "--learning_rate=0.5: .* has learning_rate = 0.25"),
  "version": ("squad", {"version_2_with_negative": False}, "--noversion_2_with_negative: .* = True"),
  "length": ("race", {"max_qa_length": 8}, "--max_qa_length=8: .* has max_qa_length = 16"),
  "weights": ("squad", {"init_checkpoint": "/x"}, "--init_checkpoint=/x: .* has init_checkpoint = '/weights'"),
  "recipe": ("squad", {"recipe": "squad_v1"}, "--recipe=squad_v1, with .*: the run in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_flag_that_contradicts_the_run_is_an_error(tmp_path: Path, case: str) -> None:
  task, flags, message = REFUSED[case]
  run = write_run(tmp_path / "run", task)
  remedy = rf"\({run}/config\.json\): leave the flag out, or give another --output_dir and .*={run}/checkpoints/step-N$"

  def resolve() -> None:
    settings = Settings(task, {"output_dir": str(run), "do_predict": True, **flags})
    settings.model_config()
    settings.run_config()
    settings.check_task_settings(DATA[task] | settings.data_config().training_settings())

  with pytest.raises(UserError, match=message + ".*" + remedy):
    resolve()


def test_flags_with_the_values_of_the_run_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.chdir(tmp_path)
  run = write_run(tmp_path / "run", "race", init_checkpoint="weights", recipe="race")
  flags = {"output_dir": "run", "do_train": True, "init_checkpoint": f"{tmp_path}/weights", "num_train_steps": 7}
  settings = Settings("race", {**flags, "recipe": "race", "select_checkpoint": "best", "learning_rate": 0.25})
  assert settings.run_config().init_checkpoint == "weights"
  vocabulary = tmp_path / "same.model"
  vocabulary.write_bytes((run / "spiece.model").read_bytes())
  settings = Settings("race", {**flags, "spm_model_file": str(vocabulary)})
  assert settings.data_config().spm_model_file == str(vocabulary)  # type: ignore[attr-defined]
  vocabulary.write_bytes(b"another one")
  with pytest.raises(
    UserError, match=r"--spm_model_file=.*same\.model: the run in run has spm_model_file = 'run/spiece"
  ):
    settings.data_config()


def test_a_task_without_training_data_uses_the_model_of_another_one(tmp_path: Path) -> None:
  """AX has no training data: it is predicted with a model of MNLI, and its labels are those that the run recorded."""
  data = {"task_name": "MNLI", "labels": "contradiction,entailment,neutral", "data_dir": "/data"}
  run = write_run(tmp_path / "mnli", "classifier", data=data)
  settings = Settings("classifier", {"output_dir": str(run), "do_predict": True, "task_name": "AX"})
  config = settings.data_config()
  assert isinstance(config, ClassifierConfig)
  spec = make_spec(config)
  assert (spec.name, ",".join(spec.labels), config.data_dir) == ("AX", data["labels"], "/data")
  settings.check_task_settings(config.training_settings() | {"task_name": spec.model_of})
  other = Settings("classifier", {"output_dir": str(write_run(tmp_path / "rte", "classifier")), "task_name": "AX"})
  assert make_spec(other.data_config()).name == "AX"  # type: ignore[arg-type]
  with pytest.raises(UserError, match=r"--task_name=AX: the run in .*rte has task_name = 'RTE'"):
    other.check_task_settings({"task_name": spec.model_of})


def test_the_error_names_the_way_to_train_a_finished_run_for_longer(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "race")
  for flags in ({"num_train_steps": 9}, {"num_train_epochs": 2.0}):
    with pytest.raises(UserError, match=rf"give another --output_dir; with --init_checkpoint={run} there, its weights"):
      Settings("race", {"output_dir": str(run), "do_train": True, **flags}).run_config()


def test_the_warm_up_is_a_default_unless_a_flag_or_a_run_gives_it(tmp_path: Path) -> None:
  given = {"output_dir": str(tmp_path / "new"), "do_train": True}
  assert Settings("race", given).run_config().warmup_is_default
  assert Settings("race", given | {"warmup_proportion": 0.0}).run_config().warmup_is_default  # 0: not used
  for flags in ({"num_warmup_steps": 0}, {"warmup_proportion": 0.1}):
    assert not Settings("race", given | flags).run_config().warmup_is_default
  run = write_run(tmp_path / "run", "race")
  assert not Settings("race", {"output_dir": str(run), "do_train": True}).run_config().warmup_is_default


def test_a_run_of_another_script_is_an_error(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "classifier")
  with pytest.raises(UserError, match=r"config\.json: this directory holds a run of the task classifier, but"):
    Settings("squad", {"output_dir": str(run)})


def test_settings_of_a_run_that_saved_nothing_are_not_reused(tmp_path: Path) -> None:
  failed = write_run(tmp_path / "failed", "race", checkpoint=False)
  settings = Settings("race", {"output_dir": str(failed), "model": "albert_tiny", "num_train_steps": 9})
  assert (settings.run_config().train.num_train_steps, settings.run_config().train.train_batch_size) == (9, 32)
  assert settings.model_config().hidden_size == named_model("albert_tiny").hidden_size
  weights = str(tmp_path / "beside.model")
  assert settings.data_config(weights).spm_model_file == weights  # type: ignore[attr-defined]


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


def test_a_flag_that_gives_another_folder_drops_the_files_that_the_run_recorded(tmp_path: Path) -> None:
  run = write_run(tmp_path / "run", "classifier", data=DATA["classifier"] | {"eval_file": "/data/dev.tsv"})
  same = Settings("classifier", {"output_dir": str(run), "data_dir": "/data"}).data_config()
  assert same.eval_file == "/data/dev.tsv"  # type: ignore[attr-defined]
  other = Settings("classifier", {"output_dir": str(run), "data_dir": "/new"}).data_config()
  assert (other.data_dir, other.eval_file) == ("/new", "")  # type: ignore[attr-defined]
  run = write_run(tmp_path / "squad", "squad", data=DATA["squad"] | {"predict_file": "/old.json"})
  data = Settings("squad", {"output_dir": str(run), "predict_file": "/new.json"}).data_config()
  assert (data.predict_file, data.eval_file) == ("/new.json", "")  # type: ignore[attr-defined]


# Commands whose output_dir holds no run.


def test_a_flag_replaces_its_alternative_in_the_recipe(tmp_path: Path) -> None:
  given = {"output_dir": str(tmp_path), "task_name": "custom", "text_columns": "text"}
  recipe = Settings("classifier", given).run_config()
  assert (recipe.train.num_train_epochs, recipe.optimizer.warmup_proportion) == (3.0, 0.1)
  config = Settings("classifier", given | {"num_train_steps": 125000, "num_warmup_steps": 0}).run_config()
  assert (config.train.num_train_steps, config.train.num_train_epochs) == (125000, 0.0)
  assert (config.optimizer.num_warmup_steps, config.optimizer.warmup_proportion) == (0, 0.0)
  given = {"output_dir": str(tmp_path), "num_train_epochs": 2.0, "warmup_proportion": 0.5}
  config = Settings("race", given).run_config()
  assert (config.train.num_train_epochs, config.optimizer.warmup_proportion) == (2.0, 0.5)
  config = Settings("race", {"output_dir": str(tmp_path), "num_train_epochs": 0.0}).run_config()  # 0: not used
  assert config.train.num_train_steps == 12000


def test_another_masking_than_the_recipes_drops_the_recipes_masking_settings(tmp_path: Path) -> None:
  recipe = tmp_path / "recipe.json"
  recipe.write_text(json.dumps({"data": {"masking": "dynamic", "masked_lm_prob": 0.25}}))
  given = {"output_dir": str(tmp_path), "recipe": str(recipe)}
  for masking, expected in (("dynamic", 0.25), ("static", 0.0)):
    data = Settings("pretraining", given | {"masking": masking}).data_config()
    assert (data.masking, data.masked_lm_prob) == (masking, expected)  # type: ignore[attr-defined]


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


def test_a_recipe_changes_only_the_dropout_of_a_model_that_a_flag_names(tmp_path: Path) -> None:
  given = {"output_dir": str(tmp_path), "recipe": "pretraining_demo"}
  assert Settings("pretraining", given).model_config().hidden_size == 128
  assert Settings("pretraining", given | {"model": "albert_base_v1"}).model_config() == named_model("albert_base_v1")
  glue = Settings("classifier", {"output_dir": str(tmp_path), "task_name": "MNLI", "model": "albert_base_v1"})
  assert (glue.model_config().hidden_size, glue.model_config().hidden_dropout_prob) == (768, 0.0)
