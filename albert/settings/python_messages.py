"""Error messages for the Python API: the flags of the command line become arguments and methods in them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from albert.errors import UserError

_FLAG_PATTERN = re.compile(r"--(?P<name>[a-z][a-z_0-9]*)")
# Flag -> its argument or method in Python, if the name differs.
_PYTHON_NAMES = {
  "do_train": "train()",
  "do_eval": "evaluate()",
  "do_predict": "predict()",
  "train_file": "train",
  "input_file": "train",
  "eval_file": "eval",
  "eval_input_file": "eval",
  "predict_file": "test",
  "text_columns": "text",
  "label_column": "label",
  "id_column": "id",
  "albert_config_file": "model",
}


def replace_flag_names(message: str) -> str:
  """Replaces the flags in a message by the names of arguments: `--init_checkpoint` by `init_checkpoint`."""
  return _FLAG_PATTERN.sub(lambda match: _PYTHON_NAMES.get(match["name"], match["name"]), message)


@contextlib.contextmanager
def python_messages() -> Iterator[None]:
  """Within this context, the messages of UserErrors name arguments and methods instead of flags."""
  try:
    yield
  except UserError as error:
    message = replace_flag_names(str(error))
    if message == str(error):
      raise
    raise UserError(message) from error
