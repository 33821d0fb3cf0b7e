"""Compares the speeds that --dry_run --chip estimates with reports, and prints hours and cost of the paper's run.

  python benchmarks/pretraining_plans.py > tables.md

The speeds in albert/settings/costs.py were fixed before this comparison. A report counts if it names the model, the
length, the precision and the chips; otherwise the estimates for its possible readings are shown beside it.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from albert.config.model import MODELS  # noqa: E402
from albert.settings import costs  # noqa: E402
from albert.settings.tpu_memory import parse_slice, read_table  # noqa: E402

_AWS = "aws-samples/deep-learning-models, models/nlp/albert"
_ISSUES = "google-research/albert, issue"


class Report(NamedTuple):
  """A reported speed, with all models, lengths, chips and precisions that it may refer to.

  Attributes:
    text: what was reported.
    source: where.
    sequences_per_second: the speed.
    models, lengths, chips, precisions: one value if the report states it; else all that are possible.
  """

  text: str
  source: str
  sequences_per_second: float
  models: tuple[str, ...]
  lengths: tuple[int, ...]
  chips: tuple[str, ...]
  precisions: tuple[str, ...]


_TPU, _GPU = ("bfloat16",), ("float16", "float32")
_BASE, _LARGE, _XXLARGE = ("albert_base",), ("albert_large",), ("albert_xxlarge",)
_WEEK = 7 * 86400
REPORTS = (
  Report("0.24 steps/s of 4096, loss scaling", _AWS, 0.24 * 4096, _BASE, (512,), ("v100-8",), ("float16",)),
  Report("1.73 steps/s of 4096, loss scaling", _AWS, 1.73 * 4096, _BASE, (512,), ("v100-64",), ("float16",)),
  Report("0.63 steps/s of 512, loss scaling", _AWS, 0.63 * 512, _LARGE, (512,), ("v100-8",), ("float16",)),
  Report("2,141 sequences/s, a user", f"{_ISSUES} 198", 2141, _XXLARGE, (512,), ("v3-512",), _TPU),
  Report("4,913 sequences/s, an author", f"{_ISSUES} 198", 4913, _XXLARGE, (512,), ("v3-512", "v3-1024"), _TPU),
  Report(
    "1 M steps of 512 in 3 weeks", f"{_ISSUES} 7", 512e6 / (3 * _WEEK), (*_BASE, *_LARGE), (512,), ("v3-8",), _TPU
  ),
  Report(
    "10,000 steps of 512 in 1.15 hours",
    "google-research/google-research, issue 146",
    512e4 / 4140,
    ("albert_xlarge",),
    (128,),
    ("v3-8",),
    _TPU,
  ),
  Report("4 steps/s of 120", "malaysia-ai/malaysian-dataset, issue 3", 480, _BASE, (128, 512), ("v100-3",), _GPU),
  Report(
    "1,000 steps of 512 in 20 minutes",
    "malaysia-ai/malaysian-dataset, issue 3",
    512e3 / 1200,
    _BASE,
    (128, 512),
    ("t4-4",),
    _GPU,
  ),
  Report(
    "125,000 steps of 4096 in 32 hours on 64 to 512 TPUs",
    "ALBERT, section 4.7",
    125e3 * 4096 / 32 / 3600,
    _XXLARGE,
    (512,),
    ("v3-128", "v3-1024"),
    _TPU,
  ),
)
# Reports that do not count although they state everything -> the reason.
_NOT_COUNTED = {"10,000 steps of 512 in 1.15 hours": "more than twice the peak of a v3-8"}
# Speed relative to BERT-large on the same number of TPUs (ALBERT, table 2 and section 4.3).
PAPER_SPEEDS = {
  "albert_base": 5.6,
  "albert_large": 1.7,
  "albert_xlarge": 0.6,
  "albert_xxlarge": 0.3,
  "bert_base": 4.7,
  "bert_large": 1.0,
}
# Chip -> dollars per hour: round numbers near list prices of 2025.
PRICES = {
  "TPUs": {"v2-8": 4.5, "v3-8": 8, "v4-8": 13, "v5e-8": 10, "v5p-8": 17, "v6e-8": 22},
  "GPUs": {"t4-4": 4, "a10g-1": 1, "l4-1": 0.8, "v100-8": 24, "a100-8": 24, "h100-8": 48},
}
_PAPER_SEQUENCES = 125e3 * 4096
SIZES = (*_BASE, *_LARGE, "albert_xlarge", *_XXLARGE)


def sequence_flops(model: str, length: int) -> float:
  """Returns the operations of a sequence of the training step."""
  return costs.step_flops(MODELS[model], batch_size=1, seq_length=length, predictions=None)


def estimate(model: str, length: int, chip: str, precision: str) -> float:
  """Returns sequences per second."""
  cores = parse_slice(chip, read_table())
  _, speed = costs.resolve_speed(chip, cores.chip, precision)
  return speed.flops_per_second * cores.num_cores / sequence_flops(model, length)


def estimates(report: Report) -> tuple[list[float], bool]:
  """Returns sequences per second for each reading of a report, and whether the report counts."""
  readings = itertools.product(report.models, report.lengths, report.chips, report.precisions)
  values = [estimate(*reading) for reading in readings]
  return values, len(values) == 1 and report.text not in _NOT_COUNTED


def report_table() -> str:
  """Returns the reports beside the estimates."""
  lines = [
    "| model | length | chips | precision | reported | sequences/s | estimates | ratio | counted | source |",
    "|---|---|---|---|---|---|---|---|---|---|",
  ]
  for report in REPORTS:
    readings = [report.models, report.lengths, report.chips, report.precisions]
    values, is_counted = estimates(report)
    why = "yes" if is_counted else f"no: {_NOT_COUNTED.get(report.text, 'not all of this is stated')}"
    ratios = " or ".join(f"{value / report.sequences_per_second:.2f}" for value in values)
    cells = [" or ".join(map(str, reading)) for reading in readings]
    cells += [report.text, f"{report.sequences_per_second:,.0f}", " or ".join(f"{value:,.0f}" for value in values)]
    lines.append(f"| {' | '.join([*cells, ratios, why, report.source])} |")
  return "\n".join(lines)


def paper_table() -> str:
  """Returns the speeds of the paper and those of the operations, both relative to albert_xxlarge."""
  lines = ["| model | in the paper | by operations | ratio |", "|---|---|---|---|"]
  for model, speed in PAPER_SPEEDS.items():
    paper = speed / PAPER_SPEEDS["albert_xxlarge"]
    estimated = sequence_flops("albert_xxlarge", 512) / sequence_flops(model, 512)
    lines.append(f"| {model} | {paper:.1f} | {estimated:.1f} | {estimated / paper:.2f} |")
  return "\n".join(lines)


def hours_table(prices: dict[str, float]) -> str:
  """Returns hours and dollars of the paper's run for each chip and model, in the precision with the highest speed."""
  lines = [f"| chips | price | {' | '.join(SIZES)} |", "|---|---|" + "---|" * len(SIZES)]
  for chip, price in prices.items():
    speeds = costs.SPEEDS[chip.partition("-")[0]]
    precision = max(speeds, key=lambda name: speeds[name].flops_per_second)
    hours = [_PAPER_SEQUENCES / estimate(model, 512, chip, precision) / 3600 for model in SIZES]
    cells = [f"{value:,.0f}/{value * price:,.0f}" for value in hours]
    lines.append(f"| {chip} | {price:g} | {' | '.join(cells)} |")
  return "\n".join(lines)


if __name__ == "__main__":
  print(report_table(), paper_table(), *(hours_table(prices) for prices in PRICES.values()), sep="\n\n")
