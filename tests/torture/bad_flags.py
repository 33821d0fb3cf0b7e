"""Bad flags of every command, for the part "inputs": wrong types and ranges, unknown, missing and conflicting flags."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.torture.attempts import BAD, VALID, Attempt, Expected
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
  expected = Expected(BAD, (f"--{flag.name}",), leaves_nothing=True)
  shown = repr(value) if len(value) < 60 else f"{value[:20]}... ({len(value)} characters)"
  return Attempt(group, f"{command.name} --{flag.name}={shown}", lambda directory: argv, expected)


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
    expected = Expected(BAD, (f"'{name}'", "Did you mean", flag.name), leaves_nothing=True)
    argv = (*command.words, f"--{name}=3")
    yield Attempt("flags: unknown", f"{command.name} --{name}", lambda directory, argv=argv: argv, expected)
  for command in all_commands:
    if command.name == "albert.report":
      continue  # it takes directories as positional arguments
    required = [f"--{flag.name}=x" for flag in command.flags if flag.required]
    stray_word = rng.choice(["do_train", "output_dir=out", "-", "x" * 300])
    argv = (*command.words, *required, stray_word)
    expected = Expected(BAD, (stray_word[:50],))
    yield Attempt("flags: unknown", f"{command.name} {stray_word[:20]}", lambda directory, argv=argv: argv, expected)


def missing_flag_attempts(all_commands: Sequence[Command], workplace: Workplace) -> Iterator[Attempt]:
  """Yields attempts in which a flag that the command needs is left out or empty."""
  # Command -> (the flag that is left out, the flags that the command gets).
  needed_flags: dict[str, list[tuple[str, list[str]]]] = {
    "run_pretraining.py": [("output_dir", []), ("input_file", ["--do_train", "--output_dir=out"])],
    "run_classifier.py": [("output_dir", []), ("task_name", ["--output_dir=out"])],
    "run_squad.py": [("output_dir", []), ("spm_model_file", ["--output_dir=out"])],
    "run_race.py": [("output_dir", []), ("spm_model_file", ["--output_dir=out"])],
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
      expected = Expected(BAD, (f"--{name}",), leaves_nothing=True)
      argv = [*command.words, *other_flags]
      yield Attempt("flags: missing", f"{command.name} without --{name}", lambda directory, argv=argv: argv, expected)
      if flag.kind != "enum":  # of which "" is a value of a wrong type
        argv = [*argv, f"--{name}="]
        yield Attempt("flags: missing", f"{command.name} --{name}=", lambda directory, argv=argv: argv, expected)


def flag_file_attempts(rng: random.Random) -> Iterator[Attempt]:
  """Yields attempts with flag files that are missing, not text, or incomplete, and with bad flags that absl defines."""
  not_utf8 = b"--output_dir=out\n--tpu=\xff" + rng.randbytes(9)
  utf16 = "--output_dir=out\n".encode("utf-16")
  bad_flag = b"# comment\n--output_dir=out\n--learning_rate=nan\n"
  # A flag file that is read leads to an error about the vocabulary, which is not given.
  yield _flag_file_attempt("absent", None, "given.flags")
  yield _flag_file_attempt("not UTF-8", not_utf8, "--flagfile=", "given.flags", "UTF-8")
  yield _flag_file_attempt("UTF-16", utf16, "--flagfile=", "UTF-8")
  yield _flag_file_attempt("a bad flag in it", bad_flag, "--learning_rate=nan")
  yield _flag_file_attempt("an unknown flag in it", b"--output_dir=out\n--learning_rat=1\n", "learning_rat'")
  yield _flag_file_attempt("a valid one", b"\n// comment\n--output_dir=out\n", "--spm_model_file")
  yield _flag_file_attempt("one that names itself", b"--flagfile=SELF\n--output_dir=out\n", "--spm_model_file")
  # Name of the case, the command, what its error names.
  for name, argv, named in (
    ("a directory", ["run_squad.py", "--flagfile=."], "flagfile"),
    ("threshold of absl's log", ["run_squad.py", "--stderrthreshold=high"], "--stderrthreshold"),
    ("verbosity of absl's log", ["run_race.py", "--verbosity=high"], "--verbosity"),
    ("levels of absl's loggers", ["run_race.py", "--logger_levels=high"], "--logger_levels"),
    ("a flag without its value", ["run_race.py", "--output_dir"], "--output_dir"),
    ("no name", ["run_race.py", "--=3"], "--=3"),
  ):
    yield Attempt("flags: flag files", name, lambda directory, argv=argv: argv, Expected(BAD, (named,)))


def _flag_file_attempt(name: str, content: bytes | None, *names_in_error: str) -> Attempt:
  """Gives run_squad.py a flag file with this content; None for a missing file. SELF is replaced by the file's path."""

  def prepare(directory: Path) -> list[str]:
    path = directory / "given.flags"
    if content is not None:
      path.write_bytes(content.replace(b"SELF", os.fsencode(path)))
    return ["run_squad.py", f"--flagfile={path}"]

  return Attempt("flags: flag files", name, prepare, Expected(BAD, names_in_error, leaves_nothing=True))


