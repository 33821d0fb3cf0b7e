r"""Trains a text classifier or regressor, on a GLUE task or on your own texts and labels.

  python run_classifier.py --task_name=MRPC --data_dir=glue_data \
    --init_checkpoint=downloads/albert_base --output_dir=run --do_train --do_eval --do_predict
"""

from __future__ import annotations

from albert import cli


def main() -> None:
  """Runs this script. The console command albert-classify calls it, too."""
  cli.run("classifier", __doc__)


if __name__ == "__main__":
  main()
