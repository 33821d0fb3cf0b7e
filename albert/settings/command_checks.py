"""Checks the flags and reads the files of a command before TensorFlow is imported: mistakes are reported at once."""

from __future__ import annotations

from typing import Any

from albert.config.base import Config, option_fields
from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig, RunConfig
from albert.config.tf_config import training_addresses
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files, run_directory
from albert.tasks import registry


def read_inputs(task_name: str, config: RunConfig, model_config: ModelConfig, data_config: Config) -> Any:
  """Checks that a command has something to do, and reads its local files, or checks that they exist.

  Remote paths (gs://) are left to the task, because only TensorFlow can look at these.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    config: the settings of the run.
    model_config: the model.
    data_config: the task's own config.
  Returns: the data of the task, see albert.tasks.registry.RegisteredTask; None if the task reads its files later.
  Raises:
    UserError: a flag or a file is missing, a file cannot be used, flags do not fit together, or output_dir cannot be
      written to.
  """
  check_actions(config)
  check_initial_weights(config, are_needed=config.do_train and isinstance(data_config, FinetuningConfig))
  values = [getattr(data_config, name) for name in option_fields(type(data_config))]
  data = None
  if not any(isinstance(value, str) and files.is_remote(value) for value in values):
    evaluates = will_evaluate(config, train=config.do_train, evaluate=config.do_eval)
    data = registry.TASKS[task_name].read_data(
      model_config, data_config, train=config.do_train, evaluate=evaluates, predict=config.do_predict
    )
  if not files.is_remote(config.output_dir):
    run_directory.check_writable(config.output_dir)
  return data


def check_actions(config: RunConfig) -> None:
  """Checks that the config asks for something, and that the processes of TF_CONFIG can do it.

  Raises:
    UserError: the config asks for nothing, or for several runs in several processes or without training and evaluating
      them; or TF_CONFIG is wrong.
  """
  if not (config.do_train or config.do_eval or config.do_predict):
    raise UserError("nothing to do: give --do_train, --do_eval or --do_predict")
  addresses = training_addresses(config.train)
  if config.num_runs == 1:
    return
  if addresses:
    raise UserError(
      f"--num_runs={config.num_runs}: several processes (TF_CONFIG) can train one run only: leave out --num_runs"
    )
  if not (config.do_train and config.do_eval):
    raise UserError(
      f"--num_runs={config.num_runs} compares runs, so give both --do_train and --do_eval; to use the best run, "
      f"give its directory (see {output_files.RUNS}) as --output_dir"
    )
  if config.predictions_file:
    raise UserError(
      f"--predictions_file={config.predictions_file} names one file, but each of the {config.num_runs} runs writes "
      "predictions: leave it out, and each run writes to its own directory"
    )


def will_evaluate(config: RunConfig, *, train: bool, evaluate: bool) -> bool:
  """Whether a command evaluates: because it was told to, or because it trains with --eval_every_steps.

  Args:
    config: the settings of the run.
    train: whether the command trains.
    evaluate: whether the command was told to evaluate.
  """
  return evaluate or (train and config.train.eval_every_steps > 0)


def check_initial_weights(config: RunConfig, *, are_needed: bool) -> None:
  """Raises UserError if training needs weights to start from and the config gives none."""
  if are_needed and not (config.init_checkpoint or config.from_scratch):
    raise UserError(
      "--do_train needs --init_checkpoint, the weights to start from; for random weights give --from_scratch"
    )
