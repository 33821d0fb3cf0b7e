"""Writes directories that look like the output_dir of a run, for the tests of reports."""

from __future__ import annotations

import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
  """Writes a log: one JSON object per line."""
  path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def one_pixel_png() -> bytes:
  def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

  header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)  # width, height and bits of a pixel; gray
  return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def make_run(directory: Path, *, seed: int = 1, learning_rate: float = 1e-3, steps: int = 1000) -> Path:
  """Writes a finished run of classification: logs, settings, results, tables and pictures."""
  directory.mkdir(parents=True)
  config = {
    "task": "classifier",
    "model": {"hidden_size": 128, "sharing": "all"},
    "optimizer": {"learning_rate": learning_rate},
    "train": {"num_train_steps": steps, "seed": seed},
    "data": {"data_dir": "a/very/long/path/" + "without/any/space/" * 12},
  }
  (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
  environment = {"command": ["run_classifier.py", "--do_train"], "tensorflow": "2.20.0"}
  (directory / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
  write_lines(
    directory / "metrics.jsonl",
    [
      {"step": n, "loss": math.exp(-n * learning_rate) + 0.01 * seed, "examples_per_second": 200.0 + n % 7}
      for n in range(10, steps + 1, 10)
    ],
  )
  evaluations = [
    {"step": n, "loss": 0.5 + 100 / n, "accuracy": 0.7 + n / 1e4, "majority_accuracy": 0.691} for n in (500, steps)
  ]
  write_lines(directory / "eval_metrics.jsonl", evaluations)
  (directory / "eval_results.json").write_text(json.dumps(evaluations[-1]), encoding="utf-8")
  mistakes = '7\t0\t1\t3.0555\t0.95290\tA <script>alert(1)</script> & "b".\n'
  header = "id\tlabel\tprediction\tloss\tprobability\tsentence\n"
  (directory / "mistakes_dev.tsv").write_text(header + mistakes, encoding="utf-8")
  (directory / "data_summary.json").write_text('{"dev": {"rows": 40, "labels": {"praise": 9}}}', encoding="utf-8")
  unsure = 'id,text,prediction,margin\n7,"One,\ntwo",praise,0.0125\n'
  (directory / "unsure_new.csv").write_text(unsure, encoding="utf-8")
  rows = "".join(f"label-{n}\t0.5\t0.25\t0.333333\t4\t2\n" for n in range(12))
  header = "label\tprecision\trecall\tf1\tnum_labels\tnum_predictions\n"
  (directory / "classes_dev.tsv").write_text(header + rows, encoding="utf-8")
  rows = "".join(f"{n}\t1\t1\t0.171702459\t0.828297541\n" for n in range(30))
  header = "id\tlabel\tprediction\tprobability_0\tprobability_1\n"
  (directory / "predictions_dev.tsv").write_text(header + rows, encoding="utf-8")
  for name in ("calibration_dev.png", "confusion_matrix_dev.png"):
    (directory / name).write_bytes(one_pixel_png())
  return directory


def make_seeds(directory: Path, seeds: tuple[int, ...] = (1, 2)) -> Path:
  """Writes runs of several seeds, and the summary of their metrics."""
  for seed in seeds:
    make_run(directory / f"run-{seed}", seed=seed)
  statistics = {
    "median": 0.8,
    "mean": 0.81,
    "standard_deviation": 0.0125,
    "minimum": 0.79,
    "maximum": 0.83,
    "values": [],
  }
  summary = {"seeds": list(seeds), "best_seed": 2, "best_run": "run-2", "metrics": {"accuracy": statistics}}
  (directory / "runs.json").write_text(json.dumps(summary), encoding="utf-8")
  return directory
