"""Settings and advice that depend on the vocabulary, the model or the initial weights. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses

from albert.config.base import Config
from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.settings.sources import Settings
from albert.tokenization.vocabulary import VocabularySize
from albert.weights.location import WeightLocation


def fit_vocab_size(
  settings: Settings, model: ModelConfig, data: Config, weights: WeightLocation | None
) -> tuple[ModelConfig, list[str]]:
  """Sets the vocab_size of a model. The initial weights determine it or, without them, the vocabulary.

  Args:
    settings: where the values come from. Nothing is changed if one of its sources gives vocab_size.
    model: the model.
    data: the task's own config, which names the vocabulary and the shards.
    weights: the initial weights; None for random weights.
  Returns: the model, and the lines that tell the user what was set.
  Raises:
    UserError: the vocabulary or the manifest of the shards cannot be read.
  """
  if settings.gives_vocab_size():
    return model, []
  vocabulary = _size_of_weights(weights) if weights else settings.task_entry.find_vocabulary_size(model, data)
  if vocabulary is None or (weights and vocabulary.size == model.vocab_size):
    return model, []
  note = f"vocab_size is {vocabulary.size}, the size of the vocabulary according to {vocabulary.file}"
  return dataclasses.replace(model, vocab_size=vocabulary.size), [note]


def _size_of_weights(weights: WeightLocation) -> VocabularySize | None:
  config, path = weights.config(), weights.config_file
  return VocabularySize(config.vocab_size, path) if config and path else None


def fit_max_seq_length(settings: Settings, model: ModelConfig, data: Config) -> tuple[Config, list[str]]:
  """Limits the max_seq_length of a fine-tuning task to the model's positions, if it is a default.

  Args:
    settings: where the values come from. A value of a flag or of the run in output_dir is not changed.
    model: the model.
    data: the task's own config.
  Returns: the task's config, and the lines that tell the user what was set.
  """
  if not isinstance(data, FinetuningConfig) or settings.existing_run or "max_seq_length" in settings.flags:
    return data, []
  default, positions = data.max_seq_length, model.max_position_embeddings
  if default <= positions:
    return data, []
  note = f"max_seq_length is {positions}, the number of the model's positions, instead of the default {default}"
  return dataclasses.replace(data, max_seq_length=positions), [note]


def compare_recipe_with_weights(settings: Settings, weights: WeightLocation | None) -> list[str]:
  """Returns a line of advice if training starts from other weights than those the recipe is for; else no line.

  Whether weights were pretrained with dropout is read from the model config beside them.
  """
  recipe, config = settings.recipe, weights.config() if weights else None
  if weights is None or config is None or not settings.flags.get("do_train"):
    return []
  other = recipe.better_recipe_for(config)
  if not other:
    return []
  has_dropout = config.hidden_dropout_prob > 0
  if has_dropout:
    advice = f"for such weights, as those of ALBERT v1, there is --recipe={other}"
  else:
    advice = f"if they are weights of ALBERT v2, the training may diverge: give --recipe={other}"
  dropout = "with dropout" if has_dropout else "without dropout"
  return [
    f"the recipe {recipe.name} is for other weights: according to {weights.config_file}, these were pretrained "
    f"{dropout}; {advice}"
  ]
