"""The flags of commands: the range of a value, how a flag is defined, and how the command line is parsed.

It imports nothing heavy, so that --help answers at once. It checks ranges itself, because absl accepts NaN in every
range.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import struct
import sys
from collections.abc import Collection, Sequence
from typing import Any

from absl import flags

from albert.errors import UserError

# The largest values of TensorFlow's int32 and int64.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# The largest number of worker processes of one command. More would exhaust the machine's memory.
MAX_PROCESSES = 1024
# The largest number of sequences in a batch. No device has the memory for more.
MAX_BATCH_SIZE = 1 << 20
# The smallest normal float32. Devices replace smaller numbers by 0.
_SMALLEST_FLOAT32 = 2.0**-126
# An error message is cut to this many characters at its start and at its end.
_MAX_SHOWN_CHARACTERS = 200
# absl's message for a required flag that is missing, and that of `define` for one that is empty.
_MISSING_FLAG = re.compile(r"flag --(\w+)=(None)?: (Flag --\1 must have a value other than None\.|must not be empty)")

# Flag -> its names in other frameworks. Of several flags that share a name, the first one that a command has is meant.
_NAMES_ELSEWHERE = {
  "eval_batch_size": "predict_batch_size per_device_eval_batch_size per_gpu_eval_batch_size",
  "train_batch_size": "batch_size batch per_device_train_batch_size per_gpu_train_batch_size",
  "num_train_epochs": "epochs epoch num_epochs n_epochs max_epochs train_epochs",
  "num_train_steps": "steps num_steps max_steps train_steps train_step max_train_steps total_steps",
  "learning_rate": "lr peak_lr init_lr max_lr",
  "num_warmup_steps": "warmup warmup_steps",
  "warmup_proportion": "warmup_ratio",
  "max_seq_length": "max_length max_len max_seq_len max_sequence_length seq_length seq_len sequence_length",
  "init_checkpoint": "model_name_or_path pretrained_model_name_or_path model_name model_path checkpoint "
  "albert_hub_module_handle config_name",
  "checkpoint": "init_checkpoint model_name_or_path model_name model_path model",
  "model": "checkpoint init_checkpoint model_name_or_path model_path model_dir",
  "spm_model_file": "tokenizer tokenizer_name tokenizer_file vocab spiece",
  "train_file": "train train_data train_path training_file data dataset data_file input input_file",
  "input_file": "input inputs data dataset data_file train_file text_file corpus",
  "eval_file": "dev_file valid_file validation_file val_file dev_data eval_data",
  "predict_file": "test_file test_data",
  "output_dir": "output out out_dir save_dir output_path logging_dir log_dir",
  "text_columns": "text text_column text_column_name text_field sentence1_key",
  "label_column": "label target target_column",
  "separator": "sep delimiter",
  "eval_every_steps": "eval_steps eval_strategy evaluation_strategy eval_interval",
  "precision": "fp16 bf16 mixed_precision",
  "save_checkpoints_steps": "save_steps save_interval save_strategy",
  "log_every_steps": "logging_steps log_steps log_interval",
  "distribution_strategy": "gpus gpu num_gpus n_gpu devices device",
  "hidden_dropout_prob": "dropout dropout_rate",
  "recompute_grad": "gradient_checkpointing",
  "freeze_encoder": "freeze freeze_backbone",
  "keep_checkpoints": "save_total_limit",
  "select_checkpoint": "load_best_model_at_end",
  "best_metric": "metric_for_best_model",
  "tpu": "use_tpu tpu_name num_tpu_cores master",
  "steps_per_loop": "iterations_per_loop",
  "classifier_dropout_prob": "dropout_prob",
  "clip_norm": "max_grad_norm",
  "masked_lm_prob": "mlm_probability mlm_prob",
  "verbose": "v log_level",
  "quiet": "q",
}
# Flag -> another name for it, which every command with this flag takes. The original BERT calls its vocabulary so.
_OTHER_NAMES = {"spm_model_file": "vocab_file"}


@dataclasses.dataclass(frozen=True)
class Range:
  """The values that a setting may have.

  NaN, infinity, and floats that are infinite as float32 are never allowed. An integer is at most INT32_MAX unless
  `maximum` or `below` is given. A text must be a possible path or name.

  Attributes:
    minimum: the smallest allowed value.
    maximum: the largest allowed value.
    above: a bound that every allowed value is greater than.
    below: a bound that every allowed value is less than.
  """

  minimum: float | None = None
  maximum: float | None = None
  above: float | None = None
  below: float | None = None

  def violation(self, value: Any) -> str | None:
    """The rule that `value` violates, in words that follow "must be", such as "at least 1"; None if it is allowed.

    A float must be in the range both as it is and after rounding to float32, because training computes in float32: a
    dropout of 0.999999999 is rounded to 1.
    """
    if isinstance(value, str):
      return _text_violation(value)
    if not isinstance(value, float):
      has_limit = self.maximum is not None or self.below is not None
      return f"at most {INT32_MAX}" if value > INT32_MAX and not has_limit else self._violated_bound(value)
    rounded = as_float32(value)
    if not (math.isfinite(value) and math.isfinite(rounded)):
      return "a finite number in float32"
    if violation := self._violated_bound(value):
      return violation
    violation = self._violated_bound(rounded)
    return violation and f"{violation} in float32"

  def _violated_bound(self, value: float) -> str | None:
    if self.minimum is not None and value < self.minimum:
      return f"at least {self.minimum}"
    if self.above is not None and value <= self.above:
      return f"above {self.above}"
    if self.maximum is not None and value > self.maximum:
      return f"at most {self.maximum}"
    if self.below is not None and value >= self.below:
      return f"below {self.below}"
    return None


def default_processes() -> int:
  """The default number of worker processes: one for each core, at most MAX_PROCESSES."""
  return min(os.cpu_count() or 1, MAX_PROCESSES)


def as_float32(value: float) -> float:
  """Rounds to float32. Values that are too large become infinite; those below the smallest normal number become 0."""
  try:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
  except OverflowError:
    return math.copysign(math.inf, value)
  return rounded if abs(rounded) >= _SMALLEST_FLOAT32 else math.copysign(0.0, value)


def _text_violation(value: str) -> str | None:
  """The rule that a text violates if it cannot be a path or a name, see `Range.violation`."""
  if value and value.isspace():
    return "more than white space"
  if value.startswith("gs:///"):
    return "gs://BUCKET/PATH; the variable that holds the bucket is empty"
  if "\0" in value:
    return "without NUL characters"
  try:
    value.encode("utf-8")
  except UnicodeEncodeError:
    return "UTF-8"
  return None


def format_flag(name: str, value: Any) -> str:
  """A flag with its value, as it is written on the command line."""
  if isinstance(value, bool):
    return f"--{name}" if value else f"--no{name}"
  return f"--{name}={value}"


# Type of a flag -> absl's parser, and what an error calls the values.
_PARSERS: dict[str, tuple[flags.ArgumentParser, str]] = {
  "int": (flags.IntegerParser(), "a whole number"),
  "float": (flags.FloatParser(), "a number"),
  "bool": (flags.BooleanParser(), "true or false"),
  "str": (flags.ArgumentParser(), "a text"),
}


class _CheckedParser(flags.ArgumentParser):
  """Parses a value of a type, as absl does, and checks its range. Its errors are shorter."""

  def __init__(self, kind: str, allowed: Range):
    super().__init__()
    self._parser, self._words = _PARSERS[kind]
    self._range = allowed

  def parse(self, argument: Any) -> Any:
    try:
      value = self._parser.parse(argument)
    except ValueError as error:
      raise ValueError(f"must be {self._words}") from error
    if violation := self._range.violation(value):
      raise ValueError(f"must be {violation}")
    return value

  def flag_type(self) -> str:
    return self._parser.flag_type()


def define(
  kind: str,
  name: str,
  default: Any,
  help_text: str,
  *,
  allowed: Range = Range(),
  choices: Sequence[str] | None = None,
  required: bool = False,
  shown_default: Any = None,
  placeholder: str = "",
  group: str = "",
) -> None:
  """Defines a flag of the program that is running.

  Args:
    kind: the type of the value: "int", "float", "bool" or "str".
    name: the name without dashes.
    default: the value if the flag is not given.
    help_text: the text of --help.
    allowed: the range, for a number.
    choices: all allowed values, for a "str" that has a fixed set of them.
    required: whether the flag must be given. An empty value of a "str" counts as not given.
    shown_default: the default in --help, if it is not `default`.
    placeholder: of the value in --help; "" for that of the type, such as N.
    group: the heading of --help under which the flag is listed.
  """
  options: dict[str, Any] = {"module_name": sys.argv[0], "required": required}
  if choices is not None:
    flags.DEFINE_enum(name, default, list(choices), help_text, **options)
  else:
    parser = _CheckedParser(kind, allowed)
    flag = flags.Flag(parser, flags.ArgumentSerializer(), name, default, help_text, boolean=kind == "bool")
    flags.DEFINE_flag(flag, **options)
  defined: Any = flags.FLAGS[name]
  defined.group, defined.placeholder = group, placeholder
  defined.shown_default = default if shown_default is None else shown_default
  if required and kind == "str":
    flags.register_validator(name, lambda value: value != "", message="must not be empty")
  if name in _OTHER_NAMES:
    define_other_name(name, _OTHER_NAMES[name])


def define_other_name(name: str, other_name: str) -> None:
  """Defines another name for a flag."""
  flags.DEFINE_alias(other_name, name, module_name=sys.argv[0])
  other: Any = flags.FLAGS[other_name]
  other.help = f"another name for --{name}"
  other.is_hidden = bool(getattr(flags.FLAGS[name], "group", ""))  # in --help of the scripts, the flag's text names it
  other.first_name = name
  parse_value = other.parse
  other.parse = lambda value: (other._parse(value), parse_value(value))  # an error of _parse names other_name


def parse(argv: Sequence[str]) -> list[str]:
  """Parses the command line with absl.

  Args:
    argv: the program's name and its arguments.
  Returns: The program's name and the arguments that are not flags.
  Raises:
    UserError: an unknown flag, a missing required flag, a bad value, both names of one flag, or a flag file that is no
      text.
  """
  if "v" in flags.FLAGS:
    del flags.FLAGS.v  # absl's short name of --verbosity, which takes a number
  try:
    arguments = list(flags.FLAGS(list(argv)))
  except UnicodeDecodeError as error:  # only flag files are decoded
    flag_file = next((word for word in argv if word.lstrip("-").startswith("flagfile")), "--flagfile")
    raise UserError(f"{flag_file}: not UTF-8 ({error.reason} at byte {error.start + 1}): give a text file") from error
  except (flags.Error, ValueError) as error:
    if isinstance(error, flags.UnrecognizedFlagError):
      own = [flag.name for flag in flags.FLAGS.flags_by_module_dict()[sys.argv[0]]]  # not those of absl
      name = name_here(error.flagname, own)
      own += [f"no{flag}" for flag in own if flags.FLAGS[flag].boolean]
      similar = [name] if name else difflib.get_close_matches(error.flagname, own, n=1, cutoff=0.8)
      error = flags.UnrecognizedFlagError(error.flagname, suggestions=similar)
    message = _MISSING_FLAG.sub(_describe_missing, str(error).removeprefix("ERROR:: "))
    message = shorten(message.replace("\n", ", "))  # absl gives several missing flags a line each
    raise UserError(f"{message} (--help lists the flags)") from error
  for other_name in flags.FLAGS:
    name = getattr(flags.FLAGS[other_name], "first_name", other_name)
    # A value under the other name is also counted as one of the flag.
    if flags.FLAGS[name].present > flags.FLAGS[other_name].present > 0:
      raise UserError(f"--{name} and --{other_name} are both given, but are two names for one flag: give one")
  return arguments


def _describe_missing(match: re.Match[str]) -> str:
  meaning = re.split("[;:]", flags.FLAGS[match[1]].help)[0]
  return f"--{match[1]} is missing: {meaning}"


def name_here(name: str, known: Collection[str]) -> str:
  """Returns the known flag that other frameworks call `name`; "" if there is none."""
  word = name.lower().replace("-", "_")
  return next((flag for flag, names in _NAMES_ELSEWHERE.items() if word in names.split() and flag in known), "")


def shorten(message: str) -> str:
  """Joins an error message of absl into one line, and leaves out the middle if it is very long."""
  line = " ".join(message.split())
  if len(line) <= 2 * _MAX_SHOWN_CHARACTERS:
    return line
  return f"{line[:_MAX_SHOWN_CHARACTERS]} ... {line[-_MAX_SHOWN_CHARACTERS:]}"


def repetition_warnings() -> list[str]:
  """Returns a warning for each flag of a single value that was given several times. The last value is used."""
  all_flags: list[Any] = [flags.FLAGS[name] for name in flags.FLAGS]
  return [
    f"warning: --{flag.name} is given {flag.present} times: {flag.serialize()} is used"
    for flag in all_flags
    # A value under another name, which has a first_name, is also counted as one of the flag itself.
    if flag.present > 1 and not isinstance(flag, flags.MultiFlag) and not hasattr(flag, "first_name")
  ]
