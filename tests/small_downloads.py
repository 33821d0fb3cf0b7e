"""Writes small random weights in the formats of pretrained weights: Google's, Hugging Face's, and a run's checkpoint.

The tests of Encoder.from_pretrained read them, and so do the examples in docs/.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import sentencepiece

from albert.config.model import ModelConfig
from albert.weights.checkpoints import CheckpointManager, write_bundle
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface
from tests.golden.make_tiny_albert import random_weights

STEP = 7  # of the checkpoint that `write_run` saves


def small_config(vocabulary: str, **changes: object) -> ModelConfig:
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=vocabulary).get_piece_size()
  sizes = {"vocab_size": vocab_size, "embedding_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
           "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 48}  # fmt: skip
  return ModelConfig(**(sizes | changes))  # type: ignore[arg-type]


def write_google(directory: Path, config: ModelConfig, weights: dict[str, np.ndarray], vocabulary: str) -> str:
  """Writes the files of one of Google's archives, unpacked. Returns the directory."""
  directory.mkdir(parents=True)
  (directory / "albert_config.json").write_text(json.dumps(config.to_dict()))
  shutil.copyfile(vocabulary, directory / "30k-clean.model")
  write_bundle(str(directory / "model.ckpt-best"), weights)
  return str(directory)


def write_hub(directory: Path, config: ModelConfig, weights: dict[str, np.ndarray], vocabulary: str) -> str:
  """Writes the files of a model on Hugging Face. Returns the directory."""
  write_huggingface(directory, config, huggingface_tensors(weights))
  shutil.copyfile(vocabulary, directory / "spiece.model")
  (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
  return str(directory)


def write_run(directory: Path, config: ModelConfig, weights: dict[str, np.ndarray], vocabulary: str) -> str:
  """Writes the output_dir of a pretraining run that has saved one checkpoint. Returns the directory."""
  directory.mkdir(parents=True)
  shutil.copyfile(vocabulary, directory / "spiece.model")
  run_config = {"task": "pretraining", "data": {"do_lower_case": False, "convert_quotes": True}}
  (directory / "config.json").write_text(json.dumps(run_config))
  CheckpointManager(str(directory / "checkpoints"), keep=1, model_config=config).save(STEP, weights)
  return str(directory)


def write_downloads(directory: Path, vocabulary: str) -> None:
  """Writes downloads/albert_base, downloads/albert_base_hf and pretraining_run, all with the same weights."""
  config = small_config(vocabulary)
  weights = random_weights(config, seed=3)
  write_google(directory / "downloads" / "albert_base", config, weights, vocabulary)
  write_hub(directory / "downloads" / "albert_base_hf", config, weights, vocabulary)
  write_run(directory / "pretraining_run", config, weights, vocabulary)
