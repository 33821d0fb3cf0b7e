"""Fine-tunes on multiple-choice questions on articles, RACE or your own.

python run_race.py --data_dir=RACE --init_checkpoint=albert_base --output_dir=run --do_train --do_eval
"""

from __future__ import annotations


def main() -> None:
  from albert import cli, several_runs  # TensorFlow: late, so that --help is quick

  several_runs.run(*cli.task_and_config("race"))


def run() -> None:
  """The console command."""
  from albert import startup

  startup.begin()  # before the other imports, so that a signal during them ends the command with one line
  from albert import cli

  cli.run("race", main)


if __name__ == "__main__":
  run()
