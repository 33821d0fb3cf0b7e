"""Runs a model on its examples and on edge cases before an export is finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data.schema import INPUT_IDS, INPUT_MASK
from albert.errors import RunError
from albert.export.description import NamedArrays
from albert.export.formats import TEXT_SIGNATURE, TOKENS_SIGNATURE
from albert.export.served_model import ServedModel
from albert.export.signatures import text_inputs
from albert.tokenization.tokenizer import MASK_ID, UNK_ID

# B rows, S sequence.

EXAMPLE_BATCH = "the examples"
# At most this many sequences of the examples are also run alone. A SQuAD context may have many.
_MAX_SINGLE_SEQUENCES = 3


def id_test_batches(model: ServedModel, examples: NamedArrays) -> dict[str, NamedArrays]:
  """Batches of ids to run a model on: its examples and edge cases.

  Args:
    model: the model.
    examples: input_ids, input_mask and segment_ids of its examples, int32 [B, S] or [B, K, S].
  Returns: batches by a description of each. The examples themselves come first, as EXAMPLE_BATCH.
  """
  longest = model.max_positions
  beyond = max(longest + 1 - examples[INPUT_IDS].shape[-1], 1)
  cases = {EXAMPLE_BATCH: examples}
  for row in range(min(len(examples[INPUT_IDS]), _MAX_SINGLE_SEQUENCES)):
    cases[f"example {row + 1} alone"] = _without_padding({n: values[row : row + 1] for n, values in examples.items()})
  if np.any(examples[INPUT_IDS] == MASK_ID):
    ids = np.where(examples[INPUT_IDS] == MASK_ID, np.int32(UNK_ID), examples[INPUT_IDS])
    cases["texts without [MASK]"] = {**examples, INPUT_IDS: ids}
  cases["an empty batch"] = {name: values[:0] for name, values in examples.items()}
  mask = examples[INPUT_MASK].copy()
  mask[0] = 0
  cases["a row of padding alone"] = {**examples, INPUT_MASK: mask}
  cases["a single token"] = {name: values[:1, ..., :1] for name, values in examples.items()}
  cases[f"a sequence of {longest} tokens"] = _repeated(examples, longest)
  cases[f"padding beyond {longest} tokens"] = {
    name: np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, beyond)]) for name, values in examples.items()
  }
  return cases


def text_test_batches(model: ServedModel) -> dict[str, NamedArrays]:
  """Batches of texts to run the signature serving_default on: edge cases by a description of each.

  All fields of a request hold the same text.

  Args:
    model: the model.
  """

  def batch(text: str) -> NamedArrays:
    return text_inputs(model.fields, [{f.name: [text, text] if f.is_list else text for f in model.fields}])

  return {
    "an empty batch": {name: values[:0] for name, values in batch("a").items()},
    "empty texts": batch(""),
    "texts of one word": batch("a"),
    "texts that are too long for one sequence": batch("a " * model.max_seq_length),
  }


def _without_padding(row: NamedArrays) -> NamedArrays:
  """A batch of one example, cut to the length of its longest sequence."""
  length = int(row[INPUT_MASK].sum(axis=-1).max())
  return {name: values[..., :length] for name, values in row.items()}


def _repeated(examples: NamedArrays, length: int) -> NamedArrays:
  """The first sequence of the examples, repeated up to `length` tokens."""
  first = {name: values.reshape(-1, values.shape[-1])[:1] for name, values in examples.items()}
  shape = [1] * (examples[INPUT_IDS].ndim - 1) + [length]
  return {name: np.resize(values, shape) for name, values in _without_padding(first).items()}


def run_test_batches(function: Any, cases: Mapping[str, NamedArrays], *, what: str) -> dict[str, dict[str, np.ndarray]]:
  """Runs a function on batches and checks its answers.

  Args:
    function: maps inputs by name to answers by name (tensors or arrays).
    cases: batches by name, see id_test_batches and text_test_batches.
    what: name of the function, for error messages.
  Returns: the answers to each batch, by its name.
  Raises:
    RunError: the function fails, or an answer has a wrong number of rows or a number that is not finite.
  """
  answers_by_case = {}
  for case, inputs in cases.items():
    try:
      answers = {name: np.asarray(value) for name, value in function(inputs).items()}
    except Exception as error:
      reason = " ".join(str(error).split())[-300:]
      raise RunError(f"{what} fails for {case}: {reason}") from error
    rows = len(next(iter(inputs.values())))
    for name, value in answers.items():
      if value.shape[:1] != (rows,):
        raise RunError(f"{what}: for {case} {name!r} has the shape {list(value.shape)} instead of {rows} rows")
      if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise RunError(f"{what}: for {case} {name!r} is not finite; do the weights of the checkpoint hold NaN?")
    answers_by_case[case] = answers
  return answers_by_case


def check_signatures(
  functions: Mapping[str, Any], model: ServedModel, examples: Mapping[str, NamedArrays]
) -> dict[str, dict[str, np.ndarray]]:
  """Runs both signatures of a model on its examples and on the edge cases.

  Args:
    functions: the concrete function of each signature.
    model: the model.
    examples: the inputs of the examples for each signature.
  Returns: the answers of the signature tokens to each batch of id_test_batches.
  Raises:
    RunError: see run_test_batches.
  """

  def caller(signature: str) -> Any:
    function = functions[signature]
    return lambda inputs: function(**{name: tf.constant(values) for name, values in inputs.items()})

  texts = {EXAMPLE_BATCH: examples[TEXT_SIGNATURE]} | text_test_batches(model)
  run_test_batches(caller(TEXT_SIGNATURE), texts, what=f"the signature {TEXT_SIGNATURE}")
  ids = id_test_batches(model, examples[TOKENS_SIGNATURE])
  return run_test_batches(caller(TOKENS_SIGNATURE), ids, what=f"the signature {TOKENS_SIGNATURE}")


def largest_difference(answers: NamedArrays, expected: NamedArrays, *, exact: str = "") -> float:
  """The largest difference between two sets of answers: absolute for expected values up to 1, else relative.

  Args:
    answers: the numbers to check, by name.
    expected: the answers of the SavedModel, by name. Its texts are ignored.
    exact: name of an integer answer that must be equal, or "". Other integers are not compared, because candidates
      with almost the same probability may change their order.
  Returns: the difference; infinity if a name, a shape or the exact answer differs; NaN if a number is NaN.
  """
  numbers = {name: value for name, value in expected.items() if value.dtype.kind in "fi"}
  if {name: value.shape for name, value in answers.items()} != {name: value.shape for name, value in numbers.items()}:
    return float("inf")
  if exact in numbers and not np.array_equal(answers[exact], numbers[exact]):
    return float("inf")
  differences = [
    np.max(np.abs(answers[name] - value) / np.maximum(1.0, np.abs(value)), initial=0.0)
    for name, value in numbers.items()
    if value.dtype.kind == "f"
  ]
  return float(np.max(differences, initial=0.0))
