"""Bad flags of every command, for the part "inputs": wrong types and ranges, unknown, missing and conflicting flags."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.torture.attempts import BAD, VALID, Attempt
from tests.torture.flag_values import (
  ACCEPTED_VALUES,
  REFUSED_VALUES,
  Command,
  Flag,
  value_of_wrong_type,
  value_out_of_range,
)
from tests.torture.workplace import Workplace


def _refused(command: Command, flag: Flag, value: str, group: str) -> Attempt:
  """Makes an attempt with one flag, whose value must be refused."""
  argv = [*command.words, f"--{flag.name}={value}"]
  if flag.name != "output_dir" and any(known.name == "output_dir" for known in command.flags):
    argv.append("--output_dir=out")
  shown = repr(value) if len(value) < 60 else f"{value[:20]}... ({len(value)} characters)"
  name = f"{command.name} --{flag.name}={shown}"
  return Attempt(group, name, argv, names=[f"--{flag.name}"], leaves_nothing=True)


def wrong_type_attempts(all_commands: Sequence[Command], rng: random.Random, number: int) -> Iterator[Attempt]:
  """Yields attempts with values of another type than the flag's."""
  for index in range(number):
    command = all_commands[index % len(all_commands)]
    flag = rng.choice(command.of_kind("int", "float", "bool", "enum", "text"))
    yield _refused(command, flag, value_of_wrong_type(flag, rng), "flags: types")


def out_of_range_attempts(all_commands: Sequence[Command], rng: random.Random, number: int) -> Iterator[Attempt]:
  """Yields attempts with NaN, infinity, numbers that overflow, and values just out of the flag's range."""
  with_numbers = [command for command in all_commands if command.of_kind("int", "float")]
  for index in range(number):
    command = with_numbers[index % len(with_numbers)]
    flag = rng.choice(command.of_kind("int", "float"))
    value = value_out_of_range(flag, rng)
    listed_values = REFUSED_VALUES.get(flag.name, ())
    refused_values = [listed for listed in listed_values if (command.name, flag.name, listed) not in ACCEPTED_VALUES]
    if refused_values and rng.random() < 0.5:
      value = rng.choice(refused_values)
    yield _refused(command, flag, value, "flags: ranges")


# ---- names of flags --------------------------------------------------------------------------------------


def unknown_flag_attempts(all_commands: Sequence[Command], rng: random.Random, number: int) -> Iterator[Attempt]:
  """Yields attempts with stray words and with misspelled flags, for which the error suggests the nearest name."""
  for _ in range(number):
    command = rng.choice(all_commands)
    flag = rng.choice([flag for flag in command.flags if len(flag.name) >= 9])
    # One character is left out, replaced by x, or doubled.
    position = rng.randrange(2, len(flag.name) - 1)
    name = flag.name[:position] + rng.choice(["", "x", flag.name[position] * 2]) + flag.name[position + 1 :]
    if name == flag.name or any(known.name == name for known in command.flags):
      name += "x"
    names, argv = (f"'{name}'", "Did you mean", flag.name), (*command.words, f"--{name}=3")
    yield Attempt("flags: unknown", f"{command.name} --{name}", argv, names=names, leaves_nothing=True)
  for command in all_commands:
    if command.name in ("albert.report", "albert.predict"):
      continue  # they take words: directories, and texts
    required = [f"--{flag.name}=x" for flag in command.flags if flag.required]
    stray_word = rng.choice(["do_train", "output_dir=out", "-", "x" * 300])
    argv = (*command.words, *required, stray_word)
    yield Attempt("flags: unknown", f"{command.name} {stray_word[:20]}", argv, names=[stray_word[:50]])


