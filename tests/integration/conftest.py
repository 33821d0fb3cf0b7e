"""Fixtures of the tests of commands that run other commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from albert.experiments import runner
from albert.experiments.runner import Command
from tests.script_flags import script_flags
from tests.torture.workplace import Finished, Workplace


def script_fixture(task_name: str) -> Any:
  """Returns a fixture that defines the flags of a task's script for all tests of a module."""

  @pytest.fixture(scope="module", autouse=True)
  def defined_flags(all_steps_eager: None) -> Iterator[None]:
    with script_flags(task_name):
      yield

  return defined_flags


def run_eagerly() -> None:
  """Lets the steps of a command run without tracing them, which takes most of the time of a run of a few steps."""
  import tensorflow as tf

  tf.config.run_functions_eagerly(True)


@pytest.fixture
def run_forked(commands: Workplace) -> Callable[..., Finished]:
  """Runs a command in a process of its own, without tracing its steps."""

  def run_command(*argv: str) -> Finished:
    return commands.run(argv, timeout=900, prelude=(__name__, "run_eagerly", {}))

  return run_command


@pytest.fixture
def forked_plans(run_forked: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch) -> None:
  """Lets runner.run_plan run its commands with `run_forked`. The number of processors of a job is not set."""

  def call(processes: runner._Processes, command: Command, output: Any) -> int:
    del processes
    finished = run_forked(*command.words[1:])
    output.write((finished.stdout + finished.stderr).encode())
    return finished.code

  monkeypatch.setattr(runner._Processes, "_call", call)
