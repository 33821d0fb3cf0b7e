"""What --dry_run prints: the plan of a command, its settings, and what it takes on the TPU or GPUs of --chip.

Needs no TensorFlow.
"""

from __future__ import annotations

import math
import textwrap

from albert.app import HELP_WIDTH
from albert.config.base import option_fields
from albert.config.command_flags import format_flag
from albert.config.model import ModelConfig
from albert.config.run import REFERENCE_BATCH_SIZE, OptimizerConfig, resolve_warmup
from albert.errors import UserError
from albert.io.progress import log
from albert.io.text import counted
from albert.settings import costs
from albert.settings.resolve import ResolvedSettings
from albert.settings.tpu_memory import MemoryCheck, Slice, parse_slice, read_table
from albert.tasks.finetuning import FinetuningData
from albert.tasks.pretraining.files import count_examples, describe_stages, find_length, read_data
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.splits import TRAIN
from albert.weights.initial_weights import check_config

NOTHING_DONE = "--dry_run: nothing was trained, and nothing was written"
_MOST_PASSES = 40  # over the text, as BERT's; a run with more passes, or less than one, gets a warning
_RECOMPUTATION = 4 / 3  # gradient checkpointing computes the forward pass, a third of a step, twice
# The sizes in which a model agrees with its initial weights; a shallower network differs in the first.
_SIZES = ("num_hidden_layers", "hidden_size", "embedding_size", "vocab_size", "max_position_embeddings")


def print_plan(resolved: ResolvedSettings) -> None:
  """Checks the flags and files of a command and prints what it would do. Nothing is trained, and no file is written.

  With --chip, a command needs neither an action such as --do_train nor files.

  Raises:
    UserError: a flag or a file cannot be used, or the training step does not fit the TPU of --chip.
  """
  config, data_config, data = resolved.config, resolved.data_config, None
  table = read_table()
  cores = parse_slice(config.chip, table) if config.chip else None
  if cores:
    costs.resolve_speed(config.chip, cores.chip, config.train.precision)
  if not isinstance(data_config, PretrainingConfig):
    given = [name for name in ("hours", "price_per_hour") if getattr(config, name) is not None]
    given += ["chip=cpu"] if cores and cores.chip == costs.CPU else []
    if given:
      raise UserError(f"--{given[0]} is for pretraining: leave it out")
  if config.has_action or not cores:
    data = resolved.read_inputs()
  elif isinstance(data_config, PretrainingConfig) and data_config.has_local_shards:
    read_data(resolved.model_config, data_config, train=True, evaluate=False, predict=False)  # the shards fit the model
  if resolved.weights:  # a run compares the shapes of the weights themselves
    sizes = _SIZES[1 if config.init_from_shallower else 0 :]
    check_config(resolved.weights, resolved.model_config, sizes, "leave out the flags of the model")
  num_rows, num_examples, warnings = 0, 0, list[str]()
  if config.do_train and isinstance(data, FinetuningData):
    num_rows, num_examples = len(data.rows(TRAIN)), data.estimate_examples()
    warnings = _describe_long_texts(data, resolved.model_config)
  plan = _describe_plan(resolved, num_rows, num_examples)
  lines = [*resolved.notes, *plan, *warnings, *_describe_settings(resolved, num_examples)]
  if cores and isinstance(data_config, PretrainingConfig):
    lines += _describe_pretraining(resolved, data_config, cores)
  print("\n".join(lines))
  if cores and cores.limit:
    step = resolved.settings.task_entry.training_step(data_config)
    print(MemoryCheck(table, cores, step, resolved.model_config).describe(config.train))
  log(NOTHING_DONE)


