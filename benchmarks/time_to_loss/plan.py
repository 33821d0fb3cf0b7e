"""Plans the commands that compare recipes of pretraining: shards, pretraining with evaluations, and fine-tuning.

The recipes are the file recipes.json. The plan is run by the runner of the experiments, which skips what is done.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from albert.config.base import from_dict
from albert.config.model import ModelConfig
from albert.experiments.inputs import hash_files
from albert.experiments.runner import Command, ScoreSource, Trial, digest, python_command
from albert.io import files
from albert.runs import output_files

RECIPES_FILE = Path(__file__).parent / "recipes.json"
_FIRST_SEED = 12345
# A setting that names shards: "shards:128" in recipes.json becomes the glob of the shards with this name.
_SHARDS = re.compile(r"shards:([\w-]+)")


class _Recipe(msgspec.Struct, forbid_unknown_fields=True):
  """A recipe that is compared.

  Attributes:
    name: a name that no other recipe has.
    changes: how it differs from the reference, for the table.
    flags: flags of run_pretraining that differ from the common ones.
    seeds: number of runs.
    finetuned: whether the pretrained models are fine-tuned.
  """

  name: str
  changes: str
  flags: dict[str, Any] = {}
  seeds: Annotated[int, msgspec.Meta(ge=1)] = 1
  finetuned: bool = False


class RecipesFile(msgspec.Struct, forbid_unknown_fields=True):
  """Schema of recipes.json.

  Attributes:
    vocab_size: number of pieces of the vocabulary.
    text: flags of data preparation that describe the form of the text.
    shards: name -> flags of data preparation.
    heldout: the name of the shards whose flags the held-out shards have.
    pretraining: flags of run_pretraining that all recipes have; a recipe may replace them.
    finetuning: name of a task of GLUE -> its metric, and flags of run_classifier.
    recipes: the recipes. The first one is the reference.
  """

  vocab_size: int
  text: dict[str, Any]
  shards: dict[str, dict[str, Any]]
  heldout: str
  pretraining: dict[str, Any]
  finetuning: dict[str, dict[str, Any]]
  recipes: Annotated[list[_Recipe], msgspec.Meta(min_length=1)]


def read_recipes(path: str) -> RecipesFile:
  """Reads recipes.json, or a file of the same form.

  Raises:
    UserError: the file is missing or does not have this form.
  """
  return files.read_json(path, RecipesFile, f"see {RECIPES_FILE.name}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipePlan:
  """The commands that compare recipes; a TrialPlan of the runner of experiments.

  Attributes:
    output_dir: directory for vocabulary, shards, runs and results.
    corpus, heldout_corpus: globs of the texts to train and to evaluate on.
    glue_dir: folder of GLUE; empty: nothing is fine-tuned.
    content: the recipes file.
    only: names of the recipes to run; empty: all.
  """

  output_dir: str
  corpus: str
  heldout_corpus: str
  glue_dir: str
  content: RecipesFile
  only: tuple[str, ...] = ()

  @property
  def name(self) -> str:
    """The name of the comparison, in messages."""
    return "time to loss"

  @property
  def directory(self) -> str:
    """The directory of the results."""
    return self.output_dir

  @property
  def vocabulary(self) -> str:
    """The path of the vocabulary."""
    return files.join(self.output_dir, "vocab", output_files.VOCABULARY)

  def preparation_commands(self) -> list[Command]:
    """Returns the commands that make the vocabulary and the held-out shards."""
    vocabulary = python_command(
      "vocabulary",
      "data_prep.train_vocab",
      [self.vocabulary],
      input_file=self.corpus,
      output_dir=os.path.dirname(self.vocabulary),
      vocab_size=self.content.vocab_size,
      document=self.content.text.get("document", "blank_line"),
    )
    heldout = self._shards_command("heldout", self.heldout_corpus, dupe_factor=1, num_shards=1, random_seed=1)
    return [vocabulary, heldout]

  def trials(self) -> list[Trial]:
    """Returns the trials: all recipes with the first seed, then those that have a second one, and so on."""
    recipes = [recipe for recipe in self.content.recipes if not self.only or recipe.name in self.only]
    most_seeds = max(recipe.seeds for recipe in recipes)
    return [
      self._trial(recipe, _FIRST_SEED + number)
      for number in range(most_seeds)
      for recipe in recipes
      if number < recipe.seeds
    ]

  def _trial(self, recipe: _Recipe, seed: int) -> Trial:
    flags = {**self.content.pretraining, **recipe.flags, "seed": seed}
    model_names = {field.name for field in dataclasses.fields(ModelConfig)}
    model = {name: value for name, value in flags.items() if name in model_names}
    config = from_dict(ModelConfig, {"vocab_size": self.content.vocab_size, **model}, source=recipe.name)
    run = files.join(self.output_dir, "runs", f"{recipe.name}-{seed}-{digest([flags, self._hash_of_texts()])}")
    shards = sorted({name for value in flags.values() for name in _SHARDS.findall(str(value))})
    commands = [self._shards_command(name, self.corpus) for name in shards]
    results_file = files.join(run, output_files.EVAL_RESULTS)
    pretraining = python_command(
      f"{recipe.name}, seed {seed}: pretraining",
      "run_pretraining",
      [results_file],
      recipe="none",
      do_train=True,
      do_eval=True,
      output_dir=run,
      spm_model_file=self.vocabulary,
      eval_input_file=self._glob("heldout"),
      **{name: self._replace_shards(value) for name, value in flags.items()},
    )
    commands.append(pretraining)
    scores = {
      "mlm": ScoreSource(results_file, "masked_lm_accuracy"),
      "sop": ScoreSource(results_file, "sentence_order_accuracy"),
      "loss": ScoreSource(results_file, "masked_lm_loss", 1.0),
    }
    if recipe.finetuned and self.glue_dir:
      for task, settings in self.content.finetuning.items():
        command, score = self._finetuning(task, settings, recipe.name, run, seed)
        commands.append(command)
        scores[task] = score
    return Trial(recipe.name, seed, config, commands, scores, run)

  def _finetuning(
    self, task: str, settings: Mapping[str, Any], name: str, run: str, seed: int
  ) -> tuple[Command, ScoreSource]:
    flags = {key: value for key, value in settings.items() if key != "metric"}
    output_dir = files.join(run, f"{task}-{digest(flags)}")
    results_file = files.join(output_dir, output_files.EVAL_RESULTS)
    command = python_command(
      f"{name}, seed {seed}: {task}",
      "run_classifier",
      [results_file],
      task_name=task,
      data_dir=self.glue_dir,
      init_checkpoint=run,
      output_dir=output_dir,
      do_train=True,
      do_eval=True,
      seed=seed,
      **flags,
    )
    return command, ScoreSource(results_file, settings["metric"])

  def _shards_command(self, name: str, corpus: str, **more_flags: Any) -> Command:
    flags = self.content.shards[self.content.heldout if name == "heldout" else name]
    output_dir = files.join(self.output_dir, "shards", name)
    return python_command(
      f"shards: {name}",
      "data_prep.create_pretraining_data",
      [files.join(output_dir, "manifest.json")],
      input_file=corpus,
      output_dir=output_dir,
      spm_model_file=self.vocabulary,
      **{**self.content.text, **flags, **more_flags},
    )

  def _replace_shards(self, value: Any) -> Any:
    """Replaces the names of shards in the value of a flag by their globs."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _SHARDS.sub(lambda match: self._glob(match[1]), text) if isinstance(value, str | list) else value

  def _glob(self, shards: str) -> str:
    return files.join(self.output_dir, "shards", shards, "*.tfrecord")

  def _hash_of_texts(self) -> str:
    return hash_files(f"{self.corpus},{self.heldout_corpus}")
