"""Writes the results of an experiment: a table with our scores and the paper's, a CSV file and a figure."""

from __future__ import annotations

import csv
import io
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from albert.experiments import layers
from albert.experiments.catalog import Experiment, Variant
from albert.experiments.plan import Plan
from albert.io import files
from albert.runs import figures, logs, output_files

# Names of the files in the experiment's directory.
TABLE_FILE, CSV_FILE, FIGURE_FILE = "table.md", "numbers.csv", "figure.png"
_CSV_COLUMNS = ("variant", "seed", "parameters", "examples_per_second")
# Score -> its title in tables and figures, in the order of the columns.
TITLES = {
  "mlm": "MLM",
  "ppl": "perplexity",
  "nsp": "NSP",
  "sop": "SOP",
  "cola": "CoLA",
  "sst2": "SST-2",
  "mrpc": "MRPC",
  "rte": "RTE",
  "mnli": "MNLI",
  "squad_v1_f1": "SQuAD1.1 F1",
  "squad_v1_exact": "SQuAD1.1 EM",
  "squad_v2_f1": "SQuAD2.0 F1",
  "squad_v2_exact": "SQuAD2.0 EM",
  "race": "RACE",
  "average": "Avg",
}
# Score -> the percentage that guessing gives if all classes are equally frequent; 0 for the other scores.
_GUESSING_SCORES = {"nsp": 50.0, "sop": 50.0, "sst2": 50.0, "rte": 50.0, "mnli": 100 / 3, "race": 25.0}
# The scores of the column Avg.
_SQUAD_SCORES = ("squad_v1_f1", "squad_v1_exact", "squad_v2_f1", "squad_v2_exact")
_OTHER_AVERAGED_SCORES = ("mnli", "sst2", "race")
_NO_VALUE = "–"


def write(plan: Plan, rows: Sequence[Mapping[str, Any]], *, scale: str) -> str:
  """Writes table.md, numbers.csv and figure.png into the experiment's directory.

  Args:
    plan: the plan of the experiment.
    rows: the results, one row per variant and seed (see runner.run_plan).
    scale: name of the scale, for the caption.
  Returns: the text of table.md.
  """
  rows = [add_average(row) for row in rows]
  scores = list(dict.fromkeys(score for row in rows for score in row["scores"]))
  table = io.StringIO()
  writer = csv.writer(table, lineterminator="\n")
  writer.writerow([*_CSV_COLUMNS, *scores])
  for row in rows:
    writer.writerow([*(row[name] for name in _CSV_COLUMNS), *(row["scores"].get(score, "") for score in scores)])
  files.write_atomically(files.join(plan.directory, CSV_FILE), table.getvalue())
  text = format_table(plan.experiment, rows, scale=scale)
  files.write_atomically(files.join(plan.directory, TABLE_FILE), text)
  image = _draw_lines(plan) if plan.experiment.figure else _draw_scores(plan.experiment, rows)
  if image:
    files.write_atomically(files.join(plan.directory, FIGURE_FILE), image)
  return text