def _describe_plan(resolved: ResolvedSettings, num_rows: int, num_examples: int) -> list[str]:
  """Returns a line about the model, and one for each action. The numbers are those to fine-tune on; else 0."""
  config, model = resolved.config, resolved.model_config
  lines = [f"runs: {config.num_runs}, each of the following plan"] if config.num_runs > 1 else []
  lines.append(
    f"model: {costs.num_model_parameters(model):,} parameters in the encoder; {model.num_hidden_layers} layers, "
    f"hidden_size {model.hidden_size}, vocab_size {model.vocab_size}"
  )
  train = config.train
  if config.do_train:
    amount = f"{train.num_train_epochs:g} epochs" if train.num_train_epochs else f"{train.num_train_steps:,} steps"
    if num_rows:
      windows = "" if num_rows == num_examples else f" in about {num_examples:,} windows"
      steps = counted(train.num_steps(num_examples), "step", ",")
      epochs = f"{train.num_train_steps * train.train_batch_size / num_examples:,.1f} epochs"
      amount += f" of {counted(num_rows, 'row', ',')}{windows}, {steps if train.num_train_epochs else epochs},"
    elif isinstance(resolved.data_config, PretrainingConfig) and train.num_train_epochs:
      examples = count_examples(resolved.data_config)
      amount += f", {counted(train.num_steps(examples[0]), 'step', ',')}," if examples else ""
    start = config.resume_from or config.init_checkpoint or "random weights"
    lines.append(
      f"train: {amount} with {train.train_batch_size} examples per step, {config.optimizer.optimizer}, from {start}"
    )
    is_started = bool(resolved.settings.existing_run)
    lines += train.length_warnings(num_examples, is_started=is_started) if num_examples else ()
    if isinstance(resolved.data_config, PretrainingConfig):
      lines += describe_stages(model, resolved.data_config, train)
  actions = {"evaluate": config.do_eval, "predict": config.do_predict}
  lines += [f"{action}: {train.eval_batch_size} examples per batch" for action, is_asked in actions.items() if is_asked]
  return [*lines, f"output_dir: {config.output_dir}"] if config.output_dir else lines


def _describe_long_texts(data: FinetuningData, model: ModelConfig) -> list[str]:
  """Returns a warning if texts will be cut off: in a sample of the training rows, some are longer than a sequence."""
  config = data.config
  texts = [] if getattr(config, "long_texts", "") == "windows" else list(data.texts_of(data.sample(TRAIN)))
  num_long = sum(len(ids) > config.max_seq_length - 2 for ids in data.tokenizer.encode_batch(texts))  # [CLS] and [SEP]
  if not num_long:
    return []
  longer = "a larger --max_seq_length or " if config.max_seq_length < model.max_position_embeddings else ""
  remedy = f"give {longer}--long_texts=windows (single texts)"
  return [
    f"warning: {num_long} of {len(texts)} texts exceed --max_seq_length={config.max_seq_length}, and are cut: {remedy}"
  ]


