"""Pretrains ALBERT or BERT on TFRecord shards: `python run_pretraining.py --help`."""

from __future__ import annotations

from albert import cli


def main() -> None:
  from albert import runs  # TensorFlow: late, so that --help is quick

  runs.run(*cli.task_and_config("pretraining"))


def run() -> None:
  """The console command."""
  cli.run("pretraining", main)


if __name__ == "__main__":
  run()
