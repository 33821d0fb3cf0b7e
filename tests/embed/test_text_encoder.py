"""albert.encode gives the same embeddings as an exported model of embeddings."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import albert
from albert.embed import text_encoder
from albert.errors import UserError
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.pretraining import ServedEmbeddings
from tests.convert.files_of_weights import without_pooler
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config, write_google, write_hub

HIDDEN_SIZE = 24  # of small_config
TEXTS = [
  "nobody",
  "The captain sold the garden behind the house for 2,500 dollars, and then went home.",
  "",
  "a letter from paris although it was raining " * 10,  # longer than the model's 48 positions
  "her sister",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> str:
  """A directory of small pretrained weights, with their vocabulary."""
  config = small_config(spm_model)
  return write_google(tmp_path_factory.mktemp("weights") / "x", config, random_weights(config, seed=3), spm_model)


@pytest.fixture(scope="module")
def exported_embeddings(directory: str) -> dict[str, np.ndarray]:
  """Pooling -> the exported model's embeddings of TEXTS, [texts, hidden]."""
  checkpoint = open_checkpoint(f"{directory}/model.ckpt-best")
  model = ServedEmbeddings(checkpoint, select_form(checkpoint, "embeddings", {}))
  answers = model.answer_texts(**{model.fields[0].name: tf.constant(TEXTS)})
  return {name: value.numpy() for name, value in answers.items()}


@pytest.mark.parametrize("pooling", ["mean", "pooled"])
@pytest.mark.parametrize(("batch_size", "is_traced"), [(2, False), (2, True), (32, False)])
def test_embeddings_equal_those_of_the_exported_model(
  directory, exported_embeddings, pooling, batch_size, is_traced, monkeypatch: pytest.MonkeyPatch
):
  monkeypatch.setattr(text_encoder, "_MAX_UNTRACED_BATCHES", 0 if is_traced else 99)
  embeddings = albert.encode(TEXTS, directory, pooling=pooling, batch_size=batch_size)
  assert embeddings.dtype == np.float32
  assert embeddings.shape == (len(TEXTS), HIDDEN_SIZE)
  np.testing.assert_allclose(embeddings, exported_embeddings[pooling], atol=2e-6)
  assert np.abs(embeddings[0] - embeddings[4]).max() > 1e-2  # two short texts differ


def test_texts_that_are_cut_and_unknown_characters_give_one_warning_each(directory, capsys):
  albert.encode([*TEXTS, "老师"], directory, max_length=16)
  cut, unknown = (line for line in capsys.readouterr().err.splitlines() if line.startswith("warning"))
  assert cut.startswith("warning: texts: texts longer than max_length=16: 2 of 6, ")
  assert cut.endswith(" tokens cut off: give max_length=48")
  assert unknown.startswith("warning: texts: ")
  assert "such as '老' (U+8001), '师' (U+5E08)" in unknown


def test_an_encoder_in_memory_gives_the_embeddings_of_its_directory(directory):
  encoder, tokenizer = albert.Encoder.from_pretrained(directory), albert.Tokenizer.from_pretrained(directory)
  embeddings = albert.encode(iter(TEXTS), encoder, tokenizer=tokenizer)
  np.testing.assert_array_equal(embeddings, albert.encode(TEXTS, directory))
  np.testing.assert_array_equal(embeddings, albert.encode(TEXTS, Path(directory)))
  assert albert.encode([], encoder, tokenizer=tokenizer).shape == (0, HIDDEN_SIZE)
  truncated_embeddings = albert.encode([TEXTS[1], TEXTS[1]], encoder, tokenizer=tokenizer, max_length=5)
  np.testing.assert_allclose(truncated_embeddings[0], truncated_embeddings[1], atol=1e-6)
  assert np.abs(truncated_embeddings[0] - embeddings[1]).max() > 1e-3


def test_many_batches_of_any_size_are_computed_with_one_trace(directory, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(text_encoder, "_MAX_UNTRACED_BATCHES", 1)
  encoder = text_encoder.TextEncoder(directory, batch_size=2)
  embed = mock.Mock(wraps=encoder._embed)
  monkeypatch.setattr(encoder, "_embed", embed)
  batch_sizes: list[int] = []
  first, second = encoder.encode(TEXTS, batch_sizes.append), encoder.encode(TEXTS[:1], batch_sizes.append)
  assert embed.call_count == 1
  assert batch_sizes == [2, 2, 1, 1]
  np.testing.assert_allclose(second, first[:1], atol=1e-6)


def test_bad_arguments_are_refused(tmp_path: Path, directory, spm_model):
  config = small_config(spm_model)
  encoder, tokenizer = albert.Encoder(config), albert.Tokenizer(spm_model)
  with pytest.raises(UserError, match="give tokenizer=Tokenizer"):
    albert.encode(TEXTS, encoder)
  with pytest.raises(UserError, match="pooling is 'max': give 'mean' or 'pooled'"):
    albert.encode(TEXTS, encoder, tokenizer=tokenizer, pooling="max")
  assert albert.encode("nobody", encoder, tokenizer=tokenizer).shape == (1, encoder.config.hidden_size)
  with pytest.raises(UserError, match=r"texts\[1\] is nan, of type float"):
    albert.encode(["nobody", float("nan")], encoder, tokenizer=tokenizer)  # type: ignore[list-item]
  message = r"encoder is a ClassifierModel: give an Encoder \(a model has one as model.encoder\), or a path"
  with pytest.raises(UserError, match=message):
    albert.encode(TEXTS, albert.ClassifierModel(config, num_classes=2), tokenizer=tokenizer)
  with pytest.raises(UserError, match="pieces, the encoder 9"):
    albert.encode(TEXTS, albert.Encoder(small_config(spm_model, vocab_size=9)), tokenizer=tokenizer)
  path = write_hub(tmp_path / "x", config, without_pooler(random_weights(config, seed=4)), spm_model)
  with pytest.raises(UserError, match=r"has no pooler.*or give pooling='mean'"):
    albert.encode(TEXTS, path, pooling="pooled")
  assert albert.encode(["nobody"], path).shape == (1, HIDDEN_SIZE)
