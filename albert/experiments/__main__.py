"""Runs an experiment of the ALBERT paper: trains models that differ in one setting, and compares them.

python -m albert.experiments --run=sentence_loss --scale=small --output_dir=experiments
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import dataclasses
import os
import sys

from absl import flags

from albert.config import command_flags
from albert.config.command_flags import MAX_PROCESSES, Range
from albert.errors import UserError
from albert.experiments import catalog, inputs, runner, tables
from albert.experiments.catalog import Scale
from albert.experiments.plan import Plan
from albert.io import files
from albert.io.progress import log
from albert.settings import costs
from albert.tasks.race.files import split_folder
from albert.tasks.splits import DEV

# Task of GLUE -> name of its score in the tables, and name of the metric of run_classifier.
_GLUE_SCORES = {
  "CoLA": ("cola", "matthews_corrcoef"),
  "SST-2": ("sst2", "accuracy"),
  "MRPC": ("mrpc", "f1"),
  "RTE": ("rte", "accuracy"),
  "MNLI": ("mnli", "matched_accuracy"),
}


def define_flags() -> None:
  """Defines the flags of this command."""
  run_help = "experiments to run: names that --list shows, or paths of .json files of the same form"
  flags.DEFINE_list("run", [], run_help, module_name=sys.argv[0])
  variants_help = "names of variants of the one experiment of --run, instead of all"
  flags.DEFINE_list("variants", [], variants_help, module_name=sys.argv[0])
  command_flags.define("bool", "list", False, "list the experiments")
  for name, default, help_text in (
    ("output_dir", None, "directory for text, shards, runs and tables; experiments in one directory share them"),
    ("corpus", "", "text to train on, comma-separated globs (default: the documentation of the installed packages)"),
    ("additional_corpus", "", "more text, for the experiment additional_data"),
    (
      "heldout_corpus",
      "",
      "text to evaluate pretraining on (default: the development sets of --squad_v2 or --squad_v1, and of --race_dir)",
    ),
    ("spm_model_file", "", "SentencePiece model (default: one is trained on the corpus)"),
  ):
    command_flags.define("str", name, default, help_text)
  inputs.define_plan_flags(
    glue_tasks=["SST-2"],
    glue_help=f"tasks of GLUE to fine-tune on, from {', '.join(_GLUE_SCORES)}",
    scale="small",
    scale_help="sizes of the models, numbers of steps and amount of text",
  )
  for name, minimum, help_text in (
    ("num_seeds", 1, "runs of each variant (default: given by the scale)"),
    (
      "vocab_size",
      1,
      "pieces of the vocabulary that is trained without --spm_model_file (default: given by the scale)",
    ),
    (
      "max_predictions_per_seq",
      0,
      "masked tokens per sequence at most; 0: 15% of the sequence (default: given by the scale; paper: 20, as the "
      "authors of ALBERT chose)",
    ),
  ):
    command_flags.define("int", name, None, help_text, allowed=Range(minimum))
  dropout_help = "dropout in the encoder of all models (default: given by the experiment; 0.1, as in the paper)"
  command_flags.define("float", "dropout", None, dropout_help, allowed=Range(minimum=0, below=1))
  jobs_help = (
    "commands that run at the same time, each on its share of the processors; small models train faster this way"
  )
  command_flags.define("int", "jobs", 1, jobs_help, allowed=Range(1, MAX_PROCESSES))


def _make_inputs(scale: Scale) -> inputs.Inputs:
  """Returns the inputs that the flags give."""
  values = flags.FLAGS
  tasks = {}
  for name, task in inputs.given_tasks(tuple(_GLUE_SCORES)).items():
    if name.startswith("squad"):  # its metrics are in percent already
      tasks[name] = dataclasses.replace(task, scores={f"{name}_{metric}": (metric, 1.0) for metric in ("f1", "exact")})
    else:
      score, metric = _GLUE_SCORES.get(name, (name, "accuracy"))  # or RACE's
      tasks[score] = dataclasses.replace(task, scores={score: (metric, 100.0)})
  question_flags = {}
  if squad_paths := values.squad_v2 or values.squad_v1:
    question_flags["squad_file"] = squad_paths.split(",")[-1]  # the dev file
  if values.race_dir:
    question_flags["race_file"] = split_folder(values.race_dir, DEV)
  num_predictions = values.max_predictions_per_seq
  if num_predictions is None:
    num_predictions = scale.max_predictions_per_seq
  if num_predictions > scale.max_seq_length:
    raise UserError(
      f"--max_predictions_per_seq={num_predictions} exceeds the {scale.max_seq_length} tokens of a sequence here"
    )
  vocab_size = values.vocab_size or scale.vocab_size
  if values.spm_model_file:
    if values.vocab_size:
      raise UserError(
        f"--vocab_size={values.vocab_size} and --spm_model_file={values.spm_model_file} are both given: give one"
      )
    from albert.tokenization.tokenizer import Tokenizer

    vocab_size = Tokenizer(values.spm_model_file).vocab_size
  return inputs.Inputs(
    output_dir=os.path.abspath(values.output_dir),
    corpus=values.corpus,
    additional_corpus=values.additional_corpus,
    heldout_corpus=values.heldout_corpus,
    question_flags=question_flags,
    spm_model_file=values.spm_model_file,
    tasks=tasks,
    vocab_size=vocab_size,
    max_predictions_per_seq=num_predictions,
    num_seeds=values.num_seeds or scale.num_seeds,
  )


def describe(plan: Plan, flops_per_second: float) -> str:
  """Returns a table of the estimated cost of pretraining each variant.

  Args:
    plan: the plan of the experiment.
    flops_per_second: speed of training on this machine, in floating-point operations per second.
  """
  scale, total_hours, hours_of_variants = plan.scale, 0.0, dict[str, float]()
  lines = [f"{plan.name}: {plan.experiment.title}"]
  lines.append("variant\tlayers\thidden\tparameters\tbatch\tsteps\tGFLOP per step\thours")
  num_predictions = plan.inputs.max_predictions_per_seq or None
  for variant in plan.experiment.variants:
    config, train = scale.model(variant, plan.inputs.vocab_size), plan.training_flags(variant)
    batch_size, num_steps = train["train_batch_size"], train["num_train_steps"]
    step_flops, start = 0.0, 0.0  # the mean over the stages
    for stage in plan.stages(config) or [{"until": 1}]:
      model = dataclasses.replace(config, num_hidden_layers=stage.get("num_hidden_layers", config.num_hidden_layers))
      step_flops += (stage["until"] - start) * costs.step_flops(
        model, batch_size=batch_size, seq_length=scale.max_seq_length, predictions=num_predictions
      )
      start = stage["until"]
    hours = num_steps * step_flops / flops_per_second / 3600
    if variant.same_time_as:  # it ends by the clock
      hours = min(hours, hours_of_variants[variant.same_time_as])
    hours_of_variants[variant.name] = hours
    total_hours += hours * plan.inputs.num_seeds
    lines.append(
      f"{variant.name}\t{config.num_hidden_layers}\t{config.hidden_size}\t"
      f"{costs.num_model_parameters(config):,}\t{batch_size}\t"
      f"{'by the clock' if variant.same_time_as else num_steps}\t{step_flops / 1e9:,.1f}\t{hours:,.2f}"
    )
  num_commands = sum(len(trial.commands) for trial in plan.trials())
  lines.append(
    f"{plan.inputs.num_seeds} seed(s), {num_commands} commands; pretraining takes about {total_hours:,.2f} hours at "
    f"{flops_per_second / 1e9:,.0f} GFLOP/s"
  )
  return "\n".join(lines)


def main() -> None:
  """Lists the experiments, prints their plans, or runs them."""
  flag_values = flags.FLAGS
  if flag_values.list:
    for name in catalog.names():
      experiment = catalog.load(name)
      print(f"{name}\t{len(experiment.variants)} variants\t{experiment.title} ({experiment.source})")
    return
  if not flag_values.run or not flag_values.output_dir:
    raise UserError("give --list, or --run=NAME and --output_dir")
  runner.check_is_local(flag_values.output_dir)
  scale = catalog.read_scale(flag_values.scale)
  experiments = [catalog.load(name, reduced=scale.is_reduced) for name in flag_values.run]
  if flag_values.variants:
    if len(experiments) > 1:
      raise UserError("--variants selects from one experiment: give one name with --run")
    experiments = [catalog.with_variants(experiments[0], flag_values.variants)]
  if flag_values.dropout is not None:
    experiments = [catalog.with_dropout(experiment, flag_values.dropout) for experiment in experiments]
  if flag_values.scale != "smoke":  # it checks only the commands
    for experiment in experiments:
      catalog.check_variants(experiment, scale, flag_values.scale)
  given_inputs = _make_inputs(scale)
  plans = [Plan(experiment, scale, given_inputs) for experiment in experiments]
  for plan in plans:
    runner.check_scale(plan.directory, flag_values.scale)
  if flag_values.print_commands:
    print(runner.format_commands(*plans))
    return
  if flag_values.dry_run:
    flops_per_second = costs.training_flops_per_second(flag_values.gflops)
    print("\n\n".join(describe(plan, flops_per_second) for plan in plans))
    return
  for plan in plans:
    files.makedirs(plan.directory)
    files.write_json(files.join(plan.directory, runner.SCALE_FILE), {"scale": flag_values.scale})
    rows = runner.run_plan(plan, flag_values.jobs)
    table = tables.write(plan, rows, scale=flag_values.scale)
    print(table, end="")
    log(f"wrote {files.join(plan.directory, tables.TABLE_FILE)}")


if __name__ == "__main__":
  startup.run_command_of(__name__)
