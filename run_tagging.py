r"""Trains a tagger of words, which finds names, phrases and other spans in your own texts.

  python run_tagging.py --train_file=train.conll --eval_file=dev.conll \
    --init_checkpoint=downloads/albert_base --output_dir=run --do_train --do_eval
"""

from __future__ import annotations

from albert import cli


def main() -> None:
  """Runs this script. The console command albert-tag calls it, too."""
  cli.run("tagging", __doc__)


if __name__ == "__main__":
  main()
