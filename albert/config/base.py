"""The base class of all configs: frozen dataclasses that check their values when they are made.

Each field is declared once, with `option`, and carries its help text, its range, and the rules for later commands on
the same run. Flags, checks and JSON are made from these declarations. `merge` follows the same rules when a value may
come from several sources: a flag, the run in output_dir, or a recipe.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from albert.config import command_flags
from albert.config.command_flags import Range
from albert.errors import UserError
from albert.io.text import format_value

# The headings of --help, in the order in which it prints them.
COMMAND, DATA, MODEL = "What to do", "Data", "Model and initial weights"
TRAINING, OPTIMIZER, EVALUATION = "Training", "Optimizer", "Evaluation and prediction"
DEVICES, LOGGING = "Devices and speed", "Logging and checkpoints"
GROUPS = (COMMAND, DATA, MODEL, TRAINING, OPTIMIZER, EVALUATION, DEVICES, LOGGING)

# The end of the type of a field that may be None.
_OR_NONE = " | None"

_ConfigT = TypeVar("_ConfigT", bound="Config")


def option(
  default: Any,
  help_text: str,
  *,
  minimum: float | None = None,
  maximum: float | None = None,
  above: float | None = None,
  below: float | None = None,
  choices: tuple[str, ...] | None = None,
  affects_training: bool = True,
  evaluation_may_differ: bool = False,
  per_command: bool = False,
  instead_of: str = "",
  resets: tuple[str, ...] = (),
  group: str = "",
) -> Any:
  """Declares a field of a config, which is also a flag.

  Args:
    default: the value if neither a flag, a run nor a recipe gives one.
    help_text: the text of --help.
    minimum: the smallest allowed value.
    maximum: the largest allowed value. For an integer it is 2**31 - 1 if neither `maximum` nor `below` is given.
    above: a bound that every allowed value is greater than.
    below: a bound that every allowed value is less than.
    choices: all allowed values, for a field that has a fixed set of them.
    affects_training: whether the value changes the trained weights, so that it must stay the same when a run is
      resumed. False for a path, because the content of the file is compared instead, by its hash.
    evaluation_may_differ: whether a command that only evaluates or predicts may use another value than the run did.
    per_command: True if later commands on the run's output_dir do not reuse the value, because it depends on the
      machine or on the command. It then does not affect training.
    instead_of: another field that expresses the same setting in another way, such as epochs instead of steps. If a
      source (the flags, the run or the recipe) gives one of the two, the sources that it overrides lose the other one.
      A command line that gives both is an error.
    resets: fields whose value in the run or in the recipe is dropped if a flag gives this field another value.
    group: the heading of --help under which the flag is listed; "" for the heading of the field's config class.
  """
  metadata = {
    "help": help_text,
    "range": Range(minimum, maximum, above, below),
    "choices": choices,
    "affects_training": affects_training and not per_command,
    "evaluation_may_differ": evaluation_may_differ,
    "per_command": per_command,
    "instead_of": instead_of,
    "resets": resets,
    "group": group,
  }
  return dataclasses.field(default=default, metadata=metadata)


# Shorthands. A run that is resumed may change a changeable_option; an evaluation_option is one that --help lists under
# evaluation. A command that only evaluates or predicts may have another form_option, such as the name of a column.
changeable_option = functools.partial(option, affects_training=False)
evaluation_option = functools.partial(changeable_option, group=EVALUATION)
form_option = functools.partial(option, evaluation_may_differ=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The base class of all configs. The constructor checks every field against its range.

  Raises:
    UserError: a value is out of range; the message names the field, the value and the allowed values.
  """

  # The heading of --help under which the fields are listed, unless a field names another one.
  help_group: ClassVar[str] = ""

  def __post_init__(self) -> None:
    for name, field in option_fields(type(self)).items():
      value, choices = _plain_number(getattr(self, name)), field.metadata["choices"]
      object.__setattr__(self, name, value)
      if value is None:  # allowed in fields of the type "bool | None": another source decides
        continue
      violation = field.metadata["range"].violation(value)
      if choices is not None and value not in choices:
        violation = f"one of {', '.join(choices)}"
      if violation:
        raise UserError(f"{name} must be {violation}, got {format_value(value)}")

  def training_settings(self) -> dict[str, Any]:
    """Name -> value of the fields that affect training; a resumed run must have the same. The values are plain JSON."""
    fields = dataclasses.fields(self)
    return {field.name: getattr(self, field.name) for field in fields if field.metadata.get("affects_training", True)}

  def reusable_values(self) -> dict[str, Any]:
    """Name -> value of the fields that later commands on the run's output_dir reuse. The values are plain JSON."""
    fields = option_fields(type(self))
    return {name: getattr(self, name) for name, field in fields.items() if not field.metadata["per_command"]}

  def to_dict(self) -> dict[str, Any]:
    """Name -> value of all fields. The values are plain JSON."""
    return dataclasses.asdict(self)


