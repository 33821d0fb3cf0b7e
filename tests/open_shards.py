"""Reads shards of gs:// in a new interpreter, from a server that counts the requests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from albert.io.records import RecordWriter
from tests.fresh_interpreter import ROOT
from tests.gcs_server import serve

MIB = 1 << 20
NUM_SHARDS, SHARD_MIB = 3, 24
RECORDS_PER_MIB = 16
Requests = list[tuple[str, int, int]]


def bytes_requested(directory: Path, **environment: str) -> tuple[Requests, Requests]:
  """Reads all records of three shards in turn, as training does.

  Args:
    directory: an empty directory.
    environment: environment variables of the interpreter.

  Returns:
    (shard, first byte, number of bytes) of the requests until each shard has given a record, and of all requests.
  """
  record_file = directory / "record.tfrecord"
  with RecordWriter(str(record_file)) as writer:
    writer.write(b"x" * (MIB // RECORDS_PER_MIB - 16))  # the framing has 16 bytes
  content = record_file.read_bytes(), SHARD_MIB * RECORDS_PER_MIB
  objects = {f"{index}.tfrecord": content for index in range(NUM_SHARDS)}
  paths = [f"gs://bucket/{name}" for name in objects]
  code = f"""
import albert
import tensorflow as tf
from albert.data.pipeline import _read_shards
records = iter(_read_shards(tf.constant({paths!r}), tf.constant([False] * {NUM_SHARDS}), {NUM_SHARDS}))
for _ in range({NUM_SHARDS}):
  next(records)
print("opened", flush=True)
input()
print(sum(1 for _ in records), flush=True)
"""
  with serve(objects, directory) as (requests, server_environment):
    process = subprocess.Popen(
      [sys.executable, "-c", code],
      cwd=ROOT,
      env=os.environ | server_environment | environment,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "opened\n"
    first_requests = list(requests)
    rest, _ = process.communicate("\n", timeout=240)
    assert int(rest) == NUM_SHARDS * (SHARD_MIB * RECORDS_PER_MIB - 1)
  return first_requests, list(requests)
