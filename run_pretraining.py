r"""Pretrains ALBERT or BERT on TFRecord shards, and fills masks.

python run_pretraining.py --model=albert_base --input_file='shards/*.tfrecord' \
    --output_dir=run --do_train
"""

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
