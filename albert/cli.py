"""The flags, made from the fields of the configs, and the configs made from flags. The one library module that
knows flags."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from albert import app, files, output_files
from albert.config import (
  Config,
  FinetuningConfig,
  ModelConfig,
  OptimizerConfig,
  PretrainingConfig,
  RunConfig,
  TrainConfig,
  config_names,
  configs_directory,
  from_dict,
  load_model_config,
  named_model,
)
from albert.errors import UserError
from albert.tasks import registry

if TYPE_CHECKING:
  from albert.tasks.base import Task

# What a recipe (a file of configs/) may set.
_SECTIONS: dict[str, type[Config]] = {"model": ModelConfig, "optimizer": OptimizerConfig, "train": TrainConfig}


def _define(config_class: type[Config]) -> None:
  define: dict[str, Callable[..., Any]] = {
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "bool": flags.DEFINE_boolean,
    "str": flags.DEFINE_string,
  }
  for field in dataclasses.fields(config_class):
    if not field.metadata:
      continue  # a config of its own
    shown = field.default if field.default != "" else "none"
    text = f"{field.metadata['help']} (default: {shown})"
    if field.metadata["choices"]:
      flags.DEFINE_enum(field.name, None, list(field.metadata["choices"]), text, module_name=sys.argv[0])
    else:
      define[str(field.type)](field.name, None, text, module_name=sys.argv[0])


def define_flags(task_name: str) -> None:
  """Defines the flags of a task's script. A flag left out is None: the recipe's or the field's default holds."""
  main = sys.argv[0]  # --help lists the flags of this module
  flags.DEFINE_string("model", None, "named model, such as albert_base (default: albert_base)", module_name=main)
  flags.DEFINE_string(
    "albert_config_file", None, "albert_config.json of the model, instead of --model", module_name=main
  )
  flags.DEFINE_string(
    "recipe",
    None,
    "defaults for flags: the name of a file in configs/, or a path; none: no recipe (default: the task's own)",
    module_name=main,
  )
  for config_class in (RunConfig, TrainConfig, OptimizerConfig, ModelConfig, registry.TASKS[task_name].config_class):
    _define(config_class)


def _given(config_class: type[Config]) -> dict[str, Any]:
  """The flags of `config_class` that the command line gives."""
  names = [field.name for field in dataclasses.fields(config_class) if field.metadata]
  return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].value is not None}


@dataclasses.dataclass(frozen=True)
class _Recipe:
  """A file of configs/: its sections, and where they come from."""

  path: str = ""
  sections: dict[str, Any] = dataclasses.field(default_factory=dict)


def _recipe(task_name: str, entry: registry.Entry) -> _Recipe:
  name = flags.FLAGS.recipe
  if name is None:
    name = entry.recipe(entry.config_class(**_given(entry.config_class)))
  if name in ("", "none"):
    return _Recipe()
  path = name if files.exists(name) else os.path.join(configs_directory(), f"{name}.json")
  if not files.exists(path):
    raise UserError(f"--recipe={name}: no such file or recipe; recipes: {', '.join(config_names())}")
  sections = files.read_json(path)
  unknown = set(sections) - {"task", "data", "model", *_SECTIONS}
  if unknown:
    raise UserError(f"{path}: unknown section {min(unknown)!r}; known: task, model, optimizer, train, data")
  if sections.get("task", task_name) != task_name:
    raise UserError(f"{path}: is a recipe for {sections['task']}, this script runs {task_name}")
  return _Recipe(path, sections)


def _section(config_class: type[Config], values: Mapping[str, Any], source: str, **nested: Any) -> Any:
  """`values` of a file, overridden by flags."""
  base = from_dict(config_class, values, source=source) if values else None
  given = _given(config_class) | nested
  if base is None:
    return config_class(**given)
  return dataclasses.replace(base, **given)


def _model_config(recipe: _Recipe, run_config: Mapping[str, Any], init_config: str | None) -> ModelConfig:
  """The model that is asked for; single flags override its fields.

  It is that of --albert_config_file or --model, else of the run in output_dir, else the one beside
  --init_checkpoint, else the recipe's. A recipe that gives fields overrides those of any but a run.
  """
  values, model = flags.FLAGS, recipe.sections.get("model")
  fields = model if isinstance(model, dict) else {}
  if values.model and values.albert_config_file:
    raise UserError("--model and --albert_config_file are both given: give one")
  if values.albert_config_file:
    base = load_model_config(values.albert_config_file)
  elif values.model:
    base = named_model(values.model)
  elif run_config:
    base = from_dict(
      ModelConfig, run_config.get("model", {}), source=files.join(values.output_dir, output_files.CONFIG)
    )
    fields = {}
  elif init_config:
    base = load_model_config(init_config)
  else:
    base = named_model(model if isinstance(model, str) else "albert_base")
  if fields:
    base = from_dict(ModelConfig, base.to_dict() | fields, source=recipe.path)
  return dataclasses.replace(base, **_given(ModelConfig))


def _data_values(config_class: type[Config], recipe: _Recipe, run_config: Mapping[str, Any]) -> dict[str, Any]:
  """The task's fields as the recipe and then the run in output_dir have them."""
  known = {field.name for field in dataclasses.fields(config_class)}
  saved = {name: value for name, value in run_config.get("data", {}).items() if name in known}
  return dict(recipe.sections.get("data", {})) | saved


def _vocabulary(config: RunConfig, beside_weights: str | None) -> str:
  """The vocabulary of the run in output_dir, or the one beside --init_checkpoint."""
  own = files.join(config.output_dir, output_files.VOCABULARY)
  return own if files.exists(own) else beside_weights or ""


def task_and_config(task_name: str) -> tuple[Task, RunConfig]:
  """What the flags ask for.

  Raises:
    UserError: a value out of range, an unknown model, a recipe that is not one, data that does not fit.
  """
  entry = registry.TASKS[task_name]
  recipe = _recipe(task_name, entry)
  sections = recipe.sections
  config = _section(
    RunConfig,
    {},
    "flags",
    optimizer=_section(OptimizerConfig, sections.get("optimizer", {}), recipe.path),
    train=_section(TrainConfig, sections.get("train", {}), recipe.path),
  )
  run_file = files.join(config.output_dir, output_files.CONFIG)
  run_config = files.read_json(run_file) if files.exists(run_file) else {}
  init_config = init_vocabulary = None
  if config.init_checkpoint:
    from albert.training.weight_files import open_weights  # TensorFlow: late

    weights = open_weights(config.init_checkpoint)
    init_config, init_vocabulary = weights.config_file, weights.vocabulary
  source = run_file if run_config.get("data") else recipe.path
  data_config = _section(entry.config_class, _data_values(entry.config_class, recipe, run_config), source)
  if isinstance(data_config, FinetuningConfig):
    data_config = dataclasses.replace(
      data_config,
      spm_model_file=data_config.spm_model_file or _vocabulary(config, init_vocabulary),
      cache_dir=data_config.cache_dir or files.join(config.output_dir, "features"),
    )
  elif isinstance(data_config, PretrainingConfig):
    data_config = dataclasses.replace(data_config, cache_dir=data_config.cache_dir or config.output_dir)
  return registry.make_task(task_name, _model_config(recipe, run_config, init_config), data_config), config


def run(task_name: str, main: Callable[[], None]) -> None:
  """Starts a script: defines its flags, then runs `main`, with TensorFlow's own start-up chatter off."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  define_flags(task_name)
  app.run(main)
