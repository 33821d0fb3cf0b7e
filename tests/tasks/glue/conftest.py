"""Makes the tasks of the tests in this folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import albert
from albert.tasks.glue.files import TextData
from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.model import TextTask
from tests.synthetic import TINY_MODEL

MakeTask = Callable[..., TextTask]


@pytest.fixture(scope="session")
def make_task(spm_model: str) -> MakeTask:
  """Returns a function that makes a task: its argument is the task's name, and its keywords are further flags."""

  def make(task_name: str = "custom", *, initializer_range: float = 0.02, **flags: Any) -> TextTask:
    columns = {"text_columns": "text"} if task_name == "custom" else {}
    fields = {"task_name": task_name, "spm_model_file": spm_model, "max_seq_length": 32, **columns, **flags}
    vocab_size = int(albert.Tokenizer(spm_model).vocab_size)
    model: dict[str, Any] = {
      "vocab_size": vocab_size,
      "max_position_embeddings": 64,
      "initializer_range": initializer_range,
    }
    return TextTask(dataclasses.replace(TINY_MODEL, **model), TextData(ClassifierConfig(**fields)))

  return make
