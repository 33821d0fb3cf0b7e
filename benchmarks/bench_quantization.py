"""Compares ways to quantize an ONNX model to int8: the task's metric, the change of the answers, size and latency.

python benchmarks/bench_quantization.py --checkpoint=run --eval_file=dev.json

The package onnx-ir is needed for the last two rows: pip install onnx-ir.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

from albert.export import other_formats
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.checks import Candidate, QualityCheck
from albert.export.served_model import portable_function

# Name of a way -> a function from the float32 model to the quantized one.
Quantizer = Callable[[onnx.ModelProto], bytes]


def _dynamic(**options: Any) -> Quantizer:
  def quantize(model: onnx.ModelProto) -> bytes:
    add_pre_process_metadata(model)
    with tempfile.TemporaryDirectory() as directory:
      path = os.path.join(directory, "model.onnx")
      quantize_dynamic(model, path, **options)
      with open(path, "rb") as file:
        return file.read()

  return quantize


def _blocks(accuracy_level: int | None) -> Quantizer:
  """8-bit blocks of 32 weights; with accuracy level 4, activations are quantized in blocks, too."""

  def quantize(model: onnx.ModelProto) -> bytes:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, accuracy_level=accuracy_level, bits=8)
    quantizer = MatMulNBitsQuantizer(model, algo_config=config)
    quantizer.process()
    result = quantizer.model
    return bytes(getattr(result, "model", result).SerializeToString())

  return quantize


def _matmul_names(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
  """Name of each MatMul with constant weights -> their shape."""
  shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
  return {
    node.name: shapes[node.input[1]]
    for node in model.graph.node
    if node.op_type == "MatMul" and node.input[1] in shapes
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--checkpoint", required=True)
  parser.add_argument("--eval_file", required=True)
  parser.add_argument("--task", default="")
  arguments = parser.parse_args()
  checkpoint = open_checkpoint(arguments.checkpoint)
  form = select_form(checkpoint, arguments.task, {})
  check = QualityCheck(form, checkpoint, arguments.eval_file, np.inf)
  model = form.model_class(checkpoint, form)
  content = other_formats.convert_to_onnx(portable_function(model))
  nodes = _matmul_names(onnx.load_from_string(content))
  print({shape: list(nodes.values()).count(shape) for shape in nodes.values()})
  matmul = {"op_types_to_quantize": ["MatMul"]}
  channels = matmul | {"per_channel": True}
  safe = channels | {"reduce_range": True}
  hidden = checkpoint.config.hidden_size
  quantizers: dict[str, Quantizer] = {
    "--formats=onnx_int8": lambda model: other_formats.quantize_onnx(model.SerializeToString(), hidden * hidden),
    "library's defaults (all operations, per tensor)": _dynamic(),
    "MatMul, per tensor": _dynamic(**matmul),
    "MatMul, per channel": _dynamic(**channels),
    "MatMul, per tensor, 7 bits": _dynamic(**matmul, reduce_range=True),
    "MatMul, per channel, 7 bits": _dynamic(**safe),
    "MatMul, per channel, unsigned": _dynamic(**channels, weight_type=QuantType.QUInt8),
    "MatMul and embeddings, per channel, 7 bits": _dynamic(**safe | {"op_types_to_quantize": ["MatMul", "Gather"]}),
    "MatMul, blocks of 32": _blocks(None),
    "MatMul and activations, blocks of 32": _blocks(4),
  }
  small = [name for name, (rows, columns) in nodes.items() if rows * columns < hidden * hidden]
  quantizers["per channel, 7 bits, without matrices below H x H"] = _dynamic(**safe, nodes_to_exclude=small)
  embeddings = safe | {"op_types_to_quantize": ["MatMul", "Gather"]}
  quantizers["the same and the embeddings"] = _dynamic(**embeddings, nodes_to_exclude=small)
  for shape in dict.fromkeys(nodes.values()):
    excluded = [name for name, other in nodes.items() if other == shape]
    quantizers[f"per channel, 7 bits, without {shape}"] = _dynamic(**safe, nodes_to_exclude=excluded)
  candidates = [Candidate("float32", len(content), other_formats.onnx_runner(content))]
  for name, quantize in quantizers.items():
    try:
      quantized = quantize(onnx.load_from_string(content))
      candidates.append(Candidate(name, len(quantized), other_formats.onnx_runner(quantized)))
    except Exception as error:
      print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
  inputs = [check.model_inputs(batch) for batch in check.batches()][:20]
  expected = [candidates[0].run(batch) for batch in inputs]
  report = check.measure(candidates)
  print(f"| way | {' | '.join(report['metric_names'])} | mean change of the answers | MB | ms |")
  print("|---|" + "---|" * (len(report["metric_names"]) + 3))
  for candidate, quality in zip(candidates, report["models"], strict=True):
    changes = [
      np.abs(values - batch[name]).mean()
      for batch, answers in zip(expected, map(candidate.run, inputs), strict=True)
      for name, values in answers.items()
      if values.dtype.kind == "f"
    ]
    metrics = " | ".join(f"{value:.4f}" for value in quality["metrics"].values())
    cells = [quality["name"], metrics, f"{np.mean(changes):.5f}", f"{quality['num_bytes'] / 1e6:.2f}"]
    print(f"| {' | '.join(cells)} | {quality['latency_ms']:.2f} |")


if __name__ == "__main__":
  main()
