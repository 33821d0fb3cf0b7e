"""Exports a trained model for serving: a SavedModel that takes texts.

python -m albert.export --checkpoint=run --output_dir=models --name=comments
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import dataclasses
import sys
from typing import Any

from absl import flags

from albert import startup
from albert.config import command_flags
from albert.config.base import Config, define_field_flag, option_fields
from albert.config.run import FinetuningConfig
from albert.export import registry
from albert.export.registry import EXTRA_FORMATS, FORMS, PRECISIONS
from albert.tasks import registry as task_registry
from albert.tokenization.recorded_settings import SETTINGS

# Fields of FinetuningConfig that every served model depends on. They define how a text becomes ids.
_TEXT_SETTINGS = ("max_seq_length", *SETTINGS)


def _setting_fields() -> dict[str, dataclasses.Field[Any]]:
  """The config fields that become flags of this command, by name: the text settings and the settings of each form."""
  settings: list[tuple[type[Config], tuple[str, ...]]] = [(FinetuningConfig, _TEXT_SETTINGS)]
  settings += [(task_registry.TASKS[form.task].config_class, form.settings) for form in FORMS.values()]
  fields_by_name: dict[str, dataclasses.Field[Any]] = {}
  for config_class, names in settings:
    fields = option_fields(config_class)
    for name in names:
      fields_by_name.setdefault(name, fields[name])
  return fields_by_name


def define_flags() -> None:
  """Defines the flags of this command."""

  def define_text(name: str, meaning: str) -> None:
    required = name in ("checkpoint", "output_dir")
    command_flags.define("str", name, None if required else "", meaning, required=required)

  define_text(
    "checkpoint", "output_dir of a run, a step-N directory, or any weights that --init_checkpoint of training takes"
  )
  define_text("output_dir", "directory of all models; the model is written to output_dir/NAME/VERSION")
  define_text("task", f"form in which the model is served: {', '.join(FORMS)} (default: the one that fits the run)")
  define_text("name", "name of the model (default: the value of --task)")
  version_help = "version number of the model (default: one more than the newest)"
  command_flags.define("int", "version", 0, version_help, allowed=command_flags.Range(0, command_flags.INT64_MAX))
  precision_help = "dtype in which the encoder's matrices are stored and multiplied"
  command_flags.define("str", "precision", "float32", precision_help, choices=PRECISIONS)
  command_flags.define("int", "top_k", 5, "number of candidates for each mask", allowed=command_flags.Range(1))
  formats_help = f"formats to write besides the SavedModel: {', '.join(EXTRA_FORMATS)}"
  flags.DEFINE_list("formats", [], formats_help, module_name=sys.argv[0])
  define_text(
    "eval_file",
    "data to measure the quality of all models on: what --eval_file (pretraining: --eval_input_file) of training takes",
  )
  drop_help = (
    "with --eval_file, largest accepted drop of the task's metric from the float32 model to another format; a larger "
    "drop ends the export (default: 0.01; SQuAD, whose metric is in percent: 1.0)"
  )
  command_flags.define("float", "max_metric_drop", None, drop_help, allowed=command_flags.Range(0))
  select_help = "which checkpoint of a run to export (default: the --select_checkpoint of the run)"
  command_flags.define("str", "select_checkpoint", None, select_help, choices=("newest", "best"))
  define_text("albert_config_file", "the model's config (default: the config file beside the weights)")
  define_text("spm_model_file", "the vocabulary (default: the one beside the weights or in the run)")
  for field in _setting_fields().values():
    define_field_flag(field, None, f"{field.metadata['help']} (default: the value of the run)")


def main() -> None:
  """Exports the model that the flags describe and prints its directory."""
  values = flags.FLAGS
  from albert.export.checkpoint import find_checkpoint

  registry.check_form(values.task)
  registry.check_formats(values.formats, values.precision)
  registry.check_evaluation(values.eval_file, values.max_metric_drop)
  if values.name or values.task:
    registry.version_directory(values.output_dir, values.name or values.task, values.version)
  found_checkpoint = find_checkpoint(
    values.checkpoint,
    select=values.select_checkpoint or "",
    albert_config_file=values.albert_config_file,
    spm_model_file=values.spm_model_file,
  )
  with startup.quick_imports():
    from albert.export.export_model import export_model  # imports TensorFlow, which takes seconds

  directory = export_model(
    found_checkpoint,
    values.output_dir,
    task=values.task,
    name=values.name,
    version=values.version,
    settings={name: values[name].value for name in _setting_fields() if values[name].value is not None},
    precision=values.precision,
    top_k=values.top_k,
    formats=tuple(values.formats),
    eval_file=values.eval_file,
    max_metric_drop=values.max_metric_drop,
  )
  print(f"wrote {directory}; its README.md describes how to call it")


if __name__ == "__main__":
  startup.run_command_of(__name__)
