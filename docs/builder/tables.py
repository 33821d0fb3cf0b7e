"""Tables that are generated from the code: the named models and the recipes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from albert.config.model import MODELS, ModelConfig
from albert.config.recipes import config_names, configs_directory
from albert.weights.names import encoder_shapes, heads, num_parameters

_MIB = 1 << 20


def models_table() -> str:
  """The named models with their sizes and numbers of parameters.

  The versions of a model (_v1, _v2), which differ in dropout only, share a row.
  """
  rows = []
  for name, config in MODELS.items():
    if not name.endswith(("_v1", "_v2")):
      encoder_parameters = num_parameters(encoder_shapes(config))
      rows.append((
        f"`{name}`",
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.embedding_size,
        config.sharing,
        f"{encoder_parameters:,}",
        f"{encoder_parameters + _num_head_parameters(config):,}",
        f"{encoder_parameters * 4 / _MIB:,.0f} MiB",
      ))  # fmt: skip
  header = (
    "`--model`", "layers", "H", "heads", "E", "shared weights", "parameters",
    "with the heads of pretraining", "float32",
  )  # fmt: skip
  return table(header, rows)


def _num_head_parameters(config: ModelConfig) -> int:
  """The number of parameters of both heads of pretraining."""
  total = 0
  for head in ("masked_lm", "sentence"):
    # The number of classes is None in the shapes of other heads, but not in these.
    shapes = heads(config)[head].shapes
    total += num_parameters({name: tuple(size for size in shape if size) for name, shape in shapes.items()})
  return total


def recipes() -> str:
  """A heading and a table of settings for each recipe."""
  lines = []
  for name in config_names():
    with open(f"{configs_directory()}/{name}.json", encoding="utf-8") as file:
      sections = json.load(file)
    rows = []
    for section, values in sections.items():
      if section == "weights":
        rows.append(("initial weights", f"pretrained {'with' if values['with_dropout'] else 'without'} dropout"))
      elif isinstance(values, dict):
        rows += [(f"`{key}`", f"`{_format_value(value)}`") for key, value in values.items()]
      elif section == "stages":
        rows.append(("`stages`", f"`{json.dumps(values)}`"))
      elif section == "model":
        rows.append(("`model`", f"`{values}`"))
    script = f"run_{sections['task']}.py"
    lines += [f"## {name}", "", f"`configs/{name}.json`, for `{script}`.", "", table(("flag", "value"), rows), ""]
  return "\n".join(lines)


def _format_value(value: object) -> str:
  return json.dumps(value) if isinstance(value, bool) else str(value)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
  """A Markdown table."""
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
