"""Reads the definitions of experiments and of the scales at which they can be run.

Each experiment is a JSON file in configs/experiments/, each scale one in configs/experiments/scales/.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from albert.config.base import from_dict
from albert.config.model import ModelConfig, named_model
from albert.config.recipes import config_names, configs_directory
from albert.errors import UserError
from albert.io import files, json_values
from albert.runs import output_files

_FOLDER, _SCALE_FOLDER = "experiments", "experiments/scales"
# The names of the scales: the commands are checked in a minute, experiments take minutes, hours, or a TPU.
SCALES = ("smoke", "small", "medium", "shallow", "paper")
# The type of a variant that names no vocabulary: ALBERT's SentencePiece unigram model.
UNIGRAM = "unigram"
# Type of a vocabulary, which is a value of train_vocab --type -> name of the file that it writes.
VOCABULARY_FILES = {
  UNIGRAM: output_files.VOCABULARY,
  "bpe": output_files.VOCABULARY,
  "wordpiece": "vocab.txt",
  "byte_level_bpe": "vocab.json",
}
# A reduced model gets initial weights with the standard deviation _INITIALIZER_SCALE / sqrt(hidden size). For
# ALBERT-large (hidden size 1024) this is 0.02, the paper's value for all sizes. With 0.02, a model of hidden size 128
# learns only the frequencies of words for thousands of steps.
_INITIALIZER_SCALE = 0.02 * math.sqrt(1024)
# Fields of ModelConfig: dropout in the encoder.
_DROPOUT_FIELDS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
# Settings of data preparation that variants may change, with their defaults.
DATA_DEFAULTS = {"sentence_prediction": "sop", "masking": "static", "input_format": "segments"}
_REMEDY = "see the files of configs/experiments"
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _ExperimentFile(msgspec.Struct):
  """The keys of an experiment's file that Experiment does not have, or has with another type.

  Attributes:
    variants: the values of each variant, see Variant.
    model, steps: the defaults of the variants, see Variant.
    fields: fields of ModelConfig that all variants have, unless a variant has another value for them.
    reduced: values that replace `model` and `steps` at scales smaller than the paper's.
  """

  variants: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
  model: str
  steps: _Positive = 1.0
  fields: dict[str, Any] = {}
  reduced: dict[Literal["model", "steps"], Any] = {}


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
  """One of the models that an experiment compares. The attributes are also the keys of the file.

  Attributes:
    name: a name that no other variant of the experiment has.
    model: name of the model in the paper, such as "albert_base". A Scale may reduce its sizes.
    fields: fields of ModelConfig whose values differ from those of `model`, in the paper's sizes.
    data: settings of data preparation whose values differ from those of DATA_DEFAULTS.
    vocabulary: type of the vocabulary: "unigram", "bpe", "wordpiece" or "byte_level_bpe", see train_vocab --type.
    corpus: "main" for the main corpus, or "additional" for the main and the additional corpus together.
    steps: factor by which the scale's number of pretraining steps is multiplied.
    same_time_as: name of an earlier variant, which is pretrained first. This variant is trained for as many seconds of
      training steps; `steps` is then only an upper bound. Empty for a variant that ends at its last step.
    batch: factor by which the scale's batch size is multiplied. The number of steps is divided by it, so that all
      variants see the same number of examples. The learning rate is multiplied by the square root of this factor.
    rate: factor by which the learning rate is also multiplied.
    candidate_for: name of the row of the table for which this variant is a candidate, such as one of several learning
      rates. The row shows the candidate with the lowest held-out perplexity. Empty for a row of its own.
    starts_from: name of the earlier variant from whose weights training starts; empty for random weights.
    x: position of the variant on the x axis of the figure, for example its number of layers; None if the variants have
      no such number. The figure then has a bar for each variant.
    paper: the paper's results: score -> percent; "parameters" -> count; "speedup" -> factor.
  """

  name: str
  model: str
  fields: dict[str, Any] = {}
  data: dict[Literal["sentence_prediction", "masking", "input_format"], str] = {}
  vocabulary: Literal["unigram", "bpe", "wordpiece", "byte_level_bpe"] = "unigram"
  corpus: Literal["main", "additional"] = "main"
  steps: _Positive = 1.0
  same_time_as: str = ""
  batch: _Positive = 1.0
  rate: _Positive = 1.0
  candidate_for: str = ""
  starts_from: str = ""
  x: float | None = None
  paper: dict[str, float] = {}


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
  """A comparison of several variants of a model, of its data or of its pretraining.

  Attributes:
    name: name of its file.
    title: what the experiment compares, the title of its table.
    source: the paper, and the table or section in it that the experiment reproduces.
    variants: the variants, in the order of the table.
    intrinsic: scores of pretraining that every variant is evaluated for: "mlm", "ppl", "sop", "nsp".
    finetuned: whether the variants are fine-tuned on the tasks whose data is given.
    figure: "layers" for a figure of the distance between the input and the output of each layer; "curves" for the
      held-out masked LM accuracy over the steps; "loss_curves" for the training loss beside it; empty for the figure of
      scores by variant.
    x: label of the x axis; empty if the variants have no `x`.
    speed_of: name of the variant whose training speed is 1.0x in the table; empty if the table has no speeds.
    note: text below the caption of the table, such as a result that the paper gives without numbers; may be empty.
  """

  name: str
  title: str
  source: str
  variants: Sequence[Variant]
  intrinsic: Sequence[Literal["mlm", "ppl", "sop", "nsp"]] = ("mlm", "sop")
  finetuned: bool = True
  figure: Literal["", "layers", "curves", "loss_curves"] = ""
  x: str = ""
  speed_of: str = ""
  note: str = ""

  def variant(self, name: str) -> Variant:
    """Returns the variant with this name."""
    return next(variant for variant in self.variants if variant.name == name)


def names() -> list[str]:
  """Returns the names of the experiments in configs/experiments/."""
  return config_names(_FOLDER)


def load(name: str, *, reduced: bool = False) -> Experiment:
  """Reads an experiment.

  Args:
    name: name of an experiment, or path of a .json file of the same form.
    reduced: whether the scale is smaller than the paper's. If so, the values under `reduced` in the file replace its
      `model` and `steps`.
  Raises:
    UserError: there is no such experiment, or the file has a key or a value that is not allowed.
  """
  path = name if name.endswith(".json") else os.path.join(configs_directory(), _FOLDER, f"{name}.json")
  if not files.exists(path):
    raise UserError(f"--run={name}: no such experiment; there are {', '.join(names())}, or give the path of a .json")
  values = files.read_json(path, remedy=_REMEDY)
  file = json_values.convert(path, values, _ExperimentFile, _REMEDY)
  defaults = {"model": file.model, "steps": file.steps, **(file.reduced if reduced else {})}
  values = {key: value for key, value in values.items() if key not in _ExperimentFile.__struct_fields__}
  values |= {"name": os.path.basename(path).removesuffix(".json"), "variants": [defaults | v for v in file.variants]}
  experiment = json_values.convert(path, values, Experiment, _REMEDY)
  variants: dict[str, Variant] = {}
  for variant in experiment.variants:
    location = f"{path}: variant {variant.name!r}"
    _check_variant(location, variant, list(variants))
    # Values that equal the default are left out, so that the variant uses the same shards and runs as the others.
    data = {key: value for key, value in variant.data.items() if value != DATA_DEFAULTS[key]}
    variants[variant.name] = msgspec.structs.replace(variant, fields=file.fields | variant.fields, data=data)
    _paper_model(variants[variant.name], location)
  if experiment.speed_of not in ("", *variants):
    raise UserError(f"{path}: speed_of {experiment.speed_of!r} is not one of {', '.join(variants)}")
  if any(variant.candidate_for for variant in experiment.variants) and "ppl" not in experiment.intrinsic:
    raise UserError(f"{path}: candidate_for compares perplexities: add ppl to intrinsic")
  return msgspec.structs.replace(experiment, variants=list(variants.values()))


def _check_variant(location: str, variant: Variant, earlier_names: Sequence[str]) -> None:
  """Raises UserError if an earlier variant has the same name, or if the variant that it needs is unknown."""
  if variant.name in earlier_names:
    raise UserError(f"{location}: another variant has this name: give each variant a different name")
  for key in ("starts_from", "same_time_as"):
    earlier_name = getattr(variant, key)
    if earlier_name not in ("", *earlier_names):
      known = ", ".join(earlier_names) or "none"
      raise UserError(f"{location}: {key} {earlier_name!r} does not name an earlier variant; these are: {known}")


def with_variants(experiment: Experiment, names: Sequence[str]) -> Experiment:
  """Returns an experiment with some of its variants, in the order of its file.

  Raises:
    UserError: a name is unknown, or a variant needs one that is not among the names.
  """
  known_names = [variant.name for variant in experiment.variants]
  for name in names:
    if name not in known_names:
      raise UserError(f"--variants={name}: {experiment.name} has {', '.join(known_names)}")
  variants = [variant for variant in experiment.variants if variant.name in names]
  for variant in variants:
    for needed in filter(None, (variant.starts_from, variant.same_time_as)):
      if needed not in names:
        raise UserError(f"--variants={','.join(names)}: {variant.name} needs {needed}: name it, too")
  if experiment.speed_of and experiment.speed_of not in names:
    raise UserError(f"--variants={','.join(names)}: speeds are relative to {experiment.speed_of}: name it, too")
  return msgspec.structs.replace(experiment, variants=variants)


def with_dropout(experiment: Experiment, rate: float) -> Experiment:
  """Returns an experiment whose models all have one dropout rate, instead of those that its file gives.

  Raises:
    UserError: the experiment compares dropout rates.
  """
  rates = [{name: variant.fields.get(name) for name in _DROPOUT_FIELDS} for variant in experiment.variants]
  if any(other != rates[0] for other in rates):
    raise UserError(
      f"--dropout={rate:g} with --run={experiment.name}, which compares dropout rates: leave the flag out"
    )
  fields = dict.fromkeys(_DROPOUT_FIELDS, rate)
  variants = [msgspec.structs.replace(variant, fields=variant.fields | fields) for variant in experiment.variants]
  note = f"{experiment.note} Here all models have a dropout of {rate:g} (--dropout)."
  return msgspec.structs.replace(experiment, variants=variants, note=note.strip())


def _paper_model(variant: Variant, location: str) -> ModelConfig:
  """Returns the model of a variant in the paper's sizes."""
  return from_dict(
    ModelConfig, named_model(variant.model, f"{location}: model").to_dict() | variant.fields, source=location
  )