def _describe_settings(resolved: ResolvedSettings, num_examples: int) -> list[str]:
  """Returns a paragraph for each source, with the values that differ from the defaults."""
  config, settings, model = resolved.config, resolved.settings, resolved.model_config
  data, train, optimizer = resolved.data_config, config.train, config.optimizer
  if num_examples or ((config.do_train or config.chip) and not train.num_train_epochs):
    optimizer = resolve_warmup(optimizer, train.num_steps(num_examples), is_default=config.warmup_is_default)
  sections = {"": config, "data": data, "train": train, "optimizer": optimizer, "model": model}
  sources: list[tuple[str, list[str]]] = [
    ("flags", [format_flag(*flag) for flag in settings.flags.items() if flag[0] in ("model", "albert_config_file")]),
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


def _describe_pretraining(resolved: ResolvedSettings, data: PretrainingConfig, cores: Slice) -> list[str]:
  """Returns lines about what a pretraining run reads and takes, and about its learning rate."""
  train, batch, length = resolved.config.train, resolved.config.train.train_batch_size, find_length(data)
  examples = count_examples(data)
  if train.num_train_epochs and examples is None:
    raise UserError(
      f"--num_train_epochs={train.num_train_epochs:g}: how many steps these are is known from local shards with a "
      "manifest.json only: give them as --input_file, or give --num_train_steps"
    )
  steps = train.num_steps(examples[0] if examples else 0)
  lines = [
    f"data: {batch:,} sequences of {length} tokens per step ({batch * length:,} tokens), {steps * batch:,} in "
    f"{steps:,} steps ({steps * batch * length:,} tokens)"
  ]
  if examples:
    num_examples, examples_per_pass = examples
    passes = steps * batch / examples_per_pass
    epochs = _number(steps * batch / num_examples)
    lines.append(f"passes: {epochs} over the {num_examples:,} examples, {_number(passes)} over their text")
    if passes > _MOST_PASSES:
      limit = max(1, int(_MOST_PASSES * examples_per_pass / batch))
      lines.append(f"warning: more than {_MOST_PASSES} passes: prepare more text, or give --num_train_steps={limit}")
    elif passes < 1:
      one_pass = math.ceil(examples_per_pass / batch)
      lines.append(f"warning: a part of the text is not used: --num_train_steps={one_pass} sees all of it once")
  predictions = data.max_predictions_per_seq or None
  flops = costs.step_flops(resolved.model_config, batch_size=batch, seq_length=length, predictions=predictions)
  return [*lines, *_describe_time(resolved, cores, steps, flops), _describe_learning_rate(resolved)]


def _describe_time(resolved: ResolvedSettings, cores: Slice, steps: int, flops: float) -> list[str]:
  """Returns lines about the work and the time of `steps` steps of `flops` operations, and about what they cost."""
  config, train = resolved.config, resolved.config.train
  precision, speed = costs.resolve_speed(config.chip, cores.chip, train.precision)
  recomputation = _RECOMPUTATION if train.recompute_grad else 1
  step_hours = recomputation * flops / (speed.flops_per_second * cores.num_cores) / 3600
  hours = steps * step_hours
  lines = [
    f"work: {_number(flops / 1e12)} TFLOP per step, {flops * steps:.3g} FLOP in total",
    f"time on {cores.name} in {precision}: {_with_range(hours)} hours, "
    f"{_number(train.train_batch_size / step_hours / 3600)} sequences/s, at {speed.fraction:.0%} of the peak of "
    f"{speed.peak / 1e12:,.3g} TFLOP/s per {cores.unit} ({speed.source})",
  ]
  for name, other in costs.chip_speeds(cores.chip).items():
    if train.precision == "auto" and other.flops_per_second > speed.flops_per_second:
      faster = hours * speed.flops_per_second / other.flops_per_second
      lines.append(f"time with --precision={name}: {_with_range(faster)} hours")
  if config.price_per_hour is not None:
    lines.append(f"cost: {_with_range(hours * config.price_per_hour)} dollars, at {config.price_per_hour:g} per hour")
  if config.hours:
    lines.append(f"in {config.hours:g} hours: {_with_range(config.hours / step_hours)} steps; the run has {steps:,}")
  return lines


def _describe_learning_rate(resolved: ResolvedSettings) -> str:
  """Returns a line that compares the learning rate with that of the recipe, scaled for the batch."""
  recipe, optimizer, batch = resolved.settings.recipe, resolved.config.optimizer, resolved.config.train.train_batch_size
  values = recipe.sections.get("optimizer", {})
  rate, recipe_batch = values.get("learning_rate", OptimizerConfig.learning_rate), REFERENCE_BATCH_SIZE
  if not values.get("scale_learning_rate"):
    recipe_batch = recipe.sections.get("train", {}).get("train_batch_size", recipe_batch)
  expected, actual = rate * math.sqrt(batch / recipe_batch), optimizer.peak_learning_rate(batch)
  source = "recipe" if recipe.name else "paper"
  line = (
    f"learning rate: {actual:.3g}; that of the {source}, scaled by the square root of the batch, is {rate:g} x "
    f"sqrt({batch} / {recipe_batch}) = {expected:.3g}"
  )
  if math.isclose(expected, actual, rel_tol=0.01):
    return line
  unscaled = " --noscale_learning_rate" if optimizer.scale_learning_rate else ""
  return f"{line}: give --learning_rate={expected:.3g}{unscaled}"


def _number(value: float) -> str:
  return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _with_range(value: float) -> str:
  """Formats an estimate with the range that it has because of the speed."""
  return f"{_number(value)} ({_number(value / costs.SPEED_RANGE)} to {_number(value * costs.SPEED_RANGE)})"
