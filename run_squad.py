r"""Trains a model to find the answer to a question in a paragraph, on SQuAD v1.1 or v2.0.

  python run_squad.py --version_2_with_negative --train_file=train-v2.0.json \
    --eval_file=dev-v2.0.json --init_checkpoint=downloads/albert_base \
    --output_dir=run --do_train --do_eval
"""

from __future__ import annotations

from albert import cli


def main() -> None:
  """Runs this script. The console command albert-squad calls it, too."""
  cli.run("squad", __doc__)


if __name__ == "__main__":
  main()
