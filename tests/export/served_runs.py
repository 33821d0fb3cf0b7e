"""The served model of a run before it is saved, and the comparison of its answers."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.checks import array_function
from albert.export.companion_files import describe_model, format_model_card, text_inputs
from albert.export.served_model import text_function, tokens_function
from tests.export.pipelines import Run

TOLERANCE = 1e-5


class ServedRun:
  """A run and its served model, with the functions of both signatures. For `task` see export_model."""

  def __init__(self, run: Run, task: str):
    self.run = run
    self.name = run.form.name
    self.checkpoint = open_checkpoint(run.directory)
    self.form = select_form(self.checkpoint, task, {})
    assert self.form.name == self.name
    self.model = self.form.model_class(self.checkpoint, self.form)

  def model_card(self, **config_sections: Any) -> str:
    """The model card that the export would write if the run's config.json had these sections."""
    checkpoint = dataclasses.replace(self.checkpoint, run={**self.checkpoint.run, **config_sections})
    description = describe_model("model", self.form, self.model, checkpoint)
    inputs = self.text_inputs(self.model.examples()[:1])
    example = (inputs, array_function(self.serving_default)(inputs))
    return format_model_card(description, self.model, checkpoint, example, [])

  @functools.cached_property
  def serving_default(self) -> Any:
    """The function of the signature serving_default, which takes texts."""
    return text_function(self.model)

  @functools.cached_property
  def tokens(self) -> Any:
    """The function of the signature tokens, which takes ids."""
    return tokens_function(self.model)

  def text_inputs(self, requests: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Converts requests to input arrays of serving_default."""
    return text_inputs(self.model.fields, requests)


def assert_same_answers(answers: dict[str, np.ndarray], expected: dict[str, Any]) -> None:
  """Compares answers: name -> an array, or a list of texts.

  Numbers must agree within TOLERANCE. One text in a hundred may differ, since two candidates whose scores differ only
  in the last bit may change places.
  """
  for name, expected_values in expected.items():
    if isinstance(expected_values, list):
      # A row is a text or, padded with "", a list of texts.
      texts = [row.decode() if isinstance(row, bytes) else [text.decode() for text in row] for row in answers[name]]
      differences = [(text, other) for text, other in zip(texts, expected_values, strict=True) if text != other]
      assert len(differences) <= len(texts) // 100, (name, differences[:5])
    else:
      np.testing.assert_allclose(answers[name], expected_values, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def assert_close_without_padding(
  value: np.ndarray, expected: np.ndarray, *, rtol: float = TOLERANCE, **options: Any
) -> None:
  """Compares two arrays where both have entries. `expected` may be padded to the size of its batch's largest answer."""
  without_padding = tuple(slice(size) for size in value.shape)
  if expected.dtype.kind == "U":  # pieces and the texts of spans
    np.testing.assert_array_equal(value, expected[without_padding], **options)
  else:
    np.testing.assert_allclose(value, expected[without_padding], rtol=rtol, atol=TOLERANCE, **options)


def assert_same_plain_answers(answers: list[dict[str, Any]], expected: dict[str, Any]) -> None:
  """Compares the answers of albert.predict, which are rounded and not padded, with arrays or lists by name."""
  for name, expected_values in expected.items():
    for answer, expected_value in zip(answers, expected_values, strict=True):
      value = answer[name]
      if isinstance(expected_value, str):
        assert value == expected_value, name
        continue
      if isinstance(expected_value, list):  # texts, with "" as padding
        assert value == list(filter(None, expected_value)), name
        continue
      value = np.array(list(value.values()) if isinstance(value, dict) else value)
      if value.size:  # empty if the text was cut before its mask
        assert_close_without_padding(value, np.array(expected_value), rtol=1e-4, err_msg=name)
