"""Worker processes compute each item once, get few items ahead, raise their errors, and end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from albert.errors import RunError, UserError
from albert.io.workers import Workers, submit_ahead

_offset = 0


def _set_offset(offset: int) -> None:
  global _offset  # noqa: PLW0603 - the initializer sets the state of its process
  _offset = offset


def _add(value: int) -> int:
  return value + _offset


def _fail(value: int) -> int:
  raise UserError(f"value {value} is bad")


def _die(value: int) -> int:
  os.kill(os.getpid(), signal.SIGKILL)
  return value


@pytest.mark.parametrize("num_processes", [1, 2])
def test_each_item_is_computed_once(num_processes: int) -> None:
  with Workers(num_processes, _set_offset, (100,)) as workers:
    assert sorted(workers.map(_add, range(20))) == [(value, value + 100) for value in range(20)]


def test_few_items_are_submitted_ahead() -> None:
  num_submitted = 0

  def items() -> Iterator[int]:
    nonlocal num_submitted
    for value in range(20):
      num_submitted += 1
      yield value

  with Workers(2, _set_offset, (0,)) as workers:
    results = workers.map(_add, items())
    next(results)
    assert num_submitted <= 4


def test_results_come_in_the_order_in_which_the_calls_finish() -> None:
  submitted: list[int] = []

  def submit(item: int) -> str:
    submitted.append(item)
    return f"call {item}"

  finished = submit_ahead(
    [1, 2, 3, 4],
    submit=submit,
    wait=lambda calls: [max(calls)],  # the newest call finishes first
    can_submit_more=lambda num_submitted: num_submitted < 2,
  )
  assert next(finished) == (2, "call 2")
  assert submitted == [1, 2]
  assert list(finished) == [(3, "call 3"), (4, "call 4"), (1, "call 1")]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_an_error_of_a_worker_is_raised(num_processes: int) -> None:
  with pytest.raises(UserError, match="value 3 is bad"), Workers(num_processes, _set_offset, (0,)) as workers:
    list(workers.map(_fail, [3]))


def test_a_worker_that_dies_is_an_error() -> None:
  with pytest.raises(RunError, match="a worker process died"), Workers(2, _set_offset, (0,)) as workers:
    list(workers.map(_die, [1, 2]))


def test_a_script_without_a_guard_does_not_run_again_in_the_workers(tmp_path: Path) -> None:
  (tmp_path / "work.py").write_text("def start(): pass\ndef double(x): return 2 * x\n")
  script = tmp_path / "script.py"
  script.write_text(
    textwrap.dedent("""
      import work
      from albert.io.workers import Workers

      print("the script runs")
      with Workers(2, work.start) as workers:
        print(sorted(workers.map(work.double, [1, 2])))
    """)
  )
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
  finished = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
  assert finished.stdout == "the script runs\n[(1, 2), (2, 4)]\n", finished.stderr


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
  script = tmp_path / "parent.py"
  script.write_text(
    textwrap.dedent("""
      import os, sys, time
      from albert.io.workers import Workers, submit_ahead

      def work(directory):
        open(os.path.join(directory, str(os.getpid())), "w").close()
        time.sleep(60)

      def start():
        pass

      if __name__ == "__main__":
        with Workers(2, start) as workers:
          list(workers.map(work, [sys.argv[1]] * 2))
    """)
  )
  pids_dir = tmp_path / "pids"
  pids_dir.mkdir()
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
  parent = subprocess.Popen([sys.executable, str(script), str(pids_dir)], env=environment)
  pids: list[int] = []
  deadline = time.monotonic() + 60
  while len(pids) < 2 and time.monotonic() < deadline:
    time.sleep(0.05)
    pids = [int(path.name) for path in pids_dir.iterdir()]
  parent.kill()
  parent.wait()
  while any(map(_is_running, pids)) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert len(pids) == 2
  assert not any(map(_is_running, pids))


def _is_running(pid: int) -> bool:
  """Whether a process is running. A process that has ended but was not waited for (a zombie) is not."""
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  stat = Path(f"/proc/{pid}/stat")
  return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")
