"""The curves of runs: which are drawn, their panels, their names, and the files of a figure."""

from __future__ import annotations

import math
import os
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from albert.runs import figures
from albert.runs.figures import COLORS, Curve, RunLogs
from tests.fresh_interpreter import run_fresh

GRAY = "0.35"


@pytest.mark.usefixtures("rendered_pictures")
def test_draw_curves_writes_a_png(tmp_path: Path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": null}\n')
  (tmp_path / "eval_metrics.jsonl").write_text('{"step": 2, "loss": 1.5, "guessing_loss": 0.7, "f1": null}\n')
  path = figures.draw_curves(str(tmp_path))
  assert path == str(tmp_path / "curves.png")
  assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_a_single_evaluation_is_drawn_only_beside_another_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
  line = '{"step": 1, "loss": 1.5, "perplexity": 4, "accuracy": 0.5, "majority_accuracy": 0.4}\n'
  (tmp_path / "eval_metrics.jsonl").write_text(line)
  drawn: list[str] = []
  monkeypatch.setattr(figures, "draw_panels", lambda panels, ends: drawn.extend(panels) or figures.new_figure(1, 1))
  figures.draw_curves(str(tmp_path))
  assert drawn == ["loss", "accuracy"]


def test_curves_are_outdated_if_they_are_missing_or_older_than_the_metrics(tmp_path: Path):
  assert not figures.are_outdated(str(tmp_path))  # nothing to draw
  assert figures.draw_curves(str(tmp_path)) is None
  (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": null}\n')
  assert figures.draw_curves(str(tmp_path)) is None
  (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
  assert figures.are_outdated(str(tmp_path))
  picture = figures.draw_curves(str(tmp_path))
  assert picture is not None
  assert not figures.are_outdated(str(tmp_path))
  os.utime(picture, ns=(1, 1))
  assert figures.are_outdated(str(tmp_path))


def test_losses_the_metric_and_the_rate_come_first_and_guessing_is_in_the_panel_of_its_metric():
  lines = [{"step": step, "grad_norm": 2.0, "learning_rate": 0.1, "loss": 1.0 / step} for step in (1, 2, 3)]
  guesses = {"guessing_loss": 0.69, "majority_accuracy": 0.5}
  evaluations = [
    {"step": step, "loss": 0.5 / step, "accuracy": 0.25 * step, "f1": 0.125 * step, **guesses} for step in (2, 3)
  ]
  main, others = figures.collect_panels([RunLogs("", lines, evaluations)])
  assert list(main.items()) == [
    (
      "loss",
      [
        Curve("training", [(1, 1.0), (2, 0.5), (3, 1 / 3)], COLORS[0]),
        Curve("evaluation", [(2, 0.25), (3, 0.5 / 3)], COLORS[1], "dots"),
        Curve("guessing", ((3, 0.69),), GRAY, "guess"),
      ],
    ),
    (
      "accuracy",
      [
        Curve("evaluation", [(2, 0.5), (3, 0.75)], COLORS[1], "dots"),
        Curve("most frequent", ((3, 0.5),), GRAY, "guess"),
      ],
    ),
    ("learning_rate", [Curve("training", [(1, 0.1), (2, 0.1), (3, 0.1)], COLORS[0])]),
  ]
  assert list(others) == ["f1", "grad_norm"]


def test_losses_and_accuracies_of_pretraining_have_panels_of_their_own_and_the_stage_has_none():
  names = ("loss", "masked_lm_loss", "sentence_order_loss", "masked_lm_accuracy", "sentence_order_accuracy")
  line = {"step": 1, "stage": 1, "masked_lm_perplexity": 9.0, **dict.fromkeys(names, 0.5), "learning_rate": 0.1}
  main, others = figures.collect_panels([RunLogs("", [line], [])])
  assert list(main) == [*names, "learning_rate"]
  assert list(others) == ["masked_lm_perplexity"]


def test_without_accuracy_or_guessing_the_first_metric_of_the_evaluations_is_a_main_one():
  main, others = figures.collect_panels([RunLogs("", [], [{"step": 1, "loss": 2.0, "pearson": 0.1, "spearman": 0.2}])])
  assert (list(main), list(others)) == (["loss", "pearson"], ["spearman"])


@pytest.mark.parametrize("end", ["guessing_accuracy", "majority_accuracy", "baseline_accuracy"])
def test_each_split_has_its_own_line_of_guessing(end: str):
  lines = [{"step": step, "dev_accuracy": 0.5, f"dev_{end}": 0.25} for step in (1, 2)]
  main, _ = figures.collect_panels([RunLogs("", [], lines)])
  assert list(main) == ["dev_accuracy"]
  assert main["dev_accuracy"][1].points == ((2, 0.25),)


def test_runs_have_names_and_colors_and_equal_guesses_are_one_line():
  lines = [{"step": 1, "loss": 2.0, "guessing_loss": 0.7}]
  main, _ = figures.collect_panels([RunLogs("a", lines, lines), RunLogs("b", [], lines)])
  assert [(curve.name, curve.color) for curve in main["loss"]] == [
    ("a", COLORS[0]),
    ("a (evaluation)", COLORS[0]),
    ("b (evaluation)", COLORS[1]),
    ("guessing", GRAY),
  ]


@pytest.mark.parametrize(
  ("values", "points"),
  [
    ([float("inf"), -1.0, 2.0], [(1, math.nan), (2, -1.0), (3, 2.0)]),
    (["<b>", {"a": [1]}, [2], True, None, 1.0], [*((n, math.nan) for n in range(1, 6)), (6, 1.0)]),
    ([1e308, -1e300, 2**63], [(1, math.nan), (2, -1e300), (3, 2.0**63)]),
    ([1e300, -1e300], [(1, 1e300), (2, -1e300)]),
    ([0.0, 5e-324], [(1, 0.0), (2, 5e-324)]),
    ([1.0, 1.0000000000000002], [(1, 1.0), (2, 1.0000000000000002)]),
  ],
)
def test_values_that_cannot_be_drawn_leave_a_gap(values: list[Any], points: list[tuple[float, float]]):
  lines = [{"step": n, "loss": value, "bad": None} for n, value in enumerate(values, 1)]
  main, others = figures.collect_panels([RunLogs("", lines, [])])
  assert others == {}
  assert repr(main["loss"][0].points) == repr(points)  # unlike NaN, its text equals itself
  figures.svg(figures.draw_panels(main))


def test_steps_are_sorted_and_the_last_line_of_a_step_counts():
  lines = [{"step": step, "loss": float(value)} for value, step in enumerate([5, 1, 2**63 - 1, 5, 2, 1])]
  main, _ = figures.collect_panels([RunLogs("", lines, [])])
  assert main["loss"][0].points == [(1, 5.0), (2, 4.0), (5, 3.0), (2**63 - 1, 2.0)]
  figures.svg(figures.draw_panels(main))


def drawn_names(axes: Any) -> list[str]:
  """The names beside a panel."""
  legend = axes.get_legend()
  return [text.get_text() for text in legend.get_texts()] if legend else []


def test_names_stand_beside_the_panel_unless_they_are_too_many():
  # The names begin with the same 30 characters, of which 27 are shown.
  curves = [Curve(f"{'_' * 30}{n}", [(1, 0.0), (2, 1.0 + n / 1000)], COLORS[n]) for n in range(4)]
  axes: Any = figures.draw_panels({"loss": curves}, [(1, "stage 1")]).axes[0]
  assert drawn_names(axes) == [f"{'_' * 27}…"] * 4
  assert [line.get_color() for line in axes.get_legend().get_lines()] == list(COLORS[:4])
  many = [Curve(f"run {n}", [(1, float(n))]) for n in range(13)]
  assert drawn_names(figures.draw_panels({"loss": many}).axes[0]) == []
  assert drawn_names(figures.draw_panels({"loss": many[:1]}).axes[0]) == []  # the title says it


@pytest.mark.parametrize("points", [[], [(1.0, math.nan)]])
def test_a_curve_without_values_has_no_name(points: list[tuple[float, float]]):
  (axes,) = figures.draw_panels({"loss": [Curve("a", points), Curve("b", [(1, 1.0), (2, 2.0)])]}).axes
  assert drawn_names(axes) == ["b"]


def test_three_panels_stand_in_a_row_and_single_points_have_a_marker():
  panels = {f"metric_{n}": [Curve("training", [(5, 1.0)])] for n in range(4)}
  all_axes: list[Any] = figures.draw_panels(panels, [(3, "stage 1")]).axes
  assert [axes.get_title() for axes in all_axes] == ["metric 0", "metric 1", "metric 2", "metric 3"]
  rows = [axes.get_subplotspec().rowspan.start for axes in all_axes]
  assert rows == [0, 0, 0, 1]
  line, stage = all_axes[0].lines
  assert line.get_marker() == "o"
  assert list(all_axes[0].get_xticks()) == [5]
  assert list(stage.get_xdata()) == [3, 3]
  assert [text.get_text() for text in all_axes[0].texts] == ["stage 1"]
  guess = figures.draw_panels({"x": [Curve("a", [(1, 0.1), (2, 0.2)]), Curve("b", [(2, 0.5)], GRAY, "guess")]}).axes[0]
  assert [line.get_linestyle() for line in guess.lines] == ["-", "--"]


def test_the_name_of_a_stage_stays_in_the_panel_if_the_first_evaluation_is_at_its_end():
  figure = figures.draw_panels({"f1": [Curve("evaluation", [(50, 0.1), (100, 0.2)])]}, [(50, "stage 1")])
  figures.png(figure)  # computes the layout
  (axes,) = figure.axes
  assert axes.bbox.x0 < axes.texts[0].get_window_extent().x0


def test_an_svg_is_well_formed_has_text_as_text_and_is_the_same_each_time():
  curves = [Curve("<script>alert(1)</script> $x_1$", [(1, 0.1), (2, 0.2)]), Curve("\u4e2d", [(1, 1.0), (2, 2.0)])]
  images = [figures.svg(figures.draw_panels({"a & b": curves})) for _ in range(2)]
  assert images[0] == images[1]
  elements = xml.etree.ElementTree.fromstring(images[0]).iter("{http://www.w3.org/2000/svg}text")
  assert {"a & b", "\u4e2d", "<script>alert(1)</script> $…"} <= {element.text for element in elements}


def test_drawing_imports_no_tensorflow(tmp_path: Path):
  (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
  _, modules = run_fresh(f"from albert.runs import figures; figures.draw_curves({str(tmp_path)!r})", tmp_path)
  assert "matplotlib" in modules
  assert "tensorflow" not in modules
