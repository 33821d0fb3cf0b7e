r"""Pretrains ALBERT or BERT on TFRecord shards, and fills masks.

python run_pretraining.py --model=albert_base --input_file='shards/*.tfrecord' \
    --output_dir=run --do_train
"""

from __future__ import annotations


def main() -> None:
  from albert import cli, several_runs  # TensorFlow: late, so that --help is quick

  several_runs.run(*cli.task_and_config("pretraining"))


def run() -> None:
  """The console command."""
  from albert import startup

  startup.begin()  # before the other imports, so that a signal during them ends the command with one line
  from albert import cli

  cli.run("pretraining", main)


if __name__ == "__main__":
  run()
