"""Command lines end with one line and the right exit code."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


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
