""".ci/run runs every group of tests but the slow ones, and lists the tests that no environment ran."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "skipped.py"


def write_junit_file(path: Path, *tests: tuple[str, str, str]) -> str:
  """Writes a file as pytest does with --junitxml, and returns its path.

  Args:
    path: the file.
    *tests: (module, name, why the test was skipped) of each test. The reason is "" if the test ran.
  """
  lines = []
  for module, name, reason in tests:
    skipped = f'<skipped type="pytest.skip" message="{reason}">file.py:1: {reason}</skipped>' if reason else ""
    lines.append(f'<testcase classname="{module}" name="{name}" time="0.1">{skipped}</testcase>')
  path.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>")
  return str(path)


def test_only_tests_that_ran_nowhere_are_listed(tmp_path: Path) -> None:
  default = write_junit_file(
    tmp_path / "test.xml",
    ("tests.a", "test_always", ""),
    ("tests.a", "test_beam", "needs Apache Beam"),
    ("tests.report", "test_page", "no browser"),
    # A module that is skipped as a whole has no class.
    ("", "tests.parity.test_huggingface", "could not import 'torch'"),
    ("", "tests.parity.test_other", "could not import 'torch'"),
  )
  beam = write_junit_file(
    tmp_path / "test-beam.xml", ("tests.a", "test_beam", ""), ("tests.a", "test_no_beam", "Beam is there")
  )
  parity = write_junit_file(tmp_path / "parity.xml", ("tests.parity.test_huggingface", "test_outputs[1]", ""))
  result = subprocess.run([sys.executable, SCRIPT, default, beam, parity], capture_output=True, text=True, check=True)
  assert result.stdout.splitlines() == [
    "Skipped in every environment, 1 test(s): no browser",
    "  tests.report::test_page",
    "Skipped in every environment, 1 test(s): could not import 'torch'",
    "  tests.parity.test_other",
    "Skipped in every environment, 1 test(s): Beam is there",
    "  tests.a::test_no_beam",
  ]
  result = subprocess.run([sys.executable, SCRIPT, parity], capture_output=True, text=True, check=True)
  assert result.stdout == "Every test ran in at least one environment.\n"


def test_each_group_of_tests_has_a_target_of_make_and_ci_runs_all_but_the_slow_ones(
  pytestconfig: pytest.Config,
) -> None:
  markers = [line.partition(":")[0] for line in pytestconfig.getini("markers") if "make test-" in line]
  assert sorted(markers) == ["serving", "slow", "thorough"]
  makefile, ci = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", ".ci/run"))
  selected = dict(re.findall(r"^test-(\w+): .*\n\t\S+ -m pytest -m '?([\w ]+)'? \$", makefile, re.MULTILINE))
  expected = {"slow": "slow", "thorough": "thorough and not slow and not serving", "serving": "serving and not slow"}
  assert {name: selected[name] for name in expected} == expected
  # What `make test` leaves out is what these three targets run.
  assert pytestconfig.getini("addopts")[-2:] == ["-m", "not slow and not thorough and not serving"]
  steps = re.findall(r"^step (test\S*)", ci, re.MULTILINE)
  assert steps[:2] == ["test", "test-thorough"]
  assert "test-serving" in steps


# Stands for make: makes the folders of environments, and writes down which exist at each other target.
MAKE = """#!/usr/bin/env bash
for target in "$@"; do
  case $target in
    *=* | --*) ;;
    .venv*/installed) mkdir -p "${target%/installed}" ;;
    *) echo "$target" .venv* >> steps ;;
  esac
done
"""


def test_ci_makes_each_environment_before_its_step_and_removes_what_it_made(tmp_path: Path) -> None:
  makefile, ci = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", ".ci/run"))
  (tmp_path / ".ci").mkdir()
  (tmp_path / ".ci" / "run").write_text(ci, encoding="utf-8")
  (tmp_path / "make").write_text(MAKE, encoding="utf-8")
  (tmp_path / "make").chmod(0o755)
  (tmp_path / ".venv-beam").mkdir()  # of a developer: stays
  environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
  subprocess.run(["bash", tmp_path / ".ci" / "run"], env=environment, capture_output=True, check=True)
  steps = {name: set(there) for name, *there in map(str.split, (tmp_path / "steps").read_text().splitlines())}
  for folder in re.findall(r"^VENV\w* := (\S+)$", makefile, re.MULTILINE):
    # CI has no GPU, and no time for the ends of the version ranges.
    if folder not in (".venv-gpu", ".venv-newest", ".venv-oldest"):
      target = {".venv": "test", ".venv-docs": "docs"}.get(folder, folder.replace(".venv", "test"))
      assert folder in steps[target]
  assert max(len(there - {".venv-beam", ".venv-docs"}) for there in steps.values()) == 3
  assert {path.name for path in tmp_path.glob(".venv*")} == {".venv", ".venv-beam"}


def test_tests_that_the_addons_profile_leaves_out_import_neither_tensorflow_nor_numpy() -> None:
  """They would give the same result there. Their helpers and what they test are not looked at."""
  (left_out,) = re.findall(
    r"^NOT_IN_TEST_TFA := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
  )
  paths = [ROOT / name for name in left_out.replace("\\\n", " ").split()]
  assert len(paths) > 9
  for file in (file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])):
    statements = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    modules = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in statements if isinstance(node, ast.ImportFrom)}
    packages = {module.partition(".")[0] for module in modules}
    assert not packages & {"tensorflow", "tensorflow_text", "tf_keras", "keras", "numpy"}, file
