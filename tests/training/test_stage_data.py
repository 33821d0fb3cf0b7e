"""The data of training in stages: the examples that each stage reads, and settings that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.config.base import from_dict, option_fields
from albert.data.dataset import Dataset, InputContext
from albert.errors import UserError
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.loop import Trainer
from albert.training.run_plan import plan_training
from tests.synthetic import SEQ_LENGTH, TINY_MODEL, example_numbers, write_manifest, write_shards
from tests.training.staged_runs import ALBERT, SHORT_LENGTH, claim, make_estimator

INPUT_CONTEXT = InputContext(host_index=0, num_hosts=1, num_replicas=1, input_parts=1)


def read_numbers(dataset: Dataset, batch_size: int, num_batches: int, seed: int) -> list[int]:
  batches = dataset.training_batches(batch_size=batch_size, first_step=0, seed=seed, context=INPUT_CONTEXT)
  numbers = []
  for batch in batches.take(num_batches).as_numpy_iterator():
    assert len(batch["input_ids"]) == batch_size
    numbers += example_numbers(batch["input_ids"], batch["input_mask"])
  return numbers


@pytest.mark.thorough
def test_a_stage_continues_in_the_same_shards_and_begins_new_ones_at_their_start(shards, tmp_path):
  stages = [
    {"until": 0.25},
    {"until": 0.5, "input_file": shards["short"]},
    {"until": 0.75, "train_batch_size": 4},
    {"until": 1, "input_file": shards["long"], "train_batch_size": 16},
  ]
  estimator = make_estimator(tmp_path, ALBERT, {"input_file": shards["long"], "stages": stages})
  plan = plan_training(estimator.plan, estimator.task.training_stages())
  assert [(stage.first_step, stage.last_step) for stage in plan.stages] == [(0, 2), (2, 4), (4, 6), (6, 8)]
  assert plan.cost(5) == pytest.approx(plan.cost(4) + plan.stages[2].step_cost)
  assert plan.stages[3].step_cost == pytest.approx(4 * plan.stages[2].step_cost)

  # The stages read 2 x 8 long, 2 x 8 short, 2 x 4 long and 2 x 16 long examples.
  seed = plan.train.seed
  numbers_of_stages = [read_numbers(stage.data, stage.train.train_batch_size, 2, seed) for stage in plan.stages]
  long_data = PretrainingTask(ALBERT, PretrainingConfig(input_file=shards["long"])).training_data()
  short_data = PretrainingTask(ALBERT, PretrainingConfig(input_file=shards["short"])).training_data()
  long_numbers = read_numbers(long_data, 1, 16 + 8 + 32, seed)
  short_numbers = read_numbers(short_data, 1, 16, seed)
  assert numbers_of_stages == [long_numbers[:16], short_numbers, long_numbers[16:24], long_numbers[24:]]


def test_epochs_are_counted_in_the_shards_of_each_stage(shards, tmp_path):
  settings = {
    "input_file": shards["long"],
    "stages": [{"until": 0.5, "input_file": shards["short"], "train_batch_size": 4}, {"until": 1}],
  }
  estimator = make_estimator(tmp_path, ALBERT, settings, num_train_epochs=1.5)
  plan = plan_training(estimator.plan, estimator.task.training_stages())
  # Half of the steps read 4 of 40 examples, the others 8 of 80. So each step is a tenth of an epoch.
  assert plan.train.num_train_steps == 15
  assert sum(stage.num_epochs for stage in plan.stages) == pytest.approx(1.5)


def test_a_run_without_stages_cannot_be_resumed_with_stages(shards, tmp_path):
  settings = {"input_file": shards["long"]}
  claim(tmp_path, ALBERT, settings)
  (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["stages"] == []
  config_of_earlier_version = {name: value for name, value in config.items() if name != "stages"}
  for recorded_config in (config, config_of_earlier_version):
    (tmp_path / "config.json").write_text(json.dumps(recorded_config))
    with pytest.raises(UserError, match=r"a run with stages = \[\], this one has \[\{'first_step': 0, 'last_step': 4"):
      claim(tmp_path, ALBERT, {**settings, "stages": [{"until": 0.5}, {"until": 1}]})


def write_bad_shards(tmp_path: Path) -> None:
  """Writes shards whose sequences are too long, and two folders of shards with different vocabularies."""
  write_shards(tmp_path / "too long", [4], length=TINY_MODEL.max_position_embeddings + 1)
  for name, digit in (("vocabulary 0", "0"), ("vocabulary 1", "1")):
    paths = write_shards(tmp_path / name, [9], seed=ord(digit))
    write_manifest(tmp_path / name, paths, [9], vocab_sha256=64 * digit)


def two_stages(**fields_of_first: Any) -> list[dict[str, Any]]:
  return [{"until": 0.5, **fields_of_first}, {"until": 1}]


# Settings, and a part of the error. LONG stands for the long shards, DIR for the directory of the bad ones.
BAD_STAGES: dict[str, tuple[dict[str, Any], str]] = {
  "too long": (
    {"input_file": "LONG", "stages": two_stages(input_file="DIR/too long/*")},
    "stage 1 of 2: DIR/too long/part-00.tfrecord holds sequences of 33 tokens, the model has 32 positions: "
    "write shorter shards or raise max_position_embeddings",
  ),
  "no such shards": (
    {"input_file": "LONG", "stages": two_stages(input_file="missing/*")},
    "stage 1 of 2: --input_file: 'missing/*' matches no file",
  ),
  "another vocabulary": (
    {"input_file": "DIR/vocabulary 0/*.tfrecord", "stages": two_stages(input_file="DIR/vocabulary 1/*.tfrecord")},
    "stage 1 of 2: DIR/vocabulary 1/manifest.json: these shards were made with another vocabulary (sentencepiece, "
    "SHA-256 111111111111...) than the other ones (sentencepiece, 000000000000...): give shards of one vocabulary",
  ),
  "masks of the shards": (
    {"input_file": "LONG", "stages": two_stages(masked_lm_prob=0.2)},
    "stage 1 of 2: --masked_lm_prob=0.2 has an effect only on dynamic masks: also give --masking=dynamic",
  ),
  "a batch for other micro-batches": (
    {"input_file": "LONG", "stages": two_stages(train_batch_size=3)},
    "stage 1 of 2: --train_batch_size=3: give a multiple of --gradient_accumulation_steps=2 times the number",
  ),
  "a stage without steps": (
    {"input_file": "LONG", "stages": [{"until": 0.5}, {"until": 0.51}, {"until": 1}]},
    "stages, stage 2 of 3: until 0.51 of 8 steps is step 4, where the stage before it ends: give the stage a larger",
  ),
  "no shards": (
    {"stages": two_stages(input_file="LONG")},
    "stage 2 of 2: --do_train needs --input_file: the shards to",
  ),
}


@pytest.mark.parametrize("case", BAD_STAGES)
def test_stages_with_bad_data_are_refused_before_the_first_step(case, shards, tmp_path, monkeypatch):
  write_bad_shards(tmp_path)
  written = json.dumps(BAD_STAGES[case]).replace("LONG", shards["long"]).replace("DIR", str(tmp_path))
  settings, message = json.loads(written)
  monkeypatch.setattr(Trainer, "train_steps", lambda *unused: pytest.fail("a step was computed"))
  with pytest.raises(UserError) as error:
    make_estimator(tmp_path / "run", TINY_MODEL, settings, gradient_accumulation_steps=2).train()
  assert message in str(error.value)
  assert "\n" not in str(error.value)
  assert not (tmp_path / "run" / "config.json").exists()


def test_only_stages_without_their_own_shards_read_input_file(shards):
  stages = [{"until": 0.5}, {"until": 1, "input_file": shards["short"]}]
  config = PretrainingConfig(input_file=shards["long"], stages=json.dumps(stages))
  task = PretrainingTask(ALBERT, config)
  # A resumed run has the settings that config.json recorded.
  recorded = {name: value for name, value in task.all_settings().items() if name in option_fields(PretrainingConfig)}
  resumed_task = PretrainingTask(ALBERT, from_dict(PretrainingConfig, recorded, source="config.json"))
  for pretraining_task in (task, resumed_task):
    assert [stage.data.num_examples for stage in pretraining_task.training_stages()] == [80, 40]
    assert pretraining_task.data.max_seq_length == SHORT_LENGTH
    assert pretraining_task.training_data().num_examples == 40


def test_sequences_of_the_last_stage_may_be_shorter(shards):
  stages = json.dumps(two_stages(input_file=shards["long"]))
  task = PretrainingTask(ALBERT, PretrainingConfig(input_file=shards["short"], stages=stages))
  assert task.data.max_seq_length == SHORT_LENGTH
  assert [stage.settings["max_seq_length"] for stage in task.training_stages()] == [SEQ_LENGTH, SHORT_LENGTH]
