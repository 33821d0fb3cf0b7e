"""An ONNX file holds a weight once that the graph uses as it is and transposed, and gives the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.export import other_formats
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.other_formats import share_transposed_weights
from albert.export.served_model import portable_function, text_inputs, token_inputs
from tests.export.pipelines import FORMS, write_run

pytestmark = pytest.mark.serving

ROWS, COLUMNS = 130, 140  # of a weight that is large enough to be shared


def make_model(weights: dict[str, np.ndarray], nodes: list[tuple[str, list[str], str]], rank: int = 2) -> Any:
  """Makes an ONNX model. Every node gives an output of the model.

  Args:
    weights: the weights by name.
    nodes: operation, names of the inputs and name of the output of each node. The inputs are weights, outputs of other
      nodes, `ids` (int64 [2]) or `x` (float32 of rank `rank`).
    rank: rank of `x`.
  """
  from onnx import TensorProto, helper, numpy_helper

  inputs = [
    helper.make_tensor_value_info("ids", TensorProto.INT64, [2]),
    helper.make_tensor_value_info("x_in", TensorProto.FLOAT, [3] * (rank - 1) + [COLUMNS]),
  ]
  all_nodes = [("Neg", ["x_in"], "x"), *nodes]
  outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for _, _, name in nodes]
  graph = helper.make_graph(
    [helper.make_node(operation, names, [output]) for operation, names, output in all_nodes],
    "graph",
    inputs,
    outputs,
    [numpy_helper.from_array(weight, name) for name, weight in weights.items()],
  )
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: Any, rank: int = 2) -> list[np.ndarray]:
  """The outputs of a model, in ONNX Runtime."""
  import onnxruntime

  x = np.random.default_rng(1).normal(size=[3] * (rank - 1) + [COLUMNS]).astype(np.float32)
  session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  return list(session.run(None, {"ids": np.array([4, ROWS - 1]), "x_in": x}))


def random_weight(seed: int) -> np.ndarray:
  """A weight [ROWS, COLUMNS]."""
  return np.random.default_rng(seed).normal(size=(ROWS, COLUMNS)).astype(np.float32)


LOOK_UP_AND_MULTIPLY = [("Gather", ["table", "ids"], "rows"), ("MatMul", ["x", "transposed"], "logits")]


@pytest.mark.parametrize("order", [["table", "transposed"], ["transposed", "table"]])
def test_a_transposed_copy_is_removed(order: list[str]) -> None:
  weight = random_weight(0)
  weights = {"table": weight, "transposed": np.ascontiguousarray(weight.T)}
  model = make_model({name: weights[name] for name in order}, LOOK_UP_AND_MULTIPLY)
  expected = run(model)
  assert share_transposed_weights(model) == 1
  assert [tensor.name for tensor in model.graph.initializer] == ["table"]
  for values, expected_values in zip(run(model), expected, strict=True):
    np.testing.assert_allclose(values, expected_values, rtol=1e-5, atol=1e-5)


def test_of_two_weights_that_are_only_multiplied_one_is_kept() -> None:
  weight = random_weight(0)
  weights = {"transposed": np.ascontiguousarray(weight.T), "table": weight}
  nodes = [("MatMul", ["x", "transposed"], "logits"), ("MatMul", ["logits", "table"], "back")]
  model = make_model(weights, nodes)
  expected = run(model)
  assert share_transposed_weights(model) == 1
  for values, expected_values in zip(run(model), expected, strict=True):
    np.testing.assert_allclose(values, expected_values, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
  ("transposed", "nodes", "rank"),
  [
    (random_weight(1).T, LOOK_UP_AND_MULTIPLY, 2),  # another weight of the same shape
    (random_weight(0).T, LOOK_UP_AND_MULTIPLY, 3),
    (random_weight(0).T, [*LOOK_UP_AND_MULTIPLY, ("Gather", ["transposed", "ids"], "columns")], 2),
  ],
)
def test_other_graphs_are_left_alone(
  transposed: np.ndarray, nodes: list[tuple[str, list[str], str]], rank: int
) -> None:
  weights = {"table": random_weight(0), "transposed": np.ascontiguousarray(transposed)}
  model = make_model(weights, nodes, rank)
  before = model.SerializeToString()
  assert share_transposed_weights(model) == 0
  assert model.SerializeToString() == before


def test_fill_mask_holds_the_word_embeddings_once(tmp_path: Path, spm_model: str) -> None:
  checkpoint = open_checkpoint(write_run(tmp_path / "run", FORMS["fill_mask"], spm_model, embedding_size=64).directory)
  form = select_form(checkpoint, "fill_mask", {})
  model = form.model_class(checkpoint, form.settings)
  function = portable_function(model)
  content_before = other_formats.convert_to_onnx(function)
  content = other_formats.share_weights(content_before)
  num_bytes = 4 * checkpoint.config.vocab_size * checkpoint.config.embedding_size  # of float32
  assert num_bytes == pytest.approx(len(content_before) - len(content), abs=500)  # besides names and operations
  inputs = token_inputs(model, text_inputs(model.fields, model.examples()))
  answers, expected = (other_formats.onnx_runner(onnx)(inputs) for onnx in (content, content_before))
  assert answers["ids"].tolist() == expected["ids"].tolist()
  np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-6)
