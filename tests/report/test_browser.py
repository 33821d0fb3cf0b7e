"""The page in a real browser, on a phone and on a desktop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from albert.report.page import make_page
from albert.report.records import read_runs
from tests.report import browser
from tests.report.browser import Browser
from tests.report.run_files import make_run, make_seeds

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())

PHONE, DESKTOP = (360, 740), (1400, 900)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
  directory = tmp_path_factory.mktemp("report")
  paths = [make_run(directory / "a_name_of_a_run_that_is_long_" / "other", learning_rate=2e-3)]
  paths.append(make_seeds(directory / "seeds"))
  path = directory / "report.html"
  path.write_text(make_page("Three runs", *read_runs([str(p) for p in paths], num_examples=5)), encoding="utf-8")
  return path


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
  with Browser(tmp_path_factory.mktemp("browser")) as started:
    yield started


@pytest.mark.parametrize(("size", "num_columns"), [(PHONE, 1), (DESKTOP, 3)], ids=["phone", "desktop"])
def test_everything_fits_and_comes_from_the_file(window: Browser, page: Path, size: tuple[int, int], num_columns: int):
  window.messages()
  window.requested(page)
  window.show(page, width=size[0], height=size[1])
  for element in ("document.documentElement", "document.body"):
    assert window.run(f"return {element}.scrollWidth") <= size[0]
  assert window.run("return window.innerWidth") == size[0]
  outside = (
    "return [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, .tip, script') &&"
    " e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80))"
  )
  assert window.run(outside) == []
  # Loss, accuracy and speed of three runs; loss both of training and of evaluations.
  assert window.run("return document.querySelectorAll('figure.chart polyline').length") == 6 + 3 + 3
  lengths = window.run("return [...document.querySelectorAll('figure.chart polyline')].map((l) => l.getTotalLength())")
  assert min(lengths) > 50
  columns = "return getComputedStyle(document.querySelector('.charts')).gridTemplateColumns.split(' ').length"
  assert window.run(columns) == num_columns
  smallest = (
    "return Math.min(...[...document.querySelectorAll('svg text')].map((t) => t.getBoundingClientRect().height))"
  )
  assert window.run(smallest) >= 10
  assert window.run("return [...document.images].every((i) => i.complete && i.naturalWidth)")
  assert window.messages() == []
  requested = window.requested(page)
  assert page.as_uri() in requested
  assert {address.split(":")[0] for address in requested} == {"file", "data"}


def test_light_and_dark(window: Browser, page: Path):
  """The text stands out from the page in both, and a curve from its panel."""
  lightness = {}
  for scheme in ("light", "dark"):
    window.show(page, width=PHONE[0], height=PHONE[1], scheme=scheme)
    colors = window.run(
      "const c = (s, p) => getComputedStyle(document.querySelector(s))[p].match(/[0-9]+/g).slice(0, 3).map(Number);"
      "return [c('body', 'backgroundColor'), c('body', 'color'), c('figure', 'backgroundColor'),"
      " c('polyline', 'stroke')]"
    )
    paper, ink, panel, line = map(_luminance, colors)
    assert _contrast(paper, ink) > 7
    assert _contrast(panel, line) > 3
    lightness[scheme] = paper
  assert lightness["light"] > 0.9
  assert lightness["dark"] < 0.05


def _luminance(color: list[int]) -> float:
  """Relative luminance (WCAG 2.1) of 8-bit sRGB."""
  linear = [v / 255 / 12.92 if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in color]
  return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(one: float, other: float) -> float:
  return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_the_pointer_reads_curves_and_buttons_hide_runs(window: Browser, page: Path):
  window.show(page, width=DESKTOP[0], height=DESKTOP[1])
  window.run("document.querySelector('.charts').scrollIntoView({block: 'center'})")
  box = window.run(
    "const b = document.querySelector('svg').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
  )
  window.move_pointer(int(box[0] + box[2] / 2), int(box[1] + box[3] / 2))
  lines = "return [...document.querySelectorAll('.tip:not([hidden]) div')].map((d) => d.innerText)"
  shown = window.run(lines)
  assert [line.split(":")[0] for line in shown] == [
    "other", "other (evaluation)", "run-1", "run-1 (evaluation)", "run-2", "run-2 (evaluation)",
  ]  # fmt: skip
  assert all(line.endswith(" at step 500") for line in shown[1::2])
  window.run("document.querySelector('.legend button[data-run=\"1\"]').click()")
  visible = "return [...document.querySelectorAll('svg g')].filter((g) => g.getClientRects().length).length"
  assert window.run(visible) == (2 + 1 + 1) * 2
  window.run("document.querySelector('.legend button[data-run=\"1\"]').click()")
  assert window.run(visible) == (2 + 1 + 1) * 3
