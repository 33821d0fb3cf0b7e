"""The flags of run_classifier.py."""

from __future__ import annotations

import dataclasses

from albert.config.base import EVALUATION, option
from albert.config.run import FinetuningConfig
from albert.tasks.splits import EVAL_SEED

PLAIN, RANKING = "plain", "ranking"
TRUNCATE, WINDOWS = "truncate", "windows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(FinetuningConfig):
  """The flags of run_classifier.py that describe the task and its files."""

  task_name: str = option(
    "",
    "task of GLUE (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, AX), or custom for your own files",
    resets=("labels", "positive_label"),
  )
  data_dir: str = option(
    "",
    "folder of the task's files, or the folder that GLUE's archives were unpacked into",
    affects_training=False,
    resets=("train_file", "eval_file", "predict_file"),
  )
  train_file: str = option(
    "", "TSV, CSV, JSONL or Parquet file to train on, instead of the one in data_dir", affects_training=False
  )
  eval_file: str = option(
    "", "file to evaluate on, instead of those in data_dir", affects_training=False, resets=("eval_share",)
  )
  eval_share: float = option(
    0.0,
    "share of --train_file that is held out and evaluated on, instead of --eval_file; its rows are listed in "
    "eval_split.json (task custom)",
    minimum=0,
    below=1,
  )
  eval_seed: int = option(EVAL_SEED, "seed of the choice of the rows of --eval_share (task custom)", minimum=0)
  predict_file: str = option("", "file to predict, instead of those in data_dir", affects_training=False)
  formulation: str = option(
    PLAIN,
    "plain: each row by itself; ranking (QNLI only): the sentences of a question are compared with each other",
    choices=(PLAIN, RANKING),
  )
  text_columns: str = option(
    "",
    "name of the text's column; for pairs of texts, two names separated by a comma. A name that has a comma is "
    "enclosed in double quotes, or give a JSON list (task custom)",
    evaluation_may_differ=True,
  )
  label_column: str = option("label", "name of the label's column (task custom)", evaluation_may_differ=True)
  id_column: str = option(
    "", "name of the column of ids; if not given, rows are numbered from 0 (task custom)", evaluation_may_differ=True
  )
  labels: str = option(
    "",
    "labels, separated by commas or as a JSON list; if not given, those of the training file, sorted (task custom)",
    resets=("positive_label",),
  )
  regression: bool = option(False, "predict numbers instead of classes (task custom)")
  multi_label: bool = option(False, "a row may have several labels, or none (task custom)")
  label_separator: str = option(
    ",", "separates the labels in the label column (--multi_label)", evaluation_may_differ=True
  )
  thresholds: str = option(
    "one",
    "probability from which on a label is predicted (--multi_label): one: the same for all labels, chosen on the "
    "development set for the highest micro_f1; per_label: chosen for the highest F1 of each; or a number such as 0.5",
    affects_training=False,
    group=EVALUATION,
  )
  long_texts: str = option(
    TRUNCATE,
    "truncate: a text that is longer than max_seq_length loses its end; windows: it is read in overlapping windows, "
    "whose logits are pooled (single texts only)",
    choices=(TRUNCATE, WINDOWS),
    evaluation_may_differ=True,
  )
  doc_stride: int = option(
    128,
    "tokens between the starts of two successive windows of --long_texts=windows",
    minimum=1,
    evaluation_may_differ=True,
  )
  pooling: str = option(
    "mean",
    "the logits of a text with --long_texts=windows: the mean or the max of the logits of its windows",
    choices=("mean", "max"),
    evaluation_may_differ=True,
  )
  max_windows: int = option(
    8,
    "maximum number of windows of a text with --long_texts=windows, which bounds the memory; the rest of the text is "
    "cut off",
    minimum=1,
    evaluation_may_differ=True,
  )
  class_weights: str = option(
    "",
    "weights of the labels in the training loss: balanced (rare labels count more, all labels the same in total), "
    "LABEL:WEIGHT,LABEL:WEIGHT or a JSON object; labels that are not listed have weight 1",
  )
  positive_label: str = option(
    "",
    "label that f1, precision and recall are computed for; if not given, the second of two labels",
    affects_training=False,
    group=EVALUATION,
  )
  best_metric: str = option(
    "",
    "metric by which checkpoints and runs are compared: one of eval_results.json, such as macro_f1, rmse or loss. Of "
    "equal values, the one with the lower loss is better. If not given, the first metric of the task",
    group=EVALUATION,
  )
