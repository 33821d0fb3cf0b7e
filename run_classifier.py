r"""Fine-tunes on a task of GLUE, or on texts and labels of your own.

  python run_classifier.py --task_name=MRPC --data_dir=glue_data --init_checkpoint=albert_base \
    --output_dir=run --do_train --do_eval --do_predict
"""

from __future__ import annotations


def main() -> None:
  from albert import cli, several_runs  # TensorFlow: late, so that --help is quick

  several_runs.run(*cli.task_and_config("classifier"))


def run() -> None:
  """The console command."""
  from albert import startup

  startup.begin()  # before the other imports, so that a signal during them ends the command with one line
  from albert import cli

  cli.run("classifier", main)


if __name__ == "__main__":
  run()
