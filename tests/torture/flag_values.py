"""The flags of every command, and values that they must refuse. Used by tests.torture.bad_flags."""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from albert.cli import define_flags

# Script -> the task whose flags it defines.
TASKS_OF_SCRIPTS = {"run_pretraining.py": "pretraining", "run_classifier.py": "classifier", "run_squad.py": "squad",
         "run_race.py": "race"}  # fmt: skip


# The modules of commands of the form `python -m MODULE`.
MODULES = (
  *(f"albert.{name}" for name in ("convert", "embed", "ensemble", "experiments", "export", "leaderboard")),
  *("albert.predict", "albert.report", "data_prep.create_pretraining_data", "data_prep.question_texts"),
  *("data_prep.sample_corpus", "data_prep.split_text", "data_prep.train_vocab"),
)


# Flags that accept integers of more than 32 bits.
_64_BIT_FLAGS = {"random_seed", "version"}


# Flags that accept negative integers.
_SIGNED_FLAGS = {"random_seed"}


@dataclasses.dataclass(frozen=True)
class Flag:
  """A flag of a command."""

  name: str
  kind: str
  choices: Sequence[str] = ()
  required: bool = False


@dataclasses.dataclass(frozen=True)
class Command:
  """A command."""

  words: tuple[str, ...]
  flags: tuple[Flag, ...]

  @property
  def name(self) -> str:
    return self.words[-1] if self.words[0] != "-m" else self.words[1]

  def of_kind(self, *kinds: str) -> list[Flag]:
    return [flag for flag in self.flags if flag.kind in kinds]


def commands() -> list[Command]:
  """Returns all commands, with the flags that they define."""
  all_commands = [
    Command((script,), _defined_flags(lambda task=task: define_flags(task)))
    for script, task in TASKS_OF_SCRIPTS.items()
  ]
  for module_name in MODULES:
    is_package = module_name.startswith("albert.") and module_name not in ("albert.ensemble", "albert.leaderboard")
    module = importlib.import_module(f"{module_name}.__main__" if is_package else module_name)
    all_commands.append(Command(("-m", module_name), _defined_flags(module.define_flags)))
  return all_commands


def _defined_flags(define: Callable[[], Any]) -> tuple[Flag, ...]:
  """Returns the flags that a function defines, without aliases. They are then removed from absl's flags."""
  program, sys.argv[0] = sys.argv[0], "command of the campaign"  # flags are registered under this name
  try:
    define()
    absl_flags = list(flags.FLAGS.flags_by_module_dict().get(sys.argv[0], []))
    for flag in absl_flags:
      delattr(flags.FLAGS, flag.name)
  finally:
    sys.argv[0] = program
  return tuple(_convert_flag(flag) for flag in absl_flags)


def _convert_flag(flag: Any) -> Flag:
  choices = getattr(flag.parser, "enum_values", None)
  if choices:
    kind = "enum"
  elif isinstance(flag.parser, flags.ListParser):
    kind = "list"
  else:
    kind = {"int": "int", "float": "float", "bool": "bool"}.get(flag.flag_type(), "text")
  # flags.mark_flag_as_required adds a validator with the message "Flag --x must have a value other than None."
  is_required = any("None" in validator.message for validator in flag.validators)
  return Flag(flag.name, kind, tuple(choices or ()), is_required)


def value_of_wrong_type(flag: Flag, rng: random.Random) -> str:
  # An integer of 4301 digits or more is longer than Python's int() permits.
  number = f"{rng.choice('123456789')}{rng.randrange(10 ** rng.randrange(1, 6))}"
  wrong_values: dict[str, Sequence[str]] = {
    "int": ["", " ", f"{number}.5", f"{number}e2", "nan", "inf", "many", f"{number},{number}", f"--{number}", "0b1",
            "9" * rng.randrange(4301, 9000), f"{number}k", "None", "½"],
    "float": ["", "\t", "many", "1,5", f"{number}%", "0x1p", "e5", "1e", "--1", "None", "1/2"],
    "bool": ["", "2", "maybe", "nope", "-1", "truee", "None"],
    "enum": ["", " ", "None", *(f"{choice} " for choice in flag.choices), *(choice.upper() for choice in flag.choices),
             *(choice[:-1] for choice in flag.choices), ",".join(flag.choices) + ","],
    "text": [" ", "\t", " \n ", "\u00a0", "caf\udce9", "\udcff", "a\udc80/b"],
  }  # fmt: skip
  return rng.choice([value for value in wrong_values[flag.kind] if value not in flag.choices])


