"""Predictor: answers texts from Python, with the model of a run, of an export or from Hugging Face."""

from __future__ import annotations

import os
from typing import Any

from albert.data.rows import TableData, rows_of
from albert.errors import UserError, python_messages
from albert.io.local_files import required_library
from albert.predict.exported_model import open_model
from albert.predict.requests import JSON, RequestParser, answer_requests


class Predictor:
  """Answers texts with a trained model of any task, as `python -m albert.predict` does.

  Args:
    model: the output_dir of a run, the directory of an exported model, or a directory from Hugging Face, whose
      config.json names the class of the model.
    task: what the model does, a value of --task of `python -m albert.export`, such as "embeddings"; "" for what it was
      trained for. An export does what it was exported for.
    batch_size: texts that are computed at a time.
    **settings: settings of the task that the run or config.json does not record, or that should differ, with the names
      of the flags of `python -m albert.export`: max_seq_length, labels, text_columns and so on.

  Attributes:
    fields: the names of the texts that an answer needs, such as ["text"], or ["question", "context"].

  Raises:
    UserError: there is no such model, a file is damaged, or the weights have no head for the task.

  Example:
    >>> import albert
    >>> predictor = albert.Predictor("downloads/albert_base", task="fill_mask")
    >>> (answer,) = predictor("They drank the [MASK] dry.")
    >>> len(answer["tokens"][0]), answer["num_masks"]
    (5, 1)
  """

  def __init__(self, model: str | os.PathLike[str], *, task: str = "", batch_size: int = 32, **settings: Any) -> None:
    if batch_size < 1:
      raise UserError(f"batch_size is {batch_size}: give at least 1")
    with python_messages({}):
      self._model = open_model(os.fspath(model), task, settings)
    description = self._model.description
    self.fields = [field.name for field in description.fields]
    self._parser = RequestParser(description.fields, JSON, "data", description.answers)
    self._batch_size = batch_size

  def __call__(self, data: TableData, *, as_frame: bool = False) -> Any:
    """Answers texts.

    Args:
      data: a text, a dict of `fields`, or many: a list of texts, of tuples or of dicts, a dict of columns, or a frame
        with the columns `fields`.
      as_frame: whether to return a frame of pandas, with a column for the probability of each label.
    Returns: a dict for each text or row, in order. docs/serving.md lists what the answers of each task hold.
    Raises:
      UserError: a column is missing, or a row has no text; the message names it.
      RunError: an answer is not finite.
    """
    requests = []
    if isinstance(data, str) or not hasattr(data, "__len__") or len(data):
      rows = rows_of(data, "data", self.fields)
      requests = [
        self._parser.request_from_values(index, rows.location(index), rows.values(index)) for index in range(len(rows))
      ]
    answers = answer_requests(self._model, requests, self._batch_size)
    if not as_frame:
      return answers
    with required_library("as_frame=True", "needs pandas", "pip install 'pandas>=2.2,<4'"):
      import pandas
    frame = pandas.json_normalize(answers, sep="_")
    return frame.set_index(data.index) if isinstance(data, pandas.DataFrame | pandas.Series) else frame
