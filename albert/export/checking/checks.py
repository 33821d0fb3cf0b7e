"""Checks a model before its export is finished: runs it on its example requests and on edge cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data.shard_files.schema import INPUT_IDS, INPUT_MASK
from albert.errors import RunError
from albert.export.companion_files.description import NamedArrays
from albert.export.formats import TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.served_model import ServedModel
from albert.export.signatures import text_inputs

# B rows, S sequence.

# Name of the batch that holds all examples.
EXAMPLE_BATCH = "the examples"
# At most this many sequences of the examples are also run one at a time. A long SQuAD context has many sequences.
_MAX_SINGLE_SEQUENCES = 3


def id_test_batches(model: ServedModel, examples: NamedArrays) -> dict[str, NamedArrays]:
  """Makes batches of ids to run a model on: its examples and edge cases.

  Args:
    model: the model.
    examples: input_ids, input_mask and segment_ids of its examples, int32 [B, S] or [B, K, S].
  Returns: the batches. Each key describes its batch in an error message. The first batch, EXAMPLE_BATCH, holds the
    examples themselves.
  """
  max_length = model.max_positions
  batches = {EXAMPLE_BATCH: examples}
  for row in range(min(len(examples[INPUT_IDS]), _MAX_SINGLE_SEQUENCES)):
    single = {name: values[row : row + 1] for name, values in examples.items()}
    batches[f"example {row + 1} alone"] = _trim_padding(single)
  special_ids = model.tokenizer.special_ids
  is_mask = examples[INPUT_IDS] == special_ids.mask
  if np.any(is_mask):
    ids = np.where(is_mask, np.int32(special_ids.unk), examples[INPUT_IDS])
    batches["texts without [MASK]"] = {**examples, INPUT_IDS: ids}
  batches["an empty batch"] = {name: values[:0] for name, values in examples.items()}
  mask = examples[INPUT_MASK].copy()
  mask[0] = 0
  batches["a row of padding alone"] = {**examples, INPUT_MASK: mask}
  batches["a single token"] = {name: values[:1, ..., :1] for name, values in examples.items()}
  batches[f"a sequence of {max_length} tokens"] = _repeat_first_sequence(examples, max_length)
  # Only real tokens count toward the limit of the model: padding may go beyond it.
  num_padding = max(max_length + 1 - examples[INPUT_IDS].shape[-1], 1)
  batches[f"padding beyond {max_length} tokens"] = {
    name: _append_zeros(values, num_padding) for name, values in examples.items()
  }
  return batches


def text_test_batches(model: ServedModel) -> dict[str, NamedArrays]:
  """Makes batches of texts to run the signature serving_default on. In each request all fields hold the same text.

  Args:
    model: the model.
  Returns: edge cases. Each key describes its batch in an error message.
  """

  def make_batch(text: str) -> NamedArrays:
    request = {field.name: [text, text] if field.is_list else text for field in model.fields}
    return text_inputs(model.fields, [request])

  return {
    "an empty batch": {name: values[:0] for name, values in make_batch("a").items()},
    "empty texts": make_batch(""),
    "texts of one word": make_batch("a"),
    "texts that are too long for one sequence": make_batch("a " * model.max_seq_length),
  }


def _append_zeros(values: np.ndarray, count: int) -> np.ndarray:
  """Appends zeros to each sequence: [..., S] -> [..., S + count]."""
  no_padding = [(0, 0)] * (values.ndim - 1)
  return np.pad(values, [*no_padding, (0, count)])


def _trim_padding(example: NamedArrays) -> NamedArrays:
  """Cuts a batch of one example to the length of its longest sequence."""
  length = int(example[INPUT_MASK].sum(axis=-1).max())
  return {name: values[..., :length] for name, values in example.items()}


def _repeat_first_sequence(examples: NamedArrays, length: int) -> NamedArrays:
  """A batch of one sequence of `length` tokens, which repeats the tokens of the first example."""
  first = {name: values.reshape(-1, values.shape[-1])[:1] for name, values in examples.items()}
  shape = [1] * (examples[INPUT_IDS].ndim - 1) + [length]
  return {name: np.resize(values, shape) for name, values in _trim_padding(first).items()}


def run_test_batches(
  function: Any, batches: Mapping[str, NamedArrays], *, function_name: str
) -> dict[str, dict[str, np.ndarray]]:
  """Runs a function on batches and checks its answers.

  Args:
    function: maps inputs by name to answers by name (tensors or arrays).
    batches: inputs by the description of the batch, see id_test_batches and text_test_batches.
    function_name: the function, for error messages.
  Returns: the answers to each batch, by the description of the batch.
  Raises:
    RunError: the function fails, or an answer has a wrong number of rows or a number that is not finite.
  """
  answers_by_batch = {}
  for batch_name, inputs in batches.items():
    try:
      answers = {name: np.asarray(value) for name, value in function(inputs).items()}
    except Exception as error:
      reason = " ".join(str(error).split())[-300:]
      raise RunError(f"{function_name} fails for {batch_name}: {reason}") from error
    rows = len(next(iter(inputs.values())))
    for name, value in answers.items():
      if value.shape[:1] != (rows,):
        raise RunError(
          f"{function_name}: for {batch_name}, {name!r} has the shape {list(value.shape)} instead of {rows} rows"
        )
      if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise RunError(
          f"{function_name}: for {batch_name}, {name!r} is not finite; do the weights of the checkpoint hold NaN?"
        )
    answers_by_batch[batch_name] = answers
  return answers_by_batch


def check_signatures(
  functions: Mapping[str, Any], model: ServedModel, examples: Mapping[str, NamedArrays]
) -> dict[str, dict[str, np.ndarray]]:
  """Runs both signatures of a model on its examples and on the edge cases.

  Args:
    functions: the concrete function of each signature.
    model: the model.
    examples: signature -> the inputs of the examples.
  Returns: description of each batch of id_test_batches -> the answers of the signature `tokens`.
  Raises:
    RunError: see run_test_batches.
  """

  def call_with_tensors(signature: str) -> Any:
    function = functions[signature]
    return lambda inputs: function(**{name: tf.constant(values) for name, values in inputs.items()})

  texts = {EXAMPLE_BATCH: examples[TEXT_SIGNATURE]} | text_test_batches(model)
  run_test_batches(call_with_tensors(TEXT_SIGNATURE), texts, function_name=f"the signature {TEXT_SIGNATURE}")
  ids = id_test_batches(model, examples[TOKENS_SIGNATURE])
  return run_test_batches(call_with_tensors(TOKENS_SIGNATURE), ids, function_name=f"the signature {TOKENS_SIGNATURE}")


def largest_difference(answers: NamedArrays, expected: NamedArrays, *, exact: str = "") -> float:
  """The largest difference between two sets of answers: absolute for expected values up to 1, else relative.

  Args:
    answers: the numbers to check, by name.
    expected: the answers of the SavedModel, by name. Its texts are ignored.
    exact: name of an integer answer that must be equal; "" for none. Other integers are not compared: they are ranks or
      positions of candidates, which may change their order if their probabilities are almost the same.
  Returns: the difference; infinity if a name, a shape or the exact answer differs; NaN if a number is NaN.
  """
  expected_numbers = {name: value for name, value in expected.items() if value.dtype.kind in "fi"}
  expected_shapes = {name: value.shape for name, value in expected_numbers.items()}
  if {name: value.shape for name, value in answers.items()} != expected_shapes:
    return float("inf")
  if exact in expected_numbers and not np.array_equal(answers[exact], expected_numbers[exact]):
    return float("inf")
  differences = [
    np.max(np.abs(answers[name] - value) / np.maximum(1.0, np.abs(value)), initial=0.0)
    for name, value in expected_numbers.items()
    if value.dtype.kind == "f"
  ]
  return float(np.max(differences, initial=0.0))
