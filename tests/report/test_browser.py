"""Tests of a report page in a real browser, in a window of the size of a phone and of a desktop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from albert.report.page import make_page
from albert.report.records import read_runs
from tests.report import browser
from tests.report.browser import Browser
from tests.report.run_files import make_run, make_seeds

pytestmark = pytest.mark.skipif(bool(browser.missing_program()), reason=browser.missing_program())


class WindowSize(NamedTuple):
  """The size of a window in pixels."""

  width: int
  height: int


PHONE, DESKTOP = WindowSize(360, 740), WindowSize(1400, 900)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """The page of a run "other" and of the two runs of a directory of seeds."""
  directory = tmp_path_factory.mktemp("report")
  run = make_run(directory / "a_name_of_a_run_that_is_long_" / "other", learning_rate=2e-3)
  seeds = make_seeds(directory / "seeds")
  page = make_page("Three runs", *read_runs([str(run), str(seeds)], num_examples=5))
  path = directory / "report.html"
  path.write_text(page, encoding="utf-8")
  return path


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
  with Browser(tmp_path_factory.mktemp("browser")) as browser_window:
    yield browser_window


@pytest.mark.parametrize(("size", "num_columns"), [(PHONE, 1), (DESKTOP, 3)], ids=["phone", "desktop"])
def test_the_page_fits_the_window_and_loads_no_other_file(
  window: Browser, page: Path, size: WindowSize, num_columns: int
):
  window.messages()
  window.requested_addresses(page)
  window.show(page, width=size.width, height=size.height)
  for element in ("document.documentElement", "document.body"):
    assert window.run(f"return {element}.scrollWidth") <= size.width
  assert window.run("return window.innerWidth") == size.width
  elements_outside = (
    "return [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll') &&"
    " e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80))"
  )
  assert window.run(elements_outside) == []
  count_columns = "return getComputedStyle(document.querySelector('.charts')).gridTemplateColumns.split(' ').length"
  assert window.run(count_columns) == num_columns
  assert window.run("return [...document.images].every((i) => i.complete && i.naturalWidth)")
  assert window.messages() == []
  addresses = window.requested_addresses(page)
  assert page.as_uri() in addresses
  assert {address.split(":")[0] for address in addresses} == {"file", "data"}


def test_text_has_enough_contrast_in_the_light_and_in_the_dark_scheme(window: Browser, page: Path):
  page_luminance = {}
  for scheme in ("light", "dark"):
    window.show(page, width=PHONE.width, height=PHONE.height, scheme=scheme)
    background = _luminance(window, "body", "backgroundColor")
    assert _contrast(background, _luminance(window, "body", "color")) > 7
    page_luminance[scheme] = background
  assert page_luminance["light"] > 0.9
  assert page_luminance["dark"] < 0.05


def _luminance(window: Browser, selector: str, style: str) -> float:
  """The relative luminance (WCAG 2.1) of a color of the first element that matches a CSS selector."""
  color = window.run(f"return getComputedStyle(document.querySelector({selector!r}))[{style!r}]")
  luminance = 0.0
  for weight, channel in zip((0.2126, 0.7152, 0.0722), re.findall("[0-9]+", color)[:3], strict=True):
    value = int(channel) / 255  # of red, green and blue in sRGB
    luminance += weight * (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
  return luminance


def _contrast(luminance: float, other_luminance: float) -> float:
  """The contrast ratio (WCAG 2.1) of two luminances."""
  darker, lighter = sorted((luminance, other_luminance))
  return (lighter + 0.05) / (darker + 0.05)
