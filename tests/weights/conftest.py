"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert.weights.checkpoints import CheckpointManager
from tests.synthetic import TINY_MODEL


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
  return CheckpointManager(str(tmp_path / "checkpoints"), keep=2, model_config=TINY_MODEL)


@pytest.fixture
def remote_manager(tmp_path: Path) -> CheckpointManager:
  """Checkpoints in TensorFlow's file system in memory, which stands in for an object store."""
  return CheckpointManager(f"ram://{tmp_path.name}/checkpoints", keep=2, model_config=TINY_MODEL)
