"""What --dry_run prints: the plan of a command, its settings, and whether its training step fits a TPU.

Needs no TensorFlow.
"""

from __future__ import annotations

import textwrap
from typing import Any

from albert.app import HELP_WIDTH
from albert.config.base import option_fields
from albert.config.command_flags import format_flag
from albert.errors import UserError
from albert.io.progress import log
from albert.io.text import counted
from albert.settings.resolve import ResolvedSettings
from albert.settings.tpu_memory import MemoryCheck, parse_slice, read_table
from albert.tasks.finetuning import FinetuningData
from albert.tasks.pretraining import files as pretraining_files
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.splits import TRAIN
from albert.weights.names import encoder_shapes, num_parameters


def print_plan(resolved: ResolvedSettings) -> None:
  """Checks the flags and files of a command and prints what it would do. Nothing is trained, and no file is written.

  With --chip, a command needs neither an action such as --do_train nor files.

  Raises:
    UserError: a flag or a file cannot be used, or the training step does not fit the TPU of --chip.
  """
  config = resolved.config
  data = None
  if config.has_action or not config.chip:
    data = resolved.read_inputs()
    if not (config.do_train or config.init_checkpoint or resolved.settings.existing_run):
      raise UserError(f"--output_dir={config.output_dir}: holds no run: train first, or give --init_checkpoint")
  for line in (*resolved.notes, *_describe_plan(resolved, data), *_describe_settings(resolved)):
    print(line)
  if config.chip:
    print(_describe_memory(resolved))
  log("--dry_run: nothing was trained, and nothing was written")


def _describe_plan(resolved: ResolvedSettings, data: Any) -> list[str]:
  """Returns a line about the model, and one for each action of the command.

  Args:
    resolved: the settings.
    data: what `read_inputs` returned; None if nothing was read.
  """
  config, model = resolved.config, resolved.model_config
  parameters = num_parameters(encoder_shapes(model))
  lines = [
    f"model: {parameters:,} parameters in the encoder; {model.num_hidden_layers} layers, hidden_size "
    f"{model.hidden_size}, vocab_size {model.vocab_size}"
  ]
  train = config.train
  if config.do_train:
    amount = f"{train.num_train_epochs:g} epochs" if train.num_train_epochs else f"{train.num_train_steps:,} steps"
    if isinstance(data, FinetuningData):
      num_rows = len(data.rows(TRAIN))
      steps = counted(train.num_steps(num_rows), "step", ",")
      amount += f" of {counted(num_rows, 'row', ',')}, {'' if data.rows_are_examples else 'at least '}{steps},"
    start = config.init_checkpoint or "random weights"
    lines.append(
      f"train: {amount} with {train.train_batch_size} examples per step, {config.optimizer.optimizer}, from {start}"
    )
    if isinstance(resolved.data_config, PretrainingConfig):
      lines += pretraining_files.describe_stages(model, resolved.data_config, train)
  if config.do_eval:
    lines.append(f"evaluate: {train.eval_batch_size} examples per batch")
  if config.do_predict:
    lines.append(f"predict: {train.eval_batch_size} examples per batch")
  return [*lines, f"output_dir: {config.output_dir}"] if config.output_dir else lines


def _describe_settings(resolved: ResolvedSettings) -> list[str]:
  """Returns a paragraph for each source of settings, with the values that differ from the defaults of the fields."""
  config, settings, model = resolved.config, resolved.settings, resolved.model_config
  data, train, optimizer = resolved.data_config, config.train, config.optimizer
  sections = {"": config, "data": data, "train": train, "optimizer": optimizer, "model": model}
  sources: list[tuple[str, list[str]]] = [
    ("flags", []),
    (f"the run in {config.output_dir}", []),
    (f"the recipe {config.recipe}", []),
    ("the model, files and other settings", []),
  ]
  for section, values in sections.items():
    recorded = settings.recorded(type(values), section)
    recipe = settings.recipe.sections.get(section, {})
    recipe = recipe if isinstance(recipe, dict) else {}  # it may be the name of a model
    for name, field in option_fields(type(values)).items():
      value = getattr(values, name)
      if value != field.default:
        given = [settings.flags.get(name), recorded.get(name), recipe.get(name), value]
        sources[given.index(value)][1].append(format_flag(name, value))
  wrapper = textwrap.TextWrapper(HELP_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
  return [wrapper.fill(f"from {source}: {' '.join(flags)}") for source, flags in sources if flags]


def _describe_memory(resolved: ResolvedSettings) -> str:
  """Returns a line that says whether the training step fits. Raises UserError if it does not."""
  train = resolved.config.train
  if train.precision not in ("auto", "bfloat16"):
    raise UserError(f"--chip={resolved.config.chip}: its table is for bfloat16, not for --precision={train.precision}")
  if train.shard_optimizer_state:
    raise UserError(
      f"--chip={resolved.config.chip}: its table has no steps with --shard_optimizer_state. They need less memory: "
      "leave the flag out; what fits without it also fits with it"
    )
  table = read_table()
  cores = parse_slice(resolved.config.chip, table)
  step = resolved.settings.task_entry.training_step(resolved.data_config)
  return MemoryCheck(table, cores, step, resolved.model_config).describe(train)
