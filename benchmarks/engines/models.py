"""Writes the models of bench_engines.py: one classifier with random weights in the formats of all engines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from albert.config.model import ModelConfig
from albert.export.registry import ONNX as ONNX_FORMAT
from benchmarks.engines import registry
from benchmarks.engines.registry import Engine

_OPENVINO_SCRIPT = Path(__file__).with_name("quantize_openvino.py")
# With it the random weights of the dense layers are about as large as those of a trained model.
_KERNEL_SCALE = 0.2


def write_models(
  directory: Path, config: ModelConfig, engines: Collection[Engine], batches_file: Path, time_limit: float
) -> dict[str, str]:
  """Writes a checkpoint and the models that the engines need.

  Args:
    directory: where the models are written.
    config: the model's config.
    engines: the engines.
    batches_file: a file that registry.save_batches has written, from which OpenVINO takes the ranges of activations.
    time_limit: seconds for the conversion for OpenVINO.
  Returns: path of each model that could not be written -> the reason.
  """
  from albert.export.checkpoint import find_checkpoint
  from albert.export.export_model import export_model  # imports TensorFlow

  needed = {engine.model for engine in engines}
  prefix, vocabulary = _write_checkpoint(directory / "checkpoint", config)
  for model in (registry.SAVED_MODEL, registry.SAVED_MODEL_BFLOAT16):
    if model == registry.SAVED_MODEL or model in needed:
      precision = Path(model).parent.name
      is_onnx = precision == "float32" and any("tf2onnx" in engine.packages for engine in engines)
      settings = {"task_name": "SST-2", "max_seq_length": config.max_position_embeddings}
      export_model(
        find_checkpoint(prefix, spm_model_file=vocabulary),
        str(directory / "models"),
        task="classifier",
        name=precision,
        precision=precision,
        settings=settings,
        formats=(ONNX_FORMAT,) if is_onnx else (),
      )
  source = directory / registry.ONNX
  writers: dict[str, Callable[[Path], None]] = {
    registry.TRANSFORMERS: lambda path: _write_transformers(prefix, path, vocabulary),
    registry.ONNX_INT8: lambda path: _quantize_onnx(source, path, config),
    registry.OPENVINO_INT8: lambda path: _quantize_openvino(source, path, batches_file, time_limit),
  }
  failures = {}
  for model, write in writers.items():
    if model in needed:
      try:
        write(directory / model)
      except Exception as error:  # another engine can still be measured
        failures[model] = f"no model: {' '.join(str(error).split())[-160:] or type(error).__name__}"
  return failures


def size_on_disk(path: Path) -> int:
  """The bytes of a model: of a directory all files but those of other formats, of a file its own and its weights'."""
  if path.is_file():
    return sum(part.stat().st_size for part in {path, path.with_suffix(".bin")} if part.exists())
  if (path / "saved_model.pb").exists():
    parts = [path / "saved_model.pb", *(path / "variables").iterdir(), *(path / "assets").iterdir()]
  else:
    parts = [part for part in path.rglob("*") if part.is_file()]
  return sum(part.stat().st_size for part in parts)


def _write_checkpoint(directory: Path, config: ModelConfig) -> tuple[str, str]:
  """Writes a checkpoint of random weights and a vocabulary. Returns their paths."""
  from albert.weights.checkpoints import write_bundle
  from tests.conftest import english_like_documents, train_small_model
  from tests.golden.make_tiny_albert import random_weights

  directory.mkdir()
  lines = [line.lower() for document in english_like_documents(300) for line in document]
  vocabulary = train_small_model(directory / "spiece.model", lines, hard_vocab_limit=False)
  weights = random_weights(config, 1, with_heads=("classifier",), num_classes=2)
  for name in weights:
    if name.endswith("kernel"):
      weights[name] *= _KERNEL_SCALE
  write_bundle(str(directory / "weights"), weights)
  (directory / "albert_config.json").write_text(json.dumps(config.to_dict()))
  return str(directory / "weights"), vocabulary


def _write_transformers(prefix: str, path: Path, vocabulary: str) -> None:
  from albert.convert.convert_checkpoint import convert

  convert(prefix, str(path), "huggingface", spm_model_file=vocabulary)


def _quantize_onnx(source: Path, target: Path, config: ModelConfig) -> None:
  """Quantizes an ONNX file to int8, as `--formats=onnx_int8` does."""
  from albert.export.other_formats import quantize_onnx

  target.write_bytes(quantize_onnx(source.read_bytes(), config.hidden_size**2))


def _quantize_openvino(source: Path, target: Path, batches_file: Path, time_limit: float) -> None:
  """Quantizes an ONNX file to int8 with nncf, in a process of its own."""
  command = [sys.executable, str(_OPENVINO_SCRIPT), str(source), str(target), str(batches_file)]
  result = subprocess.run(command, capture_output=True, text=True, timeout=time_limit, check=False)
  if result.returncode:
    raise RuntimeError((result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1])
