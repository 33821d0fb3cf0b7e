"""Plans the commands of an experiment at a scale, which is smoke, small, medium, shallow or paper.

The commands are those that a user would type. Several variants or experiments may need the same text, vocabulary,
shards or pretrained model, but each of these is made only once. The name of its directory contains a hash of the flags
of the command that makes it, and of the contents of the user's files that this command reads. So all plans find it in
the same directory. If one of the files changes, a new directory is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.experiments import layers
from albert.experiments.catalog import DATA_DEFAULTS, UNIGRAM, VOCABULARY_FILES, Experiment, Scale, Variant
from albert.experiments.inputs import Inputs
from albert.experiments.runner import Command, ScoreSource, Trial, digest, python_command, training_files
from albert.io import files
from albert.runs import output_files
from albert.tasks.pretraining.flags import format_stages
from albert.tokenization.vocabulary import vocabulary_paths

# Score of pretraining -> the metric of run_pretraining. The scores of sentence tasks have the names of the tasks.
INTRINSIC_METRICS = {
  "mlm": "masked_lm_accuracy",
  "ppl": "masked_lm_perplexity",
  "sop": "sentence_order_accuracy",
  "nsp": "next_sentence_accuracy",
}
# The types of vocabularies that the package tokenizers trains. A small text gives fewer pieces than --vocab_size.
_TRAINED_BY_TOKENIZERS = ("wordpiece", "byte_level_bpe")
# Evaluations during training, for a figure of curves.
_NUM_CURVE_POINTS = 20
_FIRST_SEED = 12345
_HELDOUT_SEED = 1


class Plan:
  """The commands of an experiment. Its results are written to `directory`.

  Args:
    experiment: the experiment.
    scale: the sizes of models and training.
    inputs: the inputs that the user gives.
  Raises:
    UserError: the inputs lack a text that the experiment needs, or give a vocabulary although the experiment compares
      several.
  """

  def __init__(self, experiment: Experiment, scale: Scale, inputs: Inputs):
    self.experiment, self.scale, self.inputs = experiment, scale, inputs
    self.name, self.directory = experiment.name, files.join(inputs.output_dir, experiment.name)
    if inputs.corpus and not inputs.heldout_corpus and not inputs.question_flags:
      raise UserError(
        "--corpus without --heldout_corpus: give --heldout_corpus with text that is not in --corpus, or give SQuAD or "
        "RACE (--squad_v1, --squad_v2, --race_dir), whose development sets are then used as held-out text"
      )
    if any(variant.corpus == "additional" for variant in experiment.variants) and not inputs.additional_corpus:
      raise UserError(
        f"--run={experiment.name} trains some variants on additional text: give it with --additional_corpus"
      )
    self._documentation_flags = {"max_megabytes": scale.max_megabytes} if scale.max_megabytes else {}
    self._documentation_directory = self._shared_directory("corpus", self._documentation_flags)
    question_files = ",".join(inputs.question_flags.values())
    question_directory = self._shared_directory("questions", inputs.question_flags, question_files)
    self._question_text_file = files.join(question_directory, "heldout.txt")
    # Corpus -> globs of its text files. Pretraining is evaluated on "heldout". Variants are trained on the others.
    main_text = inputs.corpus or files.join(self._documentation_directory, "train.txt")
    documentation = files.join(self._documentation_directory, "heldout.txt")
    self._texts = {
      "main": main_text,
      "additional": f"{main_text},{inputs.additional_corpus}",
      "heldout": inputs.heldout_corpus or (self._question_text_file if inputs.question_flags else documentation),
    }
    self._vocabulary_types = list(dict.fromkeys(variant.vocabulary for variant in experiment.variants))
    kinds = ", ".join(self._vocabulary_types)
    if inputs.spm_model_file and kinds != UNIGRAM:
      raise UserError(
        f"--run={self.name} trains vocabularies of {kinds}: leave out --spm_model_file={inputs.spm_model_file}"
      )

  def preparation_commands(self) -> list[Command]:
    """Returns the commands that make the text and the vocabularies, if they are not given."""
    inputs, commands = self.inputs, []
    if not inputs.corpus:
      directory, name = self._documentation_directory, "text of the installed packages"
      flags: dict[str, Any] = {"output_dir": directory, **self._documentation_flags}
      makes = [files.join(directory, "heldout.txt")]
      commands.append(python_command(name, "data_prep.sample_corpus", makes, **flags))
    if inputs.question_flags and not inputs.heldout_corpus:
      name, path = "text of the development sets", self._question_text_file
      flags = {"output_file": path, **inputs.question_flags}
      commands.append(python_command(name, "data_prep.question_texts", [path], **flags))
    for kind in self._vocabulary_types if not inputs.spm_model_file else ():
      name, path = "vocabulary" if kind == UNIGRAM else f"vocabulary: {kind}", self.vocabulary(kind)
      flags = {"output_dir": os.path.dirname(path), **self._vocabulary_flags(kind)}
      # Byte-level BPE has two files. The last path is the one that is written last.
      commands.append(python_command(name, "data_prep.train_vocab", vocabulary_paths(path)[-1:], **flags))
    return commands

  def vocabulary(self, kind: str) -> str:
    """Returns the path of the vocabulary of a type: the user's, or the one that a command of the plan trains."""
    if self.inputs.spm_model_file:
      return self.inputs.spm_model_file
    name = "vocab" if kind == UNIGRAM else f"vocab-{kind}"
    directory = self._shared_directory(name, self._vocabulary_flags(kind), self.inputs.corpus)
    return files.join(directory, VOCABULARY_FILES[kind])

  def _vocabulary_flags(self, kind: str) -> dict[str, Any]:
    """Returns the flags of train_vocab. The default --type is left out, as in the hashes of earlier versions."""
    type_flag = {} if kind == UNIGRAM else {"type": kind}
    return {"input_file": self._texts["main"], "vocab_size": self.inputs.vocab_size, **type_flag}

  def trials(self) -> list[Trial]:
    """Returns all trials in the order of computation: all variants with the first seed, then with the next one."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + self.inputs.num_seeds)
    return [self._make_trial(variant, seed) for seed in seeds for variant in self.experiment.variants]

  def _make_trial(self, variant: Variant, seed: int) -> Trial:
    """Plans all commands of a variant with one seed: pretraining, its evaluation, fine-tuning, and distances."""
    run, commands = self._plan_pretraining(variant, seed)
    name = f"{variant.name}, seed {seed}"
    model = self.scale.model(variant, self.inputs.vocab_size)
    scores: dict[str, ScoreSource] = {}
    # The command of pretraining evaluates the tasks that it trains. Another command evaluates the sentence head on each
    # other sentence task without further training (ALBERT, table 5).
    for score in self.experiment.intrinsic:
      results_file = files.join(run, output_files.EVAL_RESULTS)
      if score not in ("mlm", "ppl", _sentence_prediction(variant)):
        results_file = files.join(run, score, output_files.EVAL_RESULTS)
        shards, command = self._plan_shards(variant, "heldout", sentence_prediction=score)
        flags = {"init_checkpoint": run, "output_dir": files.join(run, score), "do_eval": True}
        flags["eval_input_file"] = shards
        commands += [command, python_command(f"{name}: {score}", "run_pretraining", [results_file], **flags)]
      scores[score] = ScoreSource(results_file, INTRINSIC_METRICS[score], factor=1.0 if score == "ppl" else 100.0)
    for task_name, task in self.inputs.tasks.items() if self.experiment.finetuned else ():
      task_flags = task.flags_for(model) | {"seed": seed}
      if self.scale.is_reduced:
        task_flags |= {**self.scale.finetuning_flags(task.script), "eval_every_steps": 0}
      output_dir = files.join(run, f"{task_name}-{self._digest_with_files(task_flags, task.data)}")
      flags = {"init_checkpoint": run, "output_dir": output_dir, "do_train": True, "do_eval": True, **task_flags}
      makes = training_files(output_dir)
      commands.append(python_command(f"{name}: {task_name}", task.script, makes, **flags))
      scores |= {score: ScoreSource(makes[0], metric, factor) for score, (metric, factor) in task.scores.items()}
    if self.experiment.figure == "layers":
      path = files.join(run, layers.FILE_NAME)
      shards, _ = self._plan_shards(variant, "heldout", sentence_prediction=_sentence_prediction(variant))
      flags = {"checkpoint": run, "input_file": shards, "output_file": path}
      commands.append(python_command(f"{name}: layers", "albert.experiments.layers", [path], **flags))
    may_be_smaller = variant.vocabulary in _TRAINED_BY_TOKENIZERS
    vocabulary = self.vocabulary(variant.vocabulary) if may_be_smaller else ""
    return Trial(variant.name, seed, model, commands, scores, run, vocabulary)

  def _plan_pretraining(self, variant: Variant, seed: int) -> tuple[str, list[Command]]:
    """Returns the output_dir of a variant's pretraining, and the commands for its shards and all trainings it needs.

    The name of output_dir contains a hash of the flags, so variants and experiments with the same flags share one run.
    """
    commands: list[Command] = []
    earlier_runs = {}
    for name in filter(None, (variant.starts_from, variant.same_time_as)):
      earlier_runs[name], earlier_commands = self._plan_pretraining(self.experiment.variant(name), seed)
      commands += earlier_commands
    training_shards, training_command = self._plan_shards(variant, variant.corpus, **variant.data)
    sentence_prediction = _sentence_prediction(variant)
    heldout_shards, heldout_command = self._plan_shards(variant, "heldout", sentence_prediction=sentence_prediction)
    commands += [training_command, heldout_command]
    model = self.scale.model(variant, self.inputs.vocab_size)
    flags: dict[str, Any] = {}
    if variant.starts_from:
      flags = {"init_checkpoint": earlier_runs[variant.starts_from], "init_from_shallower": True}
    flags |= {
      **model.to_dict(),
      **self.training_flags(variant),
      "input_file": training_shards,
      "eval_input_file": heldout_shards,
      "spm_model_file": self.vocabulary(variant.vocabulary),
      "seed": seed,
    }
    if stages := self.stages(model):
      flags["stages"] = format_stages(stages)
    if variant.vocabulary in _TRAINED_BY_TOKENIZERS:
      del flags["vocab_size"]  # the model takes the number of pieces that the vocabulary has
    if variant.same_time_as:
      flags["same_time_as"] = earlier_runs[variant.same_time_as]
    run = files.join(self.inputs.output_dir, "runs", f"{model.num_hidden_layers}x{model.hidden_size}-{digest(flags)}")
    flags = {"output_dir": run, "do_train": True, "do_eval": True, **flags}
    name = f"{variant.name}, seed {seed}: pretraining"
    commands.append(python_command(name, "run_pretraining", training_files(run), **flags))
    # A command may be in the list twice, for example if the variant uses the same shards as the one it starts from.
    return run, list(dict.fromkeys(commands))

  def training_flags(self, variant: Variant) -> dict[str, Any]:
    """Returns the flags of a variant's pretraining: batch size, steps and learning rate."""
    values = dict(self.scale.train)
    values["train_batch_size"] = max(1, round(values["train_batch_size"] * variant.batch))
    # With same_time_as, the number of steps is only an upper bound, so it does not change the length of the warm-up.
    warmup_factor = 1.0 if variant.same_time_as else variant.steps
    for name, factor in (("num_train_steps", variant.steps), ("num_warmup_steps", warmup_factor)):
      values[name] = max(1, round(values[name] * factor / variant.batch))
    values["learning_rate"] *= variant.batch**0.5 * variant.rate  # the square-root rule of LAMB
    if self.experiment.figure in ("curves", "loss_curves"):
      values["eval_every_steps"] = max(1, values["num_train_steps"] // _NUM_CURVE_POINTS)
    return values

  def stages(self, model: ModelConfig) -> list[dict[str, Any]]:
    """Returns the stages of a model's pretraining, as a recipe has them; none if all steps train all layers.

    If one of the variants has a time limit (same_time_as), no model has stages, so that all are trained alike.

    Args:
      model: the model at this scale.
    """
    if any(variant.same_time_as for variant in self.experiment.variants):
      return []
    return self.scale.stages(model)

  def _plan_shards(self, variant: Variant, corpus: str, **settings: Any) -> tuple[str, Command]:
    """Returns a glob of the shards of a corpus, and the command that makes them with the vocabulary of a variant.

    The held-out text becomes one shard without duplicates (dupe_factor 1), with a random seed of its own.
    """
    inputs, scale = self.inputs, self.scale
    flags = {
      "input_file": self._texts[corpus],
      "spm_model_file": self.vocabulary(variant.vocabulary),
      "max_seq_length": scale.max_seq_length,
      "dupe_factor": scale.dupe_factor,
      "num_shards": scale.num_shards,
    }
    if inputs.max_predictions_per_seq:
      flags["max_predictions_per_seq"] = inputs.max_predictions_per_seq
    if corpus == "heldout":
      flags |= {"dupe_factor": 1, "num_shards": 1, "random_seed": _HELDOUT_SEED}
    flags |= settings
    given_texts = {"main": [inputs.corpus], "heldout": [inputs.heldout_corpus]}
    texts = given_texts.get(corpus, [inputs.corpus, inputs.additional_corpus])
    name = "-".join(["shards", corpus, *({**DATA_DEFAULTS, **settings}.values())])
    user_files = ",".join([*texts, *vocabulary_paths(inputs.spm_model_file)])
    directory = self._shared_directory(name, flags, user_files)
    name, makes = f"shards: {os.path.basename(directory)}", [files.join(directory, "manifest.json")]
    command = python_command(name, "data_prep.create_pretraining_data", makes, output_dir=directory, **flags)
    return files.join(directory, "*.tfrecord"), command

  def _shared_directory(self, name: str, flags: Mapping[str, Any], user_files: str = "") -> str:
    """Returns the directory for the output of a command. Experiments that use the same flags and files share it.

    `user_files` are the files of the user that the command reads. Those that other commands make are left out: their
    paths, which are in `flags`, contain a hash.
    """
    return files.join(self.inputs.output_dir, "shared", f"{name}-{self._digest_with_files(flags, user_files)}")

  def _digest_with_files(self, flags: Mapping[str, Any], user_files: str) -> str:
    """Returns a hash of flags and of the contents of files, for the name of a directory; see `_shared_directory`."""
    sha256 = self.inputs.hash_files(user_files)
    return digest({**flags, "contents": sha256} if sha256 else flags)


def _sentence_prediction(variant: Variant) -> str:
  """Returns the sentence task that a variant is trained on."""
  return str(variant.data.get("sentence_prediction", DATA_DEFAULTS["sentence_prediction"]))
