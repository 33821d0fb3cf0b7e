"""Tests of the vocabularies of an experiment: who trains them, and what is made with which of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from absl import flags

from albert.errors import UserError
from albert.experiments import catalog, runner, tables
from albert.experiments.plan import Plan
from albert.settings import costs
from albert.tokenization import wordpiece
from data_prep import train_vocab
from tests.experiments.plans import make_plan
from tests.script_flags import defined_flags

_FILES = {
  "unigram": "spiece.model",
  "SentencePiece BPE": "spiece.model",
  "WordPiece": "vocab.txt",
  "byte-level BPE": "vocab.json",
}


def _make_plan(tmp_path: Path, name: str = "vocabularies", **inputs: Any) -> Plan:
  return make_plan(tmp_path, name, vocab_size=997, **inputs)


def _flag(words: tuple[str, ...], name: str) -> str | None:
  """The value of a flag in a command line; None if it is not given."""
  values = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
  return values[0] if values else None


def test_each_type_of_vocabulary_is_trained_once_on_the_same_text(tmp_path: Path):
  commands = [command for command in _make_plan(tmp_path).preparation_commands() if command.name[:5] == "vocab"]
  assert [_flag(command.words, "type") for command in commands] == [None, "bpe", "wordpiece", "byte_level_bpe"]
  assert {_flag(command.words, "vocab_size") for command in commands} == {"997"}
  assert len({_flag(command.words, "input_file") for command in commands}) == 1
  assert len({_flag(command.words, "output_dir") for command in commands}) == 4
  # The file that train_vocab writes last. It writes merges.txt after vocab.json.
  last_names = [Path(command.makes[-1]).name for command in commands]
  assert last_names == ["spiece.model", "spiece.model", "vocab.txt", "merges.txt"]


def test_the_types_are_those_of_train_vocab():
  with defined_flags(train_vocab.define_flags):
    parser = flags.FLAGS["type"].parser
    assert isinstance(parser, flags.EnumParser)
    assert list(parser.enum_values) == list(catalog.VOCABULARY_FILES)
    assert flags.FLAGS["type"].default == catalog.UNIGRAM


def test_shards_and_pretraining_have_the_vocabulary_of_their_variant(tmp_path: Path):
  plan = _make_plan(tmp_path)
  trained = {str(Path(command.makes[-1]).parent) for command in plan.preparation_commands()}
  used = set()
  for trial in plan.trials():
    shards, heldout, pretraining = trial.commands
    (path,) = {_flag(command.words, "spm_model_file") for command in trial.commands}
    assert path is not None
    assert Path(path).name == _FILES[trial.variant]
    assert str(Path(path).parent) in trained
    used.add(path)
    assert _flag(pretraining.words, "input_file") == f"{_flag(shards.words, 'output_dir')}/*.tfrecord"
    assert _flag(pretraining.words, "eval_input_file") == f"{_flag(heldout.words, 'output_dir')}/*.tfrecord"
  assert len(used) == 4


def test_the_variant_without_a_type_shares_its_runs_with_other_experiments(tmp_path: Path):
  (sop,) = [trial for trial in _make_plan(tmp_path, "sentence_loss").trials() if trial.variant == "SOP"]
  trial = _make_plan(tmp_path).trials()[0]
  assert (trial.variant, trial.run) == ("unigram", sop.run)


def test_evaluation_on_another_sentence_task_has_the_vocabulary_of_its_variant(tmp_path: Path):
  plan = _make_plan(tmp_path)
  plan.experiment = msgspec.structs.replace(plan.experiment, intrinsic=["nsp"])
  for trial in plan.trials():
    nsp_shards = trial.commands[3]
    assert _flag(nsp_shards.words, "spm_model_file") == _flag(trial.commands[0].words, "spm_model_file")


def test_the_model_has_as_many_pieces_as_a_vocabulary_that_is_smaller(tmp_path: Path):
  """The pretraining gets no --vocab_size, and the table counts the parameters with the pieces of the file."""
  trials = {trial.variant: trial for trial in _make_plan(tmp_path).trials()}
  sizes = {name: _flag(trial.commands[2].words, "vocab_size") for name, trial in trials.items()}
  assert sizes == {"unigram": "997", "SentencePiece BPE": "997", "WordPiece": None, "byte-level BPE": None}
  trial = trials["WordPiece"]
  vocabulary = Path(_flag(trial.commands[0].words, "spm_model_file") or "")
  vocabulary.parent.mkdir(parents=True)
  vocabulary.write_text("\n".join([*wordpiece.SPECIAL_PIECES, "a", "b"]) + "\n")
  Path(trial.run).mkdir(parents=True)
  for score in trial.scores.values():
    Path(score.file).write_text(json.dumps({score.metric: 0.5}))
  num_embeddings = (997 - (len(wordpiece.SPECIAL_PIECES) + 2)) * trial.config.embedding_size
  row = runner.make_row(trial)
  assert row["parameters"] == costs.num_model_parameters(trial.config) - num_embeddings
  assert row["scores"] == {"sop": 50.0}


def test_a_vocabulary_of_the_user_is_refused(tmp_path: Path):
  message = "--run=vocabularies trains vocabularies of unigram, .*: leave out --spm_model_file=my.model"
  with pytest.raises(UserError, match=message):
    _make_plan(tmp_path, spm_model_file="my.model")
  assert _make_plan(tmp_path, "sentence_loss", spm_model_file="my.model").vocabulary("unigram") == "my.model"


def test_the_table_says_which_scores_can_be_compared():
  experiment = catalog.load("vocabularies")
  row: dict[str, Any] = {"seed": 1, "parameters": 1e6, "examples_per_second": 1.0, "scores": {"sop": 50.0}}
  lines = tables.format_table(experiment, [{"variant": "unigram", **row}], scale="smoke").splitlines()
  assert lines[2] == "Scale smoke; 1 seed; percent. RoBERTa, section 4.4."
  assert "Masked LM accuracy and perplexity are left out" in lines[4]
  assert lines[6] == "| variant | parameters | SOP |"
