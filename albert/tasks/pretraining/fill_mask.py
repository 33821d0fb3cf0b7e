"""Fills [MASK] in lines of text with a pretrained model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.data.rows import DataSource, Rows
from albert.data.tables import read_lines, read_table
from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks

NUM_CANDIDATES = 5


class MaskedLine(NamedTuple):
  """A line of text that contains [MASK].

  Attributes:
    number: the number of the line in its file, or of the row in memory, from 1.
    text: the line, without whitespace at its ends.
    ids: the ids of its tokens, with [CLS] and [SEP].
    positions: the positions of the masks in `ids`.
  """

  number: int
  text: str
  ids: list[int]
  positions: list[int]


def read_masked_lines(sources: Sequence[DataSource], tokenizer: Tokenizer, *, max_length: int) -> list[MaskedLine]:
  """Reads and encodes the lines of text files, or of rows in memory. Blank lines are skipped.

  Args:
    sources: paths of UTF-8 text files, or rows with a column "text". Every line that is not blank must contain [MASK].
    tokenizer: the tokenizer.
    max_length: maximum tokens of a line, with [CLS] and [SEP].
  Raises:
    UserError: a file is not UTF-8, or a line has no [MASK] or too many tokens.
  """
  masked_lines: list[MaskedLine] = []
  for source in sources:
    lines = _read_rows(source) if isinstance(source, Rows) else _read_lines(source)
    for location, number, text in lines:
      if text.strip():
        masked_lines.append(_encode_line(location, number, text.strip(), tokenizer, max_length))
  return masked_lines


def _read_rows(rows: Rows) -> Iterator[tuple[str, int, str]]:
  """Yields for each row its location for error messages, its number from 1, and its text."""
  table = read_table(rows, ["text"])
  for row, text in enumerate(table.non_empty_texts("text")):
    yield table.location(row), rows.row_numbers[row] + 1, text


def _read_lines(path: str) -> Iterator[tuple[str, int, str]]:
  """Yields for each line of a file its location for error messages, its number from 1, and its text."""
  for number, line in read_lines(path):
    yield f"{path}, line {number}", number, line


def _encode_line(location: str, number: int, text: str, tokenizer: Tokenizer, max_length: int) -> MaskedLine:
  special_ids = tokenizer.special_ids
  ids = [special_ids.cls, *encode_with_masks(tokenizer, text), special_ids.sep]
  positions = [position for position, token in enumerate(ids) if token == special_ids.mask]
  if not positions:
    raise UserError(f"{location}: has no [MASK] to fill")
  if len(ids) > max_length:
    raise UserError(f"{location}: {len(ids)} tokens, the model takes {max_length}")
  return MaskedLine(number, text, ids, positions)


def fill_line(model: keras.Model, tokenizer: Tokenizer, line: MaskedLine) -> Iterator[dict[str, Any]]:
  """Finds the five most probable pieces for each [MASK] of a line.

  Args:
    model: a PretrainingModel with its weights loaded.
    tokenizer: the tokenizer.
    line: the line.
  Yields: for each [MASK] a row of the predictions file: "line" and "mask", the numbers of the line and of the [MASK] in
    it, from 1; "text", the line; "piece_1" to "piece_5", and "probability_1" to "probability_5".
  """
  input_ids = tf.constant([line.ids])
  output = model(
    {
      "input_ids": input_ids,
      "input_mask": tf.ones_like(input_ids),
      "segment_ids": tf.zeros_like(input_ids),
      "masked_lm_positions": tf.constant([line.positions]),
    }
  )
  candidates = tf.math.top_k(tf.nn.softmax(output.masked_lm_logits[0]), k=NUM_CANDIDATES)
  candidates_of_masks = zip(candidates.values.numpy(), candidates.indices.numpy(), strict=True)
  for mask, (probabilities, ids) in enumerate(candidates_of_masks, start=1):
    row: dict[str, Any] = {"line": line.number, "mask": mask, "text": line.text}
    for rank, (probability, token_id) in enumerate(zip(probabilities, ids, strict=True), start=1):
      row |= {f"piece_{rank}": tokenizer.piece(int(token_id)), f"probability_{rank}": round(float(probability), 6)}
    yield row
