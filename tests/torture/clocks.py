"""Sets the clock back, for the part "signals": training and staging files must not depend on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from albert.io import files, local_files
from tests.torture import outputs
from tests.torture.campaign import Context

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DAY = 86400.0


def set_back_during_training(context: Context) -> str | None:
  """Sets the clock back during training. Without libfaketime only Python's clock is set back, not TensorFlow's."""
  output = context.new_directory("faketime")
  if not FAKETIME.exists():
    prelude = ("tests.torture.points", "set_clock_back", {"calls": 20, "seconds": DAY})
    finished = context.workplace.run(context.workplace.pretraining_command(output), prelude=prelude)
    return finished.unexpected_end() or outputs.difference_of_runs(output, context.workplace.pretraining_run)
  offset = output.with_name(f"{output.name}.offset")
  offset.write_text("+0\n", encoding="ascii")
  environment: dict[str, str | None] = {
    "LD_PRELOAD": str(FAKETIME),
    "FAKETIME_TIMESTAMP_FILE": str(offset),
    "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
  }
  process = context.workplace.start(
    context.workplace.pretraining_command(output), env=environment, new_interpreter=True
  )
  while process.poll() is None and not (output / "checkpoints").is_dir():
    time.sleep(0.02)
  offset.write_text("-2d\n", encoding="ascii")
  return process.finish().unexpected_end() or outputs.difference_of_runs(output, context.workplace.pretraining_run)


def staging_files_of_the_future(context: Context) -> str | None:
  """Checks that staging files are removed only if their process has ended, though their times are in the future."""
  directory = context.new_directory("leftovers")
  ended = context.workplace.start(["-c", "pass"], new_interpreter=True)
  ended.wait()
  name_of_ended_process = f".a.{local_files.host_key()}-{ended.pid}-0123456789ab.tmp"
  name_of_other_host = ".b.00000000-1-0123456789ab.tmp"
  for name in (name_of_ended_process, name_of_other_host):
    (directory / name).touch()
    os.utime(directory / name, (time.time() + 2 * DAY,) * 2)
  files.remove_leftovers(str(directory))
  names = os.listdir(directory)
  return None if names == [name_of_other_host] else f"there are {names}"
