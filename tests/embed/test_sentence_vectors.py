"""Directories of sentence-transformers: pooling, Dense and Normalize against NumPy, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

import albert
from albert.convert.convert_checkpoint import convert
from albert.errors import UserError
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.export_model import ALLOWED_OPS
from albert.export.pretraining import ServedEmbeddings
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config, write_hub

TEXTS = ["nobody", "The captain sold the garden behind the house.", "", "a letter from paris " * 10]
WEIGHTS = {"linear.weight": np.random.default_rng(1).normal(size=(5, 72)).astype(np.float32)}
POOLING = {"word_embedding_dimension": 24, "pooling_mode_max_tokens": True, "pooling_mode_cls_token": True,
           "pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_lasttoken": False}  # fmt: skip
DENSE = {"in_features": 72, "out_features": 5, "bias": False, "activation_function": "torch.nn.modules.activation.Tanh"}
FILES: dict[str, Any] = {
  "modules.json": [{"path": path, "type": f"sentence_transformers.models.{path[2:]}"}
                   for path in ("0_Transformer", "1_Pooling", "2_Dense", "3_Normalize")],
  "0_Transformer/sentence_bert_config.json": {"max_seq_length": 11, "do_lower_case": True},
  "1_Pooling/config.json": POOLING,
  "2_Dense/config.json": DENSE,
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> Path:
  root, config = tmp_path_factory.mktemp("library") / "x", small_config(spm_model)
  write_hub(root / "0_Transformer", config, random_weights(config, seed=3), spm_model)
  for name, values in FILES.items():
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(json.dumps(values))
  save_file(WEIGHTS, root / "2_Dense" / "model.safetensors")
  return root


@pytest.mark.thorough
def test_vectors_are_those_of_numpy_and_of_the_export(directory: Path, tmp_path: Path) -> None:
  vectors = albert.encode(TEXTS, directory)
  tokenizer = albert.Tokenizer.from_pretrained(directory)
  assert tokenizer.config.do_lower_case  # tokenizer_config.json says false
  states = albert.Encoder.from_pretrained(directory)(tokenizer(TEXTS, max_length=11)).sequence_output.numpy()
  lengths = [min(len(tokenizer.encode(text)) + 2, 11) for text in TEXTS]
  for vector, x, n in zip(vectors, states.astype(np.float64), lengths, strict=True):
    pooled = np.concatenate([x[0], x[:n].max(axis=0), x[:n].sum(axis=0) / np.sqrt(n)])
    expected = np.tanh(WEIGHTS["linear.weight"] @ pooled)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=2e-6)
  checkpoint = open_checkpoint(str(directory))
  model = ServedEmbeddings(checkpoint, select_form(checkpoint, "embeddings", {}))
  served = model.answer_texts(**{model.fields[0].name: tf.constant(TEXTS)})
  np.testing.assert_allclose(served["sentence_embedding"], vectors, atol=2e-6)
  assert model.sentence_vectors is not None
  signature = [tf.TensorSpec([None, None, 24]), tf.TensorSpec([None, None], tf.int32)]
  graph = tf.function(model.sentence_vectors.compute, input_signature=signature).get_concrete_function().graph
  assert {operation.type for operation in graph.get_operations()} <= ALLOWED_OPS
  np.testing.assert_allclose(served["mean"], albert.encode(TEXTS, directory, pooling="mean"), atol=2e-6)
  convert(str(directory), str(tmp_path / "x"), "sentence_transformers")
  np.testing.assert_allclose(albert.encode(TEXTS, tmp_path / "x"), vectors, atol=2e-6)


@pytest.mark.parametrize(
  ("name", "values", "error"),
  [
    ("modules.json", [*FILES["modules.json"][:2], {"path": "x", "type": "my.Dense"}], "Pooling, my.Dense, which this"),
    ("modules.json", FILES["modules.json"][:1], "the parts are Transformer, which this project does not follow"),
    ("modules.json", {"path": "0_Transformer"}, "is no list of parts"),
    ("1_Pooling/config.json", {"pooling_mode": ["mean", "lasttoken"]}, "pooling_mode is 'lasttoken'"),
    ("2_Dense/config.json", {**DENSE, "use_residual": True}, "use_residual is true"),
    ("2_Dense/config.json", {"activation_function": "my.Code"}, "activation_function is 'my.Code'"),
    ("0_Transformer/sentence_bert_config.json", {"config_args": {"a": 1}}, "config_args is "),
    ("config_sentence_transformers.json", {"prompts": {"q": "Q: "}, "default_prompt_name": "q"}, "default_prompt_name"),
  ],
)
def test_what_is_refused(directory: Path, name: str, values: Any, error: str) -> None:
  file = directory / name
  before = file.read_text() if file.exists() else "{}"
  file.write_text(json.dumps(values))
  with pytest.raises(UserError, match=re.escape(error)):
    albert.encode(TEXTS, directory)
  file.write_text(before)