class Scale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
  """The sizes of the models at a scale, and the settings of data preparation and training. The attributes are its keys.

  Attributes:
    note: why the scale has these values; no command reads it.
    hidden: hidden size in the paper -> hidden size at this scale; empty if the models keep the paper's sizes.
    embeddings: embedding size in the paper -> embedding size at this scale. It is not used for a model without
      factorized embeddings (BERT, and some ablations), whose embedding size equals the hidden size at every scale.
    depths: number of layers in the paper -> number of layers at this scale.
    groups: number of groups of layers that share their weights in the paper -> their number at this scale.
    head_size: size of an attention head in a reduced model; 0 if nothing is reduced.
    vocab_size: size of the vocabulary that is trained if none is given.
    max_seq_length: tokens per sequence.
    max_predictions_per_seq: masked tokens per sequence at most; 0 for 15% of max_seq_length.
    dupe_factor: number of times that the text is used, each time with other masks.
    num_shards: number of shard files.
    max_megabytes: amount of text that is taken from the installed packages; 0 for all of it.
    train: flags of run_pretraining: batch size, steps and learning rate.
    shallow_stages: the stages of pretraining with fewer layers, as pairs of the share of the steps at which the stage
      ends and the share of the layers that it trains. The rest of the steps trains all layers.
    num_seeds: number of runs of each variant.
    finetuning: flags of fine-tuning that replace values of the task's recipe.
  """

  note: str = ""
  hidden: dict[str, int] = {}
  embeddings: dict[str, int] = {}
  depths: dict[str, int] = {}
  groups: dict[str, int] = {}
  head_size: int = 0
  vocab_size: int = 30000
  max_seq_length: int = 512
  max_predictions_per_seq: int = 0
  dupe_factor: int = 10
  num_shards: int = 256
  max_megabytes: float = 0
  train: dict[str, Any]
  shallow_stages: Sequence[tuple[float, float]] = ()
  num_seeds: int = 1
  finetuning: dict[str, Any] = {}

  @property
  def is_reduced(self) -> bool:
    """Whether models are smaller than the paper's."""
    return bool(self.hidden)

  def finetuning_flags(self, script: str) -> dict[str, Any]:
    """Returns the flags of fine-tuning that replace values of the task's recipe; none at the paper's scale.

    Args:
      script: name of the script. In the short sequences of a smaller scale, questions of SQuAD are also shorter, and
        so are the steps from window to window.
    """
    if not self.finetuning:
      return {}
    flags = {**self.finetuning, "max_seq_length": self.max_seq_length}
    if script == "run_squad":
      flags |= {"max_query_length": self.max_seq_length // 4, "doc_stride": self.max_seq_length // 4}
    return flags

  def stages(self, model: ModelConfig) -> list[dict[str, Any]]:
    """Returns the stages of a model's pretraining, as a recipe has them; none if all steps train all layers.

    Args:
      model: the model. The depth of a stage is a multiple of its groups of layers.
    """
    groups = model.num_hidden_groups
    stages = []
    for until, share in self.shallow_stages:
      depth = max(1, round(model.num_hidden_layers * share / groups)) * groups
      if depth < model.num_hidden_layers:
        stages.append({"until": until, "num_hidden_layers": depth})
    return [*stages, {"until": 1}] if stages else []

  def model(self, variant: Variant, vocab_size: int) -> ModelConfig:
    """Returns the model of a variant at this scale.

    Args:
      variant: the variant, with the paper's sizes.
      vocab_size: size of the vocabulary.
    Raises:
      UserError: this scale does not define a reduced value for one of the variant's sizes.
    """
    config = _paper_model(variant, variant.name)
    if not self.is_reduced:
      return dataclasses.replace(config, vocab_size=vocab_size)

    def reduce_size(sizes: Mapping[str, int], field: str) -> int:
      size = str(getattr(config, field))
      if size not in sizes:
        raise UserError(
          f"{variant.name}: {field}={size} has no value at this scale: give {', '.join(sizes)}, or --scale=paper"
        )
      return sizes[size]

    hidden = reduce_size(self.hidden, "hidden_size")
    is_factorized = config.embedding_size != config.hidden_size
    return dataclasses.replace(
      config,
      vocab_size=vocab_size,
      hidden_size=hidden,
      embedding_size=reduce_size(self.embeddings, "embedding_size") if is_factorized else hidden,
      # The feed-forward layer keeps its ratio to the hidden size.
      intermediate_size=config.intermediate_size * hidden // config.hidden_size,
      num_hidden_layers=reduce_size(self.depths, "num_hidden_layers"),
      num_hidden_groups=reduce_size(self.groups, "num_hidden_groups"),
      num_attention_heads=max(1, hidden // self.head_size),
      max_position_embeddings=self.max_seq_length,
      initializer_range=round(_INITIALIZER_SCALE / math.sqrt(hidden), 4),
    )


def read_scale(name: str) -> Scale:
  """Reads a scale.

  Args:
    name: one of SCALES.
  Raises:
    UserError: the file of the scale has a key or a value that is not allowed.
  """
  return files.read_json(os.path.join(configs_directory(), _SCALE_FOLDER, f"{name}.json"), Scale, _REMEDY)


def check_variants(experiment: Experiment, scale: Scale, scale_name: str) -> None:
  """Raises UserError if two variants are the same model at a scale, and are pretrained in the same way."""
  not_compared: dict[str, Any] = {"name": "", "model": "", "fields": {}, "starts_from": "", "x": None, "paper": {}}
  earlier: list[tuple[ModelConfig, Variant]] = []
  for variant in experiment.variants:
    trained = scale.model(variant, scale.vocab_size), msgspec.structs.replace(variant, **not_compared)
    if trained in earlier:
      other = experiment.variants[earlier.index(trained)]
      raise UserError(
        f"--run={experiment.name}: {other.name!r} and {variant.name!r} are the same model at --scale={scale_name}: "
        "take another scale, or only some variants (--variants)"
      )
    earlier.append(trained)
