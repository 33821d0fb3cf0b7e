"""The flags of the reading settings, which several commands have."""

from __future__ import annotations

from typing import Any

from absl import flags

from albert.config import command_flags
from albert.config.base import define_field_flag, option_fields
from data_prep.readers.settings import ReadingSettings


def define_flags(without: tuple[str, ...] = (), **defaults: Any) -> None:
  """Defines --input_file and a flag for each field of `ReadingSettings`.

  Args:
    without: fields that the command has no flag for.
    defaults: defaults of a command that differ from those of the fields.
  """
  text = "text in UTF-8 (see --text_format for its forms): comma-separated files, directories and globs"
  command_flags.define("str", "input_file", None, text, required=True)
  for field in option_fields(ReadingSettings).values():
    if field.name in without:
      continue
    define_field_flag(field, defaults.get(field.name, field.default))


def settings_from_flags() -> ReadingSettings:
  """Returns the settings that the flags give, and the defaults of fields without a flag."""
  names = [name for name in option_fields(ReadingSettings) if name in flags.FLAGS]
  values: dict[str, Any] = {name: flags.FLAGS[name].value for name in names}
  return ReadingSettings(**values)
