"""Fine-tunes on a task of GLUE, or on texts and labels of your own: `python run_classifier.py --help`."""

from __future__ import annotations

from albert import cli


def main() -> None:
  from albert import runs  # TensorFlow: late, so that --help is quick

  runs.run(*cli.task_and_config("classifier"))


def run() -> None:
  """The console command."""
  cli.run("classifier", main)


if __name__ == "__main__":
  run()
