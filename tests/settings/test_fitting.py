"""vocab_size follows the vocabulary and max_seq_length the model, where nothing else gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from albert.cli import script_help
from albert.config.model import named_model
from albert.errors import UserError
from albert.settings.resolve import resolve_settings
from albert.settings.sources import Settings
from tests.golden.make_tiny_albert import random_weights
from tests.settings.test_sources import write_run
from tests.small_downloads import small_config, write_hub
from tests.synthetic import TINY_MODEL, VOCAB_SIZE, write_manifest, write_shards

SIZES = {name: value for name, value in TINY_MODEL.to_dict().items() if name != "vocab_size"}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
  paths = write_shards(tmp_path / "shards", [3, 2])
  write_manifest(tmp_path / "shards", paths, [3, 2])
  return tmp_path / "shards"


@pytest.fixture
def pieces(spm_model: str) -> int:
  size: int = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  assert size not in (VOCAB_SIZE, 30000)
  return size


def resolved(task: str, tmp_path: Path, **flags: Any) -> tuple[int, list[str]]:
  """The vocab_size of a command, and the lines that it logs."""
  result = resolve_settings(task, {"output_dir": str(tmp_path / "run"), "do_train": True, **flags})
  return result.model_config.vocab_size, list(result.notes)


def test_pretraining_takes_the_size_from_the_vocabulary_else_from_the_manifest(
  shards: Path, spm_model: str, pieces: int, tmp_path: Path
) -> None:
  flags = {"model": "albert_tiny", "input_file": f"{shards}/*.tfrecord"}
  from_manifest = f"vocab_size is 61, the size of the vocabulary according to {shards}/manifest.json"
  assert resolved("pretraining", tmp_path, **flags) == (VOCAB_SIZE, [from_manifest])
  from_file = f"vocab_size is {pieces}, the size of the vocabulary according to {spm_model}"
  assert resolved("pretraining", tmp_path, **flags, spm_model_file=spm_model) == (pieces, [from_file])
  (shards / "manifest.json").unlink()  # shards of the original scripts have none
  assert resolved("pretraining", tmp_path, **flags) == (30000, [])


def test_the_last_stage_or_the_evaluation_names_the_shards(shards: Path, tmp_path: Path) -> None:
  other = write_shards(tmp_path / "other", [3])
  write_manifest(tmp_path / "other", other, [3], vocab_size=77)
  stages = json.dumps([{"until": 0.5}, {"until": 1, "input_file": other[0]}])
  assert resolved("pretraining", tmp_path, input_file=f"{shards}/*.tfrecord", stages=stages)[0] == 77
  assert resolved("pretraining", tmp_path, eval_input_file=other[0])[0] == 77


def test_a_flag_a_config_file_a_recipe_and_weights_come_before_the_vocabulary(
  shards: Path, spm_model: str, pieces: int, tmp_path: Path
) -> None:
  data = {"input_file": f"{shards}/*.tfrecord"}
  assert resolved("pretraining", tmp_path, **data, model="albert_tiny", vocab_size=9) == (9, [])
  model_file = tmp_path / "model.json"
  model_file.write_text(json.dumps({**SIZES, "vocab_size": 10}))
  assert resolved("pretraining", tmp_path, **data, albert_config_file=str(model_file)) == (10, [])
  model_file.write_text(json.dumps(SIZES))
  assert resolved("pretraining", tmp_path, **data, albert_config_file=str(model_file))[0] == VOCAB_SIZE
  assert resolved("pretraining", tmp_path, **data, recipe="pretraining_demo") == (8000, [])
  assert resolved("pretraining", tmp_path, **data, recipe="pretraining_demo", model="albert_tiny")[0] == VOCAB_SIZE
  assert resolved("pretraining", tmp_path, **data, recipe="pretraining_albert")[0] == VOCAB_SIZE
  config = small_config(spm_model)
  weights = write_hub(tmp_path / "downloads", config, random_weights(config, 3), spm_model)
  assert resolved("pretraining", tmp_path, **data, init_checkpoint=weights) == (pieces, [])
  line = f"vocab_size is {pieces}, the size of the vocabulary according to {weights}/config.json"
  named = {**data, "init_checkpoint": weights, "model": "albert_tiny"}
  assert resolved("pretraining", tmp_path, **named) == (pieces, [line])
  assert resolved("pretraining", tmp_path, **named, vocab_size=30000) == (30000, [])


def test_finetuning_from_random_weights_takes_the_size_from_the_vocabulary(
  spm_model: str, pieces: int, tmp_path: Path
) -> None:
  data = {"task_name": "custom", "text_columns": "text", "from_scratch": True}
  size, notes = resolved("classifier", tmp_path, **data, spm_model_file=spm_model, model="albert_tiny")
  assert (size, notes) == (pieces, [f"vocab_size is {pieces}, the size of the vocabulary according to {spm_model}"])
  with pytest.raises(UserError, match=r"/nowhere\.model: cannot read it"):
    resolved("classifier", tmp_path, **data, spm_model_file="/nowhere.model")


def test_a_resumed_run_has_the_recorded_size_whatever_model_is_named(tmp_path: Path) -> None:
  model = {**named_model("albert_tiny").to_dict(), "vocab_size": 61}
  run = write_run(tmp_path / "run", "pretraining", model=model)
  flags = {"output_dir": str(run), "do_train": True}
  assert Settings("pretraining", flags | {"model": "albert_tiny"}).model_config().vocab_size == 61
  with pytest.raises(UserError, match=r"--vocab_size=60: the run in .* has vocab_size = 61"):
    Settings("pretraining", flags | {"model": "albert_tiny", "vocab_size": 60}).model_config()
  model_file = tmp_path / "model.json"
  model_file.write_text(json.dumps(model | {"vocab_size": 60}))
  with pytest.raises(UserError, match=r"--albert_config_file=.*: the run in .* has vocab_size = 61"):
    Settings("pretraining", flags | {"albert_config_file": str(model_file)}).model_config()


def test_help_says_where_the_size_comes_from() -> None:
  def shown(**flags: Any) -> str:
    page = script_help.make_page("pretraining", flags)
    return next(flag.default for flag in page.flags if flag.name == "vocab_size")

  assert shown() == shown(model="albert_base") == "the size of the vocabulary"
  assert shown(recipe="pretraining_demo") == "8000"


def test_the_default_length_is_at_most_that_of_the_model(spm_model: str, tmp_path: Path) -> None:
  flags = {"output_dir": str(tmp_path / "run"), "spm_model_file": spm_model, "from_scratch": True}

  def length(task: str, **more: Any) -> tuple[int, list[str]]:
    result = resolve_settings(task, flags | more)
    return result.data_config.max_seq_length, list(result.notes)[1:]  # type: ignore[attr-defined]

  line = "max_seq_length is 96, the number of the model's positions, instead of the default 384"
  assert length("squad", max_position_embeddings=96) == (96, [line])
  assert length("squad", max_position_embeddings=384) == (384, [])
  assert length("squad", max_position_embeddings=96, max_seq_length=128) == (128, [])
