"""Draws the masked LM accuracy during training, and the training loss (ALBERT, version 1, figures 1 to 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from albert.experiments.catalog import LOSS_FIGURE
from albert.experiments.plan import Plan
from albert.io import figures, files
from albert.runs import log_lines, output_files

Points = tuple[list[int], list[float]]


def draw_curve_figure(plan: Plan) -> bytes:
  """Draws a line for each variant over the steps, for the first seed.

  Args:
    plan: the plan of an experiment whose trials are done.
  Returns: a PNG with the held-out masked LM accuracy in percent; if the experiment says so, beside the training loss.
  Raises:
    UserError: a log of a run is damaged.
  """
  has_losses = plan.experiment.figure == LOSS_FIGURE
  titles = [*(["training loss"] if has_losses else []), "held-out masked LM accuracy, percent"]
  figure = figures.new_figure(5.0 * len(titles), 3.6)
  all_axes: Sequence[Any] = figure.subplots(1, len(titles), squeeze=False)[0]
  for axes, title in zip(all_axes, titles, strict=True):
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("steps")
    axes.grid(alpha=0.3)
  for trial in plan.trials()[: len(plan.experiment.variants)]:
    curves = [accuracies(trial.run)]
    if has_losses:
      curves.insert(0, losses(trial.run))
    for axes, (steps, values) in zip(all_axes, curves, strict=True):
      axes.plot(steps, values, marker=".", label=trial.variant.name)
  for axes in all_axes:
    axes.legend(fontsize=8)
  return figures.png(figure)


def accuracies(run: str) -> Points:
  """Returns the steps of the evaluations during training, and their masked LM accuracies in percent."""
  lines = log_lines.read(files.join(run, output_files.EVALUATIONS))
  return [line["step"] for line in lines], [100 * line["masked_lm_accuracy"] for line in lines]


def losses(run: str) -> Points:
  """Returns the steps that are logged, and their training losses; a loss that is not a number is left out."""
  lines = [line for line in log_lines.read(files.join(run, output_files.METRICS)) if line.get("loss") is not None]
  return [line["step"] for line in lines], [line["loss"] for line in lines]