def from_dict(cls: type[_ConfigT], values: Mapping[str, Any], *, source: str, strict: bool = True) -> _ConfigT:
  """Makes a config from JSON values, and checks their types and ranges.

  Args:
    cls: the config class.
    values: field name -> value.
    source: the file or flag that the values come from; errors name it.
    strict: whether a key that `cls` does not have is an error. Model configs are read with strict=False, because the
      original's albert_config.json has keys that this project does not use.
  Returns: The config. A field that `values` leaves out has its default.
  Raises:
    UserError: an unknown key, a wrong type or a value out of range; the message names `source`, the key and the value.
  """
  kwargs = check_types(cls, values, source=source, strict=strict)
  try:
    return cls(**kwargs)
  except UserError as error:
    raise UserError(f"{source}: {error}") from error


def check_types(cls: type[Config], values: Mapping[str, Any], *, source: str, strict: bool = True) -> dict[str, Any]:
  """Checks the types of JSON values, without making a config and without checking ranges.

  Args:
    cls, values, source, strict: see `from_dict`.
  Returns:
    Field name -> value, with integers converted to float for float fields, and whole floats to int for int fields.
  Raises:
    UserError: an unknown key or a wrong type.
  """
  fields = {field.name: field for field in dataclasses.fields(cls)}
  converted: dict[str, Any] = {}
  for key, value in values.items():
    if key in fields:
      converted[key] = _check_type(value, str(fields[key].type), f"{source}: {key}")
    elif strict:
      raise UserError(f"{source}: unknown key {key!r}; known: {', '.join(fields)}")
  return converted


def _check_type(value: Any, type_name: str, source_and_key: str) -> Any:
  """Converts a JSON value to the type of a field, such as "float". Raises UserError if it has another type."""
  value = _plain_number(value)
  if value is None and type_name.endswith(_OR_NONE):
    return None
  type_name = type_name.removesuffix(_OR_NONE)
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if type_name == "float" and is_number:
    try:
      return float(value)
    except OverflowError:  # an integer of more than 308 digits
      return math.inf
  if type_name == "int" and is_number and (isinstance(value, int) or value.is_integer()):
    return int(value)
  if (type_name == "str" and isinstance(value, str)) or (type_name == "bool" and isinstance(value, bool)):
    return value
  raise UserError(f"{source_and_key} must be of type {type_name}, got {format_value(value)}")


def _plain_number(value: Any) -> Any:
  """Converts a NumPy scalar to a number or bool of Python, without importing NumPy. Other values stay as they are."""
  return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def option_fields(cls: type[Config]) -> dict[str, dataclasses.Field[Any]]:
  """Name -> dataclass field of the fields declared with `option`, without those that hold another config."""
  return {field.name: field for field in dataclasses.fields(cls) if field.metadata}


def option_like(cls: type[Config], name: str) -> Any:
  """Declares a field with the range and the text of another config's field. Its default is None."""
  return dataclasses.field(default=None, metadata=option_fields(cls)[name].metadata)


def define_field_flag(field: dataclasses.Field[Any], default: Any, help_text: str = "", **options: Any) -> None:
  """Defines the absl flag of a field.

  Args:
    field: a field declared with `option`; the flag has its name, type, range and choices.
    default: the default of the flag.
    help_text: the text of --help; "" for the text of the field.
    **options: further arguments of command_flags.define.
  """
  kind, metadata = str(field.type).removesuffix(_OR_NONE), field.metadata
  options |= {"allowed": metadata["range"], "choices": metadata["choices"]}
  command_flags.define(kind, field.name, default, help_text or metadata["help"], **options)


def is_unset(field: dataclasses.Field[Any], value: Any) -> bool:
  """Whether a value means "not given": it is the field's default, and that is 0, "" or False."""
  return not field.default and value == field.default


def alternatives(cls: type[Config]) -> dict[str, str]:
  """Field -> its alternative (see `instead_of` in `option`). Each pair is listed in both directions."""
  fields = option_fields(cls)
  pairs = {name: field.metadata["instead_of"] for name, field in fields.items() if field.metadata["instead_of"]}
  return pairs | {alternative: name for name, alternative in pairs.items()}


def merge(cls: type[Config], *sources: Mapping[str, Any]) -> dict[str, Any]:
  """Merges the values of several sources; a later source overrides the earlier ones.

  Args:
    cls: the config class. Its fields' `instead_of` and `resets` are followed; see `option`.
    *sources: field name -> value, for example of a recipe, of a run, and of the command line.
  Returns: Field name -> value.
  """
  fields, alternative_of = option_fields(cls), alternatives(cls)
  merged: dict[str, Any] = {}
  for source in sources:
    for name, value in source.items():
      if name not in fields or is_unset(fields[name], value):
        continue
      dropped_names = [alternative_of[name]] if name in alternative_of else []
      if name in merged and merged[name] != value:
        dropped_names += fields[name].metadata["resets"]
      for dropped_name in dropped_names:
        if dropped_name not in source:
          merged.pop(dropped_name, None)
    merged |= source
  return merged
