r"""Pretrains ALBERT or BERT on TFRecord shards, and fills in [MASK] tokens with a pretrained model.

  python run_pretraining.py --model=albert_base --input_file='shards/*.tfrecord' \
    --output_dir=run --do_train
"""

from __future__ import annotations

from albert import cli


def main() -> None:
  """Runs this script. The console command albert-pretrain calls it, too."""
  cli.run("pretraining", __doc__)


if __name__ == "__main__":
  main()
