"""The process of one engine: `python worker.py LOADER MODEL BATCHES THREADS`.

It loads the model with the function LOADER of this file, computes its first answer, and prints a line of JSON with the
seconds that this took. For each line "CALLS NAME OF THE BATCH" of standard input it computes the batch so many times,
and prints the measurements and the answers. It imports only NumPy and its engine, as a program that serves a model
does.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_START = time.perf_counter()

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine  # noqa: E402

Batch = dict[str, np.ndarray]
# Computes the probabilities of the classes, [B, C], of a batch.
Runner = Callable[[Batch], np.ndarray]
# Seconds since the start of this process when the imports of the engine had ended.
_imported = 0.0


def _imports_ended() -> None:
  """Records that the engine is imported. Each loader calls it once."""
  global _imported  # noqa: PLW0603
  _imported = time.perf_counter() - _START


def load_saved_model(directory: str, threads: int) -> Runner:
  """Loads a SavedModel, whose signature `tokens` is called."""
  import tensorflow as tf
  import tensorflow_text  # noqa: F401

  if threads:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
  _imports_ended()
  model = tf.saved_model.load(directory)

  def run(batch: Batch) -> np.ndarray:
    answers = model.signatures["tokens"](**{name: tf.constant(values) for name, values in batch.items()})
    return np.asarray(answers["probabilities"])

  return run


def load_onnxruntime(path: str, threads: int) -> Runner:
  """Loads an ONNX file in ONNX Runtime."""
  import onnxruntime

  _imports_ended()
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = threads
  session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
  return lambda batch: np.asarray(session.run(["probabilities"], batch)[0])


def load_openvino(path: str, threads: int) -> Runner:
  """Loads an ONNX or an OpenVINO file in OpenVINO, with its settings for the latency of single requests."""
  import openvino

  _imports_ended()
  # Without the second hint OpenVINO computes in bfloat16 on processors that have instructions for it.
  settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
  if threads:
    settings["INFERENCE_NUM_THREADS"] = threads
  model = openvino.Core().compile_model(path, "CPU", settings)
  return lambda batch: np.array(model(batch)["probabilities"])


def load_torch(directory: str, threads: int, *, dtype: str = "float32", is_compiled: bool = False) -> Runner:
  """Loads transformers' AlbertForSequenceClassification, with torch's fused attention."""
  import torch
  import transformers

  if threads:
    torch.set_num_threads(threads)
  _imports_ended()
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  model = transformers.AlbertForSequenceClassification.from_pretrained(
    directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
  ).eval()
  compute = torch.compile(model, dynamic=True) if is_compiled else model

  def run(batch: Batch) -> np.ndarray:
    tensors = {name: torch.from_numpy(values.astype(np.int64)) for name, values in batch.items()}
    with torch.inference_mode():
      logits = compute(
        input_ids=tensors["input_ids"], attention_mask=tensors["input_mask"], token_type_ids=tensors["segment_ids"]
      ).logits
      return np.asarray(logits.float().softmax(-1))

  return run


def load_torch_bfloat16(directory: str, threads: int) -> Runner:
  """Loads the same model in bfloat16."""
  return load_torch(directory, threads, dtype="bfloat16")


def load_torch_compile(directory: str, threads: int) -> Runner:
  """Loads the same model with torch.compile, for batches of any shape."""
  return load_torch(directory, threads, is_compiled=True)


def _load_batches(path: str) -> dict[str, Batch]:
  """Reads the file that registry.save_batches has written."""
  batches: dict[str, Batch] = {}
  with np.load(path) as arrays:
    for key in arrays.files:
      name, _, feature = key.partition("/")
      batches.setdefault(name, {})[feature] = arrays[key]
  return batches


def _processor_seconds() -> float:
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return usage.ru_utime + usage.ru_stime


def main() -> None:
  """Loads the model and answers requests."""
  loader, path, batches_path, threads = sys.argv[1:]
  # Libraries may print to standard output. That goes to standard error.
  answers_file = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)
  batches = _load_batches(batches_path)

  def answer(values: dict[str, Any]) -> None:
    print(json.dumps(values), file=answers_file, flush=True)

  run: Runner = globals()[loader](path, int(threads))
  run(next(iter(batches.values())))
  answer({"import": _imported, "load": time.perf_counter() - _START - _imported})
  for line in sys.stdin:
    calls, _, name = line.strip().partition(" ")
    processor_start, start = _processor_seconds(), time.perf_counter()
    for _ in range(int(calls)):
      probabilities = run(batches[name])
    seconds = (time.perf_counter() - start) / int(calls)
    processor = (_processor_seconds() - processor_start) / int(calls)
    answer(
      {
        "seconds": seconds,
        "processor": processor,
        "memory": machine.memory(),
        "probabilities": probabilities.tolist(),
      }
    )


if __name__ == "__main__":
  main()
