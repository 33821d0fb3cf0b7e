"""The task of the Python API that tags words. Importing this module does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from albert.data.rows import Rows, TableData, is_path, rows_of
from albert.tasks.definitions import TaskDefinition
from albert.tasks.glue.flags import format_labels, parse_labels
from albert.tasks.splits import DEV, EVAL_SEED, EVAL_SHARE, TEST, TRAIN
from albert.tasks.tagging.files import SPANS, TAGS, TEXT, TOKENS, find_types, read_texts
from albert.tasks.tagging.flags import TaggingConfig
from albert.tokenization.words import PUNCTUATION


class Tagging(TaskDefinition):
  """Finds spans of words, such as names, and their types.

  Each row of data in memory has the columns tokens (a list of words) and tags (a list of as many tags), or the columns
  text and spans (a list of dicts with start, end and label; start is the first character, from 0, and end the one after
  the last). To predict, tags and spans are not needed: give texts, lists of words, or rows.

  Args:
    train: data to train on: a file of columns (CoNLL) or of JSON lines, or data in memory. None if nothing is trained.
    eval: data to evaluate on, in the same forms. If it is not given and train is in memory, a share of train is held
      out.
    test: the data that predict() without an argument predicts, in the same forms. It needs no tags.
    scheme: how tags mark spans: "BIO", "BILOU" or "BIOES".
    labels: all types of spans; by default those in train, sorted.
    words: the column of the words; "" for tokens, and for the first column of a file of columns.
    tags: the column of the tags; "" for tags, and for the last column of a file of columns.
    word_rule: how texts are divided into words: "punctuation" or "whitespace" (see docs/tagging.md).
    eval_share: the share of train that is held out if eval is not given; 0 for none. Equal texts stay together.
    eval_seed: seed of the choice of the held-out rows.

  Raises:
    UserError: a row lacks a column, or its tags do not follow the scheme; the message names the row.

  Example:
    >>> train = [
    ...   {"tokens": ["Anna", "flew", "to", "New", "York"], "tags": ["B-PER", "O", "O", "B-LOC", "I-LOC"]},
    ...   {"tokens": ["Berlin", "waits"], "tags": ["B-LOC", "O"]},
    ... ]
    >>> task = albert.tasks.Tagging(train=train, eval_share=0)
  """

  task_name = "tagging"

  def __init__(
    self,
    train: TableData | None = None,
    *,
    eval: TableData | None = None,
    test: TableData | None = None,
    scheme: str = "BIO",
    labels: Sequence[str] | None = None,
    words: str = "",
    tags: str = "",
    word_rule: str = PUNCTUATION,
    eval_share: float = EVAL_SHARE,
    eval_seed: int = EVAL_SEED,
  ):
    super().__init__()
    self.settings |= {"scheme": scheme, "word_column": words, "tag_column": tags, "word_rule": word_rule}
    for split, data, with_tags in ((TRAIN, train, True), (DEV, eval, True), (TEST, test, False)):
      columns = columns_of_texts(data, words, tags, with_tags=with_tags)
      self._add_data(split, data, columns, ["id"])
    if labels is not None:
      self.settings["labels"] = format_labels(labels)
      parse_labels(self.settings["labels"], minimum=1)  # raises an error if they are not possible
    elif TRAIN in self.rows:
      texts = read_texts(self.rows[TRAIN], TaggingConfig(**self.settings), with_tags=True)
      self.settings["labels"] = format_labels(find_types(self.rows[TRAIN], texts))
    if eval is None:
      self._hold_out_groups(columns_of_texts(train, words, tags, with_tags=False)[0], eval_share, eval_seed)


def columns_of_texts(data: TableData, words: str = "", tags: str = "", *, with_tags: bool) -> list[str]:
  """Returns the columns that data in memory must have: words and tags, or text and spans.

  Args:
    data: the data, in any form that albert.data.rows.rows_of accepts; None or a path is accepted, too.
    words, tags: the names of the columns; "" for tokens and tags.
    with_tags: whether tags or spans are needed.
  """
  has_text = False
  if data is not None and not is_path(data):
    if hasattr(data, "columns"):
      names: Any = list(data.columns)
    elif isinstance(data, Mapping):
      names = list(data)
    else:
      first = next(iter(data), None) if hasattr(data, "__iter__") else None
      if isinstance(first, tuple) and first:
        first = first[0]
      names = first if isinstance(first, Mapping) else [TEXT] if isinstance(first, str) else [TOKENS]
    has_text = TEXT in names and (words or TOKENS) not in names
  required = [TEXT, SPANS] if has_text else [words or TOKENS, tags or TAGS]
  return required if with_tags else required[:1]


def rows_to_predict(data: TableData, words: str = "") -> Rows:
  """Converts texts, lists of words, or rows with one of them, to rows.

  Args:
    data: the data.
    words: the name of the column of words; "" for tokens.
  Raises:
    UserError: there are no rows, or a row lacks the column.
  """
  return rows_of(data, "the data to predict", columns_of_texts(data, words, with_tags=False), ["id"])
