"""What `auto` chooses for the device at hand."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.training import strategy as strategies


class FakeStrategy:
  """All that the choices ask a strategy for."""

  def __init__(self, num_replicas: int):
    self.num_replicas_in_sync = num_replicas


def with_device(monkeypatch: pytest.MonkeyPatch, *, flags: str = "", capability: tuple[int, int] | None = None) -> None:
  """A machine whose processor has `flags`, and a GPU of `capability` or none."""
  gpus = [] if capability is None else ["GPU:0"]
  monkeypatch.setattr(strategies, "_cpu_flags", lambda: set(flags.split()))
  for kind in ("list_physical_devices", "list_logical_devices"):
    monkeypatch.setattr(tf.config, kind, lambda name=None: gpus if name == "GPU" else ["CPU:0"])
  details = {"compute_capability": capability}
  monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)


@pytest.mark.parametrize(
  ("device", "precision"),
  [
    ({"flags": "avx2 fma"}, "float32"),
    ({"flags": "avx2 avx512f avx512_bf16"}, "bfloat16"),
    ({"flags": "avx2 amx_bf16 amx_tile"}, "bfloat16"),
    ({"flags": "avx2", "capability": (8, 0)}, "bfloat16"),
    ({"flags": "amx_bf16", "capability": (7, 5)}, "float32"),
  ],
)
def test_precision(monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], precision: str) -> None:
  with_device(monkeypatch, **device)
  assert strategies.resolve_precision("auto", FakeStrategy(1)) == precision
  assert strategies.resolve_precision("float32", FakeStrategy(1)) == "float32"
  assert strategies.resolve_precision("bfloat16", FakeStrategy(1)) == "bfloat16"


@pytest.mark.parametrize(
  ("capability", "num_replicas", "asked", "compiled"),
  [
    (None, 1, "auto", False),
    (None, 1, "true", True),
    (None, 2, "auto", False),
    ((8, 0), 1, "auto", True),
    ((8, 0), 1, "false", False),
    ((8, 0), 2, "auto", False),
  ],
)
def test_xla(
  monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, num_replicas: int, asked: str, compiled: bool
) -> None:
  with_device(monkeypatch, capability=capability)
  assert strategies.resolve_jit_compile(asked, FakeStrategy(num_replicas)) is compiled


def test_xla_of_several_replicas_is_refused() -> None:
  with pytest.raises(UserError, match="this run has 2 replicas: give --jit_compile=auto"):
    strategies.resolve_jit_compile("true", FakeStrategy(2))
