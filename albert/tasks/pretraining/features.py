"""The features and the datasets of pretraining, also those of each stage. Shards hold token ids already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from albert.data.dynamic_masking import DynamicMasking
from albert.data.pipeline import ShardDataset
from albert.data.schema import NEXT_SENTENCE_LABELS, FeatureSpec, pretraining_features
from albert.data.shards import Shards, count_and_hash_shards
from albert.io import files
from albert.tasks.base import TrainingStage
from albert.tasks.pretraining.files import PretrainingData

# The settings that may differ between stages. config.json records them for each stage.
_SETTINGS_OF_STAGES = ("max_seq_length", "max_predictions_per_seq", "masking", "masked_lm_prob", "ngram")


def record_features(data: PretrainingData, max_predictions: int) -> Sequence[FeatureSpec]:
  """Returns the features that each record must have, with this number of masked tokens."""
  model = data.model_config
  features = pretraining_features(data.max_seq_length, max_predictions, model.vocab_size, model.type_vocab_size)
  return [feature for feature in features if data.sentence_metric or feature.name != NEXT_SENTENCE_LABELS]


def heldout_features(data: PretrainingData) -> Sequence[FeatureSpec]:
  """Returns the features that each record of the held-out shards must have."""
  return record_features(data, data.form("eval_input_file").max_predictions_per_seq)


def training_dataset(data: PretrainingData) -> ShardDataset:
  """Makes the dataset of --input_file; with several stages, that of the last stage."""
  return _dataset_of(data, _count(data, "input_file", data.training_shards))


def heldout_dataset(data: PretrainingData) -> ShardDataset:
  """Makes the dataset of --eval_input_file."""
  shards = _count(data, "eval_input_file", data.heldout_shards)
  return ShardDataset(shards, heldout_features(data), None)


def training_stages(data: PretrainingData) -> list[TrainingStage]:
  """Makes the stages of a run, in order. Shards that several stages read are counted once."""
  stages: list[TrainingStage] = []
  shards_of_globs: dict[str, Shards] = {}
  for stage, stage_data in data.data_of_stages:
    globs, settings = stage_data.globs["input_file"], stage_data.settings()
    if globs not in shards_of_globs:
      shards_of_globs[globs] = _count(stage_data, "input_file", stage_data.training_shards)
    stages.append(
      TrainingStage(
        until=stage.until,
        model_config=stage_data.model_config,
        data=_dataset_of(stage_data, shards_of_globs[globs]),
        train_batch_size=stage.train_batch_size,
        settings={name: settings[name] for name in _SETTINGS_OF_STAGES},
      )
    )
  return stages


def _dataset_of(data: PretrainingData, shards: Shards) -> ShardDataset:
  """Makes the dataset of shards to train on."""
  masking = DynamicMasking.from_tokenizer(data.tokenizer, *data.masking) if data.masking else None
  return ShardDataset(shards, record_features(data, data.max_predictions), masking)


def _count(data: PretrainingData, flag: str, stats: Mapping[str, files.Stat]) -> Shards:
  return count_and_hash_shards(list(stats), stats=stats, globs=data.globs[flag], cache_dir=data.config.cache_dir)
