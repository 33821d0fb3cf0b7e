"""Plans the commands of an experiment at a scale, which is smoke, small, medium or paper (see scales).

The commands are those that a user would type. Each command has a file that it writes last; if this file exists, the
command is not run again. Several variants or experiments may need the same text, vocabulary, shards or pretrained
model. Each of these is made only once: the name of its directory contains a hash of the flags that it is made with, and
of the contents of the user's files that it is made from. So two plans that need the same one name the same directory,
and after a change of a file another directory is made.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config.model import ModelConfig
from albert.config.stages import format_stages
from albert.errors import UserError
from albert.experiments import layers
from albert.experiments.catalog import (
  ADDITIONAL,
  CURVE_FIGURE,
  DATA_DEFAULTS,
  LAYER_FIGURE,
  LOSS_FIGURE,
  MAIN,
  Experiment,
  Variant,
)
from albert.experiments.commands import Command, command_line, digest
from albert.experiments.inputs import Inputs
from albert.experiments.late_flags import TrainingSeconds
from albert.experiments.scales import Scale
from albert.experiments.vocabularies import Vocabularies
from albert.io import files
from albert.runs import output_files
from albert.tokenization.vocabulary import vocabulary_paths

# The corpus that pretraining is evaluated on. The module catalog defines the other corpora.
HELDOUT = "heldout"
# Score of pretraining -> the metric of run_pretraining. The scores of sentence tasks have the names of the tasks.
INTRINSIC_METRICS = {
  "mlm": "masked_lm_accuracy",
  "ppl": "masked_lm_perplexity",
  "sop": "sentence_order_accuracy",
  "nsp": "next_sentence_accuracy",
}
# Evaluations during training, for a figure of curves.
_NUM_CURVE_POINTS = 20
_SHARD_MANIFEST = "manifest.json"
_FIRST_SEED = 12345
_HELDOUT_SEED = 1


@dataclasses.dataclass(frozen=True)
class ScoreSource:
  """The file that a score is read from.

  Attributes:
    file: a JSON file with metrics.
    metric: name of the metric.
    factor: factor that converts the metric to percent.
    statistic: statistic of the metric over several runs, for a runs.json; empty for a file of metrics.
  """

  file: str
  metric: str
  factor: float = 100.0
  statistic: str = ""


# Commands, and the scores that they compute, by name.
_CommandsAndScores = tuple[list[Command], dict[str, ScoreSource]]


@dataclasses.dataclass(frozen=True)
class Trial:
  """One variant with one seed. It gives one row of the results.

  Attributes:
    variant: the variant.
    seed: the seed.
    digest: hash of all commands of the trial. It covers the contents of the user's files, because the names of
      directories do.
    config: the config of the model.
    commands: the commands in order: shards, then pretraining. If the variant starts from another variant, that one is
      pretrained first.
    scores: name of a score -> where it is read from.
    run: output_dir of the pretraining.
    vocabulary: path of the vocabulary, if its size may differ from that of `config`; "" if it cannot.
  """

  variant: Variant
  seed: int
  digest: str
  config: ModelConfig
  commands: Sequence[Command]
  scores: Mapping[str, ScoreSource]
  run: str
  vocabulary: str = ""


class Plan:
  """The commands of an experiment.

  Args:
    experiment: the experiment.
    scale: the sizes of models and training.
    inputs: the inputs that the user gives.
  Raises:
    UserError: the inputs lack a text that the experiment needs.
  """

  def __init__(self, experiment: Experiment, scale: Scale, inputs: Inputs):
    self.experiment, self.scale, self.inputs = experiment, scale, inputs
    if inputs.corpus and not inputs.heldout_corpus and not inputs.question_flags:
      raise UserError(
        "--corpus without --heldout_corpus: give --heldout_corpus with text that is not in --corpus, or give SQuAD or "
        "RACE (--squad_v1, --squad_v2, --race_dir), whose development sets are then used as held-out text"
      )
    if any(variant.corpus == ADDITIONAL for variant in experiment.variants) and not inputs.additional_corpus:
      raise UserError(
        f"--run={experiment.name} trains some variants on additional text: give it with --additional_corpus"
      )
    self._documentation_flags = {"max_megabytes": scale.max_megabytes} if scale.max_megabytes else {}
    self._documentation_directory = self._shared_directory("corpus", self._documentation_flags)
    question_files = ",".join(inputs.question_flags.values())
    question_directory = self._shared_directory("questions", inputs.question_flags, question_files)
    self._question_text_file = files.join(question_directory, "heldout.txt")
    vocabulary_types = [variant.vocabulary for variant in experiment.variants]
    self.vocabularies = Vocabularies(
      vocabulary_types, inputs, self._texts(MAIN), self._shared_directory, source=f"--run={experiment.name}"
    )

  @property
  def name(self) -> str:
    """The name of the experiment."""
    return self.experiment.name

  @property
  def directory(self) -> str:
    """The directory of the experiment's results."""
    return files.join(self.inputs.output_dir, self.name)

  def preparation_commands(self) -> list[Command]:
    """Returns the commands that make the text and the vocabularies, if they are not given."""
    inputs, commands = self.inputs, []
    if not inputs.corpus:
      output_dir, flags = self._documentation_directory, self._documentation_flags
      words = command_line("data_prep.sample_corpus", output_dir=output_dir, **flags)
      completion_file = files.join(self._documentation_directory, "heldout.txt")
      commands.append(Command("text of the installed packages", words, completion_file))
    if inputs.question_flags and not inputs.heldout_corpus:
      words = command_line("data_prep.question_texts", output_file=self._question_text_file, **inputs.question_flags)
      commands.append(Command("text of the development sets", words, self._question_text_file))
    return [*commands, *self.vocabularies.training_commands()]

  def trials(self) -> list[Trial]:
    """Returns all trials in the order of computation: all variants with the first seed, then with the next one."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + self.inputs.num_seeds)
    return [self._make_trial(variant, seed) for seed in seeds for variant in self.experiment.variants]

  def _make_trial(self, variant: Variant, seed: int) -> Trial:
    """Plans all commands of a variant with one seed."""
    run, commands = self._plan_pretraining(variant, seed)
    scores: dict[str, ScoreSource] = {}
    for more_commands, more_scores in (
      self._plan_intrinsic_evaluation(variant, seed, run),
      self._plan_finetuning(variant, seed, run),
      self._plan_layer_figure(variant, seed, run),
    ):
      commands += more_commands
      scores |= more_scores
    trial_digest = digest([command.words[1:] for command in commands])  # without the path of the Python interpreter
    # A trial reserves all files that it makes, so others would wait for shards that are made after its pretraining.
    commands.sort(key=lambda command: not command.makes_shards)
    model, kind = self.scale.model(variant, self.inputs.vocab_size), variant.vocabulary
    vocabulary = self.vocabularies.path(kind) if self.vocabularies.may_be_smaller(kind) else ""
    return Trial(variant, seed, trial_digest, model, commands, scores, run, vocabulary)

  def _plan_pretraining(self, variant: Variant, seed: int) -> tuple[str, list[Command]]:
    """Plans the pretraining of a variant.

    Returns: the output_dir of the pretraining, and the commands that make the shards and pretrain. If the variant
      starts from another variant's weights, that variant's commands come first. The output_dir contains a hash of the
      flags, so variants and experiments with the same flags share one run.
    """
    commands: list[Command] = []
    flags: dict[str, Any] = {}
    if variant.starts_from:
      earlier_run, commands = self._plan_pretraining(self.experiment.variant(variant.starts_from), seed)
      flags = {"init_checkpoint": earlier_run, "init_from_shallower": True}
    late_flag = None
    if variant.same_time_as:
      reference, reference_commands = self._plan_pretraining(self.experiment.variant(variant.same_time_as), seed)
      commands = [*commands, *reference_commands]
      late_flag = TrainingSeconds(reference)
    sentence_prediction = _sentence_prediction(variant)
    commands = [
      *commands,
      self._plan_shards(variant, variant.corpus, **variant.data),
      self._plan_heldout_shards(variant, sentence_prediction),
    ]
    model = self.scale.model(variant, self.inputs.vocab_size)
    flags |= {
      **model.to_dict(),
      **self.training_flags(variant),
      "input_file": self._shards(variant, variant.corpus, **variant.data),
      "eval_input_file": self._shards(variant, HELDOUT, sentence_prediction=sentence_prediction),
      "spm_model_file": self.vocabularies.path(variant.vocabulary),
      "seed": seed,
    }
    if stages := self.stages(model):
      flags["stages"] = format_stages(stages)
    if self.vocabularies.may_be_smaller(variant.vocabulary):
      del flags["vocab_size"]  # the model takes the number of pieces that the vocabulary has
    identity = {**flags, "same_time_as": late_flag.run} if late_flag else flags
    name = f"{model.num_hidden_layers}x{model.hidden_size}-{digest(identity)}"
    run = files.join(self.inputs.output_dir, "runs", name)
    words = command_line("run_pretraining", output_dir=run, do_train=True, do_eval=True, **flags)
    completion_file = files.join(run, output_files.EVAL_RESULTS)
    record = files.join(run, output_files.TRAINING_LOSS)
    commands.append(
      Command(f"{variant.name}, seed {seed}: pretraining", words, completion_file, late_flag, training_record=record)
    )
    # A command may be in the list twice, for example if the variant uses the same shards as the one it starts from.
    return run, list(dict.fromkeys(commands))

  def _plan_intrinsic_evaluation(self, variant: Variant, seed: int, run: str) -> _CommandsAndScores:
    """Plans the evaluation on the experiment's pretraining tasks. The pretraining itself evaluates its own tasks."""
    commands: list[Command] = []
    scores = {}
    for task in self.experiment.intrinsic:
      if task in ("mlm", "ppl", _sentence_prediction(variant)):
        results_file = files.join(run, output_files.EVAL_RESULTS)
      else:
        shards_command, evaluation_command = self._plan_other_sentence_task(variant, seed, task, run)
        commands += [shards_command, evaluation_command]
        results_file = evaluation_command.completion_file
      scores[task] = ScoreSource(results_file, INTRINSIC_METRICS[task], factor=1.0 if task == "ppl" else 100.0)
    return commands, scores

  def _plan_other_sentence_task(self, variant: Variant, seed: int, task: str, run: str) -> tuple[Command, Command]:
    """Plans the evaluation on a sentence task that the variant was not trained on (ALBERT, table 5).

    The sentence head of the variant is evaluated without further training. It was trained on the other sentence task
    or not at all.

    Returns: the commands that make the shards and that evaluate.
    """
    output_dir = files.join(run, task)
    words = command_line(
      "run_pretraining",
      init_checkpoint=run,
      output_dir=output_dir,
      do_eval=True,
      eval_input_file=self._shards(variant, HELDOUT, sentence_prediction=task),
    )
    completion_file = files.join(output_dir, output_files.EVAL_RESULTS)
    evaluation_command = Command(f"{variant.name}, seed {seed}: {task}", words, completion_file)
    return self._plan_heldout_shards(variant, task), evaluation_command

  def _plan_finetuning(self, variant: Variant, seed: int, run: str) -> _CommandsAndScores:
    """Plans the fine-tuning of a variant on all tasks whose data is given, if the experiment fine-tunes."""
    commands: list[Command] = []
    scores: dict[str, ScoreSource] = {}
    if not self.experiment.finetuned:
      return commands, scores
    for name, task in self.inputs.tasks.items():
      flags = dict(task.flags) | task.recipe_flags(self.scale.model(variant, self.inputs.vocab_size)) | {"seed": seed}
      if self.scale.is_reduced:
        flags |= {**self.scale.finetuning_flags(task.script), "eval_every_steps": 0}
      output_dir = files.join(run, f"{name}-{self._digest_with_files(flags, task.data)}")
      words = command_line(
        task.script, init_checkpoint=run, output_dir=output_dir, do_train=True, do_eval=True, **flags
      )
      completion_file = files.join(output_dir, output_files.EVAL_RESULTS)
      record = files.join(output_dir, output_files.TRAINING_LOSS)
      commands.append(Command(f"{variant.name}, seed {seed}: {name}", words, completion_file, training_record=record))
      scores |= {score: ScoreSource(completion_file, metric, factor) for score, (metric, factor) in task.scores.items()}
    return commands, scores

  def _plan_layer_figure(self, variant: Variant, seed: int, run: str) -> _CommandsAndScores:
    """Plans the measurement of the distances between layers, if the experiment has a figure of them."""
    if self.experiment.figure != LAYER_FIGURE:
      return [], {}
    completion_file = files.join(run, layers.FILE_NAME)
    shards = self._shards(variant, HELDOUT, sentence_prediction=_sentence_prediction(variant))
    words = command_line("albert.experiments.layers", checkpoint=run, input_file=shards, output_file=completion_file)
    return [Command(f"{variant.name}, seed {seed}: layers", words, completion_file)], {}

  def training_flags(self, variant: Variant) -> dict[str, Any]:
    """Returns the flags of a variant's pretraining: batch size, steps and learning rate."""
    values = dict(self.scale.train)
    values["train_batch_size"] = max(1, round(values["train_batch_size"] * variant.batch))
    # A run that ends by the clock has the scale's warm-up. Its number of steps is only an upper bound.
    warmup_factor = 1.0 if variant.same_time_as else variant.steps
    for name, factor in (("num_train_steps", variant.steps), ("num_warmup_steps", warmup_factor)):
      values[name] = max(1, round(values[name] * factor / variant.batch))
    values["learning_rate"] *= variant.batch**0.5 * variant.rate  # the square-root rule of LAMB
    if self.experiment.figure in (CURVE_FIGURE, LOSS_FIGURE):
      values["eval_every_steps"] = max(1, values["num_train_steps"] // _NUM_CURVE_POINTS)
    return values

  def stages(self, model: ModelConfig) -> list[dict[str, Any]]:
    """Returns the stages of a model's pretraining, as a recipe has them; none if all steps train all layers.

    An experiment in which a model ends by the clock has none, so that all its models are trained alike.

    Args:
      model: the model at this scale.
    """
    if any(variant.same_time_as for variant in self.experiment.variants):
      return []
    return self.scale.stages(model)

  def _plan_heldout_shards(self, variant: Variant, sentence_prediction: str) -> Command:
    return self._plan_shards(variant, HELDOUT, sentence_prediction=sentence_prediction)

  def _plan_shards(self, variant: Variant, corpus: str, **settings: Any) -> Command:
    """Returns the command that makes shards from text, with the vocabulary of a variant."""
    output_dir = self._shard_directory(variant, corpus, settings)
    words = command_line(
      "data_prep.create_pretraining_data", output_dir=output_dir, **self._shard_flags(variant, corpus, settings)
    )
    completion_file = files.join(output_dir, _SHARD_MANIFEST)
    return Command(f"shards: {os.path.basename(output_dir)}", words, completion_file, makes_shards=True)

  def _shard_flags(self, variant: Variant, corpus: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of data preparation.

    The held-out text becomes one shard without duplicates (dupe_factor 1). Its seed is not that of the training shards.
    """
    num_predictions = self.inputs.max_predictions_per_seq
    prediction_flags = {"max_predictions_per_seq": num_predictions} if num_predictions else {}
    heldout_flags = {"dupe_factor": 1, "num_shards": 1, "random_seed": _HELDOUT_SEED} if corpus == HELDOUT else {}
    return {
      "input_file": self._texts(corpus),
      "spm_model_file": self.vocabularies.path(variant.vocabulary),
      "max_seq_length": self.scale.max_seq_length,
      "dupe_factor": self.scale.dupe_factor,
      "num_shards": self.scale.num_shards,
      **prediction_flags,
      **heldout_flags,
      **settings,
    }

  def _texts(self, corpus: str) -> str:
    """Returns globs of the text files of a corpus."""
    inputs = self.inputs
    if corpus == HELDOUT:
      documentation = files.join(self._documentation_directory, "heldout.txt")
      return inputs.heldout_corpus or (self._question_text_file if inputs.question_flags else documentation)
    main_text = inputs.corpus or files.join(self._documentation_directory, "train.txt")
    return main_text if corpus == MAIN else f"{main_text},{inputs.additional_corpus}"

  def _shard_directory(self, variant: Variant, corpus: str, settings: Mapping[str, Any]) -> str:
    values = [settings.get(name, default) for name, default in DATA_DEFAULTS.items()]
    inputs = self.inputs
    texts = {MAIN: inputs.corpus, HELDOUT: inputs.heldout_corpus}.get(
      corpus, f"{inputs.corpus},{inputs.additional_corpus}"
    )
    name, user_files = (
      "-".join(["shards", corpus, *values]),
      ",".join([texts, *vocabulary_paths(inputs.spm_model_file)]),
    )
    return self._shared_directory(name, self._shard_flags(variant, corpus, settings), user_files)

  def _shared_directory(self, name: str, flags: Mapping[str, Any], user_files: str = "") -> str:
    """Returns a directory that several experiments share.

    Args:
      name: the beginning of its name.
      flags: the flags of the command that makes it.
      user_files: the files of the user that the command reads: paths and globs, separated by commas. Files that other
        commands of the plan have made are left out, because their paths, which are in `flags`, contain such a hash.
    """
    return files.join(self.inputs.output_dir, "shared", f"{name}-{self._digest_with_files(flags, user_files)}")

  def _digest_with_files(self, flags: Mapping[str, Any], user_files: str) -> str:
    """Returns a hash of flags and of the contents of files, for the name of a directory; see `_shared_directory`."""
    sha256 = self.inputs.hash_files(user_files)
    return digest({**flags, "contents": sha256} if sha256 else flags)

  def _shards(self, variant: Variant, corpus: str, **settings: Any) -> str:
    """Returns a glob of the shards of a corpus, made with the vocabulary of a variant."""
    return files.join(self._shard_directory(variant, corpus, settings), "*.tfrecord")


def _sentence_prediction(variant: Variant) -> str:
  """Returns the sentence task that a variant is trained on."""
  return str(variant.data.get("sentence_prediction", DATA_DEFAULTS["sentence_prediction"]))
