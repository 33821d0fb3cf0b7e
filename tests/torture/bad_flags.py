"""Bad flags of every command: types, ranges, combinations, unknown and missing ones, flag files."""

from __future__ import annotations

import dataclasses
import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from albert.cli import script_flags
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Workplace

TASKS = {"run_pretraining.py": "pretraining", "run_classifier.py": "classifier", "run_squad.py": "squad",
         "run_race.py": "race"}  # fmt: skip
MODULES = {
  "albert.convert": "define_flags",
  "albert.ensemble": "define_flags",
  "albert.experiments": "define_flags",
  "albert.export": "define_flags",
  "albert.predict": "define_flags",
  "albert.report": "define_flags",
  "data_prep.create_pretraining_data": "_define_flags",
  "data_prep.question_texts": "_define_flags",
  "data_prep.sample_corpus": "_define_flags",
  "data_prep.train_vocab": "_define_flags",
}
# Flags whose integers may be larger than 32 bits.
_LARGE = {"random_seed", "version"}
_NEGATIVE = {"random_seed"}


@dataclasses.dataclass(frozen=True)
class Flag:
  """A flag of a command: kind is int, float, bool, enum, list or text."""

  name: str
  kind: str
  choices: Sequence[str] = ()
  required: bool = False


@dataclasses.dataclass(frozen=True)
class Command:
  """A command: its words up to the first flag, and its flags."""

  words: tuple[str, ...]
  flags: tuple[Flag, ...]

  @property
  def name(self) -> str:
    return self.words[-1] if self.words[0] != "-m" else self.words[1]

  def of_kind(self, *kinds: str) -> list[Flag]:
    return [flag for flag in self.flags if flag.kind in kinds]


def commands() -> list[Command]:
  """All commands, with the flags that they define."""
  found = [
    Command((script,), _defined(lambda task=task: script_flags.define_flags(task))) for script, task in TASKS.items()
  ]
  for module, define in MODULES.items():
    is_package = not module.startswith("data_prep.") and module != "albert.ensemble"
    source = importlib.import_module(f"{module}.__main__" if is_package else module)
    found.append(Command(("-m", module), _defined(getattr(source, define))))
  return found


def _defined(define: Callable[[], Any]) -> tuple[Flag, ...]:
  """The flags that a function defines, without aliases; they are removed again."""
  own, sys.argv[0] = sys.argv[0], "command of the campaign"
  try:
    define()
    made = list(flags.FLAGS.flags_by_module_dict().get(sys.argv[0], []))
    for flag in made:
      delattr(flags.FLAGS, flag.name)
  finally:
    sys.argv[0] = own
  return tuple(_flag(flag) for flag in made if not (flag.help or "").startswith("Alias for --"))


def _flag(flag: Any) -> Flag:
  parser, choices = flag.parser, getattr(flag.parser, "enum_values", None)
  if choices:
    kind = "enum"
  elif flag.boolean:
    kind = "bool"
  elif isinstance(parser, flags.ListParser):
    kind = "list"
  else:
    kinds = {flags.IntegerParser: "int", flags.FloatParser: "float"}
    kind = next((name for known, name in kinds.items() if isinstance(parser, known)), "text")
  return Flag(flag.name, kind, tuple(choices or ()), any("None" in v.message for v in flag.validators))


# ---- one value -------------------------------------------------------------------------------------------


def _wrong_type(flag: Flag, rng: random.Random) -> str:
  number = f"{rng.choice('123456789')}{rng.randrange(10 ** rng.randrange(1, 6))}"
  wrong: dict[str, Sequence[str]] = {
    "int": ["", " ", f"{number}.5", f"{number}e2", "nan", "inf", "many", f"{number},{number}", f"--{number}", "0b1",
            "9" * rng.randrange(4301, 9000), f"{number}k", "None", "½"],
    "float": ["", "\t", "many", "1,5", f"{number}%", "0x1p", "e5", "1e", "--1", "None", "1/2"],
    "bool": ["", "2", "maybe", "nope", "-1", "truee", "None"],
    "enum": ["", " ", "None", *(f"{choice} " for choice in flag.choices), *(choice.upper() for choice in flag.choices),
             *(choice[:-1] for choice in flag.choices), ",".join(flag.choices) + ","],
    "text": [" ", "\t", " \n ", "\u00a0", "caf\udce9", "\udcff", "a\udc80/b"],
  }  # fmt: skip
  return rng.choice([value for value in wrong[flag.kind] if value not in flag.choices])


