"""Writes weights in every format that can be read, for the tests of reading and converting them.

It uses none of the code that is tested, except for the table of names (albert.weights.names).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

from albert.config.model import ModelConfig
from albert.weights.names import to_huggingface
from tests.golden import make_tiny_albert

CONFIG = dataclasses.replace(make_tiny_albert.CONFIG, vocab_size=41, max_position_embeddings=14)


def original_tensors(weights: dict[str, np.ndarray], name_prefix: str = "") -> dict[str, np.ndarray]:
  """Returns the tensors in a checkpoint of the original code: the weights, an optimizer slot for each, and the step."""
  slots = {f"{name}/adam_m": np.zeros_like(weight) for name, weight in weights.items()}
  tensors = {f"{name_prefix}{name}": tensor for name, tensor in (weights | slots).items()}
  return tensors | {"global_step": np.array(7, np.int64)}


def write_tf1(directory: Path, config: ModelConfig, weights: dict[str, np.ndarray], name_prefix: str = "") -> str:
  """Writes a checkpoint of the original code, as TensorFlow 1's Saver does. Returns the beginning of its files' paths.

  It calls the Saver's operation directly, because a session that initializes the variables takes most of a second.
  """
  directory.mkdir(parents=True, exist_ok=True)
  (directory / "albert_config.json").write_text(json.dumps(config.to_dict() | {"net_structure_type": 0}))
  path = str(directory / "model.ckpt-7")
  tensors = original_tensors(weights, name_prefix)
  names = sorted(tensors)
  constants = [tf.constant(tensors[name]) for name in names]
  tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), tensors=constants)
  tf.compat.v1.train.update_checkpoint_state(str(directory), path)
  return path


def write_tf1_with_saver(directory: Path, tensors: dict[str, np.ndarray]) -> str:
  """Writes a checkpoint with TensorFlow 1's Saver in a session. Returns the beginning of its files' paths."""
  directory.mkdir(parents=True, exist_ok=True)
  graph = tf.Graph()
  with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
    variables = {name: tf.compat.v1.Variable(tensor) for name, tensor in tensors.items()}
    session.run(tf.compat.v1.global_variables_initializer())
    return tf.compat.v1.train.Saver(variables).save(session, str(directory / "model.ckpt-7"), write_meta_graph=False)


def huggingface_tensors(weights: dict[str, np.ndarray], *, with_prefix: bool = True) -> dict[str, np.ndarray]:
  """Returns the weights under the names of transformers, with or without the prefix `albert.`."""
  tensors = {}
  for name, weight in weights.items():
    translated = to_huggingface(name)
    assert translated is not None
    tensor_name = translated.name if with_prefix else translated.name.removeprefix("albert.")
    tensors[tensor_name] = np.ascontiguousarray(weight.T) if translated.is_transposed else weight
  return tensors


def without_pooler(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the weights that AlbertForMaskedLM, AlbertForQuestionAnswering and AlbertForTokenClassification have."""
  return {name: weight for name, weight in weights.items() if not name.startswith("bert/pooler/")}


def huggingface_config(config: ModelConfig) -> dict[str, object]:
  fields = config.to_dict()
  del fields["sharing"]
  return fields | {"model_type": "albert", "hidden_act": "gelu_new", "layer_norm_eps": 1e-12}


def write_huggingface(directory: Path, config: ModelConfig, tensors: dict[str, np.ndarray], **keys: object) -> str:
  """Writes model.safetensors and config.json to a directory, and returns its path. `keys` are added to config.json."""
  directory.mkdir(parents=True, exist_ok=True)
  save_file(tensors, str(directory / "model.safetensors"))
  (directory / "config.json").write_text(json.dumps(huggingface_config(config) | keys))
  return str(directory)
