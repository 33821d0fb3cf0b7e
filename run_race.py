"""Fine-tunes on multiple-choice questions on articles, RACE or your own.

python run_race.py --data_dir=RACE --init_checkpoint=albert_base --output_dir=run --do_train --do_eval
"""

from __future__ import annotations

from albert import cli


def main() -> None:
  from albert import runs  # TensorFlow: late, so that --help is quick

  runs.run(*cli.task_and_config("race"))


def run() -> None:
  """The console command."""
  cli.run("race", main)


if __name__ == "__main__":
  run()
