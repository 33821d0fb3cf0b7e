"""Reads the definitions of the experiments, one JSON file of configs/experiments/ for each."""

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
from albert.io import files, json_values
from albert.io.json_values import shown

_FOLDER = "experiments"
MAIN, ADDITIONAL = "main", "additional"
LAYERS = "layers"
# Keys of an experiment that give the default for all its variants.
_COMMON = ("model", "steps")
MEASURED = ("mlm", "sop", "nsp")
# Settings of data preparation that variants may change, with their defaults.
DATA = {"sentence_prediction": "sop", "masking": "static", "input_format": "segments"}


_REMEDY = "see the files of configs/experiments"
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _File(msgspec.Struct):
  """The keys of an experiment's file that are not fields of Experiment, or that need another type."""

  title: str
  source: str
  model: str
  variants: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
  steps: _Positive = 1.0
  reduced: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
  """One of the models that an experiment compares.

  Attributes:
    name: a name that no other variant of the experiment has.
    model: name of the model, with the paper's sizes.
    fields: fields of its ModelConfig that differ, with the paper's sizes.
    data: settings of data preparation that differ from the defaults in DATA.
    corpus: "main", or "additional" for the main corpus and the additional one.
    steps: number of pretraining steps, as a multiple of those of the scale.
    batch: batch size, as a multiple of that of the scale. The number of steps is divided by it, so that all
      variants see equally many examples.
    starts_from: name of an earlier variant whose weights it starts from; empty for random weights.
    x: position on the x axis of the figure; None if the figure has a bar for each variant.
    paper: the paper's results, score -> number (percent).
  """

  name: str
  model: str
  fields: Mapping[str, Any]
  data: Mapping[str, Any]
  corpus: str = MAIN
  steps: _Positive = 1.0
  batch: _Positive = 1.0
  starts_from: str = ""
  x: float | None = None
  paper: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """A comparison of several variants of a model, of its data or of its pretraining.

  Attributes:
    name: name of its file.
    title: the question of the experiment.
    source: the paper and the table that it repeats.
    variants: the variants, in the order of the table.
    intrinsic: pretraining tasks that every variant is evaluated on: "mlm", "sop", "nsp".
    finetuned: whether the variants are fine-tuned on the tasks whose data is given.
    figure: "layers" for a figure of the distance between the input and the output of each layer; otherwise empty.
    x: label of the x axis, if the variants have positions on it.
    speed_of: name of the variant that speeds are compared with; empty if speeds are not compared.
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
    reduced: whether the scale is below the paper's. The key `reduced` of the file then replaces `model` and `steps`.
  Raises:
    UserError: there is no such experiment, or the file has a key or a value that is not allowed.
  """
  path = name if name.endswith(".json") else os.path.join(configs_directory(), _FOLDER, f"{name}.json")
  if not files.exists(path):
    raise UserError(f"--run={name}: no such experiment; there are {', '.join(names())}, or give the path of a .json")
  values = files.read_json(path, remedy=_REMEDY)
  _refuse_unknown(path, values, {*_names_of(Experiment), *_COMMON, "reduced"} - {"name"})
  file = json_values.convert(path, values, _File, _REMEDY)
  _refuse_unknown(f"{path}: reduced", file.reduced, set(_COMMON))
  shared = {"model": file.model, "steps": file.steps} | (file.reduced if reduced else {})
  variants: list[Variant] = []
  for number, given in enumerate(file.variants):
    variants.append(_variant(f"{path}: variants[{number}]", given, shared, [variant.name for variant in variants]))
  name = os.path.basename(path).removesuffix(".json")
  experiment = json_values.convert(path, values | {"name": name, "variants": []}, Experiment, _REMEDY)
  experiment = dataclasses.replace(experiment, variants=variants)
  for key, value, allowed in (
    ("figure", experiment.figure, ("", LAYERS)),
    ("speed_of", experiment.speed_of, ("", *(variant.name for variant in variants))),
    *(("intrinsic", task, MEASURED) for task in experiment.intrinsic),
  ):
    if value not in allowed:
      raise UserError(f"{path}: {key} {shown(value)} is none of {', '.join(filter(None, allowed))}")
  return experiment


def _variant(where: str, given: Mapping[str, Any], shared: Mapping[str, Any], earlier: Sequence[str]) -> Variant:
  _refuse_unknown(where, given, _names_of(Variant))
  variant = json_values.convert(where, {"fields": {}, "data": {}, **shared, **given}, Variant, _REMEDY)
  _refuse_unknown(f"{where}: data", variant.data, set(DATA))
  json_values.convert(f"{where}: data", variant.data, dict[str, str], _REMEDY)
  if variant.name in earlier:
    raise UserError(f"{where}: name {variant.name!r} is that of another variant: give each its own")
  if variant.starts_from not in ("", *earlier):
    raise UserError(f"{where}: starts_from {variant.starts_from!r} is no earlier variant ({', '.join(earlier)})")
  if variant.corpus not in (MAIN, ADDITIONAL):
    raise UserError(f"{where}: corpus {shown(variant.corpus)} is none of {MAIN}, {ADDITIONAL}")
  if variant.model not in MODELS:
    raise UserError(f"{where}: unknown model {shown(variant.model)}; known: {', '.join(MODELS)}")
  model = named_model(variant.model)
  from_dict(type(model), model.to_dict() | dict(variant.fields), source=where)
  # Values that equal the default are left out, so that the variant uses the same shards and runs as the others.
  return dataclasses.replace(variant, data={key: value for key, value in variant.data.items() if value != DATA[key]})


def _names_of(cls: type) -> set[str]:
  return {f.name for f in dataclasses.fields(cls)}


def _refuse_unknown(where: str, values: Mapping[str, Any], known: set[str]) -> None:
  unknown = sorted(set(values) - known)
  if unknown:
    raise UserError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
