"""Exports a model for serving."""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports, so that a signal during them ends the command with one line
  from albert import startup

  startup.begin()

import dataclasses
import os
import sys
from typing import Any

from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.base import Config, define_field
from albert.config.ranges import INT64_MAX, Range
from albert.config.run import FinetuningConfig
from albert.errors import UserError
from albert.export.formats import EXTRA_FORMATS, PRECISIONS
from albert.tasks import registry

# Settings of the text that every form has.
_TEXT_SETTINGS = ("max_seq_length", "do_lower_case", "convert_quotes")


def _settings() -> dict[str, dataclasses.Field[Any]]:
  """The fields of tasks' configs that forms depend on, by name."""
  found: dict[str, dataclasses.Field[Any]] = {}

  def add(config_class: type[Config], names: tuple[str, ...]) -> None:
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    found.update({name: fields[name] for name in names if name not in found})

  add(FinetuningConfig, _TEXT_SETTINGS)
  for entry in registry.TASKS.values():
    for form in entry.exports.values():
      add(entry.config_class, form.settings)
  return found


def define_flags() -> None:
  """The flags of this command."""

  def text(name: str, meaning: str) -> None:
    command_flags.define("str", name, "", meaning)

  text("checkpoint", "output_dir of a run, a step-N directory, or any weights that --init_checkpoint of run_* takes")
  text("output_dir", "directory of models; the model becomes output_dir/NAME/VERSION")
  text("task", f"what is served: {', '.join(registry.exports())} (default: what the run was trained for)")
  text("name", "name of the model (default: the task)")
  version = "number of the version (default: one more than the newest)"
  command_flags.define("int", "version", 0, version, allowed=Range(0, INT64_MAX))
  command_flags.define("str", "precision", "float32", "what matrices are kept and multiplied in", choices=PRECISIONS)
  command_flags.define("int", "top_k", 5, "candidates for each mask", allowed=Range(1))
  formats = f"what to write besides the SavedModel: {', '.join(EXTRA_FORMATS)}"
  flags.DEFINE_list("formats", [], formats, module_name=sys.argv[0])
  select = "checkpoint of a run (default: as the run says)"
  command_flags.define("str", "select_checkpoint", None, select, choices=("newest", "best"))
  text("albert_config_file", "the model's config (default: the one beside the weights)")
  text("spm_model_file", "its vocabulary (default: the spiece.model beside the weights or in the run)")
  for field in _settings().values():
    define_field(field, None, f"{field.metadata['help']} (default: as the run says)")


def main() -> None:
  """Exports, and says where."""
  values = flags.FLAGS
  for name in ("checkpoint", "output_dir"):
    if not values[name].value:
      raise UserError(f"--{name} is missing (--help explains it)")
  from albert.export.export_model import export  # TensorFlow: late, so that --help is quick

  directory = export(
    values.checkpoint,
    values.output_dir,
    task=values.task,
    name=values.name,
    version=values.version,
    settings={name: values[name].value for name in _settings() if values[name].value is not None},
    precision=values.precision,
    top_k=values.top_k,
    formats=tuple(values.formats),
    select=values.select_checkpoint or "",
    albert_config_file=values.albert_config_file,
    spm_model_file=values.spm_model_file,
  )
  print(f"wrote {directory}; its README.md tells how to call it")


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  define_flags()
  app.run(main)
