"""Models that we export give the same outputs in transformers, and models of transformers the same outputs here.

These tests need torch and transformers (the extra `parity`). A trained encoder is compared, too, if ALBERT_DATA_DIR
holds weights/kokoro_albert.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from albert.config.model import ModelConfig
from albert.convert.convert_checkpoint import convert
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import CLS_ID, SEP_ID
from tests.convert.files_of_weights import write_tf1
from tests.golden.make_tiny_albert import random_weights
from tests.parity import huggingface
from tests.parity.huggingface import CONFIG
from tests.parity.rows import assert_ok

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", huggingface.VARIANTS)
def test_transformers_gives_our_pretraining_logits(tmp_path, name):
  assert_ok(huggingface.pretraining_model_rows(tmp_path, name))


def test_every_activation_is_compared():
  choices = {field.name: field.metadata["choices"] for field in dataclasses.fields(ModelConfig)}["hidden_act"]
  assert {changes.get("hidden_act") for changes in huggingface.VARIANTS.values()} == {None, *choices}
  assert {ours for _, ours in huggingface.ACTIVATIONS} == set(choices)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_transformers_gives_our_hidden_states(tmp_path, attention):
  assert_ok(huggingface.hidden_state_rows(tmp_path, attention))


@pytest.mark.parametrize(("head", "classes", "architecture", "prefix"), huggingface.LINEAR_HEADS)
def test_transformers_gives_our_logits_of_task_heads(tmp_path, head, classes, architecture, prefix):
  assert_ok(huggingface.linear_head_rows(tmp_path, head, classes, architecture, prefix))


def test_albert_for_masked_lm_gives_our_logits(tmp_path):
  assert_ok(huggingface.masked_lm_rows(tmp_path))


@pytest.mark.parametrize("activation", [theirs for theirs, _ in huggingface.ACTIVATIONS])
@pytest.mark.parametrize("with_prefix", [True, False])
def test_our_encoder_gives_the_hidden_states_of_models_that_transformers_saved(tmp_path, with_prefix, activation):
  assert_ok(huggingface.saved_model_rows(tmp_path, activation, with_prefix=with_prefix))


def test_xlnets_head_gives_our_logits_of_squad_v2(tmp_path):
  assert_ok(huggingface.squad_v2_rows(tmp_path))


def test_the_exported_vocabulary_loads(tmp_path, spm_model):
  """AlbertTokenizer gives the same ids as our tokenizer."""
  ours = Tokenizer(spm_model)
  config = dataclasses.replace(CONFIG, vocab_size=ours.vocab_size)
  source = write_tf1(tmp_path / "tf1", config, random_weights(config, 3))
  convert(source, str(tmp_path / "hf"), "huggingface", spm_model_file=spm_model)
  theirs = transformers.AlbertTokenizer.from_pretrained(tmp_path / "hf")
  text = "The teacher described the long winter in the year 1984, although it was raining."
  assert theirs(text)["input_ids"] == [CLS_ID, *ours.encode(text), SEP_ID]


@pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="ALBERT_DATA_DIR not set")
def test_a_trained_encoder_gives_the_hidden_states_of_transformers(tmp_path):
  """The encoder has 12 layers of width 768 and was trained on phonemes."""
  directory = Path(os.environ["ALBERT_DATA_DIR"], "weights", "kokoro_albert")
  recorded = str(directory / "hf_reference_out.npz")
  with np.load(directory / "kokoro_albert_dequant.npz") as weights:
    save_file(dict(weights), str(tmp_path / "weights.safetensors"))
  shutil.copy(directory / "config.json", tmp_path)
  rows = list(huggingface.trained_rows(tmp_path, str(tmp_path / "weights.safetensors"), recorded))
  assert [row.quantity.split()[0] for row in rows] == ["13", "13"]
  assert_ok(rows)
