"""Quantizes a model to int8 with nncf: `python quantize_openvino.py MODEL.onnx MODEL.xml BATCHES`.

The ranges of the activations are those for the batches, a file that registry.save_batches has written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nncf
import numpy as np
import openvino


def main() -> None:
  """Reads, quantizes and writes the model."""
  source, target, batches_path = sys.argv[1:]
  with np.load(batches_path) as arrays:
    names = dict.fromkeys(key.partition("/")[0] for key in arrays.files)
    batches = [
      {key.partition("/")[2]: arrays[key] for key in arrays.files if key.startswith(f"{name}/")} for name in names
    ]
  model = openvino.Core().read_model(source)
  quantized = nncf.quantize(model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER)
  Path(target).parent.mkdir()
  openvino.save_model(quantized, target)


if __name__ == "__main__":
  main()
