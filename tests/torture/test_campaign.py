"""The campaign itself: failures and exceptions are reported, and the seed decides the cases."""

from __future__ import annotations

import functools
import importlib
import re
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture import campaign, flag_values, parts
from tests.torture.__main__ import main
from tests.torture.campaign import Case, Context
from tests.torture.commands import all_commands
from tests.torture.parts import safety
from tests.torture.runs import Runs
from tests.torture.workplace import Finished


def _cases(context: Context) -> Iterator[Case]:
  drawn = context.rng("numbers").randrange(10**9)

  def raise_error() -> str:
    raise FileNotFoundError("no such\nfile")

  def leave() -> str:
    raise SystemExit(2)

  yield Case("good", f"drawn {drawn}", lambda: None)
  yield Case("good", "in this process", lambda: None, in_process=True)
  if context.share < 1:
    yield Case("bad", "wrong", lambda: "3 instead of 4")
    yield Case("bad", "raises", raise_error)
    yield Case("bad", "exits", leave, in_process=True)


def test_what_fails_is_reported_with_exit_code_1(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(campaign, "load_part", lambda name: _cases)
  arguments = ["kills", "--seed=7", f"--work_dir={tmp_path}"]
  assert main([*arguments, "--share=0.5"]) == 1
  printed = capsys.readouterr()
  assert "| kills | good | 2 | 2 |" in printed.out
  assert "| kills | bad | 3 | 0 |" in printed.out
  assert "| all | | 5 | 2 |" in printed.out
  assert "FAILED kills: bad: wrong: 3 instead of 4\n" in printed.out
  assert "FAILED kills: bad: raises: FileNotFoundError at test_campaign.py" in printed.err
  assert "no such file" in printed.err
  assert "FAILED kills: bad: exits: SystemExit" in printed.out
  assert main([*arguments, "--share=0.5", "--only=goo"]) == 0  # the bad ones are left out
  assert "| all | | 2 | 2 |" in capsys.readouterr().out
  assert main([*arguments, "--only=nothing of this name"]) == 1
  assert "making the cases" in capsys.readouterr().out
  assert main(arguments) == 0
  assert "--seed=7" in capsys.readouterr().err


def test_the_seed_decides_the_cases(tmp_path):
  def drawn(seed: int) -> str:
    return next(_cases(Context(seed, 1.0, tmp_path, None))).name  # type: ignore[arg-type]

  assert drawn(1) == drawn(1)
  assert drawn(1) != drawn(2)


def test_a_part_without_cases_or_whose_cases_cannot_be_made_fails(tmp_path):
  def fail(context: Context) -> Iterator[Case]:
    raise ValueError("no shards")
    yield

  context = Context(1, 1.0, tmp_path, None)  # type: ignore[arg-type]
  (failure,) = campaign.run_part("x", lambda context: iter(()), context).failures
  assert failure.failure == "there are none"
  assert "no shards" in str(campaign.run_part("x", fail, context).failures[0].failure)


def test_each_part_is_listed_and_can_be_loaded(capsys):
  names = sorted(path.stem for path in Path(parts.__path__[0]).glob("*.py") if path.stem != "__init__")
  assert campaign.part_names() == names
  for name in names:
    assert isinstance(campaign.load_part(name), types.FunctionType)
  with pytest.raises(SystemExit):
    main(["nothing"])
  assert "unknown part 'nothing'" in capsys.readouterr().err


def test_the_functions_at_which_commands_are_hit_exist():
  """Faults and signals name functions as "module:name"; a renamed one would never be hit."""
  pattern = re.compile(r"\b((?:albert|data_prep)(?:\.\w+)+):([A-Za-z_]\w*(?:\.\w+)*)")
  modules_and_names = [
    match for path in Path(__file__).parent.rglob("*.py") for match in pattern.findall(path.read_text())
  ]
  assert len(modules_and_names) > 10
  for module, name in modules_and_names:
    functools.reduce(getattr, name.split("."), importlib.import_module(module))


class _SharedFileNames(Runs):
  """Has names instead of the files and runs that the campaign's parts share. Only `shards` has a file."""

  corpus = vocabulary = glue_dir = squad_train_file = squad_dev_file = race_dir = Path("absent")
  pretraining_run = classifier_run = copied_classifier_run = exported_classifier = pairs_to_predict = Path("absent")
  vocab_size = 9

  def __init__(self, directory: Path):
    self._lock = threading.RLock()
    self.directory = self.shards = directory
    (directory / "part-0.tfrecord").touch()


def test_the_commands_have_only_flags_that_exist(tmp_path):
  attacked_commands = flag_values.commands()
  assert all(any(command.of_kind(kind) for command in attacked_commands) for kind in ("int", "float", "bool", "enum"))
  flags_of = {command.words: {flag.name for flag in command.flags} for command in attacked_commands}
  commands = all_commands(Context(1, 1.0, tmp_path, _SharedFileNames(tmp_path)))  # type: ignore[arg-type]
  assert len(commands) == 13
  for command in commands:
    argv = command.argv(Path("output"))
    command_words = tuple(argv[:2]) if argv[0] == "-m" else (argv[0],)
    names = {word.removeprefix("--").partition("=")[0] for word in argv if word.startswith("--")}
    assert names <= flags_of[command_words], command.name


def test_no_source_file_could_run_the_content_of_a_file():
  """A new exception belongs into hostile.ALLOWED, with its reason."""
  failures = {str(path): safety.check_source(path) for path in safety.source_files()}
  assert len(failures) > 100
  assert [(path, failure) for path, failure in failures.items() if failure] == []


def test_a_process_must_end_with_the_expected_code_and_one_error_line():
  assert Finished(0, "", "a warning\n").unexpected_end() is None
  assert Finished(2, "", "reading\nerror: bad value\n").unexpected_end(2) is None
  for finished, expected_code, message in (
    (Finished(1, "", "error: full"), 0, "exit code 1 instead of 0: 'error: full'"),
    (Finished(0, "", "Traceback (most recent call last):\n"), 0, "but a traceback"),
    (Finished(2, "", "error: bad\nmore\n"), 2, "exit code 2 with 1 error lines; the last line of stderr is 'more'"),
    (Finished(2, "", "error: bad\nerror: worse\n"), 2, "exit code 2 with 2 error lines"),
  ):
    assert message in str(finished.unexpected_end(expected_code))
