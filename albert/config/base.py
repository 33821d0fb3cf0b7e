"""The base of all configs: frozen dataclasses whose fields carry their help, range and rules, checked when made.

The flags, the checks and the JSON come from these fields. Several sources of values (a flag, the run in output_dir,
a recipe) are merged by their rules, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from albert.config import command_flags
from albert.config.ranges import Range, text_violation
from albert.errors import UserError
from albert.io.json_values import shown

# Headings of --help, in their order.
COMMAND, DATA, MODEL = "What to do", "Data", "Model and initial weights"
TRAINING, OPTIMIZER, EVALUATION = "Training", "Optimizer", "Evaluation and prediction"
DEVICES, LOGGING = "Devices and speed", "Logging and checkpoints"
GROUPS = (COMMAND, DATA, MODEL, TRAINING, OPTIMIZER, EVALUATION, DEVICES, LOGGING)

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
  identity: bool = True,
  evaluation_may_differ: bool = False,
  per_command: bool = False,
  instead_of: str = "",
  resets: tuple[str, ...] = (),
  group: str = "",
) -> Any:
  """A config field with its help, its range, and what becomes of it in later commands on the run's output_dir.

  Args:
    default: its value where nothing gives one.
    help_text: what it is.
    minimum: least value.
    maximum: greatest value; of a whole number 2**31 - 1 if neither this nor `below` is given.
    above: values are greater than this.
    below: values are less than this.
    choices: the values there are.
    identity: False for a field that may differ when a run is resumed, since it does not change what is learned.
      A path is such a field: the content of the file decides, and its hash is compared.
    evaluation_may_differ: a command that only evaluates or predicts may give another value than the run has.
    per_command: a later command does not take the value over from the run: it depends on machine or command.
    instead_of: the field that this one is an alternative to. Only one of the two is in effect, so a flag or a file
      that gives one of them unsets the other one of what it overrides; both on one command line are refused.
    resets: fields of the run or the recipe that no longer hold if a flag gives this one another value.
    group: heading of --help that the flag stands under; "" for the one of its config.
  """
  metadata = {
    "help": help_text,
    "range": Range(minimum, maximum, above, below),
    "choices": choices,
    "identity": identity,
    "evaluation_may_differ": evaluation_may_differ,
    "per_command": per_command,
    "instead_of": instead_of,
    "resets": resets,
    "group": group,
  }
  return dataclasses.field(default=default, metadata=metadata)


def _violation(value: Any, metadata: Mapping[str, Any]) -> str | None:
  """What `value` must be, if it is not; None if it is fine."""
  if metadata["choices"] is not None and value not in metadata["choices"]:
    return f"one of {', '.join(metadata['choices'])}"
  if isinstance(value, str):
    return text_violation(value)
  allowed: Range = metadata["range"]
  return allowed.violation(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Base of all configs. Making one checks every field against its range.

  Raises:
    UserError: a value out of range; the message names the field, the value and what is allowed.
  """

  # Heading of --help for its fields.
  help_group: ClassVar[str] = ""

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      if not field.metadata:
        continue
      value = getattr(self, field.name)
      allowed = _violation(value, field.metadata)
      if allowed:
        raise UserError(f"{field.name} must be {allowed}, got {shown(value)}")

  def identity(self) -> dict[str, Any]:
    """The fields that decide what is learned, as plain JSON values."""
    return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata.get("identity", True)}

  def recorded(self) -> dict[str, Any]:
    """The fields that later commands on the run's output_dir take over, as plain JSON values."""
    return {name: getattr(self, name) for name, f in option_fields(type(self)).items() if not f.metadata["per_command"]}

  def to_dict(self) -> dict[str, Any]:
    """All fields as plain JSON values."""
    return dataclasses.asdict(self)


def from_dict(cls: type[_ConfigT], values: Mapping[str, Any], *, source: str, strict: bool = True) -> _ConfigT:
  """Makes `cls` from JSON values, checking each one's type.

  Args:
    cls: a config dataclass.
    values: field name -> value.
    source: the file (or flag) the values came from, for the error.
    strict: refuse keys that `cls` lacks. The original's albert_config.json carries keys that mean
      nothing here, so a model config is read with strict=False.
  Raises:
    UserError: unknown key, wrong type or value out of range; it names `source`, key and value.
  """
  kwargs = typed(cls, values, source=source, strict=strict)
  try:
    return cls(**kwargs)
  except UserError as error:
    raise UserError(f"{source}: {error}") from error


def typed(cls: type[Config], values: Mapping[str, Any], *, source: str, strict: bool = True) -> dict[str, Any]:
  """The values of a file, each of the type of its field; see from_dict."""
  known = {field.name: field for field in dataclasses.fields(cls)}
  checked: dict[str, Any] = {}
  for key, value in values.items():
    if key in known:
      checked[key] = _checked(value, str(known[key].type), f"{source}: {key}")
    elif strict:
      raise UserError(f"{source}: unknown key {key!r}; known: {', '.join(known)}")
  return checked


def _checked(value: Any, type_name: str, where: str) -> Any:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if type_name == "float" and is_number:
    return _as_float(value)
  if type_name == "int" and is_number and (isinstance(value, int) or value.is_integer()):
    return int(value)
  if (type_name == "str" and isinstance(value, str)) or (type_name == "bool" and isinstance(value, bool)):
    return value
  raise UserError(f"{where} must be of type {type_name}, got {shown(value)}")


def _as_float(value: float) -> float:
  try:
    return float(value)
  except OverflowError:  # an integer of more than 308 digits
    return math.inf


def option_fields(cls: type[Config]) -> dict[str, dataclasses.Field[Any]]:
  """Name -> field of what is a value, not a config of its own."""
  return {field.name: field for field in dataclasses.fields(cls) if field.metadata}


def define_field(field: dataclasses.Field[Any], default: Any, help_text: str = "") -> None:
  """Defines the flag of a field: its type, range and choices, and `help_text` or its own help."""
  metadata = field.metadata
  command_flags.define(
    str(field.type),
    field.name,
    default,
    help_text or metadata["help"],
    allowed=metadata["range"],
    choices=metadata["choices"],
  )


def is_unset(field: dataclasses.Field[Any], value: Any) -> bool:
  """True for a value such as 0, "" or false that stands for "not given"."""
  return not field.default and value == field.default


def alternatives(cls: type[Config]) -> dict[str, str]:
  """Field -> the one that it is an alternative to (see option), both ways."""
  pairs = {name: field.metadata["instead_of"] for name, field in option_fields(cls).items()}
  found = {name: other for name, other in pairs.items() if other}
  return found | {other: name for name, other in found.items()}


def merge(cls: type[Config], *sources: Mapping[str, Any]) -> dict[str, Any]:
  """The values of several sources, each of which overrides those before it; see option for instead_of and resets."""
  fields, other_of = option_fields(cls), alternatives(cls)
  merged: dict[str, Any] = {}
  for source in sources:
    for name, value in source.items():
      if name not in fields or is_unset(fields[name], value):
        continue
      unset = [other_of[name]] if name in other_of else []
      if name in merged and merged[name] != value:
        unset += fields[name].metadata["resets"]
      for other in unset:
        if other not in source:
          merged.pop(other, None)
    merged |= source
  return merged
