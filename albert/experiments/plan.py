"""The commands of an experiment at a scale, in order, each with the file that shows that it is done.

The commands are those that a user would type. Text, vocabulary, shards and pretrained models that several variants or
experiments share are made once: the name of their folder contains a hash of everything they depend on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.experiments import layers
from albert.experiments.catalog import ADDITIONAL, DATA, LAYERS, MAIN, Experiment, Variant
from albert.experiments.scales import Scale
from albert.io import files
from albert.runs import output_files

HELDOUT = "heldout"
# Score -> name of the metric of run_pretraining.
INTRINSIC = {"mlm": "masked_lm_accuracy", "sop": "sentence_order_accuracy", "nsp": "next_sentence_accuracy"}
_SHARD_MANIFEST = "manifest.json"
_FIRST_SEED = 12345
_HELDOUT_SEED = 1


@dataclasses.dataclass(frozen=True)
class FinetuningTask:
  """A task to fine-tune on.

  Attributes:
    script: module of the script.
    flags: flags of the script.
    scores: score -> name of the metric, and the factor that turns it into percent.
  """

  script: str
  flags: Mapping[str, Any]
  scores: Mapping[str, tuple[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
  """The inputs that the user gives.

  Attributes:
    output_dir: directory for text, shards, runs and tables.
    corpus: globs of the text to train on; empty for the documentation of the installed packages.
    additional_corpus: globs of more text, for variants that use it.
    heldout_corpus: globs of the text that pretraining is evaluated on; empty if it is to be made.
    questions: flags of data_prep.question_texts, which makes the held-out text if none is given; may be empty.
    spm_model_file: the vocabulary; empty if one is to be trained on the corpus.
    tasks: the tasks to fine-tune on, by name.
    vocab_size: size of the vocabulary.
    num_seeds: number of runs of each variant.
  """

  output_dir: str
  corpus: str = ""
  additional_corpus: str = ""
  heldout_corpus: str = ""
  questions: Mapping[str, str] = dataclasses.field(default_factory=dict)
  spm_model_file: str = ""
  tasks: Mapping[str, FinetuningTask] = dataclasses.field(default_factory=dict)
  vocab_size: int
  num_seeds: int


@dataclasses.dataclass(frozen=True)
class Step:
  """A command, with a name for messages. `done` is the file that it writes last."""

  name: str
  command: tuple[str, ...]
  done: str


@dataclasses.dataclass(frozen=True)
class Result:
  """Where a score is found: a metric in a JSON file, and the factor that turns it into percent."""

  file: str
  metric: str
  factor: float = 100.0


@dataclasses.dataclass(frozen=True)
class Cell:
  """One variant with one seed, which gives one row of the results.

  Attributes:
    variant: the variant.
    seed: the seed.
    digest: hash of everything that the numbers depend on.
    config: the config of its model.
    steps: the commands in order. Those of the variants that it starts from come first.
    results: score -> where it is found.
    run: output_dir of its pretraining.
  """

  variant: Variant
  seed: int
  digest: str
  config: ModelConfig
  steps: Sequence[Step]
  results: Mapping[str, Result]
  run: str


class Plan:
  """The commands of an experiment.

  Args:
    experiment: the experiment.
    scale: the sizes of models and training.
    inputs: the inputs that the user gives.
  Raises:
    UserError: text that the experiment needs is not given.
  """

  def __init__(self, experiment: Experiment, scale: Scale, inputs: Inputs):
    self.experiment, self.scale, self.inputs = experiment, scale, inputs
    if inputs.corpus and not inputs.heldout_corpus and not inputs.questions:
      raise UserError(
        "--corpus without --heldout_corpus: give text to evaluate on that is not in --corpus, or SQuAD or RACE, from "
        "whose development sets it is made"
      )
    if any(v.corpus == ADDITIONAL for v in experiment.variants) and not inputs.additional_corpus:
      raise UserError(f"--run={experiment.name} compares with more text: give it with --additional_corpus")
    self._sample_flags = {"max_megabytes": scale.max_megabytes} if scale.max_megabytes else {}
    self._sample = self._new_folder("corpus", self._sample_flags)
    self._questions = files.join(self._new_folder("questions", inputs.questions), "heldout.txt")
    self._vocabulary_flags = {"input_file": self._texts(MAIN), "vocab_size": inputs.vocab_size}
    trained = files.join(self._new_folder("vocab", self._vocabulary_flags), output_files.VOCABULARY)
    self.vocabulary = inputs.spm_model_file or trained

  @property
  def directory(self) -> str:
    """The directory of the experiment's results."""
    return files.join(self.inputs.output_dir, self.experiment.name)

  def preparation(self) -> list[Step]:
    """Returns the commands that make the text and the vocabulary, if they are not given."""
    inputs, steps = self.inputs, []
    if not inputs.corpus:
      command = _command("data_prep.sample_corpus", output_dir=self._sample, **self._sample_flags)
      steps.append(Step("text of the installed packages", command, files.join(self._sample, "heldout.txt")))
    if inputs.questions and not inputs.heldout_corpus:
      command = _command("data_prep.question_texts", output_file=self._questions, **inputs.questions)
      steps.append(Step("text of the development sets", command, self._questions))
    if not inputs.spm_model_file:
      output_dir = os.path.dirname(self.vocabulary)
      command = _command("data_prep.train_vocab", output_dir=output_dir, **self._vocabulary_flags)
      steps.append(Step("vocabulary", command, self.vocabulary))
    return steps

  def cells(self) -> list[Cell]:
    """Returns all cells in the order of computation: all variants with the first seed, then with the next one."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + self.inputs.num_seeds)
    return [self._cell(variant, seed) for seed in seeds for variant in self.experiment.variants]

  def _cell(self, variant: Variant, seed: int) -> Cell:
    run, steps = self._pretraining(variant, seed)
    results: dict[str, Result] = {}
    for task in self.experiment.intrinsic:
      if task in ("mlm", _sentence_prediction(variant)):
        results[task] = Result(files.join(run, output_files.EVAL_RESULTS), INTRINSIC[task])
      else:  # evaluated with the head it has, which is untrained or was trained on the other task, as in table 5
        steps += self._intrinsic(variant, seed, task, run)
        results[task] = Result(steps[-1].done, INTRINSIC[task])
    for name, finetuning in self.inputs.tasks.items() if self.experiment.finetuned else ():
      output_dir = files.join(run, name)
      flags = dict(finetuning.flags) | {"seed": seed}
      if self.scale.finetuning:
        flags |= {**self.scale.finetuning, "max_seq_length": self.scale.max_seq_length, "eval_every_steps": 0}
      command = _command(
        finetuning.script, init_checkpoint=run, output_dir=output_dir, do_train=True, do_eval=True, **flags
      )
      done = files.join(output_dir, output_files.EVAL_RESULTS)
      steps.append(Step(f"{variant.name}, seed {seed}: {name}", command, done))
      results |= {score: Result(done, metric, factor) for score, (metric, factor) in finetuning.scores.items()}
    if self.experiment.figure == LAYERS:
      done = files.join(run, layers.FILE_NAME)
      shards = self._shards(HELDOUT, sentence_prediction=_sentence_prediction(variant))
      command = _command("albert.experiments.layers", checkpoint=run, input_file=shards, output_file=done)
      steps.append(Step(f"{variant.name}, seed {seed}: layers", command, done))
    digest = _digest([step.command for step in steps])
    return Cell(variant, seed, digest, self.scale.model(variant, self.inputs.vocab_size), steps, results, run)

  def _pretraining(self, variant: Variant, seed: int) -> tuple[str, list[Step]]:
    """Returns the output_dir of a variant's pretraining, and all steps up to the end of it."""
    steps: list[Step] = []
    flags: dict[str, Any] = {}
    if variant.starts_from:
      start, steps = self._pretraining(self.experiment.variant(variant.starts_from), seed)
      flags = {"init_checkpoint": start, "init_from_shallower": True}
    prediction = _sentence_prediction(variant)
    steps = [*steps, self._preparation(variant.corpus, **variant.data), self._heldout(prediction)]
    model = self.scale.model(variant, self.inputs.vocab_size)
    flags |= {
      **model.to_dict(),
      **self.train(variant),
      "input_file": self._shards(variant.corpus, **variant.data),
      "eval_input_file": self._shards(HELDOUT, sentence_prediction=prediction),
      "spm_model_file": self.vocabulary,
      "seed": seed,
    }
    run = files.join(self.inputs.output_dir, "runs", f"{model.num_hidden_layers}x{model.hidden_size}-{_digest(flags)}")
    command = _command("run_pretraining", output_dir=run, do_train=True, do_eval=True, **flags)
    done = files.join(run, output_files.EVAL_RESULTS)
    steps.append(Step(f"{variant.name}, seed {seed}: pretraining", command, done))
    return run, list(dict.fromkeys(steps))

  def train(self, variant: Variant) -> dict[str, Any]:
    """Returns the flags of a variant's pretraining: batch size, steps and learning rate."""
    train = dict(self.scale.train)
    train["train_batch_size"] = max(1, round(train["train_batch_size"] * variant.batch))
    for name in ("num_train_steps", "num_warmup_steps"):
      train[name] = max(1, round(train[name] * variant.steps / variant.batch))
    train["learning_rate"] *= variant.batch**0.5  # the square-root rule of LAMB
    return train

  def _intrinsic(self, variant: Variant, seed: int, task: str, run: str) -> list[Step]:
    """Returns the steps that evaluate a variant on a sentence task that it was not trained on."""
    output_dir = files.join(run, task)
    command = _command(
      "run_pretraining",
      init_checkpoint=run,
      output_dir=output_dir,
      do_eval=True,
      eval_input_file=self._shards(HELDOUT, sentence_prediction=task),
    )
    done = files.join(output_dir, output_files.EVAL_RESULTS)
    return [self._heldout(task), Step(f"{variant.name}, seed {seed}: {task}", command, done)]

  def _heldout(self, sentence_prediction: str) -> Step:
    return self._preparation(HELDOUT, sentence_prediction=sentence_prediction)

  def _preparation(self, corpus: str, **settings: Any) -> Step:
    """Returns the step that makes shards from text."""
    output_dir = self._folder(corpus, settings)
    command = _command(
      "data_prep.create_pretraining_data", output_dir=output_dir, **self._preparation_flags(corpus, settings)
    )
    return Step(f"shards: {os.path.basename(output_dir)}", command, files.join(output_dir, _SHARD_MANIFEST))

  def _preparation_flags(self, corpus: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of data preparation. The held-out shards are made once, with another seed."""
    heldout_flags = {"dupe_factor": 1, "num_shards": 1, "random_seed": _HELDOUT_SEED} if corpus == HELDOUT else {}
    return {
      "input_file": self._texts(corpus),
      "spm_model_file": self.vocabulary,
      "max_seq_length": self.scale.max_seq_length,
      "dupe_factor": self.scale.dupe_factor,
      "num_shards": self.scale.num_shards,
      **heldout_flags,
      **settings,
    }

  def _texts(self, corpus: str) -> str:
    """Globs of the text files of a corpus."""
    inputs = self.inputs
    main = inputs.corpus or files.join(self._sample, "train.txt")
    heldout = self._questions if inputs.questions else files.join(self._sample, "heldout.txt")
    return {
      MAIN: main,
      ADDITIONAL: f"{main},{inputs.additional_corpus}",
      HELDOUT: inputs.heldout_corpus or heldout,
    }[corpus]

  def _folder(self, corpus: str, settings: Mapping[str, Any]) -> str:
    values = [settings.get(name, default) for name, default in DATA.items()]
    return self._new_folder("-".join(["shards", corpus, *values]), self._preparation_flags(corpus, settings))

  def _new_folder(self, name: str, depends_on: Mapping[str, Any]) -> str:
    """A folder that several experiments share. Its name contains a hash of the values it depends on."""
    return files.join(self.inputs.output_dir, "shared", f"{name}-{_digest(depends_on)}")

  def _shards(self, corpus: str, **settings: Any) -> str:
    return files.join(self._folder(corpus, settings), "*.tfrecord")


def _sentence_prediction(variant: Variant) -> str:
  return str(variant.data.get("sentence_prediction", DATA["sentence_prediction"]))


def _command(module: str, **flags: Any) -> tuple[str, ...]:
  """Returns the words of `python -m module --flag=value ...`. True is written --flag, and False --noflag."""
  words = [sys.executable, "-m", module]
  for name, value in flags.items():
    words.append(f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}")
  return tuple(words)


def _digest(values: Any) -> str:
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
