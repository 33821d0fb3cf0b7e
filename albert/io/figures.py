"""Pictures without a screen."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
  """An empty figure of that size in inches. matplotlib is imported here, since it takes a while."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout="constrained")
  FigureCanvasAgg(figure)
  return figure


def png(figure: Figure) -> bytes:
  """The picture as the bytes of a PNG file."""
  image = io.BytesIO()
  figure.savefig(image, format="png", dpi=110)
  return image.getvalue()
