"""`python -m tests.torture [PART ...]`: attacks the project's commands, and prints how many attacks they withstood."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys

from tests.torture import campaign, small_disks


def main(argv: list[str]) -> int:
  """Runs the parts that `argv` names, or all of them if it names none. Returns the exit code."""
  small_disks.enter_namespace()
  # A shell that starts a command with & makes it ignore SIGINT. The commands under attack would inherit that.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  names = campaign.part_names()
  parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
  parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(names)} (default: all)")
  parser.add_argument("--seed", type=int, help="seed of every random draw (default: a random one, which is printed)")
  parser.add_argument("--share", type=float, default=1.0, help="share of the full campaign's cases (default: 1)")
  parser.add_argument("--jobs", type=int, default=2, help="number of cases that run at the same time (default: 2)")
  parser.add_argument("--only", default="", help="run only the cases whose group contains this text (default: all)")
  parser.add_argument("--work_dir", default="", help="directory for the files (default: a temporary one)")
  arguments = parser.parse_args(argv)
  unknown = sorted({*arguments.parts} - {*names})
  if unknown:
    parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(names)}")
  if not 0 < arguments.share <= 1 or arguments.jobs < 1:
    parser.error("--share must be above 0 and at most 1, --jobs at least 1")
  return campaign.run(
    arguments.parts or names,
    seed=secrets.randbelow(10**6) if arguments.seed is None else arguments.seed,
    share=arguments.share,
    jobs=arguments.jobs,
    only=arguments.only,
    work_dir=arguments.work_dir,
  )


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  sys.exit(main(sys.argv[1:]))
