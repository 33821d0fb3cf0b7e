"""The data of training in stages: which examples each stage reads, and which settings are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.config.base import from_dict, option_fields
from albert.config.run import PretrainingConfig
from albert.data.dataset import InputContext
from albert.errors import UserError
from albert.tasks.pretraining import PretrainingTask
from albert.training.loop import Trainer
from albert.training.run_plan import plan_training
from albert.training.stage_plan import StagePlan
from tests.synthetic import SEQ_LENGTH, TINY_MODEL, example_numbers, write_manifest, write_shards
from tests.training.staged_runs import ALBERT, SHORT_LENGTH, claim, estimator_of


@pytest.mark.thorough
def test_a_stage_goes_on_in_the_same_shards_and_begins_new_ones_at_their_start(shards, tmp_path):
  stages = [
    {"until": 0.25},
    {"until": 0.5, "input_file": shards["short"]},
    {"until": 0.75, "train_batch_size": 4},
    {"until": 1, "input_file": shards["long"], "train_batch_size": 16},
  ]
  estimator = estimator_of(tmp_path, ALBERT, {"input_file": shards["long"], "stages": stages})
  plan = plan_training(estimator.plan, estimator.task.training_stages())
  context = InputContext(0, 1, 1, 1)

  def examples_of_stage(stage: StagePlan) -> list[int]:
    """The numbers of the examples that the stage uses."""
    batches = stage.data.training_batches(
      batch_size=stage.train.train_batch_size, first_step=0, seed=plan.train.seed, context=context
    )
    taken = list(batches.take(stage.last_step - stage.first_step).as_numpy_iterator())
    assert {len(batch["input_ids"]) for batch in taken} == {stage.train.train_batch_size}
    return [n for batch in taken for n in example_numbers(batch["input_ids"], batch["input_mask"])]

  def first_examples(globs: str, count: int) -> list[int]:
    """The numbers of the first `count` examples of the stream of some shards."""
    dataset = PretrainingTask(ALBERT, PretrainingConfig(input_file=globs)).training_data()
    batches = dataset.training_batches(batch_size=1, first_step=0, seed=plan.train.seed, context=context)
    return [
      n
      for batch in batches.take(count).as_numpy_iterator()
      for n in example_numbers(batch["input_ids"], batch["input_mask"])
    ]

  long, short = first_examples(shards["long"], 16 + 8 + 32), first_examples(shards["short"], 16)
  assert [examples_of_stage(stage) for stage in plan.stages] == [long[:16], short, long[16:24], long[24:]]
  assert [(stage.first_step, stage.last_step) for stage in plan.stages] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_epochs_are_counted_in_the_shards_of_each_stage(shards, tmp_path):
  settings = {
    "input_file": shards["long"],
    "stages": [{"until": 0.5, "input_file": shards["short"], "train_batch_size": 4}, {"until": 1}],
  }
  estimator = estimator_of(tmp_path, ALBERT, settings, num_train_epochs=1.5)
  plan = plan_training(estimator.plan, estimator.task.training_stages())
  # Half of the steps take 4 of 40 examples, the others 8 of 80: a tenth of an epoch each.
  assert plan.train.num_train_steps == 15
  assert sum(stage.num_epochs for stage in plan.stages) == pytest.approx(1.5)


def test_a_run_without_stages_cannot_be_resumed_with_stages(shards, tmp_path):
  settings = {"input_file": shards["long"]}
  claim(tmp_path, ALBERT, settings)
  (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["stages"] == []
  for recorded in (config, {name: value for name, value in config.items() if name != "stages"}):  # an earlier version
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    with pytest.raises(UserError, match=r"a run with stages = \[\], this one has \[\{'first_step': 0, 'last_step': 4"):
      claim(tmp_path, ALBERT, {**settings, "stages": [{"until": 0.5}, {"until": 1}]})


def bad_settings(shards: dict[str, str], tmp_path: Path) -> dict[str, tuple[dict[str, Any], str]]:
  """Stages that are refused because of their data: the settings, and a part of the message."""
  write_shards(tmp_path / "too long", [4], length=TINY_MODEL.max_position_embeddings + 1)
  for name, digit in (("described", "0"), ("other", "1")):
    paths = write_shards(tmp_path / name, [9], seed=ord(digit))
    write_manifest(tmp_path / name, paths, [9], vocab_sha256=64 * digit)
  long = shards["long"]

  def first(**values: Any) -> list[dict[str, Any]]:
    return [{"until": 0.5, **values}, {"until": 1}]

  return {
    "too long": (
      {"input_file": long, "stages": first(input_file=f"{tmp_path}/too long/*")},
      "stage 1 of 2: {tmp_path}/too long/part-00.tfrecord holds sequences of 33 tokens, the model has 32 positions: "
      "write shorter shards or raise max_position_embeddings",
    ),
    "no such shards": (
      {"input_file": long, "stages": first(input_file="missing/*")},
      "stage 1 of 2: --input_file: 'missing/*' matches no file",
    ),
    "another vocabulary": (
      {"input_file": f"{tmp_path}/described/*.tfrecord", "stages": first(input_file=f"{tmp_path}/other/*.tfrecord")},
      "stage 1 of 2: --input_file={tmp_path}/other/*.tfrecord: these shards were made with another vocabulary (SHA-256 "
      "111111111111...) than those of the last stage (000000000000...): give shards of one vocabulary",
    ),
    "masks of the shards": (
      {"input_file": long, "stages": first(masked_lm_prob=0.2)},
      "stage 1 of 2: --masked_lm_prob=0.2 has an effect only on dynamic masks: also give --masking=dynamic",
    ),
    "a batch for other micro-batches": (
      {"input_file": long, "stages": first(train_batch_size=3)},
      "stage 1 of 2: train_batch_size must be a multiple of gradient_accumulation_steps (2), got 3",
    ),
    "a stage without steps": (
      {"input_file": long, "stages": [{"until": 0.5}, {"until": 0.51}, {"until": 1}]},
      "stages, stage 2 of 3: until 0.51 of 8 steps is step 4, where the stage before it ends: give the stage a larger",
    ),
    "no shards": ({"stages": first(input_file=long)}, "stage 2 of 2: --do_train needs --input_file: the shards to"),
  }


@pytest.mark.parametrize(
  "case",
  ["too long", "no such shards", "another vocabulary", "masks of the shards", "a batch for other micro-batches",
   "a stage without steps", "no shards"],
)  # fmt: skip
def test_stages_with_bad_data_are_refused_before_the_first_step(case, shards, tmp_path, monkeypatch):
  settings, message = bad_settings(shards, tmp_path)[case]
  monkeypatch.setattr(Trainer, "train_steps", lambda *unused: pytest.fail("a step was computed"))
  with pytest.raises(UserError) as error:
    estimator_of(tmp_path / "run", TINY_MODEL, settings, gradient_accumulation_steps=2).train()
  assert message.format(tmp_path=tmp_path) in str(error.value)
  assert "\n" not in str(error.value)
  assert not (tmp_path / "run" / "config.json").exists()


def test_only_stages_without_shards_of_their_own_read_input_file(shards):
  """Also when the run is resumed with what config.json has recorded."""
  stages = [{"until": 0.5}, {"until": 1, "input_file": shards["short"]}]
  config = PretrainingConfig(input_file=shards["long"], stages=json.dumps(stages))
  for _ in range(2):
    task = PretrainingTask(ALBERT, config)
    assert [stage.data.num_examples for stage in task.training_stages()] == [80, 40]
    assert task.max_seq_length == SHORT_LENGTH
    assert task.training_data().num_examples == 40
    values = {name: value for name, value in task.all_settings().items() if name in option_fields(PretrainingConfig)}
    config = from_dict(PretrainingConfig, values, source="config.json")


def test_sequences_of_the_last_stage_may_be_shorter(shards):
  settings = {"input_file": shards["short"], "stages": [{"until": 0.5, "input_file": shards["long"]}, {"until": 1}]}
  task = PretrainingTask(ALBERT, PretrainingConfig(**{**settings, "stages": json.dumps(settings["stages"])}))
  assert task.max_seq_length == SHORT_LENGTH
  assert [stage.settings["max_seq_length"] for stage in task.training_stages()] == [SEQ_LENGTH, SHORT_LENGTH]
