"""What every export is tried with before it is finished: its examples, and requests at the edges of what it takes."""

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

EXAMPLES = "the examples"
# Sequences of the examples that are also tried alone; SQuAD's contexts may have many windows.
_MOST_ALONE = 3


def id_cases(model: ServedModel, examples: NamedArrays) -> dict[str, NamedArrays]:
  """Batches of ids.

  Args:
    model: the model.
    examples: ids of its examples, by the names of the tokens signature.
  Returns: the batches by what they are; the examples themselves first.
  """
  longest = model.longest_sequence
  beyond = max(longest + 1 - examples[INPUT_IDS].shape[-1], 1)
  cases = {EXAMPLES: examples}
  for row in range(min(len(examples[INPUT_IDS]), _MOST_ALONE)):
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


def text_cases(model: ServedModel) -> dict[str, NamedArrays]:
  """Batches of texts by what they are, for the signature serving_default. All fields of a request hold the same."""

  def batch(text: str) -> NamedArrays:
    return text_inputs(model.fields, [{f.name: [text, text] if f.is_list else text for f in model.fields}])

  return {
    "an empty batch": {name: values[:0] for name, values in batch("a").items()},
    "empty texts": batch(""),
    "texts of one word": batch("a"),
    "texts that are too long for one sequence": batch("a " * model.max_seq_length),
  }


def _without_padding(row: NamedArrays) -> NamedArrays:
  """A batch of one row, cut to its longest sequence."""
  length = int(row[INPUT_MASK].sum(axis=-1).max())
  return {name: values[..., :length] for name, values in row.items()}


def _repeated(examples: NamedArrays, length: int) -> NamedArrays:
  """The first sequence of the examples, repeated up to `length` tokens."""
  first = {name: values.reshape(-1, values.shape[-1])[:1] for name, values in examples.items()}
  shape = [1] * (examples[INPUT_IDS].ndim - 1) + [length]
  return {name: np.resize(values, shape) for name, values in _without_padding(first).items()}


def run_cases(function: Any, cases: Mapping[str, NamedArrays], *, what: str) -> dict[str, dict[str, np.ndarray]]:
  """The answers to each case, by its name.

  Args:
    function: a function of tensors by name -> answers by name, tensors or arrays.
    cases: see id_cases and text_cases.
    what: the function, for errors.
  Raises:
    RunError: it fails for a case, answers another number of rows, or a number that is not finite.
  """
  found = {}
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
    found[case] = answers
  return found


def check_signatures(
  functions: Mapping[str, Any], model: ServedModel, examples: Mapping[str, NamedArrays]
) -> dict[str, dict[str, np.ndarray]]:
  """Runs both signatures of the SavedModel on all cases.

  Args:
    functions: the concrete functions by the names of the signatures.
    model: the model.
    examples: the inputs of the examples, by the names of the signatures.
  Returns: the answers of the signature tokens to the batches of id_cases, by their names.
  Raises:
    RunError: see run_cases.
  """

  def caller(signature: str) -> Any:
    function = functions[signature]
    return lambda inputs: function(**{name: tf.constant(values) for name, values in inputs.items()})

  texts = {EXAMPLES: examples[TEXT_SIGNATURE]} | text_cases(model)
  run_cases(caller(TEXT_SIGNATURE), texts, what=f"the signature {TEXT_SIGNATURE}")
  ids = id_cases(model, examples[TOKENS_SIGNATURE])
  return run_cases(caller(TOKENS_SIGNATURE), ids, what=f"the signature {TOKENS_SIGNATURE}")


def largest_difference(found: NamedArrays, expected: NamedArrays, *, exact: str = "") -> float:
  """How far numbers are from those of the SavedModel: the largest difference, of numbers above 1 in relation to them.

  Args:
    found, expected: answers by name; `expected` may have more. Of whole numbers only those of `exact` are compared,
      since two candidates of almost the same probability may change places.
    exact: the name of an answer that must be equal.
  Returns: infinity if a name or a shape differs, or the exact answer; NaN if a number is.
  """
  numbers = {name: value for name, value in expected.items() if value.dtype.kind in "fi"}
  if {name: value.shape for name, value in found.items()} != {name: value.shape for name, value in numbers.items()}:
    return float("inf")
  if exact in numbers and not np.array_equal(found[exact], numbers[exact]):
    return float("inf")
  differences = [
    np.max(np.abs(found[name] - value) / np.maximum(1.0, np.abs(value)), initial=0.0)
    for name, value in numbers.items()
    if value.dtype.kind == "f"
  ]
  return float(np.max(differences, initial=0.0))
