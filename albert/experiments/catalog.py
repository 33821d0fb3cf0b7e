"""What the experiments are: variants of a model and of its pretraining, one JSON file of configs/experiments/ each."""

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
# What all variants of an experiment have, where they do not say otherwise.
_COMMON = ("model", "steps")
MEASURED = ("mlm", "sop", "nsp")
# What variants may differ in that their shards hold, and how it is otherwise.
DATA = {"sentence_prediction": "sop", "masking": "static", "input_format": "segments"}


_REMEDY = "see the files of configs/experiments"
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _File(msgspec.Struct):
  """What variants have in common, and what each adds."""

  title: str
  source: str
  model: str
  variants: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
  steps: _Positive = 1.0
  reduced: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
  """One of the models that an experiment compares. What it leaves out is as in the experiment.

  Attributes:
    name: unique in the experiment.
    model: named model, at the paper's size.
    fields: of its ModelConfig that differ, at the paper's size.
    data: settings of data preparation that differ, of those in DATA.
    corpus: main, or additional: that and more text.
    steps: of pretraining, as a multiple of those of the scale.
    batch: the batch size, as a multiple; steps are divided by it, so that as many examples are seen.
    starts_from: name of an earlier variant whose weights it starts from; empty: from random weights.
    x: where it stands on the axis of the picture; None: it has a bar of its own.
    paper: what the paper says of it, score -> number (percent).
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
  """Variants to compare.

  Attributes:
    name: of its file.
    title, source: what it shows, and which paper and table it repeats.
    variants: in the order of the table.
    intrinsic: tasks of pretraining that every variant is evaluated on: mlm, sop, nsp.
    finetuned: whether variants are fine-tuned on the tasks that there is data for.
    figure: what else is drawn: layers, how far each layer moves its input; or nothing.
    x: label of the picture's axis, if variants stand on one.
    speed_of: name of the variant whose speed is 1; empty: speeds are not compared.
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
    """The variant of that name."""
    return next(variant for variant in self.variants if variant.name == name)


def names() -> list[str]:
  """Of all experiments that come with the package."""
  return config_names(_FOLDER)


def load(name: str, *, reduced: bool = False) -> Experiment:
  """An experiment by name, or by the path of a file of the same form.

  Args:
    reduced: for a scale below the paper's: `reduced` in the file says which model and steps it then has.

  Raises:
    UserError: no such experiment; a key or value of the file that is none.
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
  # What a variant says and all have anyway is left out, so that its shards and runs are the same ones.
  return dataclasses.replace(variant, data={key: value for key, value in variant.data.items() if value != DATA[key]})


def _names_of(cls: type) -> set[str]:
  return {f.name for f in dataclasses.fields(cls)}


def _refuse_unknown(where: str, values: Mapping[str, Any], known: set[str]) -> None:
  unknown = sorted(set(values) - known)
  if unknown:
    raise UserError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