# ---- several flags ---------------------------------------------------------------------------------------


def combination_attempts(workplace: Workplace) -> Iterator[Attempt]:
  """Yields attempts with flags that do not fit together, and with unusual ones that do."""
  custom = ["--task_name=custom"]
  # Script, flags, what the error names.
  for script, flags, names in (
    ("run_squad.py", ["--do_train", "--from_scratch", "--init_checkpoint=x"], ("--from_scratch", "--init_checkpoint")),
    ("run_squad.py", ["--model=albert_base", "--albert_config_file=x"], ("--model", "--albert_config_file")),
    ("run_race.py", ["--num_train_epochs=1", "--num_train_steps=5"], ("--num_train_epochs", "--num_train_steps")),
    ("run_race.py", ["--warmup_proportion=0.1", "--num_warmup_steps=5"], ("--warmup_proportion", "--num_warmup_steps")),
    ("run_squad.py", ["--train_batch_size=9", "--gradient_accumulation_steps=2"], ("gradient_accumulation_steps",)),
    ("run_squad.py", ["--hidden_size=25"], ("hidden_size", "num_attention_heads")),
    ("run_squad.py", ["--num_hidden_groups=3"], ("num_hidden_groups", "num_hidden_layers")),
    ("run_squad.py", ["--max_seq_length=100"], ("--max_seq_length=100",)),
    ("run_squad.py", ["--early_stopping_patience=2"], ("early_stopping_patience", "--eval_every_steps")),
    ("run_squad.py", ["--tpu=local", "--distribution_strategy=mirrored"], ("--tpu", "--distribution_strategy")),
    ("run_squad.py", ["--num_runs=3", "--seed=2147483646"], ("num_runs", "seed")),
    ("run_squad.py", ["--num_runs=3", "--do_train"], ("--num_runs", "--do_eval")),
    ("run_squad.py", ["--vocab_size=30000"], ("vocab_size",)),
    ("run_squad.py", ["--model=albert_hug"], ("--model=albert_hug",)),
    ("run_squad.py", ["--recipe=nope"], ("--recipe=nope",)),
    ("run_squad.py", ["--recipe=race"], ("race",)),
    ("run_squad.py", ["--do_train"], ("--init_checkpoint",)),
    ("run_squad.py", ["--max_query_length=60", "--do_train", "--from_scratch"], ("max_query_length",)),
    ("run_classifier.py", ["--formulation=ranking"], ("--formulation=ranking",)),
    ("run_classifier.py", ["--labels=a"], ("--labels=a",)),
    ("run_classifier.py", ["--labels=[1"], ("--labels=[1",)),
    ("run_classifier.py", ["--task_name=custom"], ("--text_columns",)),
    ("run_classifier.py", [*custom, "--text_columns=a,b,c"], ("--text_columns=a,b,c",)),
    ("run_classifier.py", [*custom, "--text_columns=a,a"], ("--text_columns",)),
    ("run_classifier.py", [*custom, "--text_columns=a", "--labels=x,x"], ("--labels=x,x",)),
    ("run_classifier.py", [*custom, "--text_columns=a", "--labels=x,,y"], ("--labels=x,,y",)),
    ("run_classifier.py", [*custom, "--text_columns=a", "--labels=[[[[", "--labels=[1,[2]]"], ("--labels",)),
    ("run_classifier.py", [*custom, "--text_columns=a", f"--labels={'[' * 100_000}"], ("--labels",)),
    ("run_classifier.py", [*custom, "--text_columns=a", '--labels={"a":1}'], ("--labels",)),
  ):  # fmt: skip
    yield _script_attempt(workplace, script, flags, names)
  # Script, flags. These are valid: the only error is that there is nothing to do.
  for script, flags in (
    ("run_squad.py", ["--learning_rate=3.4e38", "--seed=0x10", "--clip_norm=-0.0", "--num_train_epochs=1e-400"]),
    ("run_squad.py", ["--epsilon=1.2e-38", "--beta_1=0", "--warmup_proportion=0.99", "--nodo_lower_case"]),
    ("run_race.py", ["--seed=2147483647", "--num_train_steps=2147483647", "--eval_every_steps=2147483647"]),
    ("run_race.py", ["--decay_power=1e38", "--weight_decay=1e-45", "--layerwise_learning_rate_decay=1e30"]),
    ("run_classifier.py", ["--max_seq_length=8", "--num_processes=1024", "--cache_dir=", "--seed=1_000"]),
    ("run_classifier.py", ["--seed=1", "--seed=2"]),
  ):  # fmt: skip
    yield _script_attempt(workplace, script, flags, ("nothing to do",))
  yield from _combinations_of_modules(workplace)


