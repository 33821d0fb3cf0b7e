r"""Pretrains ALBERT or BERT on TFRecord shards, and fills in [MASK] tokens with a pretrained model.

  python run_pretraining.py --model=albert_base --input_file='shards/*.tfrecord' \
    --output_dir=run --do_train
"""

from __future__ import annotations

from albert import cli

if __name__ == "__main__":
  cli.run("pretraining", __doc__)