def value_out_of_range(flag: Flag, rng: random.Random) -> str:
  """Returns a number that no flag of this type accepts: not finite, too large or too small."""
  if flag.kind == "float":
    sign = "" if rng.random() < 0.5 else "-"
    digits = f"{rng.uniform(1, 9):.3f}"
    return rng.choice([f"{sign}nan", f"{sign}inf", "Infinity", f"{sign}{digits}e{rng.randrange(39, 308)}",
                       f"{digits}e999", "1e308", "NaN", "1" + "0" * 400])  # fmt: skip
  too_large = [2**64, 2**80 + rng.randrange(1000), 10 ** rng.randrange(25, 400)]
  if flag.name not in _64_BIT_FLAGS:
    too_large += [2**31, 2**31 + rng.randrange(1000), 2**32 - 1, 2**32, 2**63 - 1, 2**63]
  too_small = [-(2**63) - rng.randrange(1, 99), -(2**80)]
  if flag.name not in _SIGNED_FLAGS:
    too_small += [-1, -rng.randrange(2, 1000), -(2**31) - 1, -(2**31)]
  return str(rng.choice(too_large if rng.random() < 0.5 else too_small))


# Flag -> values that it must refuse. The list does not use the ranges that the flags declare, since it tests them.
REFUSED_VALUES: dict[str, Sequence[str]] = {
  "learning_rate": ["0", "-0.0", "-1e-5", "1e-400", "1e-60", "0.0"],
  "epsilon": ["0", "-1e-6", "1e-310", "-0"],
  "beta_1": ["1", "1.0000001", "-0.1", "0.99999999999", "2e5"],
  "beta_2": ["1", "1.5", "-1e-9", "0.999999999999"],
  "decay_power": ["0", "-1"],
  "weight_decay": ["-0.01", "-1e-30"],
  "clip_norm": ["-1", "-1e-5"],
  "end_learning_rate": ["-1e-5"],
  "warmup_proportion": ["1", "-0.1", "1.01"],
  "layerwise_learning_rate_decay": ["0", "-0.5"],
  "num_train_epochs": ["-1", "-0.5"],
  "hidden_dropout_prob": ["1", "-0.1", "0.99999999999999"],
  "attention_probs_dropout_prob": ["1", "7", "-1e-3"],
  "classifier_dropout_prob": ["1", "1e9", "-1"],
  "initializer_range": ["0", "-0.02", "1e-50"],
  "train_batch_size": ["0", "2000000"],
  "eval_batch_size": ["0", "2147483647"],
  "num_train_steps": ["0"],
  "gradient_accumulation_steps": ["0"],
  "save_checkpoints_steps": ["-1"],
  "keep_checkpoints": ["0"],
  "log_every_steps": ["-1"],
  "steps_per_loop": ["0"],
  "num_runs": ["0"],
  "vocab_size": ["0", "4"],
  "hidden_size": ["0"],
  "num_attention_heads": ["0"],
  "type_vocab_size": ["0"],
  "max_position_embeddings": ["0"],
  "doc_stride": ["0"],
  "max_query_length": ["-1"],
  "max_answer_length": ["-1"],
  "n_best_size": ["0"],
  "start_n_top": ["0"],
  "max_qa_length": ["0"],
  "num_processes": ["1000000", "1025"],
  "jobs": ["0", "100000"],
  "num_seeds": ["0"],
  "gflops": ["0", "-1"],
  "top_k": ["0"],
  "batch_size": ["0", "2000000"],
  "masked_lm_prob": ["1.5", "-0.1", "1.0000002"],
  "short_seq_prob": ["1.5", "-0.1"],
  "dupe_factor": ["0", "2000000000"],
  "num_shards": ["0", "100000", "2147483647"],
  "max_seq_length": ["7", "-8"],
  "heldout_fraction": ["0", "1", "-0.0", "0.99999999999"],
  "max_megabytes": ["0", "-3"],
  "character_coverage": ["0", "0.5", "1.0001", "1.5", "-1"],
  "num_threads": ["0", "1025", "1000000"],
  "input_sentence_size": ["0"],
}


# Exceptions to REFUSED_VALUES: (command, flag, value that the flag of this command accepts).
ACCEPTED_VALUES = {
  ("run_pretraining.py", "max_seq_length", "7"),
  ("run_squad.py", "doc_stride", "0"),
  *((command, "vocab_size", "4") for command in (*TASKS_OF_SCRIPTS, "albert.experiments")),
}
