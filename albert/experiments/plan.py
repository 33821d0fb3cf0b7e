"""What an experiment does at a scale: commands, in order, each with the file that says that it is done.

Commands are those that a user types. What several variants or experiments have in common (text, vocabulary, shards,
a model pretrained in the same way) is made once: its folder is named after a hash of what it depends on.
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
# Score -> the metric of run_pretraining that it is.
INTRINSIC = {"mlm": "masked_lm_accuracy", "sop": "sentence_order_accuracy", "nsp": "next_sentence_accuracy"}
_SHARD_MANIFEST = "manifest.json"
_FIRST_SEED = 12345
_HELDOUT_SEED = 1


@dataclasses.dataclass(frozen=True)
class Task:
  """A task to fine-tune on.

  Attributes:
    script: its module.
    flags: of the script.
    scores: score -> the name of a metric, and the factor that makes it percent.
  """

  script: str
  flags: Mapping[str, Any]
  scores: Mapping[str, tuple[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
  """What the user gives.

  Attributes:
    output_dir: where everything goes.
    corpus, additional_corpus, heldout_corpus: globs of text; no corpus: that of the installed packages.
    questions: flags of data_prep.question_texts, which makes the held-out text where none is given; may be empty.
    spm_model_file: the vocabulary; none: one is trained on the corpus.
    tasks: to fine-tune on, by name.
    vocab_size: of the vocabulary.
    num_seeds: runs of each variant.
  """

  output_dir: str
  corpus: str = ""
  additional_corpus: str = ""
  heldout_corpus: str = ""
  questions: Mapping[str, str] = dataclasses.field(default_factory=dict)
  spm_model_file: str = ""
  tasks: Mapping[str, Task] = dataclasses.field(default_factory=dict)
  vocab_size: int
  num_seeds: int


@dataclasses.dataclass(frozen=True)
class Step:
  """A command. `done` is the file that it writes last."""

  name: str
  command: tuple[str, ...]
  done: str


@dataclasses.dataclass(frozen=True)
class Result:
  """A score: a number of a JSON file, times a factor that makes it percent."""

  file: str
  metric: str
  factor: float = 100.0


@dataclasses.dataclass(frozen=True)
class Cell:
  """A row: one variant with one seed.

  Attributes:
    variant, seed: which.
    digest: of all that the numbers depend on.
    config: of its model.
    steps: to be done in this order, those of the variants it starts from before.
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

  Raises:
    UserError: text that is needed is not given.
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
    """Where the experiment's table goes."""
    return files.join(self.inputs.output_dir, self.experiment.name)

  def preparation(self) -> list[Step]:
    """Text and vocabulary, where they are not given."""
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
    """The rows, in the order they are computed: all variants with the first seed, then with the next."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + self.inputs.num_seeds)
    return [self._cell(variant, seed) for seed in seeds for variant in self.experiment.variants]

  def _cell(self, variant: Variant, seed: int) -> Cell:
    run, steps = self._pretraining(variant, seed)
    results: dict[str, Result] = {}
    for task in self.experiment.intrinsic:
      if task in ("mlm", _sentence_prediction(variant)):
        results[task] = Result(files.join(run, output_files.EVAL_RESULTS), INTRINSIC[task])
      else:  # asked with the head it has, of another task or untrained, as in table 5
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
    """Its output_dir, and all steps up to it."""
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
    """Flags of its pretraining: batch, steps, rate."""
    train = dict(self.scale.train)
    train["train_batch_size"] = max(1, round(train["train_batch_size"] * variant.batch))
    for name in ("num_train_steps", "num_warmup_steps"):
      train[name] = max(1, round(train[name] * variant.steps / variant.batch))
    train["learning_rate"] *= variant.batch**0.5  # LAMB's rule
    return train

  def _intrinsic(self, variant: Variant, seed: int, task: str, run: str) -> list[Step]:
    """Evaluates a sentence task that the variant was not trained on."""
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
    """Text to shards."""
    output_dir = self._folder(corpus, settings)
    command = _command(
      "data_prep.create_pretraining_data", output_dir=output_dir, **self._preparation_flags(corpus, settings)
    )
    return Step(f"shards: {os.path.basename(output_dir)}", command, files.join(output_dir, _SHARD_MANIFEST))

  def _preparation_flags(self, corpus: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of data preparation. Shards to evaluate on are drawn with another seed."""
    once = {"dupe_factor": 1, "num_shards": 1, "random_seed": _HELDOUT_SEED} if corpus == HELDOUT else {}
    return {
      "input_file": self._texts(corpus),
      "spm_model_file": self.vocabulary,
      "max_seq_length": self.scale.max_seq_length,
      "dupe_factor": self.scale.dupe_factor,
      "num_shards": self.scale.num_shards,
      **once,
      **settings,
    }

  def _texts(self, corpus: str) -> str:
    """Globs of the text."""
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
    """Where something goes that several experiments have in common."""
    return files.join(self.inputs.output_dir, "shared", f"{name}-{_digest(depends_on)}")

  def _shards(self, corpus: str, **settings: Any) -> str:
    return files.join(self._folder(corpus, settings), "*.tfrecord")


def _sentence_prediction(variant: Variant) -> str:
  return str(variant.data.get("sentence_prediction", DATA["sentence_prediction"]))


def _command(module: str, **flags: Any) -> tuple[str, ...]:
  """`python -m module --flag=value ...`; True and False are --flag and --noflag."""
  words = [sys.executable, "-m", module]
  for name, value in flags.items():
    words.append(f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}")
  return tuple(words)


def _digest(values: Any) -> str:
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
