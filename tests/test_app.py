"""Command lines end with one line and the right exit code."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = [
  *(pytest.param([f"run_{name}.py"], marks=pytest.mark.slow) for name in ("pretraining", "squad", "race")),
  ["run_classifier.py"],
  ["-m", "albert.export"],
  *(
    pytest.param(["-m", f"albert.{name}"], marks=pytest.mark.slow)
    for name in ("convert", "evaluation", "experiments", "predict", "report")
  ),
  ["-m", "data_prep.train_vocab"],
  *(
    pytest.param(["-m", f"data_prep.{name}"], marks=pytest.mark.slow)
    for name in ("create_pretraining_data", "question_texts", "sample_corpus")
  ),
]


def run_program(body: str, *argv: str) -> subprocess.CompletedProcess[str]:
  program = textwrap.dedent(
    f"""
    from absl import flags
    from albert import app
    from albert.errors import RunError, Stopped, UserError

    flags.DEFINE_integer("count", 1, "a number")

    def main():
      {body}

    app.run(main)
    """
  )
  return subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
  ("body", "argv", "code", "line"),
  [
    ("raise UserError('file x,\\n line 3')", [], 2, "error: file x, line 3"),
    ("raise RunError('the loss is not finite')", [], 1, "error: the loss is not finite"),
    ("raise Stopped('saved', 15)", [], 143, "saved"),
    ("pass", ["--count=many"], 2, "error: flag --count=many"),
    ("pass", ["--count=1", "--count=2"], 0, "warning: --count is given 2 times: --count=2 holds"),
    ("pass", ["--flagfile=/bin/sh"], 2, "error: --flagfile=/bin/sh: not UTF-8"),
    ("pass", ["--stderrthreshold=high"], 2, "error: --stderrthreshold must be one of"),
    ("pass", ["--cuont=3"], 2, "error: Unknown command line flag 'cuont'"),
    ("pass", ["stray"], 2, "error: unexpected argument 'stray'"),
    ("pass", ["--count=3"], 0, ""),
  ],
)
def test_exit_code_and_one_line(body, argv, code, line):
  result = run_program(body, *argv)
  assert result.returncode == code
  assert result.stderr.startswith(line)
  assert result.stderr.count("\n") == (1 if line else 0)


def test_a_fault_of_ours_keeps_its_traceback():
  result = run_program("raise ZeroDivisionError('ours')")
  assert result.returncode == 1
  assert "Traceback" in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_help_and_version_of_every_command(command):
  """Once in a process whose modules are then looked at: TensorFlow takes seconds to import."""
  *flag, name = command
  call = (
    f'run_module({name!r}, run_name="__main__", alter_sys=True)' if flag else f'run_path({name!r}, None, "__main__")'
  )
  program = f"""
import runpy, sys
sys.argv = [{str(ROOT / name)!r}, WORD]
try:
  runpy.{call}
finally:
  assert "tensorflow" not in sys.modules
"""

  def output(word: str) -> str:
    lines = [sys.executable, "-c", program.replace("WORD", repr(word))]
    result = subprocess.run(lines, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return result.stdout

  shown = output("--help")
  assert shown.startswith(f"usage: {'python -m ' if flag else ''}{name} --flag=value ...\n")
  assert re.search(r"^  --(\[no\])?\w+", shown, re.MULTILINE)
  assert max(map(len, shown.splitlines())) <= 100
  assert str(ROOT) not in shown
  (version,) = re.findall(r'VERSION = "(.*)"', (ROOT / "albert" / "version.py").read_text())
  assert output("--version") == f"albert-tf2 {version}\n"


def test_the_full_help_has_the_libraries_flags_too():
  result = run_program("pass", "--helpfull")
  assert result.returncode == 0
  assert "  --count=N                     a number (default: 1)\n" in result.stdout
  assert "--verbosity" in result.stdout
  assert "--verbosity" not in run_program("pass", "--help").stdout
