"""The engines that bench_engines.py compares, and the batches that they compute."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping

import numpy as np

from benchmarks.machine import ONEDNN_VARIABLE

# Files and directories of the models, in one temporary directory.
SAVED_MODEL, SAVED_MODEL_BFLOAT16 = "models/float32/1", "models/bfloat16/1"
ONNX, ONNX_INT8 = "models/float32/1/model.onnx", "model_int8.onnx"
OPENVINO_INT8, TRANSFORMERS = "openvino_int8/model.xml", "huggingface"

# If this variable is 1, oneDNN's kernels assume that the weights never change, and may store them in a layout of their
# own.
FROZEN_WEIGHTS_VARIABLE = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"

# Names of the batches.
ONE_16, ONE_128, ONE_512, EIGHT_128, MIXED = "1 x 16", "1 x 128", "1 x 512", "8 x 128", "8 mixed"
# How often a batch is computed in each turn of an engine.
CALLS = {ONE_16: 10, ONE_128: 5, ONE_512: 2, EIGHT_128: 1, MIXED: 1}
_CLS_ID, _SEP_ID, _FIRST_WORD_ID = 2, 3, 5

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
  """A library with one of its settings.

  Attributes:
    title: its name in the tables.
    loader: the function of worker.py that loads its model.
    model: the model's path in the directory of the models.
    packages: the modules that it needs, by the name of the package to install.
    environment: environment variables of its process.
    is_approximate: whether the answers may differ by more than TOLERANCE from the SavedModel's.
  """

  title: str
  loader: str
  model: str
  packages: Mapping[str, str]
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  is_approximate: bool = False

  def missing_packages(self) -> list[str]:
    """The packages that are not installed."""
    return [package for package, module in self.packages.items() if not importlib.util.find_spec(module)]


_TENSORFLOW = {"tensorflow": "tensorflow", "tensorflow-text": "tensorflow_text"}
_ONNX_EXPORT = {"tf2onnx": "tf2onnx", "onnxruntime": "onnxruntime"}  # the export runs what it has converted
_OPENVINO = {**_ONNX_EXPORT, "openvino": "openvino"}
_TORCH = {"torch": "torch", "transformers": "transformers"}

REFERENCE = "saved_model"
ENGINES = {
  REFERENCE: Engine(
    title="SavedModel",
    loader="load_saved_model",
    model=SAVED_MODEL,
    packages=_TENSORFLOW,
    environment={ONEDNN_VARIABLE: "0"},
  ),
  "saved_model_onednn": Engine(
    title="SavedModel, oneDNN",
    loader="load_saved_model",
    model=SAVED_MODEL,
    packages=_TENSORFLOW,
    environment={ONEDNN_VARIABLE: "1"},
  ),
  "saved_model_frozen": Engine(
    title="SavedModel, oneDNN, frozen weights",
    loader="load_saved_model",
    model=SAVED_MODEL,
    packages=_TENSORFLOW,
    environment={ONEDNN_VARIABLE: "1", FROZEN_WEIGHTS_VARIABLE: "1"},
  ),
  "onnxruntime": Engine(title="ONNX Runtime", loader="load_onnxruntime", model=ONNX, packages=_ONNX_EXPORT),
  "onnxruntime_int8": Engine(
    title="ONNX Runtime, int8",
    loader="load_onnxruntime",
    model=ONNX_INT8,
    packages={**_ONNX_EXPORT, "onnx": "onnx"},
    is_approximate=True,
  ),
  "openvino": Engine(title="OpenVINO", loader="load_openvino", model=ONNX, packages=_OPENVINO),
  "openvino_int8": Engine(
    title="OpenVINO, int8",
    loader="load_openvino",
    model=OPENVINO_INT8,
    packages={**_OPENVINO, "nncf": "nncf"},
    is_approximate=True,
  ),
  "torch": Engine(title="transformers on torch", loader="load_torch", model=TRANSFORMERS, packages=_TORCH),
  "torch_compile": Engine(
    title="transformers, torch.compile", loader="load_torch_compile", model=TRANSFORMERS, packages=_TORCH
  ),
  "saved_model_bfloat16": Engine(
    title="SavedModel, bfloat16",
    loader="load_saved_model",
    model=SAVED_MODEL_BFLOAT16,
    packages=_TENSORFLOW,
    is_approximate=True,
  ),
  "torch_bfloat16": Engine(
    title="transformers on torch, bfloat16",
    loader="load_torch_bfloat16",
    model=TRANSFORMERS,
    packages=_TORCH,
    is_approximate=True,
  ),
}
# bfloat16 is slow on processors without instructions for it.
DEFAULT_ENGINES = [name for name in ENGINES if not name.endswith("bfloat16")]


def make_batches(vocab_size: int) -> dict[str, Batch]:
  """Makes the batches, always the same ones.

  Args:
    vocab_size: the size of the vocabulary.
  Returns: for each key of CALLS input_ids, input_mask and segment_ids, int32 [B, S].
  """
  rng = np.random.default_rng(1)
  mixed_lengths = np.exp(rng.normal(np.log(64), 0.8, 8)).astype(int).tolist()  # 22 to 132
  lengths_by_batch: dict[str, list[int]] = {
    ONE_16: [16],
    ONE_128: [128],
    ONE_512: [512],
    EIGHT_128: [128] * 8,
    MIXED: mixed_lengths,
  }
  batches = {}
  for name, lengths in lengths_by_batch.items():
    ids = np.zeros([len(lengths), max(lengths)], np.int32)
    for row, length in zip(ids, lengths, strict=True):
      row[:length] = [_CLS_ID, *rng.integers(_FIRST_WORD_ID, vocab_size, length - 2), _SEP_ID]
    batches[name] = {
      "input_ids": ids,
      "input_mask": (ids > 0).astype(np.int32),
      "segment_ids": np.zeros_like(ids),
    }
  return batches


def save_batches(path: str, batches: Mapping[str, Batch]) -> None:
  """Writes batches to an .npz file, which worker.py reads."""
  arrays = {f"{name}/{feature}": array for name, batch in batches.items() for feature, array in batch.items()}
  np.savez(path, allow_pickle=False, **arrays)
