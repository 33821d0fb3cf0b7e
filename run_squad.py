r"""Fine-tunes on questions on paragraphs, SQuAD v1.1 or v2.0.

  python run_squad.py --version_2_with_negative --train_file=train-v2.0.json \
    --predict_file=dev-v2.0.json --init_checkpoint=albert_base --output_dir=run --do_train --do_eval
"""

from __future__ import annotations


def main() -> None:
  from albert import cli, several_runs  # TensorFlow: late, so that --help is quick

  several_runs.run(*cli.task_and_config("squad"))


def run() -> None:
  """The console command."""
  from albert import startup

  startup.begin()  # before the other imports, so that a signal during them ends the command with one line
  from albert import cli

  cli.run("squad", main)


if __name__ == "__main__":
  run()
