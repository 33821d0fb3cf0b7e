"""Commands end with the right exit code, and report each error in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.fresh_interpreter import ROOT, command_code, run_fresh
from tests.thorough import thorough_except

COMMANDS = [
  *([f"run_{name}.py"] for name in ("pretraining", "classifier", "squad", "race", "tagging")),
  *(["-m", f"albert.{name}"] for name in ("convert", "ensemble", "experiments", "export", "predict", "report")),
  *(
    ["-m", f"data_prep.{name}"]
    for name in ("create_pretraining_data", "question_texts", "sample_corpus", "train_vocab")
  ),
]


def run_program(
  body: str, *argv: str, shell: str = "", environment: dict[str, str] | None = None, timeout: int = 60
) -> subprocess.CompletedProcess[str]:
  """Runs a command in a new interpreter.

  Args:
    body: the code of its main function.
    *argv: its flags.
    shell: redirections, such as ">&-". If given, bash starts the command.
    environment: environment variables to set.
    timeout: in seconds.
  """
  program = textwrap.dedent(
    """
    from albert import startup
    startup.begin()
    import atexit, os, signal, sys, time
    from absl import flags
    from albert import app
    from albert.errors import RunError, Stopped, UserError

    flags.DEFINE_integer("count", 1, "a number")
    flags.DEFINE_string("path", "", "")
    flags.DEFINE_string("text", "", "")

    def main():
    BODY

    app.run(main)
    """
  ).replace("BODY", textwrap.indent(textwrap.dedent(body), "  "))
  command = [sys.executable, "-c", program, *argv]
  if shell:
    command = ["bash", "-c", f'"$@" {shell}', "bash", *command]
  return subprocess.run(
    command,
    capture_output=True,
    text=True,
    check=False,
    timeout=timeout,
    env={**os.environ, **environment} if environment else None,
    errors="surrogateescape",
  )


LOG = "from albert.io.progress import log; log('a line')"


# `code` is the exit code, and `line` the beginning of the only line on standard error ("" for no line). A signal gives
# the exit code 128 + its number: 130 for SIGINT (2), 143 for SIGTERM (15).
@pytest.mark.parametrize(
  ("body", "argv", "code", "line"),
  [
    ("raise UserError('file x,\\n line 3')", [], 2, "error: file x, line 3"),
    ("raise RunError('the loss is not finite')", [], 1, "error: the loss is not finite"),
    ("raise Stopped('saved', 15)", [], 143, "saved"),
    ("pass", ["--count=many"], 2, "error: flag --count=many"),
    ("pass", ["--count=1", "--count=2"], 0, "warning: --count is given 2 times: --count=2 is used"),
    ("pass", ["--flagfile=/bin/sh"], 2, "error: --flagfile=/bin/sh: not UTF-8"),
    ("pass", ["--stderrthreshold=high"], 2, "error: --stderrthreshold must be one of"),
    ("pass", ["--cuont=3"], 2, "error: Unknown command line flag 'cuont'. Did you mean: count ?"),
    ("pass", ["-v"], 2, "error: Unknown command line flag 'v'. Did you mean: verbose ?"),
    ("pass", ["--run=3"], 2, "error: Unknown command line flag 'run' (--help"),
    ("pass", ["--quiet", "--verbose"], 2, "error: --quiet and --verbose are both given"),
    ("pass", ["stray"], 2, "error: unexpected argument 'stray'"),
    ("pass", ["--count=3"], 0, ""),
    ("from albert.io import files; files.read('foo://x/y')", [], 2, "error: File system scheme 'foo' not implemented"),
    (LOG, [], 0, "a line"),
    (LOG, ["--quiet"], 0, ""),
  ],
)
def test_a_command_ends_with_its_exit_code_and_at_most_one_line(body, argv, code, line):
  result = run_program(body, *argv)
  assert result.returncode == code
  assert result.stderr.startswith(line)
  assert result.stderr.count("\n") == (1 if line else 0)


def test_a_bug_prints_its_traceback():
  result = run_program("raise ZeroDivisionError('a bug')")
  assert result.returncode == 1
  assert "Traceback" in result.stderr


@pytest.mark.parametrize(
  "command",
  thorough_except([["run_classifier.py"], ["-m", "albert.export"]], COMMANDS),
  ids=lambda command: command[-1],
)
def test_every_command_prints_its_help_and_version_without_tensorflow(command, tmp_path):
  def output(flag: str) -> str:
    process, modules = run_fresh(command_code([*command, flag]), tmp_path)
    assert process.returncode == 0, process.stderr
    assert "tensorflow" not in modules
    return process.stdout

  help_text = output("--help")
  shown_command = " ".join(["python", *command]) if command[0] == "-m" else command[0]
  assert help_text.startswith(f"usage: {shown_command} --flag=value ...\n")
  assert re.search(r"^  --(\[no\])?\w+", help_text, re.MULTILINE)
  assert max(map(len, help_text.splitlines())) <= 100
  assert not re.search(r"^ \S", help_text, re.MULTILINE)
  assert str(ROOT) not in help_text
  (version,) = re.findall(r'VERSION = "(.*)"', (ROOT / "albert" / "version.py").read_text())
  assert output("-V") == output("--version") == f"albert-tf2 {version}\n"


def test_help_shows_the_default_of_a_flag_but_no_flags_of_libraries():
  help_text = run_program("pass", "--help").stdout
  assert "  --count=N                     a number (default: 1)\n" in help_text
  assert "--verbosity" not in help_text


DISK_FULL = "error: standard output: cannot write it (No space left on device)"


@pytest.mark.parametrize(
  ("body", "shell", "code", "line"),
  [
    ("print(1)", ">/dev/full", 1, DISK_FULL),
    ("print('x' * 100000, flush=True)", ">/dev/full", 1, DISK_FULL),
    ("print(1)", ">&-", 1, "error: standard output: cannot write it (Bad file descriptor)"),
    ("pass", ">&-", 0, ""),
    ("print(1, flush=True); time.sleep(0.2); print(2)", "| true; exit ${PIPESTATUS[0]}", 141, ""),
    ("print('x', file=sys.stderr); sys.stderr.flush()", "2>/dev/full", 0, ""),
    ("print('x' * 9999, file=sys.stderr, flush=True)", "2>&-", 0, ""),
    ("sys.stdin.read()", "<&-", 1, "error: Bad file descriptor"),
  ],
)
def test_closed_and_full_streams_give_at_most_one_line(body, shell, code, line):
  result = run_program(body, shell=shell)
  assert (result.returncode, result.stderr.count("\n")) == (code, 1 if line else 0), result.stderr
  assert result.stderr.startswith(line)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_to_a_full_disk_is_an_error_but_to_a_closed_pipe_is_not(flag):
  assert run_program("pass", flag, shell=">/dev/full").stderr.startswith(DISK_FULL)
  result = run_program("pass", flag, shell="| true; exit ${PIPESTATUS[0]}")
  # 141 = 128 + SIGPIPE, if `true` ends before the text is written.
  assert result.returncode in (0, 141)
  assert result.stderr == ""


def test_a_file_never_gets_the_descriptor_of_a_closed_stream(tmp_path: Path):
  """Messages to the stream would otherwise be written to the file."""
  body = f"""
    file = open({str(tmp_path / "file")!r}, "wb", buffering=0)
    file.write(b"good")
    os.system("echo a message; echo a message >&2")
    print("a message", file=sys.stderr, flush=True)
  """
  assert run_program(body, shell=">&- 2>&-").returncode == 0
  assert (tmp_path / "file").read_bytes() == b"good"


STOPPED = "stopped by SIGTERM\n"


@pytest.mark.parametrize(
  ("body", "code", "message"),
  [
    ("os.kill(os.getpid(), 15); time.sleep(9)", 143, STOPPED),
    ("os.kill(os.getpid(), 2); time.sleep(9)", 130, "stopped by SIGINT\n"),
    ("raise KeyboardInterrupt", 130, "stopped by SIGINT\n"),
    # A second signal during the cleanup after the first one.
    ("try: os.kill(os.getpid(), 15); time.sleep(9)\nfinally: os.kill(os.getpid(), 15); time.sleep(9)", 143, STOPPED),
    # A library replaces the exception by another one.
    ("try: os.kill(os.getpid(), 15); time.sleep(9)\nexcept BaseException: raise ValueError('lost')", 143, STOPPED),
    # In a destructor, which cannot raise an exception.
    ("class A:\n  def __del__(self): os.kill(os.getpid(), 15); time.sleep(0.01)\nA(); time.sleep(9)", 143, STOPPED),
    # After main has ended, while `atexit` functions run.
    ("atexit.register(lambda: (os.kill(os.getpid(), 15), time.sleep(9)))", 143, STOPPED),
    # A second signal after the line was printed.
    (
      "atexit.register(lambda: (os.kill(os.getpid(), 15), time.sleep(9))); os.kill(os.getpid(), 15); time.sleep(9)",
      143,
      STOPPED,
    ),
    # In an import, where libraries take every exception as a missing package.
    (
      "sys.path.insert(0, os.environ['MODULES'])\ntry: import interrupts_itself\nexcept BaseException: print('lost')",
      143,
      STOPPED,
    ),
  ],
)
def test_a_signal_ends_a_command_with_one_line_at_any_time(body, code, message, tmp_path):
  (tmp_path / "interrupts_itself.py").write_text("import os, time; os.kill(os.getpid(), 15); time.sleep(9)")
  result = run_program(body, environment={"MODULES": str(tmp_path)}, timeout=8)
  assert (result.returncode, result.stdout, result.stderr) == (code, "", message)


@pytest.mark.parametrize(
  ("body", "code", "line"),
  [
    (
      "open('/absent/file')",
      2,
      "error: /absent/file: cannot use it (No such file or directory): check the path and its rights",
    ),
    (
      "raise OSError(28, 'No space left on device', 'a', None, 'b')",
      1,
      "error: b: cannot use it (No space left on device): run",
    ),
    (
      "from albert.io import files; files.open_file('/dev/full', 'wb').write(b'x' * 99999)",
      1,
      "error: /dev/full: cannot write it (No space",
    ),
    ("import numpy; numpy.ones(10**14)", 1, "error: out of memory (Unable to allocate"),
  ],
)
def test_an_error_of_the_system_is_one_line(body, code, line):
  result = run_program(body)
  assert (result.returncode, result.stderr.count("\n")) == (code, 1), result.stderr
  assert result.stderr.startswith(line)


@pytest.mark.parametrize("environment", [{"PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}])
def test_file_names_that_are_not_ascii_work_in_an_ascii_locale(environment, tmp_path):
  """A byte of the name is not valid UTF-8, as in files of old systems. The file's text is UTF-8 in any locale."""
  path = tmp_path / os.fsdecode(b"caf\xc3\xa9-\xe9")
  body = """
    from albert.io import files
    files.write_atomically(flags.FLAGS.path, flags.FLAGS.text)
    print(flags.FLAGS.path)
    files.open_file(flags.FLAGS.path + "-absent")
  """
  result = run_program(body, f"--path={path}", "--text=é", environment={"LC_ALL": "C", "LANG": "C", **environment})
  encoding = "ascii" if "PYTHONIOENCODING" in environment else "utf-8"
  printed_path = str(path).encode(encoding, "backslashreplace").decode()
  assert (result.returncode, result.stdout) == (2, f"{printed_path}\n"), result.stderr
  assert result.stderr.startswith(f"error: {printed_path}-absent: cannot read it (No such file or directory)")
  assert path.read_bytes() == "é".encode()
