"""The tasks: what a model learns, and from which data.

`Classification`, `Regression` and the other names below are the tasks of the Python API. The packages define the model,
the features, the losses, the metrics and the predictions of each task.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from albert.tasks.answers import ChoiceAnswer as ChoiceAnswer
  from albert.tasks.answers import ClassAnswer as ClassAnswer
  from albert.tasks.answers import LabelsAnswer as LabelsAnswer
  from albert.tasks.answers import SpanAnswer as SpanAnswer
  from albert.tasks.answers import TagAnswer as TagAnswer
  from albert.tasks.answers import TaggedSpan as TaggedSpan
  from albert.tasks.definitions import Classification as Classification
  from albert.tasks.definitions import Glue as Glue
  from albert.tasks.definitions import MultipleChoice as MultipleChoice
  from albert.tasks.definitions import Pretraining as Pretraining
  from albert.tasks.definitions import QuestionAnswering as QuestionAnswering
  from albert.tasks.definitions import Regression as Regression
  from albert.tasks.definitions import Tagging as Tagging
  from albert.tasks.definitions import TaskDefinition as TaskDefinition

# Public name -> the module that defines it. Each module is imported when one of its names is first used.
_MODULES = {
  **dict.fromkeys(("ChoiceAnswer", "ClassAnswer", "LabelsAnswer", "SpanAnswer", "TagAnswer", "TaggedSpan"), "answers"),
  **dict.fromkeys(("Classification", "Glue", "MultipleChoice", "Pretraining", "QuestionAnswering"), "definitions"),
  **dict.fromkeys(("Regression", "Tagging", "TaskDefinition"), "definitions"),
}


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  import importlib

  value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *_MODULES})
