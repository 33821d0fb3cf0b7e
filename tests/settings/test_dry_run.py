"""--dry_run checks a command and prints its plan; nothing is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.settings.dry_run import print_plan
from albert.settings.resolve import resolve_settings
from albert.tasks import registry
from albert.tokenization.tokenizer import Tokenizer
from tests.settings.test_sources import write_run
from tests.synthetic import TINY_MODEL, write_shards

CHIP = {"dry_run": True, "chip": "v3", "train_batch_size": 64}


def run(task_name: str, /, **flags: object) -> None:
  print_plan(resolve_settings(task_name, flags))


def test_the_plan_of_a_pretraining_run_is_printed_and_nothing_is_written(tmp_path: Path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (shard,) = write_shards(tmp_path, [4])
  flags = {"dry_run": True, "do_train": True, "input_file": shard, "output_dir": "run"}
  run("pretraining", **flags, train_batch_size=256, num_train_steps=2000, model="albert_tiny")
  out, err = capsys.readouterr()
  assert "train: 2,000 steps with 256 examples per step, lamb, from random weights" in out
  assert "4 layers, hidden_size 256" in out
  assert err == "--dry_run: nothing was trained, and nothing was written\n"
  assert [str(path) for path in tmp_path.iterdir()] == [shard]
  with pytest.raises(UserError, match=r"--input_file: 'absent\*' matches no file"):
    run("pretraining", **flags | {"input_file": "absent*"})
  with pytest.raises(UserError, match=r"was written with max_seq_length=\d+, not 9: leave the flag out"):
    run("pretraining", **CHIP, input_file=shard, max_seq_length=9)
  (tmp_path / "model.safetensors").write_bytes(b"not opened")
  (tmp_path / "config.json").write_text(json.dumps(TINY_MODEL.to_dict()))
  with pytest.raises(UserError, match=r"config.json has hidden_size 24, this model has 27; leave out the flags of the"):
    run("pretraining", **flags, init_checkpoint=str(tmp_path), hidden_size=27)


def test_the_stages_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  for name, length in (("short", 24), ("long", 48)):
    write_shards(tmp_path / name, [4], length=length)
  stages: list[dict[str, object]] = [
    {"until": 0.25, "num_hidden_layers": 1, "train_batch_size": 4096, "input_file": f"{tmp_path}/short/*.tfrecord"},
    {"until": 0.9, "num_hidden_layers": 3},
    {"until": 1},
  ]
  flags: dict[str, object] = {"dry_run": True, "do_train": True, "output_dir": str(tmp_path / "run")}
  flags |= {"input_file": f"{tmp_path}/long/*.tfrecord", "model": "albert_tiny", "train_batch_size": 64}
  run("pretraining", **flags, num_train_steps=9000, stages=json.dumps(stages))
  lines = capsys.readouterr().out.splitlines()
  assert lines[1].startswith("train: 9,000 steps with 64 examples per step")
  assert lines[2:5] == [
    "stage 1 of 3: steps 1 to 2,250, 1 of 4 layers, sequences of 24 tokens, 4096 examples per step",
    "stage 2 of 3: steps 2,251 to 8,100, 3 of 4 layers, sequences of 48 tokens, 64 examples per step",
    "stage 3 of 3: steps 8,101 to 9,000, 4 of 4 layers, sequences of 48 tokens, 64 examples per step",
  ]
  with pytest.raises(UserError, match=r"stage 1 of 3: until 0.25 of 2 steps is step 0, where the stage before it ends"):
    run("pretraining", **flags, num_train_steps=2, stages=json.dumps(stages))


def test_values_that_differ_from_the_defaults_are_printed_with_their_source(
  tmp_path: Path, spm_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  Path("a.csv").write_text(f"text,label\none,a\n{'two ' * 40},b\n")
  flags: dict[str, object] = {"output_dir": "new", "train_file": "a.csv", "text_columns": "text"}
  flags |= {"task_name": "custom", "model": "albert_tiny", "learning_rate": 0.5, "weight_decay": 0.01}
  run("classifier", **flags, spm_model_file=spm_model, do_train=True, from_scratch=True, dry_run=True)
  out = capsys.readouterr().out
  assert "train: 3 epochs of 2 rows, 1 step, with 32 examples per step, adamw, from random weights" in out
  values = {line.split(": ")[0]: line.split()[1:] for line in out.replace("\n  ", " ").splitlines()}
  assert {"--do_train", "--train_file=a.csv", "--learning_rate=0.5", "--model=albert_tiny"} <= set(values["from flags"])
  assert {"--warmup_proportion=0.1", "--train_batch_size=32"} <= set(values["from the recipe glue_custom"])
  derived = values["from the model, files and other settings"]
  assert {"--recipe=glue_custom", "--hidden_size=256", "--cache_dir=new/features"} <= set(derived)
  assert len(out.splitlines()) < 20
  assert "learning_rate=2e-05" not in out  # the value of the recipe, which a flag replaces
  assert "weight_decay" not in out  # the default
  flags |= {"recipe": "none", "num_train_epochs": 40.0, "train_batch_size": 4, "spm_model_file": spm_model}
  run("classifier", **flags, do_train=True, from_scratch=True, dry_run=True)
  assert "--num_warmup_steps=2" in capsys.readouterr().out  # a tenth of the 20 steps
  del flags["num_train_epochs"]
  run("classifier", **flags, do_train=True, from_scratch=True, dry_run=True, num_train_steps=2001, max_seq_length=20)
  out = capsys.readouterr().out
  assert (
    "warning: 4,002 epochs, since 2,001 steps are for more examples: to train less, give --num_train_epochs=" in out
  )
  assert (
    "warning: 1 of 2 texts exceed --max_seq_length=20, and are cut: give a larger --max_seq_length or --long" in out
  )
  with pytest.raises(UserError, match="--tpu=local: a TPU needs batches of one shape"):
    run("classifier", **flags, do_train=True, from_scratch=True, dry_run=True, tpu="local")
  for task_name, given in (("classifier", flags), ("pretraining", {"masking": "dynamic", "output_dir": "new"})):
    with pytest.raises(UserError, match=r"--tpu=grpc://a:1: dynamic masks and batches for fine-tuning .* --tpu=local"):
      run(task_name, **given, do_train=True, dry_run=True, tpu="grpc://a:1")


def test_values_of_a_run_are_printed_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  directory = write_run(tmp_path / "run", "pretraining", data={"input_file": "/absent/*", "masking": "static"})
  (shard,) = write_shards(tmp_path / "dev", [4])
  flags = {"output_dir": str(directory), "eval_input_file": shard, "spm_model_file": ""}
  run("pretraining", **flags, do_eval=True, eval_batch_size=16, dry_run=True)
  out = capsys.readouterr().out.replace("\n  ", " ")
  of_run = next(line for line in out.splitlines() if line.startswith(f"from the run in {directory}: "))
  assert {"--learning_rate=0.25", "--num_train_steps=7", "--select_checkpoint=best"} <= set(of_run.split())
  assert "--eval_batch_size=16" in next(line for line in out.splitlines() if line.startswith("from flags: "))
  assert "--eval_batch_size=8" not in out


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"do_train": True}, "this run was trained on other data than this command gives"),
    ({"do_train": True, "max_seq_length": 16}, "--max_seq_length=16: the run in run has max_seq_length = 32"),
    ({"do_eval": True, "output_dir": "other", "eval_file": "a.csv"}, "--output_dir=other: holds no run: train first"),
  ],
)
def test_a_dry_run_refuses_what_a_run_refuses(
  tmp_path: Path, spm_model: str, monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], message: str
) -> None:
  monkeypatch.chdir(tmp_path)
  Path("a.csv").write_text("text,label\none,a\ntwo,b\n")
  settings = {"task_name": "custom", "text_columns": "text", "labels": "a,b", "max_seq_length": 32}
  model = TINY_MODEL.to_dict() | {"vocab_size": Tokenizer(spm_model).vocab_size}
  directory = write_run(tmp_path / "run", "classifier", data=settings, model=model, training_data={"sha256": "0" * 64})
  shutil.copy(spm_model, directory / "spiece.model")
  given: dict[str, object] = {"output_dir": "run", "train_file": "a.csv", "spm_model_file": spm_model, **flags}
  if given["output_dir"] == "other":
    given |= {**settings, "model": "albert_tiny"}
  with pytest.raises(UserError, match=message):
    run("classifier", dry_run=True, **given)


def test_a_dry_run_without_an_action_or_a_chip_has_nothing_to_do(tmp_path: Path):
  with pytest.raises(UserError, match="nothing to do"):
    run("pretraining", dry_run=True, output_dir=str(tmp_path / "run"))
  with pytest.raises(UserError, match="--output_dir is missing"):
    run("pretraining", dry_run=True)


@pytest.mark.parametrize("task_name", registry.TASKS)
def test_every_task_can_be_compared_with_a_chip_without_files(task_name: str, capsys):
  without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
  run(task_name, **CHIP, model="albert_base", max_seq_length=512, **without_dropout)
  line = capsys.readouterr().out.splitlines()[-2]
  assert "albert_base on v3-8: 8 examples of 512 tokens on each of 8 cores fit" in line


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"dry_run": False, "output_dir": "run"}, "--chip=v3 only goes with --dry_run"),
    ({"precision": "float32"}, "--chip=v3: has speeds for bfloat16 only: give --precision=auto, not float32"),
    ({}, "--chip needs the length of the sequences: give --max_seq_length"),
    ({"input_file": "gs://bucket/*", "vocab_size": 100}, "--chip needs the length of the sequences: give --max_seq"),
    (
      {"stages": '[{"until": 0.5, "num_hidden_layers": 3}, {"until": 1}]'},
      "--chip needs a run without stages: give --stages=",
    ),
    ({"input_file": "gs:///shards"}, "input_file must be gs://BUCKET/PATH; the variable that holds the bucket is"),
    ({"max_seq_length": 1024}, "--max_seq_length=1024: lower it, or raise --max_position_embeddings, which is 512"),
    ({"hours": 0.0}, "hours must be "),
    ({"price_per_hour": -1.0}, "price_per_hour must be "),
    ({"chip": "", "hours": 3.0, "output_dir": "run"}, "--hours=3 only goes with --dry_run and --chip"),
    ({"num_train_epochs": 2.0, "max_seq_length": 64}, "--num_train_epochs=2: how many steps these are is known from"),
    ({"chip": "v100-8", "precision": "bfloat16"}, "--chip=v100-8: has speeds for float32 and float16 only"),
  ],
)
def test_what_the_table_cannot_answer_is_one_line(flags, message):
  with pytest.raises(UserError) as error:
    run("pretraining", **CHIP | flags)
  assert str(error.value).startswith(message)