def missing_flag_attempts(all_commands: Sequence[Command], workplace: Workplace) -> Iterator[Attempt]:
  """Yields attempts in which a flag that the command needs is left out or empty."""
  training = ["--do_train", "--from_scratch"]
  # Command -> (the flag that is left out, the flags that the command gets).
  needed_flags: dict[str, list[tuple[str, list[str]]]] = {
    "run_pretraining.py": [("output_dir", []), ("input_file", ["--do_train", "--output_dir=out"])],
    "run_classifier.py": [("output_dir", []), ("task_name", [*training, "--output_dir=out"])],
    "run_squad.py": [("output_dir", []), ("train_file", [*training, "--output_dir=out"])],
    "run_race.py": [("output_dir", []), ("data_dir", [*training, "--output_dir=out"])],
    "albert.convert": [
      ("init_checkpoint", ["--output_dir=out", "--format=tf1"]),
      ("output_dir", ["--init_checkpoint=x", "--format=tf1"]),
      ("format", ["--init_checkpoint=x", "--output_dir=out"]),
    ],
    "albert.embed": [
      ("checkpoint", ["--input_file=x", "--output_file=x.npy"]),
      ("input_file", ["--checkpoint=x", "--output_file=x.npy"]),
      ("output_file", ["--checkpoint=x", "--input_file=x"]),
    ],
    "albert.ensemble": [("inputs", ["--output_dir=out"]), ("output_dir", ["--inputs=x"])],
    "albert.experiments": [("run", ["--output_dir=out"]), ("output_dir", ["--run=sentence_loss"])],
    "albert.export": [("checkpoint", ["--output_dir=out"]), ("output_dir", ["--checkpoint=x"])],
    "albert.leaderboard": [("init_checkpoint", ["--output_dir=out"]), ("output_dir", ["--init_checkpoint=x"])],
    "albert.predict": [("model", [])],
    "data_prep.create_pretraining_data": [
      ("input_file", ["--output_dir=out", "--spm_model_file=x"]),
      ("output_dir", [f"--input_file={workplace.corpus}", f"--spm_model_file={workplace.vocabulary}"]),
      ("spm_model_file", [f"--input_file={workplace.corpus}", "--output_dir=out"]),
    ],
    "data_prep.question_texts": [
      ("output_file", [f"--squad_file={workplace.squad_dev_file}"]),
      ("squad_file", ["--output_file=x"]),
    ],
    "data_prep.sample_corpus": [("output_dir", [])],
    "data_prep.split_text": [
      ("input_file", ["--output_dir=out"]),
      ("output_dir", [f"--input_file={workplace.corpus}"]),
    ],
    "data_prep.train_vocab": [
      ("input_file", ["--output_dir=out"]),
      ("output_dir", [f"--input_file={workplace.corpus}"]),
    ],
  }  # fmt: skip
  for command in all_commands:
    for name, other_flags in needed_flags.get(command.name, []):
      flag = next(flag for flag in command.flags if flag.name == name)
      argv, names = [*command.words, *other_flags], [f"--{name}"]
      yield Attempt("flags: missing", f"{command.name} without --{name}", argv, names=names, leaves_nothing=True)
      if flag.kind != "enum":  # of which "" is a value of a wrong type
        argv = [*argv, f"--{name}="]
        yield Attempt("flags: missing", f"{command.name} --{name}=", argv, names=names, leaves_nothing=True)


def flag_file_attempts(rng: random.Random) -> Iterator[Attempt]:
  """Yields attempts with flag files that are missing, not text, or incomplete, and with bad flags that absl defines."""
  not_utf8 = b"--output_dir=out\n--tpu=\xff" + rng.randbytes(9)
  utf16 = "--output_dir=out\n".encode("utf-16")
  bad_flag = b"# comment\n--output_dir=out\n--learning_rate=nan\n"
  # A flag file that is read leads to an error about the training data, which are not given.
  yield _flag_file_attempt("absent", None, "given.flags")
  yield _flag_file_attempt("not UTF-8", not_utf8, "--flagfile=", "given.flags", "UTF-8")
  yield _flag_file_attempt("UTF-16", utf16, "--flagfile=", "UTF-8")
  yield _flag_file_attempt("a bad flag in it", bad_flag, "--learning_rate=nan")
  yield _flag_file_attempt("an unknown flag in it", b"--output_dir=out\n--learning_rat=1\n", "learning_rat'")
  training = b"--output_dir=out\n--do_train\n--from_scratch\n"
  yield _flag_file_attempt("a valid one", b"\n// comment\n" + training, "--train_file")
  yield _flag_file_attempt("one that names itself", b"--flagfile=SELF\n" + training, "--train_file")
  # Name of the case, the command, what its error names.
  for name, argv, named in (
    ("a directory", ["run_squad.py", "--flagfile=."], "flagfile"),
    ("threshold of absl's log", ["run_squad.py", "--stderrthreshold=high"], "--stderrthreshold"),
    ("verbosity of absl's log", ["run_race.py", "--verbosity=high"], "--verbosity"),
    ("levels of absl's loggers", ["run_race.py", "--logger_levels=high"], "--logger_levels"),
    ("a flag without its value", ["run_race.py", "--output_dir"], "--output_dir"),
    ("no name", ["run_race.py", "--=3"], "--=3"),
  ):
    yield Attempt("flags: flag files", name, argv, names=[named])