def select_candidates(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> Experiment:
  """Returns the experiment with one variant for each row of the table.

  Of the candidates for a row, the one with the lowest mean perplexity is kept. A perplexity that is not a number is
  worse than any other. Variants without results are left out.

  Args:
    experiment: the variants.
    rows: the results, one row per variant and seed.
  """
  perplexities: dict[str, list[float]] = {}
  for row in rows:
    value = row["scores"].get("ppl", math.nan)
    perplexities.setdefault(row["variant"], []).append(math.inf if math.isnan(value) else value)
  means = {name: statistics.fmean(values) for name, values in perplexities.items()}
  best: dict[str, Variant] = {}
  for variant in experiment.variants:
    if variant.name not in means:
      continue
    key = variant.candidate_for or variant.name
    if key not in best or means[variant.name] < means[best[key].name]:
      best[key] = variant
  return msgspec.structs.replace(experiment, variants=list(best.values()))


def add_average(row: Mapping[str, Any]) -> dict[str, Any]:
  """Adds the score "average" to a row that has all scores of the paper's column Avg (ALBERT, table 2).

  The column is the mean over SQuAD 1.1, SQuAD 2.0, MNLI, SST-2 and RACE. SQuAD counts with the mean of F1 and exact
  match. Scores that are not in this list, such as CoLA's, do not count.

  Args:
    row: a result, with its scores in percent.
  """
  scores = row["scores"]
  if any(score not in scores for score in (*_SQUAD_SCORES, *_OTHER_AVERAGED_SCORES)):
    return dict(row)
  # Each of the four scores of SQuAD has half the weight of another task's score.
  total = sum(scores[score] for score in _SQUAD_SCORES) / 2 + sum(scores[score] for score in _OTHER_AVERAGED_SCORES)
  num_tasks = 2 + len(_OTHER_AVERAGED_SCORES)  # two versions of SQuAD, and the others
  return {**row, "scores": {**scores, "average": total / num_tasks}}


def format_table(experiment: Experiment, rows: Sequence[Mapping[str, Any]], *, scale: str) -> str:
  """Formats a Markdown table: first the columns of our scores, then the paper's.

  There is a line for each variant, and of several candidates for a row one for the best.

  Args:
    experiment: the variants, with the paper's numbers.
    rows: the results, one row per variant and seed.
    scale: name of the scale, for the caption.
  """
  experiment = select_candidates(experiment, rows)
  our_scores = [score for score in TITLES if any(score in row["scores"] for row in rows)]
  paper_scores = [score for score in TITLES if any(score in variant.paper for variant in experiment.variants)]
  # Variants that have trained for the same time are compared with the seconds of each.
  is_timed = any(variant.same_time_as for variant in experiment.variants)
  columns = ["parameters", *(["speed"] if experiment.speed_of else []), *(["seconds"] if is_timed else [])]
  paper_columns = [*(["parameters", "speed"] if experiment.speed_of else []), *(TITLES[s] for s in paper_scores)]
  header = ["variant", *columns, *(TITLES[s] for s in our_scores), *(f"paper: {column}" for column in paper_columns)]
  lines = [header, ["---"] * len(header)]
  base_speed = _median_speed([row for row in rows if row["variant"] == experiment.speed_of])
  for variant in experiment.variants:
    paper, our_rows = variant.paper, [row for row in rows if row["variant"] == variant.name]
    cells = [variant.name, _format_millions(our_rows[0]["parameters"])]
    if experiment.speed_of:
      cells.append(f"{_median_speed(our_rows) / base_speed:.1f}x" if base_speed else _NO_VALUE)
    if is_timed:
      cells.append(_format_mean([row["training_seconds"] for row in our_rows if row.get("training_seconds")]))
    cells += [_format_mean([row["scores"][s] for row in our_rows if s in row["scores"]]) for s in our_scores]
    if experiment.speed_of:
      cells.append(_format_millions(paper.get("parameters")))
      cells.append(f"{paper['speedup']:g}x" if "speedup" in paper else _NO_VALUE)
    lines.append([*cells, *(f"{paper[score]:g}" if score in paper else _NO_VALUE for score in paper_scores)])
  num_seeds = len({row["seed"] for row in rows})
  seeds = f"{num_seeds} seeds, mean ± standard deviation" if num_seeds > 1 else f"{num_seeds} seed"
  percent = "percent, except for perplexity" if "ppl" in our_scores else "percent"
  source = f"The paper's columns: {experiment.source}, at its own scale." if paper_columns else experiment.source + "."
  caption = f"Scale {scale}; {seeds}; {percent}. {source}"
  text_lines = [f"# {experiment.title}", "", caption, "", *([experiment.note, ""] if experiment.note else [])]
  return "\n".join([*text_lines, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def _median_speed(rows: Sequence[Mapping[str, Any]]) -> float:
  speeds = [row["examples_per_second"] for row in rows if row["examples_per_second"]]
  return statistics.median(speeds) if speeds else 0.0


def _format_millions(count: float | None) -> str:
  return _NO_VALUE if count is None else f"{count / 1e6:.3g}M"


def _format_mean(values: Sequence[float]) -> str:
  """Formats the mean and the standard deviation of several values; of a single value only the value."""
  if not values:
    return _NO_VALUE
  mean = statistics.fmean(values)
  has_deviation = len(values) > 1 and math.isfinite(mean)
  return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if has_deviation else f"{mean:.1f}"


def _draw_scores(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> bytes | None:
  """Draws a panel for each score: a line over x or a bar for each variant, and a dot for each seed."""
  experiment = select_candidates(experiment, rows)
  scores = [score for score in TITLES if any(score in row["scores"] for row in rows)]
  if not scores:
    return None
  figure, panels = figures.new_panels(len(scores))
  for axes, score in zip(panels, scores, strict=True):
    values: dict[str, list[float]] = {}
    for row in rows:
      if score in row["scores"]:
        values.setdefault(row["variant"], []).append(row["scores"][score])
    draw_panel(axes, experiment, values, guessing=_GUESSING_SCORES.get(score, 0.0))
    axes.set_title(TITLES[score])
    axes.grid(alpha=0.3)
  return figures.png(figure)


def draw_panel(axes: Any, experiment: Experiment, values: Mapping[str, Sequence[float]], *, guessing: float) -> None:
  """Draws one score.

  Args:
    axes: the panel.
    experiment: the variants, in the order of the bars or with their positions on the x axis.
    values: name of a variant -> its score with each seed, in percent.
    guessing: the score of guessing, in percent. Bars start there, and a dashed line shows it if it is not 0.
  """
  variants = [variant for variant in experiment.variants if variant.name in values]
  means = [statistics.fmean(values[variant.name]) for variant in variants]
  x_values = [float(index if variant.x is None else variant.x) for index, variant in enumerate(variants)]
  if experiment.x:
    axes.plot(x_values, means, linewidth=1.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(x_values, [f"{x:g}" for x in x_values])
    axes.set_xlabel(experiment.x)
  else:
    axes.bar(x_values, [mean - guessing for mean in means], bottom=guessing, width=0.6, alpha=0.4)
    if guessing:
      axes.axhline(guessing, color="0.4", linestyle="--", linewidth=1)
    axes.set_xticks(x_values, [variant.name for variant in variants], rotation=40, ha="right", fontsize=8)
  for x, variant in zip(x_values, variants, strict=True):
    axes.plot([x] * len(values[variant.name]), values[variant.name], "k.", markersize=4)


def _draw_lines(plan: Plan) -> bytes:
  """Draws the figure that the experiment names, with a line for each variant with the first seed.

  These are the distances between layers (ALBERT, figure 1), or the held-out masked LM accuracy over the steps, perhaps
  with the training loss (ALBERT, version 1, figures 1 to 3).
  """
  titles, label = ["held-out masked LM accuracy, percent"], "steps"
  if plan.experiment.figure == "loss_curves":
    titles.insert(0, "training loss")
  if plan.experiment.figure == "layers":
    titles, label = ["L2 distance", "angle, degrees"], "layer"
  panels: dict[str, list[figures.Curve]] = {title: [] for title in titles}
  curves: Sequence[Sequence[tuple[float, float]]]
  for trial, color in zip(plan.trials()[: len(plan.experiment.variants)], itertools.cycle(figures.COLORS)):
    if plan.experiment.figure == "layers":
      distances = files.read_json(files.join(trial.run, layers.FILE_NAME), layers.Distances, "delete this file")
      curves = [
        [(float(layer), value) for layer, value in enumerate(values, 1)] for values in (distances.l2, distances.degrees)
      ]
    else:
      curves = curves_of_run(trial.run)[-len(titles) :]
    for title, points in zip(titles, curves, strict=True):
      panels[title].append(figures.Curve(trial.variant, points, color, "dots"))
  return figures.png(figures.draw_panels(panels, x_label=label))


def curves_of_run(run: str) -> list[list[tuple[float, float]]]:
  """Returns the steps and training losses that are logged, and the steps and masked LM accuracies of evaluations.

  A loss that is not a number is left out. Accuracies are in percent.
  """
  losses = [(line["step"], line["loss"]) for line in logs.read_metrics(run) if line.get("loss") is not None]
  evaluations = logs.read(files.join(run, output_files.EVALUATIONS))
  return [losses, [(line["step"], 100 * line["masked_lm_accuracy"]) for line in evaluations]]
