"""Shards for the tests of training in stages."""

from __future__ import annotations

import pytest

from tests.training.staged_runs import write_stage_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  """Name -> glob of shards, "long" and "short" (see write_stage_shards)."""
  return write_stage_shards(tmp_path_factory.mktemp("shards"))
