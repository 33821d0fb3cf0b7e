"""Names of the files in an output_dir: those who write a run and those who read one agree on them."""

from __future__ import annotations

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"  # a directory
ENVIRONMENT = "environment.json"
# The hashes of the files that the run was trained on, in order.
TRAINING_DATA = "training_data.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "eval_metrics.jsonl"
EVAL_RESULTS = "eval_results.json"
# Which checkpoint and which input each predictions file was made from.
PREDICTION_SOURCES = "prediction_sources.json"
# Of several runs: their seeds and metrics, and which is the best.
RUNS = "runs.json"
# Also beside the weights of a checkpoint, and in an export's assets.
VOCABULARY = "spiece.model"