def _script_attempt(workplace: Workplace, script: str, flags: Sequence[str], names: Sequence[str]) -> Attempt:
  """Gives a script a model, the files of a task, and `flags`. The error must contain `names`."""

  def prepare(directory: Path) -> list[str]:
    task = {
      "run_classifier.py": ["--task_name=mrpc", f"--data_dir={workplace.glue_dir}"],
      "run_squad.py": [f"--train_file={workplace.squad_train_file}", "--max_query_length=12", "--doc_stride=16"],
      "run_race.py": [f"--data_dir={workplace.race_dir}", "--max_qa_length=24"],
    }[script]
    model = [f"--spm_model_file={workplace.vocabulary}", "--max_seq_length=48", "--output_dir=out"]
    if not any(flag.startswith("--model=") for flag in flags):
      model += workplace.model_flags
    return [script, *model, *task, *flags]

  return Attempt("flags: combinations", f"{script} {' '.join(flags)[:100]}", prepare, Expected(BAD, names))


def _combinations_of_modules(workplace: Workplace) -> Iterator[Attempt]:
  """Yields attempts with flags of the commands `python -m ...`."""
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
    (preparation, [*files, "--max_predictions_per_seq=600"], BAD, ("max_predictions_per_seq",)),
    (preparation, [*files, "--masked_lm_prob=-0.0"], BAD, ("--masked_lm_prob",)),
    (preparation, [*files, "--input_format=sentence_pair", "--sentence_prediction=none"], BAD, ("--input_format",)),
    (preparation, [*files, "--num_shards=99999"], BAD, ("--num_shards=99999",)),
    (preparation, [*files, "--", "--direct_num_workers=2"], BAD, ("--direct_num_workers",)),
    (preparation, [*files, "--random_seed=18446744073709551614", "--num_processes=1", "--dupe_factor=1"], VALID, ()),
    (preparation, [*files, "--random_seed=-1", "--num_processes=1", "--masked_lm_prob=1"], VALID, ()),
    (training, [*vocabulary, "--output_prefix=x"], BAD, ("--output_prefix",)),
    (training, [*vocabulary, "--vocab_size=6"], BAD, ("--vocab_size=6", "--vocab_size=")),
    (training, [*vocabulary, "--vocab_size=9000"], BAD, ("--vocab_size=9000",)),
    (training, [*vocabulary, "--user_defined_symbols=a b a"], BAD, ("--user_defined_symbols", "'a'")),
    (training, [*vocabulary, "--user_defined_symbols=[MASK]"], BAD, ("--user_defined_symbols", "[MASK]")),
    (training, [*vocabulary, "--user_defined_symbols=<unk>"], BAD, ("--user_defined_symbols", "<unk>")),
    (training, [*vocabulary, "--user_defined_symbols=<pad>"], BAD, ("--user_defined_symbols", "<pad>")),
    (training, [*vocabulary, "--user_defined_symbols=\u2585"], BAD, ("--user_defined_symbols",)),
    (training, [*vocabulary, "--vocab_size=300", "--user_defined_symbols="], VALID, ("300 pieces",)),
    (training, [*vocabulary, "--vocab_size=300", "--character_coverage=1"], VALID, ("300 pieces",)),
    (training, [*vocabulary, "--vocab_size=300", "--input_sentence_size=2147483647"], VALID, ()),
    (training, [*vocabulary, "--input_sentence_size=1"], BAD, ("--vocab_size",)),
    ("data_prep.split_text", ["--output_dir=out", "--input_file=absent"], BAD, ("absent",)),
    ("data_prep.split_text", [*vocabulary, "--language=English"], BAD, ("--language=English",)),
    ("data_prep.sample_corpus", ["--output_dir=out", "--packages_dir=absent"], BAD, ("absent",)),
    ("data_prep.sample_corpus", ["--output_dir=out", "--packages_dir=."], BAD, ("0 documents",)),
    ("data_prep.question_texts", ["--output_file=x", "--squad_file=absent.json"], BAD, ("--squad_file",)),
    ("data_prep.question_texts", ["--output_file=x", "--race_file=absent"], BAD, ("--race_file",)),
    ("albert.report", ["absent"], BAD, ("absent",)),
    ("albert.report", [], BAD, ("albert.report",)),
    ("albert.report", ["--output_file=r.html"], BAD, ()),
    ("albert.ensemble", [], BAD, ("--inputs",)),
    ("albert.ensemble", ["average", "--inputs=a", "--output_dir=out"], BAD, ("average",)),
    ("albert.ensemble", ["--inputs=absent", "--output_dir=out"], BAD, ("absent",)),
    ("albert.embed", ["--checkpoint=absent", "--input_file=x", "--output_file=x.npy"], BAD, ("--checkpoint=absent",)),
    ("albert.predict", ["--model=absent"], BAD, ("--model=absent",)),
    ("albert.experiments", ["--list"], VALID, ("sentence_loss",)),
    ("albert.experiments", ["--run=absent", "--output_dir=out"], BAD, ("--run=absent",)),
    ("albert.experiments", ["--run=sentence_loss,,", "--output_dir=out"], BAD, ("--run=",)),
    ("albert.experiments", ["--run=sentence_loss", "--output_dir=gs://x/y"], BAD, ("--output_dir=gs://x/y",)),
    ("albert.experiments", [*experiment, "--glue_dir=x", "--glue_tasks=nope"], BAD, ("--glue_tasks",)),
    ("albert.experiments", [*experiment, "--squad_v1=a"], BAD, ("--squad_v1=a",)),
    ("albert.experiments", [*experiment, "--gflops=3e38"], VALID, ("sentence_loss",)),
    ("albert.leaderboard", ["--init_checkpoint=x", "--output_dir=out"], BAD, ("--glue_dir",)),
    ("albert.leaderboard", ["--init_checkpoint=x", "--output_dir=out", "--race_dir=absent"], BAD, ("--race_dir",)),
    ("albert.export", ["--checkpoint=absent", "--output_dir=out"], BAD, ("--checkpoint=absent",)),
    ("albert.export", [*exported, "--task=nope"], BAD, ("--task=nope",)),
    ("albert.export", [*exported, "--formats=onx"], BAD, ("--formats",)),
    ("albert.export", [*exported, "--eval_file=absent"], BAD, ("--eval_file=absent",)),
    ("albert.export", [*exported, "--max_metric_drop=0.5"], BAD, ("--max_metric_drop=0.5",)),
    ("albert.export", [*exported, "--task=fill_mask", "--name=a/b"], BAD, ("--name=a/b",)),
    ("albert.export", [*exported, "--task=fill_mask", "--max_seq_length=65"], BAD,
     ("max_seq_length",)),
    ("albert.export", [*exported, "--task=fill_mask", "--top_k=100000"], VALID, ()),
    ("albert.convert", ["--init_checkpoint=absent", "--output_dir=out", "--format=tf1"], BAD, ("absent",)),
  ):  # fmt: skip
    argv = ["-m", module, *flags]
    flags_without_shared_files = [flag for flag in flags if str(workplace.directory) not in flag]
    name = f"{module} {' '.join(flags_without_shared_files)}"
    yield Attempt("flags: combinations", name, lambda directory, argv=argv: argv, Expected(code, names))