def _flag_file_attempt(name: str, content: bytes | None, *names_in_error: str) -> Attempt:
  """Gives run_squad.py a flag file with this content; None for a missing file. SELF is replaced by the file's path."""

  def prepare(directory: Path) -> list[str]:
    path = directory / "given.flags"
    if content is not None:
      path.write_bytes(content.replace(b"SELF", os.fsencode(path)))
    return ["run_squad.py", f"--flagfile={path}"]

  return Attempt("flags: flag files", name, prepare, names=names_in_error, leaves_nothing=True)


# ---- several flags ---------------------------------------------------------------------------------------


def combination_attempts(workplace: Workplace) -> Iterator[Attempt]:
  """Yields attempts with flags that do not fit together, and with unusual ones that do."""
  preparation, training = "data_prep.create_pretraining_data", "data_prep.train_vocab"
  experiment = ["--run=sentence_loss", "--output_dir=out", "--dry_run"]
  exported = [
    f"--checkpoint={workplace.pretraining_run}",
    f"--spm_model_file={workplace.vocabulary}",
    "--output_dir=out",
  ]
  files = [f"--input_file={workplace.corpus}", f"--spm_model_file={workplace.vocabulary}", "--output_dir=out"]
  vocabulary = [f"--input_file={workplace.corpus}", "--output_dir=out"]
  # Module, flags, exit code, what the error names (for VALID: what is printed).
  for module, flags, code, names in (
    (preparation, [*files, "--ngram=33", "--max_seq_length=32"], BAD, ("ngram", "max_seq_length")),
    (preparation, [*files, "--random_seed=18446744073709551614", "--num_processes=1", "--dupe_factor=1"], VALID, ()),
    (preparation, [*files, "--random_seed=-1", "--num_processes=1", "--masked_lm_prob=1"], VALID, ()),
    (training, [*vocabulary, "--user_defined_symbols=\u2585"], BAD, ("--user_defined_symbols",)),
    (training, [*vocabulary, "--vocab_size=300", "--input_sentence_size=2147483647"], VALID, ()),
    (training, [*vocabulary, "--input_sentence_size=1"], BAD, ("--vocab_size",)),
    ("data_prep.split_text", ["--output_dir=out", "--input_file=absent"], BAD, ("absent",)),
    ("albert.report", ["absent"], BAD, ("absent",)),
    ("albert.report", [], BAD, ("directories",)),
    ("albert.report", ["--output_file=r.html"], BAD, ()),
    ("albert.experiments", ["--list"], VALID, ("sentence_loss",)),
    ("albert.experiments", ["--run=absent", "--output_dir=out"], BAD, ("--run=absent",)),
    ("albert.experiments", ["--run=sentence_loss,,", "--output_dir=out"], BAD, ("--run=",)),
    ("albert.experiments", [*experiment, "--squad_v1=a"], BAD, ("--squad_v1=a",)),
    ("albert.experiments", [*experiment, "--gflops=3e38"], VALID, ("sentence_loss",)),
    ("albert.leaderboard", ["--init_checkpoint=x", "--output_dir=out"], BAD, ("--glue_dir",)),
    ("albert.leaderboard", ["--init_checkpoint=x", "--output_dir=out", "--race_dir=absent"], BAD, ("--race_dir",)),
    ("albert.export", [*exported, "--task=fill_mask", "--max_seq_length=65"], BAD,
     ("max_seq_length",)),
    ("albert.export", [*exported, "--task=fill_mask", "--top_k=100000"], VALID, ()),
  ):  # fmt: skip
    flags_without_shared_files = [flag for flag in flags if str(workplace.directory) not in flag]
    name = f"{module} {' '.join(flags_without_shared_files)}"
    yield Attempt("flags: combinations", name, ["-m", module, *flags], code, names)
