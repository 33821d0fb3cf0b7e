"""Tests of what all fine-tuning tasks share: batches by length, early stopping, best checkpoint, seeds, resuming."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert import multi_seed
from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig, OptimizerConfig, RunConfig, TrainConfig
from albert.data import manifest
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.estimator import Estimator
from albert.export.checkpoint import open_checkpoint
from albert.training.evaluator import Evaluator
from albert.training.model_weights import load_initial_weights
from albert.training.training_run import TrainingRun
from albert.weights import checkpoints
from tests.conftest import SaveModel
from tests.synthetic import TINY_MODEL
from tests.tasks.toy import ToyTask, write_data

pytestmark = pytest.mark.usefixtures("eager_steps")

MODEL = dataclasses.replace(TINY_MODEL, vocab_size=61, num_hidden_layers=1)


@pytest.fixture
def spm_file(save_model: SaveModel) -> str:
  """A vocabulary of 61 pieces."""
  return save_model([(f"▁{chr(0x61 + i // 26)}{chr(0x61 + i % 26)}", -1.0 - i) for i in range(56)])


def toy_task(tmp_path: Path, spm_file: str, model: ModelConfig = MODEL, **options: Any) -> ToyTask:
  directory = tmp_path / "data"
  if not directory.exists():
    write_data(str(directory))
  values = {"spm_model_file": spm_file, "max_seq_length": 32, "cache_dir": str(tmp_path / "features")}
  return ToyTask(model, FinetuningConfig(**{**values, **options}), str(directory))


def run_config(output_dir: Path, *, optimizer: dict[str, Any] | None = None, **options: Any) -> RunConfig:
  train = {
    "train_batch_size": 8,
    "eval_batch_size": 24,
    "num_train_steps": 12,
    "log_every_steps": 4,
    "save_checkpoints_steps": 100,
    "eval_every_steps": 4,
  }
  run_fields = {field.name for field in dataclasses.fields(RunConfig)}
  run_options = {name: value for name, value in options.items() if name in run_fields}
  train |= {name: value for name, value in options.items() if name not in run_fields}
  return RunConfig(
    **{"output_dir": str(output_dir), "from_scratch": True, **run_options},
    optimizer=OptimizerConfig(
      **{"optimizer": "adamw", "learning_rate": 0.003, "num_warmup_steps": 2, **(optimizer or {})}
    ),
    train=TrainConfig(**train),
  )


def read_json_lines(path: Path) -> list[dict[str, float]]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def read_final_weights(output_dir: Path) -> dict[str, np.ndarray]:
  """Reads all tensors of the newest checkpoint."""
  manager = checkpoints.CheckpointManager(str(output_dir / "checkpoints"), keep=1, model_config=MODEL)
  newest, _ = manager.latest()
  assert newest is not None
  import tensorflow as tf

  reader = tf.train.load_checkpoint(newest.prefix)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_short_batches_and_full_padding_give_equal_losses(tmp_path, spm_file):
  short = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "a"))
  full = Estimator(toy_task(tmp_path, spm_file, pad_to_max_length=True), run_config(tmp_path / "a"))
  for name, variable in full.model.named_weights().items():
    variable.assign(short.model.named_weights()[name])
  metrics, outputs = short.evaluator.evaluate()
  padded_metrics, padded_outputs = full.evaluator.evaluate()
  np.testing.assert_allclose(outputs["dev"]["losses"], padded_outputs["dev"]["losses"], atol=1e-5)
  np.testing.assert_array_equal(outputs["dev"]["example_index"], np.arange(64))
  assert metrics["loss"] == pytest.approx(float(outputs["dev"]["losses"].mean()), rel=1e-5)
  assert metrics["loss"] == pytest.approx(padded_metrics["loss"], abs=1e-5)
  assert metrics["accuracy"] == padded_metrics["accuracy"]


def test_ids_and_segments_without_an_embedding_are_refused(tmp_path, spm_file):
  task = toy_task(tmp_path, spm_file)
  path = Path(task.directory) / "dev.txt"
  path.write_text(path.read_text() + "1 10 61 12\n")
  with pytest.raises(UserError, match=r"dev.txt: the dev set has ids from 2 to 61, the model has 61"):
    task.data("dev")
  path.write_text("1 10 3 12\n")  # [SEP] between two texts
  with pytest.raises(UserError, match=r"dev.txt: the dev set has pairs .*one type of segment"):
    toy_task(tmp_path, spm_file, dataclasses.replace(MODEL, type_vocab_size=1)).data("dev")
  assert toy_task(tmp_path, spm_file, dataclasses.replace(MODEL, type_vocab_size=1)).data("train").num_examples == 64


def test_outputs_of_some_batches_belong_to_their_examples(tmp_path, spm_file):
  estimator = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "a"))
  _, all_outputs = estimator.evaluator.evaluate()
  _, some_outputs = estimator.evaluator.evaluate(max_steps=2)
  indices = some_outputs["dev"]["example_index"]
  assert len(indices) == 48
  np.testing.assert_allclose(some_outputs["dev"]["logits"], all_outputs["dev"]["logits"][indices], atol=1e-6)


def test_training_evaluates_and_keeps_the_best_checkpoint(tmp_path, spm_file):
  options = {"num_train_steps": 7, "eval_every_steps": 2, "keep_checkpoints": 1}
  config = run_config(tmp_path / "run", select_checkpoint="best", **options)
  estimator = Estimator(toy_task(tmp_path, spm_file), config)
  estimator.train()
  evaluations = read_json_lines(tmp_path / "run" / "eval_metrics.jsonl")
  assert [line["step"] for line in evaluations] == [2, 4, 6, 7]
  best = max(evaluations, key=lambda line: line["accuracy"])
  assert sorted({7, best["step"]}) == estimator.checkpoints.steps()
  (tmp_path / "run" / "curves.png").unlink()  # as if the process had been killed after the last save
  estimator.train()
  assert (tmp_path / "run" / "curves.png").exists()
  results = estimator.evaluate()
  assert json.loads((tmp_path / "run" / "eval_results.json").read_text())["step"] == best["step"]
  assert results["loss"] == pytest.approx(best["loss"], rel=1e-5)
  assert (tmp_path / "run" / "spiece.model").read_bytes() == Path(spm_file).read_bytes()
  assert estimator.write_predictions() == [str(tmp_path / "run" / "predictions.tsv")]
  assert len((tmp_path / "run" / "predictions.tsv").read_text().splitlines()) == 65


def test_the_former_best_checkpoint_is_deleted_if_the_last_one_is_better(tmp_path, spm_file, monkeypatch):
  accuracies = iter([0.9, 0.5, 0.95])
  monkeypatch.setattr(Evaluator, "evaluate", lambda self, max_steps: ({"loss": 1.0, "accuracy": next(accuracies)}, {}))
  config = run_config(tmp_path / "run", keep_checkpoints=1, num_train_steps=3, eval_every_steps=1)
  estimator = Estimator(toy_task(tmp_path, spm_file), config)
  estimator.train()
  assert estimator.checkpoints.steps() == [3]


def test_a_run_without_progress_stops_early_and_stays_stopped(tmp_path, spm_file, capsys):
  # With a learning rate of nearly 0 no prediction changes, so no evaluation is better than the first one.
  config = run_config(
    tmp_path / "run",
    num_train_steps=40,
    log_every_steps=100,
    eval_every_steps=1,
    early_stopping_patience=2,
    optimizer={"learning_rate": 1e-12},
  )
  Estimator(toy_task(tmp_path, spm_file), config).train()
  assert [line["step"] for line in read_json_lines(tmp_path / "run" / "eval_metrics.jsonl")] == [1, 2, 3]
  assert capsys.readouterr().err.rstrip().endswith("stopped early (accuracy did not improve)")
  Estimator(toy_task(tmp_path, spm_file), config).train()
  assert "nothing to train" in capsys.readouterr().err
  assert [line["step"] for line in read_json_lines(tmp_path / "run" / "eval_metrics.jsonl")] == [1, 2, 3]


class Killed(BaseException):
  """Simulates a killed process: no code catches this exception."""


@pytest.mark.thorough
def test_a_run_killed_between_saving_and_evaluating_resumes_to_the_same_result(tmp_path, spm_file, monkeypatch):
  options = {"num_train_steps": 6, "eval_every_steps": 2}
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "whole", **options)).train()
  evaluate = TrainingRun._evaluate_during_training

  def kill_at_step_4(self: TrainingRun, step: int, evaluations: Any) -> None:
    if step == 4:
      raise Killed
    evaluate(self, step, evaluations)

  first = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "killed", **options))
  with monkeypatch.context() as patch:
    patch.setattr(TrainingRun, "_evaluate_during_training", kill_at_step_4)
    with pytest.raises(Killed):
      first.train()
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "killed", **options)).train()
  whole, killed = read_final_weights(tmp_path / "whole"), read_final_weights(tmp_path / "killed")
  assert whole.keys() == killed.keys()
  for name, value in whole.items():
    assert value.tobytes() == killed[name].tobytes(), name
  for name in ("eval_metrics.jsonl", "checkpoints/best.json"):
    assert (tmp_path / "whole" / name).read_text() == (tmp_path / "killed" / name).read_text()


def test_several_runs_are_summarized_and_a_second_start_does_nothing(tmp_path, spm_file, capsys):
  config = run_config(
    tmp_path / "runs", num_train_steps=2, num_runs=2, do_train=True, do_eval=True, do_predict=True, seed=5
  )
  multi_seed.run_seeds(toy_task(tmp_path, spm_file), config)
  summary = json.loads((tmp_path / "runs" / "runs.json").read_text())
  results = [json.loads((tmp_path / "runs" / f"run-{seed}" / "eval_results.json").read_text()) for seed in (5, 6)]
  accuracies = [result["accuracy"] for result in results]
  statistics = summary["metrics"]["accuracy"]
  assert statistics["values"] == accuracies
  assert statistics["median"] == np.median(accuracies)
  assert statistics["mean"] == pytest.approx(np.mean(accuracies))
  assert statistics["standard_deviation"] == pytest.approx(np.std(accuracies, ddof=1))
  assert len({result["loss"] for result in results}) == 2  # the seeds matter
  best_seed = 5 + int(np.argmax(accuracies))
  assert summary["best_run"] == f"run-{best_seed}"
  seeds_with_checkpoints = [seed for seed in (5, 6) if (tmp_path / "runs" / f"run-{seed}" / "checkpoints").exists()]
  assert seeds_with_checkpoints == [best_seed]
  predictions = [tmp_path / "runs" / f"run-{seed}" / "predictions.tsv" for seed in (5, 6)]
  assert all(path.exists() for path in predictions)  # written before the checkpoints were deleted
  predictions[best_seed - 5].unlink()  # the best run still has its checkpoints and can predict again
  capsys.readouterr()
  multi_seed.run_seeds(toy_task(tmp_path, spm_file), config)
  assert capsys.readouterr().err.count("is done") == 2
  assert predictions[best_seed - 5].exists()
  assert json.loads((tmp_path / "runs" / "runs.json").read_text()) == summary
  other_config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=0.004))
  with pytest.raises(UserError, match=r"optimizer.learning_rate = 0.003, this one has 0.004"):
    multi_seed.run_seeds(toy_task(tmp_path, spm_file), other_config)
  with pytest.raises(UserError, match=r"--predictions_file=x\.tsv names one file, but each of the 2 runs writes"):
    multi_seed.run_seeds(toy_task(tmp_path, spm_file), dataclasses.replace(config, predictions_file="x.tsv"))
  other_seed = 6 if best_seed == 5 else 5
  predictions[other_seed - 5].unlink()
  with pytest.raises(
    UserError, match=rf"run-{other_seed} is done, but has no predictions of .*test\.txt, and its checkpoints"
  ):
    multi_seed.run_seeds(toy_task(tmp_path, spm_file), dataclasses.replace(config, num_runs=3))
  assert not (tmp_path / "runs" / "run-7").exists()  # the error comes before another run is trained


@pytest.mark.thorough
def test_predictions_are_not_overwritten_by_those_of_another_file_or_checkpoint(
  tmp_path, spm_file, capsys, monkeypatch
):
  options = {"num_train_steps": 4, "eval_every_steps": 0, "save_checkpoints_steps": 2, "do_predict": True}
  config = run_config(tmp_path / "run", do_train=True, **options)
  hashed_files = []
  monkeypatch.setattr(manifest, "file_sha256", lambda path: hashed_files.append(path) or file_sha256(path))
  estimator = Estimator(toy_task(tmp_path, spm_file), config)
  estimator.run()
  path = tmp_path / "run" / "predictions.tsv"
  predictions = path.read_bytes()
  assert f"predicting with {tmp_path}/run/checkpoints/step-4 (step 4, the newest)" in capsys.readouterr().err
  estimator.write_predictions()  # writes the same predictions again
  # The test file is checked three times, and its hash is part of the cache's key, but it is read only once.
  assert hashed_files.count(str(tmp_path / "data" / "test.txt")) == 1
  assert path.read_bytes() == predictions
  # Another checkpoint.
  (tmp_path / "run" / "checkpoints" / "step-4").rename(tmp_path / "step-4")
  with pytest.raises(
    UserError, match=r"predictions\.tsv holds predictions made with another checkpoint, .*step-4: give"
  ):
    estimator.write_predictions()
  with pytest.raises(UserError, match=r"predictions\.tsv holds predictions made before this training"):
    estimator.train()
  (tmp_path / "step-4").rename(tmp_path / "run" / "checkpoints" / "step-4")
  # Another file.
  lines = (tmp_path / "data" / "test.txt").read_text().splitlines(keepends=True)
  (tmp_path / "data" / "test.txt").write_text("".join(lines[:5]))
  predict_config = run_config(tmp_path / "run", **options)
  with pytest.raises(UserError, match=r"predictions\.tsv holds predictions for .*test\.txt, not for .*test\.txt: give"):
    Estimator(toy_task(tmp_path, spm_file), predict_config)
  assert path.read_bytes() == predictions
  other_file = dataclasses.replace(predict_config, predictions_file=str(tmp_path / "new.tsv"))
  assert Estimator(toy_task(tmp_path, spm_file), other_file).write_predictions() == [str(tmp_path / "new.tsv")]
  assert len((tmp_path / "new.tsv").read_text().splitlines()) == 6
  assert path.read_bytes() == predictions
  with pytest.raises(UserError, match=r"--predictions_file=new\.csv: give a name that ends in \.tsv"):
    Estimator(toy_task(tmp_path, spm_file), dataclasses.replace(predict_config, predictions_file="new.csv"))


def test_a_resumed_run_compares_the_content_of_its_data(tmp_path, spm_file):
  config = run_config(tmp_path / "run", num_train_steps=2, eval_every_steps=0)
  Estimator(toy_task(tmp_path, spm_file), config).train()
  shutil.copytree(tmp_path / "data", tmp_path / "moved")

  def claim() -> None:
    values = FinetuningConfig(spm_model_file=spm_file, max_seq_length=32, cache_dir=str(tmp_path / "features"))
    task = ToyTask(MODEL, values, str(tmp_path / "moved"))
    Estimator(task, config).claim_output_dir()

  (tmp_path / "moved" / "dev.txt").write_text("1 7\n")  # the development set may change
  claim()
  path = tmp_path / "moved" / "train.txt"
  path.write_text(path.read_text().replace("7", "8", 1))
  with pytest.raises(UserError, match=r"trained on other data .*1 of its 1 files changed: file 1 is train\.txt"):
    claim()


def test_epochs_are_converted_to_steps(tmp_path, spm_file):
  config = run_config(tmp_path / "run", num_train_epochs=1.5, train_batch_size=32, eval_every_steps=0)
  Estimator(toy_task(tmp_path, spm_file), config).train()
  assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["num_train_steps"] == 3


def test_training_without_weights_needs_from_scratch(tmp_path, spm_file):
  config = run_config(tmp_path / "run", from_scratch=False)
  with pytest.raises(UserError, match=r"--init_checkpoint.*--from_scratch"):
    Estimator(toy_task(tmp_path, spm_file), config).train()
  assert not (tmp_path / "run").exists()
  missing = run_config(tmp_path / "run", from_scratch=False, init_checkpoint=str(tmp_path / "nothing"))
  with pytest.raises(UserError, match="no checkpoint there"):
    Estimator(toy_task(tmp_path, spm_file), missing).train()
  # After these errors the right command can use the directory.
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "run", num_train_steps=2, eval_every_steps=0)).train()


def test_a_head_is_reused_unless_fresh_head_is_given(tmp_path, spm_file):
  first = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2))
  first.train()
  options = {"from_scratch": False, "init_checkpoint": str(tmp_path / "first"), "seed": 77}
  head = first.model.named_weights()["output_weights"].numpy()
  for fresh_head in (False, True):
    config = run_config(tmp_path / f"second-{fresh_head}", **options)
    estimator = Estimator(toy_task(tmp_path, spm_file, fresh_head=fresh_head), config)
    load_initial_weights(estimator.task, estimator.model, config)
    weights = estimator.model.named_weights()
    assert np.array_equal(weights["output_weights"].numpy(), head) != fresh_head
    pooler = first.model.named_weights()["bert/pooler/dense/kernel"].numpy()
    np.testing.assert_array_equal(weights["bert/pooler/dense/kernel"].numpy(), pooler)


def other_vocabulary(save_model: SaveModel) -> str:
  """A vocabulary with the pieces of spm_file in another order."""
  return save_model([(f"▁{chr(0x61 + i // 26)}{chr(0x7A - i % 26)}", -1.0 - i) for i in range(56)])


def test_weights_of_another_vocabulary_are_refused_to_train_and_to_evaluate(tmp_path, spm_file, save_model):
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2, eval_every_steps=0)).train()
  options = {"from_scratch": False, "init_checkpoint": str(tmp_path / "first"), "num_train_steps": 2}
  other = other_vocabulary(save_model)
  estimator = Estimator(toy_task(tmp_path, other), run_config(tmp_path / "second", **options))
  for action in (estimator.train, estimator.evaluate):
    with pytest.raises(
      UserError, match=r"first: its vocabulary is .*spiece\.model .* --spm_model_file=.* is a different one"
    ):
      action()
  assert not (tmp_path / "second" / "spiece.model").exists()
  with pytest.raises(UserError, match=r"--checkpoint=.*its vocabulary is .*spiece\.model"):
    open_checkpoint(str(tmp_path / "first"), spm_model_file=other)


@pytest.mark.thorough
def test_a_resumed_run_compares_the_content_of_its_initial_weights(tmp_path, spm_file):
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2, eval_every_steps=0)).train()
  manager = checkpoints.CheckpointManager(str(tmp_path / "other" / "checkpoints"), keep=1, model_config=MODEL)
  manager.save(2, {name: value * 2 for name, value in read_final_weights(tmp_path / "first").items()})

  def claim(**options: Any) -> None:
    values = {"from_scratch": False, "num_train_steps": 2, "eval_every_steps": 0, **options}
    task = toy_task(tmp_path, spm_file)
    estimator = Estimator(task, run_config(tmp_path / "run", **values))
    estimator.train() if not (tmp_path / "run").exists() else estimator.claim_output_dir()

  claim(init_checkpoint=str(tmp_path / "first"))
  (tmp_path / "first").rename(tmp_path / "moved")
  claim(init_checkpoint=str(tmp_path / "first"))  # the weights need not exist any more
  claim(init_checkpoint=str(tmp_path / "moved"))
  with pytest.raises(UserError, match=r"this run started from .*moved \(SHA-256 .*other holds different weights"):
    claim(init_checkpoint=str(tmp_path / "other"))
  with pytest.raises(UserError, match=r"started from .*moved, not from random weights"):
    claim(from_scratch=True)
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  del config["init_checkpoint_sha256"]  # earlier versions did not write it
  (tmp_path / "run" / "config.json").write_text(json.dumps(config))
  with pytest.raises(UserError, match=r"this run started from .*moved \(SHA-256 .*other holds different weights"):
    claim(init_checkpoint=str(tmp_path / "other"))


@pytest.mark.thorough
def test_a_directory_where_weights_were_evaluated_can_be_trained_in(tmp_path, spm_file):
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2, eval_every_steps=0)).train()
  options = {"from_scratch": False, "init_checkpoint": str(tmp_path / "first"), "eval_every_steps": 0}
  estimator = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "second", num_train_steps=2, **options))
  estimator.evaluate()
  estimator.train()
  assert estimator.checkpoints.steps() == [2]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"spm_model_file": ""}, "--spm_model_file is missing"),
    ({"max_seq_length": 33}, "--max_seq_length=33: the model has 32 positions"),
  ],
)
def test_settings_that_the_model_cannot_take_are_refused(tmp_path, spm_file, options, message):
  with pytest.raises(UserError, match=message):
    toy_task(tmp_path, spm_file, **options)


def test_a_vocabulary_of_another_size_is_refused(tmp_path, spm_file):
  with pytest.raises(UserError, match=r"has 61 pieces, the model has vocab_size 62"):
    toy_task(tmp_path, spm_file, model=dataclasses.replace(MODEL, vocab_size=62))


@pytest.mark.thorough
def test_checkpoints_of_another_vocabulary_are_refused(tmp_path, spm_file, save_model):
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "run", num_train_steps=2)).train()
  other = save_model([(f"▁{chr(0x61 + i // 26)}{chr(0x7A - i % 26)}", -1.0 - i) for i in range(56)])
  with pytest.raises(UserError, match="vocab_sha256"):
    Estimator(toy_task(tmp_path, other), run_config(tmp_path / "run", num_train_steps=2)).evaluate()
