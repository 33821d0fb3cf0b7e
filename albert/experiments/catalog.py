"""Reads the definitions of experiments. Each experiment is one JSON file in configs/experiments/."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from albert.config.base import from_dict
from albert.config.model import MODELS, named_model
from albert.config.recipes import config_names, configs_directory
from albert.errors import UserError
from albert.experiments import vocabularies
from albert.io import files, json_values
from albert.io.json_values import format_value

_FOLDER = "experiments"
# Values of Variant.corpus.
MAIN, ADDITIONAL = "main", "additional"
# Values of Experiment.figure: the distances between layers; the masked LM accuracy during training; this accuracy and
# the training loss.
LAYER_FIGURE, CURVE_FIGURE, LOSS_FIGURE = "layers", "curves", "loss_curves"
_FIGURES = ("", LAYER_FIGURE, CURVE_FIGURE, LOSS_FIGURE)
# Keys of an experiment's file that set the defaults of its variants.
_VARIANT_DEFAULTS = ("model", "fields", "steps")
# The keys whose values `reduced` may replace.
_REDUCED_KEYS = ("model", "steps")
# The scores of pretraining: accuracy and perplexity of the masked LM, sentence order and next sentence.
_PRETRAINING_SCORES = ("mlm", "ppl", "sop", "nsp")
# Fields of ModelConfig: dropout in the encoder.
_DROPOUT_FIELDS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
# Settings of data preparation that variants may change, with their defaults.
DATA_DEFAULTS = {"sentence_prediction": "sop", "masking": "static", "input_format": "segments"}


_REMEDY = "see the files of configs/experiments"
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _ExperimentFile(msgspec.Struct):
  """Schema of an experiment's file, without the keys that Experiment has with the same type.

  Attributes:
    title, source: see Experiment.
    model, steps: the defaults of the variants, see Variant.
    fields: fields of ModelConfig that all variants have, unless a variant has another value for them.
    variants: the values of each variant, see Variant.
    reduced: values that replace `model` and `steps` at scales smaller than the paper's.
  """

  title: str
  source: str
  model: str
  variants: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
  fields: dict[str, Any] = {}
  steps: _Positive = 1.0
  reduced: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
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
  fields: Mapping[str, Any]
  data: Mapping[str, Any]
  vocabulary: str = vocabularies.UNIGRAM
  corpus: str = MAIN
  steps: _Positive = 1.0
  same_time_as: str = ""
  batch: _Positive = 1.0
  rate: _Positive = 1.0
  candidate_for: str = ""
  starts_from: str = ""
  x: float | None = None
  paper: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
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
  intrinsic: Sequence[str] = dataclasses.field(default_factory=lambda: ["mlm", "sop"])
  finetuned: bool = True
  figure: str = ""
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
  _refuse_unknown_keys(path, values, {*_field_names(Experiment), *_VARIANT_DEFAULTS, "reduced"} - {"name"})
  variants = _parse_variants(path, json_values.convert(path, values, _ExperimentFile, _REMEDY), reduced=reduced)
  name = os.path.basename(path).removesuffix(".json")
  experiment = json_values.convert(path, values | {"name": name, "variants": []}, Experiment, _REMEDY)
  experiment = dataclasses.replace(experiment, variants=variants)
  _check_choice(path, "figure", experiment.figure, _FIGURES)
  _check_choice(path, "speed_of", experiment.speed_of, ("", *(variant.name for variant in variants)))
  for task in experiment.intrinsic:
    _check_choice(path, "intrinsic", task, _PRETRAINING_SCORES)
  if any(variant.candidate_for for variant in variants) and "ppl" not in experiment.intrinsic:
    raise UserError(f"{path}: candidate_for compares perplexities: add ppl to intrinsic")
  return experiment


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
  return dataclasses.replace(experiment, variants=variants)


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
  variants = [dataclasses.replace(variant, fields={**variant.fields, **fields}) for variant in experiment.variants]
  note = f"{experiment.note} Here all models have a dropout of {rate:g} (--dropout)."
  return dataclasses.replace(experiment, variants=variants, note=note.strip())


def _check_choice(path: str, key: str, value: str, allowed: Sequence[str]) -> None:
  """Raises UserError if the value of a key is not one of the allowed ones."""
  if value not in allowed:
    raise UserError(f"{path}: {key} {format_value(value)} is not one of {', '.join(filter(None, allowed))}")


def _parse_variants(path: str, file: _ExperimentFile, *, reduced: bool) -> list[Variant]:
  """Makes the variants of an experiment's file, with the defaults that the file gives for all of them."""
  _refuse_unknown_keys(f"{path}: reduced", file.reduced, set(_REDUCED_KEYS))
  defaults = {"model": file.model, "fields": file.fields, "steps": file.steps}
  if reduced:
    defaults |= file.reduced
  variants: list[Variant] = []
  for index, values in enumerate(file.variants):
    earlier_names = [variant.name for variant in variants]
    variants.append(_parse_variant(f"{path}: variants[{index}]", values, defaults, earlier_names))
  return variants


def _parse_variant(
  location: str, values: Mapping[str, Any], defaults: Mapping[str, Any], earlier_names: Sequence[str]
) -> Variant:
  """Checks the values of a variant and makes the variant."""
  _refuse_unknown_keys(location, values, _field_names(Variant))
  variant = json_values.convert(location, {"fields": {}, "data": {}, **defaults, **values}, Variant, _REMEDY)
  variant = dataclasses.replace(variant, fields={**defaults["fields"], **variant.fields})
  _refuse_unknown_keys(f"{location}: data", variant.data, set(DATA_DEFAULTS))
  json_values.convert(f"{location}: data", variant.data, dict[str, str], _REMEDY)
  if variant.name in earlier_names:
    raise UserError(
      f"{location}: another variant has the name {variant.name!r} too: give each variant a different name"
    )
  for key in ("starts_from", "same_time_as"):
    earlier_name = getattr(variant, key)
    if earlier_name not in ("", *earlier_names):
      hint = f"earlier variants: {', '.join(earlier_names)}" if earlier_names else "there are no earlier variants"
      raise UserError(f"{location}: {key} {earlier_name!r} does not name an earlier variant; {hint}")
  if variant.corpus not in (MAIN, ADDITIONAL):
    raise UserError(f"{location}: corpus {format_value(variant.corpus)} is not one of {MAIN}, {ADDITIONAL}")
  _check_choice(location, "vocabulary", variant.vocabulary, tuple(vocabularies.FILE_NAMES))
  if variant.model not in MODELS:
    raise UserError(f"{location}: unknown model {format_value(variant.model)}; known: {', '.join(MODELS)}")
  model = named_model(variant.model)
  from_dict(type(model), model.to_dict() | dict(variant.fields), source=location)
  # Values that equal the default are left out, so that the variant uses the same shards and runs as the others.
  return dataclasses.replace(
    variant, data={key: value for key, value in variant.data.items() if value != DATA_DEFAULTS[key]}
  )


def _field_names(dataclass: type) -> set[str]:
  return {field.name for field in dataclasses.fields(dataclass)}


def _refuse_unknown_keys(location: str, values: Mapping[str, Any], known_keys: set[str]) -> None:
  unknown_keys = sorted(set(values) - known_keys)
  if unknown_keys:
    raise UserError(f"{location}: unknown key {unknown_keys[0]!r}; known: {', '.join(sorted(known_keys))}")
