"""Matplotlib figures that are drawn without a display."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
  """Makes an empty figure.

  Args:
    width: in inches.
    height: in inches.
  """
  # Imported here because importing matplotlib is slow.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout="constrained")
  FigureCanvasAgg(figure)
  return figure


def png(figure: Figure) -> bytes:
  """Renders a figure as the bytes of a PNG file."""
  image = io.BytesIO()
  figure.savefig(image, format="png", dpi=110)
  return image.getvalue()
