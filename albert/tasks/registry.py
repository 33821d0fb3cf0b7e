"""The tasks there are. Their modules (and TensorFlow) are imported when one is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from albert.config.base import Config
from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig
from albert.tasks.glue import specs
from albert.tasks.race import data as race_data
from albert.tasks.squad import data as squad_data

if TYPE_CHECKING:
  from albert.tasks.base import Task


@dataclasses.dataclass(frozen=True)
class Export:
  """A form in which a task's model is served.

  Attributes:
    location: "module:class" of a Servable (see albert.export.servable).
    settings: fields of the task's config that it depends on, beside those of the text.
  """

  location: str
  settings: tuple[str, ...] = ()


def _no_recipe(config: Any) -> str:
  del config
  return ""


@dataclasses.dataclass(frozen=True)
class Entry:
  """Where a task is found.

  Attributes:
    config_class: of its flags.
    location: "module:name" of the task's class, or of a function that makes the task.
    recipe: config -> name of the recipe in configs/ that holds unless --recipe names another; "" for none.
    ensemble: "module:function" that makes one prediction of those of several runs (see albert.ensemble); "" for none.
    exports: --task of albert.export -> what is served.
  """

  config_class: type[Config]
  location: str
  recipe: Callable[[Any], str] = _no_recipe
  ensemble: str = ""
  exports: Mapping[str, Export] = dataclasses.field(default_factory=dict)

  @property
  def has_recipes(self) -> bool:
    """Whether the task's flags decide on a recipe."""
    return self.recipe is not _no_recipe


_CLASSIFIER_SETTINGS = ("task_name", "text_columns", "labels", "regression", "formulation")
_SQUAD_SETTINGS = (
  "max_query_length",
  "doc_stride",
  "max_answer_length",
  "start_n_top",
  "end_n_top",
  "null_score_diff_threshold",
)

TASKS: dict[str, Entry] = {
  "pretraining": Entry(
    PretrainingConfig,
    "albert.tasks.pretraining:PretrainingTask",
    exports={
      "fill_mask": Export("albert.export.forms.pretraining:FillMask"),
      "sentence_order": Export("albert.export.forms.pretraining:SentenceOrder", ("sentence_prediction",)),
      "embeddings": Export("albert.export.forms.pretraining:Embeddings"),
    },
  ),
  "classifier": Entry(
    specs.ClassifierConfig,
    "albert.tasks.glue.task:make_task",
    recipe=specs.recipe_name,
    ensemble="albert.tasks.glue.results:ensemble",
    exports={
      "classifier": Export("albert.export.forms.classifier:Classifier", _CLASSIFIER_SETTINGS),
      "regression": Export("albert.export.forms.classifier:Regression", _CLASSIFIER_SETTINGS),
    },
  ),
  "squad": Entry(
    squad_data.SquadConfig,
    "albert.tasks.squad.task:make_task",
    recipe=squad_data.recipe_name,
    ensemble="albert.tasks.squad.results:ensemble",
    exports={
      "squad_v1": Export("albert.export.forms.squad:SquadV1", _SQUAD_SETTINGS),
      "squad_v2": Export("albert.export.forms.squad:SquadV2", _SQUAD_SETTINGS),
    },
  ),
  "race": Entry(
    race_data.RaceConfig,
    "albert.tasks.race.task:RaceTask",
    recipe=lambda config: "race",
    ensemble="albert.tasks.race.results:ensemble",
    exports={"race": Export("albert.export.forms.multiple_choice:MultipleChoice", ("max_qa_length",))},
  ),
}


def load(location: str) -> Any:
  """What "module:name" names."""
  module, name = location.split(":")
  return getattr(importlib.import_module(module), name)


def make_task(name: str, model_config: ModelConfig, config: Config) -> Task:
  """The task `name` on a model."""
  return load(TASKS[name].location)(model_config, config)


def exports() -> dict[str, tuple[str, Export]]:
  """Every form in which a model is served: its name -> the task it belongs to, and where it is found."""
  return {name: (task, form) for task, entry in TASKS.items() for name, form in entry.exports.items()}