def _out_of_range(flag: Flag, rng: random.Random) -> str:
  if flag.kind == "float":
    signs = "" if rng.random() < 0.5 else "-"
    digits = f"{rng.uniform(1, 9):.3f}"
    return rng.choice([f"{signs}nan", f"{signs}inf", "Infinity", f"{signs}{digits}e{rng.randrange(39, 308)}",
                       f"{digits}e999", "1e308", "NaN", "1" + "0" * 400])  # fmt: skip
  beyond = [2**64, 2**80 + rng.randrange(1000), 10 ** rng.randrange(25, 400)]
  if flag.name not in _LARGE:
    beyond += [2**31, 2**31 + rng.randrange(1000), 2**32 - 1, 2**32, 2**63 - 1, 2**63]
  below = [-(2**63) - rng.randrange(1, 99), -(2**80)]
  if flag.name not in _NEGATIVE:
    below += [-1, -rng.randrange(2, 1000), -(2**31) - 1, -(2**31)]
  return str(rng.choice(beyond if rng.random() < 0.5 else below))


# What each flag may not be, written down apart from the ranges that the flags declare.
_RANGES: dict[str, Sequence[str]] = {
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
  "save_checkpoints_steps": ["0"],
  "keep_checkpoints": ["0"],
  "log_every_steps": ["0"],
  "steps_per_loop": ["0"],
  "num_runs": ["0"],
  "vocab_size": ["0", "4"],
  "hidden_size": ["0"],
  "num_attention_heads": ["0"],
  "type_vocab_size": ["0"],
  "max_position_embeddings": ["0"],
  "doc_stride": ["0"],
  "max_query_length": ["0"],
  "max_answer_length": ["0"],
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
# A value of the table that is in the range of this command's flag of the same name.
_IN_RANGE = {("run_pretraining.py", "max_seq_length", "7"), *((script, "vocab_size", "4") for script in TASKS)}
_IN_RANGE |= {("albert.export", "max_seq_length", "x")}


def _refused(command: Command, flag: Flag, value: str, group: str) -> Attempt:
  word = f"--{flag.name}={value}"
  expected = Expected(BAD, (f"--{flag.name}",), leaves_nothing=True)
  words = (*command.words, "--output_dir=out", word) if flag.name != "output_dir" else (*command.words, word)
  if not any(known.name == "output_dir" for known in command.flags):
    words = (*command.words, word)
  shown = repr(value) if len(value) < 60 else f"{value[:20]}... ({len(value)} characters)"
  return Attempt(group, f"{command.name} --{flag.name}={shown}", lambda directory: words, expected)


def types(all_commands: Sequence[Command], rng: random.Random, number: int) -> Iterator[Attempt]:
  """Values of another type than the flag's."""
  for index in range(number):
    command = all_commands[index % len(all_commands)]
    flag = rng.choice(command.of_kind("int", "float", "bool", "enum", "text"))
    yield _refused(command, flag, _wrong_type(flag, rng), "flags: types")


def ranges(all_commands: Sequence[Command], rng: random.Random, number: int) -> Iterator[Attempt]:
  """Not-a-number, infinity, overflow, and values just out of the range."""
  with_numbers = [command for command in all_commands if command.of_kind("int", "float")]
  for index in range(number):
    command = with_numbers[index % len(with_numbers)]
    flag = rng.choice(command.of_kind("int", "float"))
    value = _out_of_range(flag, rng)
    special = [v for v in _RANGES.get(flag.name, ()) if (command.name, flag.name, v) not in _IN_RANGE]
    if special and rng.random() < 0.5:
      value = rng.choice(special)
    yield _refused(command, flag, value, "flags: ranges")


# ---- names of flags --------------------------------------------------------------------------------------


def unknown(all_commands: Sequence[Command], rng: random.Random, number: int) -> Iterator[Attempt]:
  """Misspelled names of flags, for which the nearest one is suggested, and stray words."""
  for _ in range(number):
    command = rng.choice(all_commands)
    flag = rng.choice([flag for flag in command.flags if len(flag.name) >= 9])
    place = rng.randrange(2, len(flag.name) - 1)
    name = flag.name[:place] + rng.choice(["", "x", flag.name[place] * 2]) + flag.name[place + 1 :]
    if name == flag.name or any(known.name == name for known in command.flags):
      name += "x"
    expected = Expected(BAD, (f"'{name}'", "Did you mean", flag.name), leaves_nothing=True)
    words = (*command.words, f"--{name}=3")
    yield Attempt("flags: unknown", f"{command.name} --{name}", lambda directory, words=words: words, expected)
  for command in all_commands:
    if command.name == "albert.report":
      continue  # its words are directories
    required = [f"--{flag.name}=x" for flag in command.flags if flag.required]
    words = (*command.words, *required, rng.choice(["do_train", "output_dir=out", "-", "x" * 300]))
    expected = Expected(BAD, (words[-1][:50],))
    yield Attempt("flags: unknown", f"{command.name} {words[-1][:20]}", lambda directory, words=words: words, expected)


def missing(all_commands: Sequence[Command], places: Workplace) -> Iterator[Attempt]:
  """Each flag that a command cannot do without: left out, and empty."""
  needed = {
    "run_pretraining.py": [("output_dir", []), ("input_file", ["--do_train", "--output_dir=out"])],
    "run_classifier.py": [("output_dir", []), ("task_name", ["--output_dir=out"])],
    "run_squad.py": [("output_dir", []), ("spm_model_file", ["--output_dir=out"])],
    "run_race.py": [("output_dir", []), ("spm_model_file", ["--output_dir=out"])],
    "albert.convert": [
      ("init_checkpoint", ["--output_dir=out", "--format=tf1"]),
      ("output_dir", ["--init_checkpoint=x", "--format=tf1"]),
      ("format", ["--init_checkpoint=x", "--output_dir=out"]),
    ],
    "albert.ensemble": [("inputs", ["--output_dir=out"]), ("output_dir", ["--inputs=x"])],
    "albert.experiments": [("run", ["--output_dir=out"]), ("output_dir", ["--run=sentence_loss"])],
    "albert.export": [("checkpoint", ["--output_dir=out"]), ("output_dir", ["--checkpoint=x"])],
    "albert.predict": [("model", [])],
    "data_prep.create_pretraining_data": [
      ("input_file", ["--output_dir=out", "--spm_model_file=x"]),
      ("output_dir", [f"--input_file={places.corpus}", f"--spm_model_file={places.vocabulary}"]),
      ("spm_model_file", [f"--input_file={places.corpus}", "--output_dir=out"]),
    ],
    "data_prep.question_texts": [
      ("output_file", [f"--squad_file={places.squad_dev}"]),
      ("squad_file", ["--output_file=x"]),
    ],
    "data_prep.sample_corpus": [("output_dir", [])],
    "data_prep.train_vocab": [("input_file", ["--output_dir=out"]), ("output_dir", [f"--input_file={places.corpus}"])],
  }  # fmt: skip
  for command in all_commands:
    for name, others in needed.get(command.name, []):
      flag = next(flag for flag in command.flags if flag.name == name)
      for given in ([], [f"--{name}="]) if flag.kind != "enum" else ([],):
        words = [*command.words, *others, *given]
        yield Attempt(
          "flags: missing", f"{command.name} without --{name} {given}", lambda directory, words=words: words,
          Expected(BAD, (f"--{name}",), leaves_nothing=True),
        )  # fmt: skip


def flag_files(rng: random.Random) -> Iterator[Attempt]:
  """Flag files: absent, of bytes, naming bad flags; and one that is valid."""

  def attempt(name: str, content: bytes | None, *names: str) -> Attempt:
    def prepare(directory: Path) -> list[str]:
      path = directory / "given.flags"
      if content is not None:
        path.write_bytes(content.replace(b"SELF", os.fsencode(path)))
      return ["run_squad.py", f"--flagfile={path}"]

    return Attempt("flags: flag files", name, prepare, Expected(BAD, names, leaves_nothing=True))

  yield attempt("absent", None, "given.flags")
  yield attempt("not UTF-8", b"--output_dir=out\n--tpu=\xff" + rng.randbytes(9), "--flagfile=", "given.flags", "UTF-8")
  yield attempt("UTF-16", "--output_dir=out\n".encode("utf-16"), "--flagfile=", "UTF-8")
  yield attempt("a bad flag in it", b"# comment\n--output_dir=out\n--learning_rate=nan\n", "--learning_rate=nan")
  yield attempt("an unknown flag in it", b"--output_dir=out\n--learning_rat=1\n", "learning_rat'")
  yield attempt("a valid one that lacks a vocabulary", b"\n// comment\n--output_dir=out\n", "--spm_model_file")
  yield attempt("one that names itself", b"--flagfile=SELF\n--output_dir=out\n", "--spm_model_file")
  for name, words, named in (
    ("a directory", ["run_squad.py", "--flagfile=."], "flagfile"),
    ("threshold of absl's log", ["run_squad.py", "--stderrthreshold=high"], "--stderrthreshold"),
    ("verbosity of absl's log", ["run_race.py", "--verbosity=high"], "--verbosity"),
    ("levels of absl's loggers", ["run_race.py", "--logger_levels=high"], "--logger_levels"),
    ("a flag without its value", ["run_race.py", "--output_dir"], "--output_dir"),
    ("no name", ["run_race.py", "--=3"], "--=3"),
  ):
    yield Attempt("flags: flag files", name, lambda directory, words=words: words, Expected(BAD, (named,)))


# ---- several flags ---------------------------------------------------------------------------------------


def combinations(places: Workplace) -> Iterator[Attempt]:
  """Flags that do not fit each other, and unusual ones that do."""
  custom = ["--task_name=custom"]
  for script, given, names in (
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
    yield _run(places, script, given, names)
  # These are valid: the command gets as far as it can without something to do.
  for script, given in (
    ("run_squad.py", ["--learning_rate=3.4e38", "--seed=0x10", "--clip_norm=-0.0", "--num_train_epochs=1e-400"]),
    ("run_squad.py", ["--epsilon=1.2e-38", "--beta_1=0", "--warmup_proportion=0.99", "--nodo_lower_case"]),
    ("run_race.py", ["--seed=2147483647", "--num_train_steps=2147483647", "--eval_every_steps=2147483647"]),
    ("run_race.py", ["--decay_power=1e38", "--weight_decay=1e-45", "--layerwise_learning_rate_decay=1e30"]),
    ("run_classifier.py", ["--max_seq_length=8", "--num_processes=1024", "--cache_dir=", "--seed=1_000"]),
    ("run_classifier.py", ["--seed=1", "--seed=2"]),
  ):  # fmt: skip
    yield _run(places, script, given, ("nothing to do",))
  yield from _of_data_preparation(places)


def _run(places: Workplace, script: str, given: Sequence[str], names: Sequence[str]) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    task = {
      "run_classifier.py": ["--task_name=mrpc", f"--data_dir={places.glue}"],
      "run_squad.py": [f"--train_file={places.squad_train}", "--max_query_length=12", "--doc_stride=16"],
      "run_race.py": [f"--data_dir={places.race}", "--max_qa_length=24"],
    }[script]
    model = [f"--spm_model_file={places.vocabulary}", "--max_seq_length=48", "--output_dir=out"]
    if not any(word.startswith("--model=") for word in given):
      model += places.model_flags
    return [script, *model, *task, *given]

  return Attempt("flags: combinations", f"{script} {' '.join(given)[:100]}", prepare, Expected(BAD, names))


def _of_data_preparation(places: Workplace) -> Iterator[Attempt]:
  preparation, training = "data_prep.create_pretraining_data", "data_prep.train_vocab"
  experiment = ["--run=sentence_loss", "--output_dir=out", "--dry_run"]
  exported = [f"--checkpoint={places.pretrained}", f"--spm_model_file={places.vocabulary}", "--output_dir=out"]
  files = [f"--input_file={places.corpus}", f"--spm_model_file={places.vocabulary}", "--output_dir=out"]
  vocabulary = [f"--input_file={places.corpus}", "--output_dir=out"]
  for module, given, code, names in (
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
    ("albert.predict", ["--model=absent"], BAD, ("--model=absent",)),
    ("albert.experiments", ["--list"], VALID, ("sentence_loss",)),
    ("albert.experiments", ["--run=absent", "--output_dir=out"], BAD, ("--run=absent",)),
    ("albert.experiments", ["--run=sentence_loss,,", "--output_dir=out"], BAD, ("--run=",)),
    ("albert.experiments", ["--run=sentence_loss", "--output_dir=gs://x/y"], BAD, ("--output_dir=gs://x/y",)),
    ("albert.experiments", [*experiment, "--glue_dir=x", "--glue_tasks=nope"], BAD, ("--glue_tasks",)),
    ("albert.experiments", [*experiment, "--squad_v1=a"], BAD, ("--squad_v1=a",)),
    ("albert.experiments", [*experiment, "--gflops=3e38"], VALID, ("sentence_loss",)),
    ("albert.export", ["--checkpoint=absent", "--output_dir=out"], BAD, ("--checkpoint=absent",)),
    ("albert.export", [*exported, "--task=nope"], BAD, ("--task=nope",)),
    ("albert.export", [*exported, "--formats=onx"], BAD, ("--formats",)),
    ("albert.export", [*exported, "--task=fill_mask", "--name=a/b"], BAD, ("--name=a/b",)),
    ("albert.export", [*exported, "--task=fill_mask", "--max_seq_length=65"], BAD,
     ("max_seq_length",)),
    ("albert.export", [*exported, "--task=fill_mask", "--top_k=100000"], VALID, ()),
    ("albert.convert", ["--init_checkpoint=absent", "--output_dir=out", "--format=tf1"], BAD, ("absent",)),
  ):  # fmt: skip
    words = ["-m", module, *given]
    name = f"{module} {' '.join(word for word in given if str(places.directory) not in word)}"
    yield Attempt("flags: combinations", name, lambda directory, words=words: words, Expected(code, names))
