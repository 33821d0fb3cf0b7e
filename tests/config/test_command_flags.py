"""Command-line flags: the ranges of their values, and the warning for a flag that is given twice."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest
from absl import flags
from absl.testing import flagsaver

from albert.config import command_flags
from albert.config.command_flags import Range
from albert.errors import UserError
from tests.script_flags import script_flags


@pytest.fixture
def example_flags():
  command_flags.define("int", "a_count", None, "", allowed=Range(1))
  command_flags.define("float", "a_share", None, "", allowed=Range(minimum=0, below=1))
  command_flags.define("float", "a_limit", None, "", allowed=Range(-2, 0.99995))
  command_flags.define("bool", "a_switch", None, "")
  command_flags.define("str", "a_path", None, "")
  flags.DEFINE_multi_enum("a_chip", [], ["v3", "v5e"], "")
  try:
    yield
  finally:
    for name in ("a_count", "a_share", "a_limit", "a_switch", "a_path", "a_chip"):
      delattr(flags.FLAGS, name)


@contextlib.contextmanager
def parsed_flag(word: str) -> Iterator[None]:
  """Parses a command line of one flag. The flags have their earlier values again afterwards."""
  with flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    flags.FLAGS([sys.argv[0], word], known_only=True)
    yield


@pytest.mark.usefixtures("example_flags")
@pytest.mark.parametrize(
  ("word", "message"),
  [
    ("--a_count=0", "must be at least 1"),
    ("--a_count=2147483648", "must be at most 2147483647"),
    ("--a_count=1e3", "must be a whole number"),
    (f"--a_count={'9' * 5000}", "must be a whole number"),
    ("--a_share=nan", "must be a finite number in float32"),
    ("--a_share=inf", "must be a finite number in float32"),
    ("--a_share=1e999", "must be a finite number in float32"),
    ("--a_share=0.99999999999", "must be below 1 in float32"),
    ("--a_share=many", "must be a number"),
    ("--a_limit=1e308", "must be a finite number in float32"),
    ("--a_limit=-2.5", "must be at least -2"),
    ("--a_path= \t", "must be more than white space"),
    ("--a_path=caf\udce9", "must be UTF-8"),
    ("--a_path=a\0b", "must be without NUL characters"),
  ],
)
def test_a_value_out_of_range_is_an_error(word: str, message: str):
  with pytest.raises(flags.IllegalFlagValueError) as caught, parsed_flag(word):
    pass
  assert command_flags.shorten(str(caught.value)).endswith(message)


@pytest.mark.usefixtures("example_flags")
@pytest.mark.parametrize(
  ("word", "value"),
  [
    ("--a_count=2147483647", 2147483647),
    ("--a_share=-0.0", 0.0),
    ("--a_share=1e-400", 0.0),
    ("--a_limit=0.99995", 0.99995),
    ("--a_path=", ""),
    ("--a_path=with white space", "with white space"),
  ],
)
def test_a_value_at_the_bound_of_its_range_is_accepted(word: str, value: object):
  name = word.removeprefix("--").partition("=")[0]
  with parsed_flag(word):
    assert flags.FLAGS[name].value == value


@pytest.mark.usefixtures("example_flags")
@pytest.mark.parametrize(
  ("words", "expected"),
  [
    (["--a_count=1", "--a_count=2"], ["--a_count=2 is used"]),
    (["--a_count", "1", "--a_count", "2"], ["--a_count=2 is used"]),
    (["--a_switch", "--noa_switch"], ["--noa_switch is used"]),
    (["--a_path=--a_count=3", "--a_count=1"], []),
    (["--a_chip=v3", "--a_chip=v5e"], []),  # a flag that may be repeated
  ],
)
def test_a_flag_that_is_given_twice_is_warned_of(words: list[str], expected: list[str]):
  with flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    command_flags.parse([sys.argv[0], *words])
    warnings = command_flags.repetition_warnings()
  assert [warning.partition(" times: ")[2] for warning in warnings] == expected


@pytest.fixture
def vocabulary_flag() -> Iterator[None]:
  """Defines the flag of the vocabulary, which is required here, and its other name during a test."""
  command_flags.define("str", "spm_model_file", None, "", required=True)
  try:
    yield
  finally:
    for name in ("spm_model_file", "vocab_file"):
      delattr(flags.FLAGS, name)


@pytest.mark.usefixtures("vocabulary_flag")
def test_the_vocabulary_has_two_names() -> None:
  with flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    command_flags.parse([sys.argv[0], "--vocab_file=a.txt", "--vocab_file=b.txt"])
    (warning,) = command_flags.repetition_warnings()
    assert warning == "warning: --spm_model_file is given 2 times: --spm_model_file=b.txt is used"
    assert flags.FLAGS.spm_model_file == "b.txt"


def test_two_names_of_a_seed_are_not_given_together_and_an_error_names_the_given_one() -> None:
  command_flags.define("int", "seed", 0, "")
  command_flags.define_other_name("seed", "random_seed")
  try:
    with flagsaver.flagsaver(), pytest.raises(UserError, match="--seed and --random_seed are both given"):
      command_flags.parse([sys.argv[0], "--seed=1", "--random_seed=2"])
    with flagsaver.flagsaver(), pytest.raises(UserError, match="flag --random_seed=nan: must be a whole number"):
      command_flags.parse([sys.argv[0], "--random_seed=nan"])
  finally:
    for name in ("seed", "random_seed"):
      delattr(flags.FLAGS, name)


@pytest.mark.usefixtures("vocabulary_flag")
@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--spm_model_file=a.txt", "--vocab_file=b.txt"], "--spm_model_file and --vocab_file are both given, but are two"),
    (["--vocab_file=b.txt", "--spm_model_file=a.txt"], "--spm_model_file and --vocab_file are both given, but are two"),
    ([], "--spm_model_file is missing: "),
  ],
)
def test_both_names_or_none_of_a_required_vocabulary_are_refused(words: list[str], message: str) -> None:
  with flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    with pytest.raises(UserError, match=message):
      command_flags.parse([sys.argv[0], *words])


@pytest.mark.parametrize(
  ("task_name", "word", "meant"),
  [
    ("classifier", "--epochs=3", "num_train_epochs"),
    ("classifier", "--per-device-train-batch-size=8", "train_batch_size"),
    ("squad", "--lr=1e-5", "learning_rate"),
    ("squad", "--model_name_or_path=albert-base-v2", "init_checkpoint"),
    ("squad", "--data=train.json", "train_file"),
    ("pretraining", "--data=shards", "input_file"),
    ("race", "--warmup_ratio=0.1", "warmup_proportion"),
    ("race", "--max_length=128", "max_seq_length"),
    ("tagging", "--output=run", "output_dir"),
    ("classifier", "--train_step=5", "num_train_steps"),
    ("classifier", "--logging_steps=5", "log_every_steps"),
    ("classifier", "--no-do_eval", "nodo_eval"),
    ("pretraining", "--num_gpus=1", "distribution_strategy"),
  ],
)
def test_a_flag_of_another_framework_suggests_the_one_here(task_name: str, word: str, meant: str):
  with script_flags(task_name), pytest.raises(UserError, match=rf"Did you mean: {meant} \?"):
    command_flags.parse(["run.py", word])
