"""Training on shards of gs://: how much of each open shard TensorFlow holds in memory, by counting its requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gcs_server import has_openssl
from tests.open_shards import MIB, bytes_requested

pytestmark = pytest.mark.skipif(not has_openssl(), reason="needs openssl")


@pytest.mark.thorough
@pytest.mark.parametrize(("environment", "mebibytes"), [({}, 16), ({"GCS_READ_CACHE_BLOCK_SIZE_MB": "2"}, 2)])
def test_an_open_shard_holds_one_block_of_a_bounded_size(tmp_path: Path, environment: dict[str, str], mebibytes: int):
  """Of three shards of 24 MiB, a block of each is requested at first, and the next ones when the stream gets there."""
  block = mebibytes * MIB
  first_requests, all_requests = bytes_requested(tmp_path, **environment)
  assert sorted(first_requests) == [(f"{index}.tfrecord", 0, block) for index in range(3)]
  assert max(size for _, _, size in all_requests) == block
  for name in {name for name, _, _ in all_requests}:
    firsts = [first for other, first, _ in all_requests if other == name]
    assert firsts == sorted(set(firsts))  # no byte is requested twice
    assert sum(size for other, _, size in all_requests if other == name) >= 24 * MIB
