"""Settings that follow the data or the model: vocab_size, positions, held-out shards, and max_seq_length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentencepiece

from albert.config.model import named_model
from albert.config.recipes import configs_directory
from albert.errors import UserError
from albert.settings.resolve import resolve_settings
from albert.settings.sources import Settings
from tests.golden.make_tiny_albert import random_weights
from tests.settings.test_sources import write_run
from tests.small_downloads import small_config, write_hub
from tests.synthetic import SEQ_LENGTH, TINY_MODEL, VOCAB_SIZE, write_manifest, write_shards

MODEL_WITHOUT_VOCAB_SIZE = {name: value for name, value in TINY_MODEL.to_dict().items() if name != "vocab_size"}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
  """A folder of shards with a manifest, which says that the vocabulary has 61 pieces (VOCAB_SIZE)."""
  paths = write_shards(tmp_path / "shards", [3, 2])
  write_manifest(tmp_path / "shards", paths, [3, 2])
  return tmp_path / "shards"


@pytest.fixture
def num_pieces(spm_model: str) -> int:
  size: int = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  assert size not in (VOCAB_SIZE, 30000)
  return size


class ResolvedSize(NamedTuple):
  """The vocab_size of a command, and the lines that the command logs."""

  vocab_size: int
  notes: list[str]


def resolve_vocab_size(task: str, tmp_path: Path, **flags: Any) -> ResolvedSize:
  settings = resolve_settings(task, {"output_dir": str(tmp_path / "run"), "do_train": True, **flags})
  notes = [note for note in settings.notes if not note.startswith("max_position_embeddings")]
  return ResolvedSize(settings.model_config.vocab_size, notes)


def test_pretraining_takes_the_size_from_the_vocabulary_else_from_the_manifest(
  shards: Path, spm_model: str, num_pieces: int, tmp_path: Path
) -> None:
  flags = {"model": "albert_tiny", "input_file": f"{shards}/*.tfrecord"}
  from_manifest = f"vocab_size is 61, the size of the vocabulary according to {shards}/manifest.json"
  assert resolve_vocab_size("pretraining", tmp_path, **flags) == (VOCAB_SIZE, [from_manifest])
  from_file = f"vocab_size is {num_pieces}, the size of the vocabulary according to {spm_model}"
  assert resolve_vocab_size("pretraining", tmp_path, **flags, spm_model_file=spm_model) == (num_pieces, [from_file])
  (shards / "manifest.json").unlink()  # shards of the original scripts have none
  assert resolve_vocab_size("pretraining", tmp_path, **flags) == (30000, [])  # the default


def test_the_shards_may_be_those_of_the_last_stage_or_of_the_evaluation(shards: Path, tmp_path: Path) -> None:
  (other_shard,) = write_shards(tmp_path / "other", [3])
  write_manifest(tmp_path / "other", [other_shard], [3], vocab_size=77)
  stages = json.dumps([{"until": 0.5}, {"until": 1, "input_file": other_shard}])
  resolved = resolve_vocab_size("pretraining", tmp_path, input_file=f"{shards}/*.tfrecord", stages=stages)
  assert resolved.vocab_size == 77
  assert resolve_vocab_size("pretraining", tmp_path, eval_input_file=other_shard).vocab_size == 77


def test_a_flag_a_config_file_a_recipe_and_weights_come_before_the_vocabulary(
  shards: Path, spm_model: str, num_pieces: int, tmp_path: Path
) -> None:
  input_flag = {"input_file": f"{shards}/*.tfrecord"}
  assert resolve_vocab_size("pretraining", tmp_path, **input_flag, model="albert_tiny", vocab_size=9) == (9, [])
  model_file = tmp_path / "model.json"
  model_file.write_text(json.dumps({**MODEL_WITHOUT_VOCAB_SIZE, "vocab_size": 10}))
  assert resolve_vocab_size("pretraining", tmp_path, **input_flag, albert_config_file=str(model_file)) == (10, [])
  model_file.write_text(json.dumps(MODEL_WITHOUT_VOCAB_SIZE))
  resolved = resolve_vocab_size("pretraining", tmp_path, **input_flag, albert_config_file=str(model_file))
  assert resolved.vocab_size == VOCAB_SIZE
  recipe = tmp_path / "recipe.json"
  recipe.write_text(json.dumps({"model": {"vocab_size": 8000}}))
  assert resolve_vocab_size("pretraining", tmp_path, **input_flag, recipe=str(recipe)) == (8000, [])
  with_named_model = input_flag | {"recipe": str(recipe), "model": "albert_tiny"}
  assert resolve_vocab_size("pretraining", tmp_path, **with_named_model).vocab_size == VOCAB_SIZE
  resolved = resolve_vocab_size("pretraining", tmp_path, **input_flag, recipe="pretraining_albert")
  assert resolved.vocab_size == VOCAB_SIZE
  config = small_config(spm_model)
  weights = write_hub(tmp_path / "downloads", config, random_weights(config, seed=3), spm_model)
  assert resolve_vocab_size("pretraining", tmp_path, **input_flag, init_checkpoint=weights) == (num_pieces, [])
  line = f"vocab_size is {num_pieces}, the size of the vocabulary according to {weights}/config.json"
  with_named_model = {**input_flag, "init_checkpoint": weights, "model": "albert_tiny"}
  assert resolve_vocab_size("pretraining", tmp_path, **with_named_model) == (num_pieces, [line])
  assert resolve_vocab_size("pretraining", tmp_path, **with_named_model, vocab_size=30000) == (30000, [])


@pytest.mark.parametrize(
  ("flags", "positions"),
  [
    ({"recipe": "pretraining_small"}, 600),
    ({"recipe": "pretraining_small", "max_position_embeddings": 512}, 512),
    ({"recipe": "pretraining_small", "input_file": "short/*"}, SEQ_LENGTH),
    ({"recipe": "pretraining_small", "input_file": "", "max_seq_length": 64}, 64),
    ({"recipe": "pretraining_small", "stages": '[{"until": 0.5, "input_file": "short/*"}, {"until": 1}]'}, 600),
    ({"recipe": "pretraining_small", "stages": '[{"until": 0.5}, {"until": 1, "input_file": "short/*"}]'}, 600),
    ({"model": "albert_tiny"}, 600),  # a named model has 512 positions, and more only for longer sequences
    ({"model": "albert_tiny", "input_file": "short/*"}, 512),
    ({"recipe": "pretraining_albert", "input_file": "short/*"}, 512),
  ],
)
def test_a_new_model_has_the_positions_of_the_shards(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], positions: int
) -> None:
  monkeypatch.chdir(tmp_path)
  write_shards(Path("long"), [3], length=600)
  write_shards(Path("short"), [3])
  resolved = resolve_settings("pretraining", {"output_dir": "run", "do_train": True, "input_file": "long/*", **flags})
  assert resolved.model_config.max_position_embeddings == positions
  note = f"max_position_embeddings is {positions}, the length of the sequences in the shards"
  assert (note in resolved.notes) == ("max_position_embeddings" not in flags and positions != 512)


def test_shards_beside_the_training_shards_are_evaluated(shards: Path, tmp_path: Path) -> None:
  (heldout,) = write_shards(shards / "heldout", [4], seed=5)
  write_manifest(shards / "heldout", [heldout], [4], settings={"heldout": True})
  flags = {"output_dir": str(tmp_path / "run"), "do_train": True, "recipe": "pretraining_small"}
  flags["input_file"] = f"{shards}/*.tfrecord"

  def resolve(**changes: Any) -> tuple[str, int]:
    resolved = resolve_settings("pretraining", flags | changes)
    resolved.read_inputs()
    assert ("--eval_share=0.02" in "".join(resolved.notes)) == (resolved.config.train.eval_every_steps == 0)
    return resolved.data_config.eval_input_file, resolved.config.train.eval_every_steps  # type: ignore[attr-defined]

  assert resolve() == ("", 0)  # the manifest does not name the folder
  for action in ({"do_eval": True}, {"eval_every_steps": 5}):
    with pytest.raises(UserError, match=r"evaluation needs held-out documents: .* --eval_share=0\.02 writes them"):
      resolve(**action)
  paths = sorted(map(str, shards.glob("*.tfrecord")))
  write_manifest(shards, paths, [3, 2], heldout="heldout")
  assert resolve() == (heldout, 1000)
  assert resolve(eval_input_file=paths[0])[0] == paths[0]
  assert resolve(input_file=f"{shards}/*") == (heldout, 1000)
  with pytest.raises(UserError, match=r"heldout holds held-out documents: leave it out"):
    resolve(input_file=f"{shards}/**")


def test_finetuning_from_random_weights_takes_the_size_from_the_vocabulary(
  spm_model: str, num_pieces: int, tmp_path: Path
) -> None:
  task_flags = {"task_name": "custom", "text_columns": "text", "from_scratch": True}
  flags = task_flags | {"spm_model_file": spm_model, "model": "albert_tiny"}
  size, notes = resolve_vocab_size("classifier", tmp_path, **flags)
  assert (size, notes) == (
    num_pieces,
    [f"vocab_size is {num_pieces}, the size of the vocabulary according to {spm_model}"],
  )
  with pytest.raises(UserError, match=r"/nowhere\.model: cannot read it"):
    resolve_vocab_size("classifier", tmp_path, **task_flags, spm_model_file="/nowhere.model")


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


def test_the_default_length_is_at_most_that_of_the_model(spm_model: str, tmp_path: Path) -> None:
  flags = {"output_dir": str(tmp_path / "run"), "spm_model_file": spm_model, "from_scratch": True}

  def resolve_length(**further_flags: Any) -> tuple[int, list[str]]:
    settings = resolve_settings("squad", flags | further_flags)
    return settings.data_config.max_seq_length, list(settings.notes)[1:]  # type: ignore[attr-defined]

  line = "max_seq_length is 96, the number of the model's positions, instead of the default 384"
  short = "max_query_length is 24 instead of 64, doc_stride is 24 instead of 128, to fit max_seq_length 96"
  assert resolve_length(max_position_embeddings=96) == (96, [line, short])
  assert resolve_length(max_position_embeddings=384) == (384, [])
  overlap = "doc_stride is 32 instead of 128, to fit max_seq_length 128"
  assert resolve_length(max_position_embeddings=96, max_seq_length=128) == (128, [overlap])
  given = {"max_query_length": 9, "doc_stride": 5}
  assert resolve_length(max_position_embeddings=96, **given) == (96, [line])
  too_long = r"^--max_query_length=64 leaves no room .* in --max_seq_length=64: give --max_query_length=16$"
  with pytest.raises(UserError, match=too_long):
    resolve_length(max_position_embeddings=64, max_query_length=64)


@pytest.mark.parametrize("long_texts", ["truncate", "windows"])
def test_the_settings_of_windows_without_windows_are_pointed_out(long_texts: str, spm_model: str) -> None:
  flags = {"output_dir": "new", "task_name": "custom", "spm_model_file": spm_model, "from_scratch": True}
  notes = resolve_settings("classifier", {**flags, "long_texts": long_texts, "doc_stride": 32}).notes
  assert any("change nothing without long_texts=windows" in line for line in notes) == (long_texts == "truncate")


@pytest.mark.parametrize(
  ("dropout", "recipe", "advice"),
  [
    (0.1, "", None),  # without --recipe it is race
    (0.0, "", "without dropout: give --recipe=race_v2"),
    (0.0, "race_v2", None),
    (0.1, "race_v2", "with dropout: give --recipe=race"),
    (0.0, "none", None),
  ],
)
def test_a_recipe_for_other_weights_is_named(
  spm_model: str, tmp_path: Path, dropout: float, recipe: str, advice: str | None
) -> None:
  config = small_config(spm_model, hidden_dropout_prob=dropout)
  weights = write_hub(tmp_path / "downloads", config, random_weights(config, seed=3), spm_model)
  flags = {"init_checkpoint": weights, "data_dir": "/data", "max_seq_length": 48, "output_dir": str(tmp_path / "run")}
  flags |= {"recipe": recipe} if recipe else {}
  notes = resolve_settings("race", {**flags, "do_train": True}).notes
  line = (
    f"warning: the recipe {recipe or 'race'} is for other weights: according to {weights}/config.json, these were "
    f"pretrained {advice}"
  )
  assert list(notes) == ([line] if advice else [])
  assert not resolve_settings("race", {**flags, "do_eval": True}).notes
  with pytest.raises(UserError, match=f"--output_dir={weights}: holds the weights of --init_checkpoint: give another"):
    resolve_settings("race", flags | {"do_train": True, "output_dir": weights})


def test_the_evaluations_of_a_recipe_need_a_file(spm_model: str) -> None:
  flags = {"spm_model_file": spm_model, "from_scratch": True, "do_train": True, "train_file": "train.jsonl"}
  cases: list[tuple[dict[str, Any], int]] = [({}, 0), ({"eval_file": "dev.jsonl"}, 1000), ({"data_dir": "RACE"}, 1000)]
  for given, steps in [*cases, ({"do_eval": True}, 1000)]:
    resolved = resolve_settings("race", {**flags, **given, "output_dir": "new"})
    assert resolved.config.train.eval_every_steps == steps
    assert ("no evaluation during training: no --eval_file is given" in resolved.notes) == (steps == 0)
  custom = {"task_name": "custom", "text_columns": "text", "recipe": "glue_rte", "folds": 3, "fold": 1}
  resolved = resolve_settings("classifier", {**flags, **custom, "output_dir": "new"})
  assert resolved.config.train.eval_every_steps == 100  # on the held-out fold


def test_the_recipe_of_race_for_v2_has_the_originals_rate_and_dropout() -> None:
  """According to the README of https://github.com/google-research/albert: rate 1e-5, dropout 0, the rest as in v1."""
  v1, v2 = (json.loads((Path(configs_directory()) / f"{name}.json").read_text()) for name in ("race", "race_v2"))
  assert (v2["optimizer"]["learning_rate"], v2["model"]["hidden_dropout_prob"]) == (1e-5, 0.0)
  assert v2["model"]["attention_probs_dropout_prob"] == 0.0
  v2["optimizer"]["learning_rate"] = v1["optimizer"]["learning_rate"]
  assert v1["optimizer"] == v2["optimizer"]
  assert (v1["train"], v1["data"]) == (v2["train"], v2["data"])
