r"""Trains a model to answer multiple-choice questions about an article, on RACE or on your own questions.

  python run_race.py --data_dir=RACE --init_checkpoint=downloads/albert_base --output_dir=run \
    --do_train --do_eval
"""

from __future__ import annotations

from albert import cli


def main() -> None:
  """Runs this script. The console command albert-race calls it, too."""
  cli.run("race", __doc__)


if __name__ == "__main__":
  main()
