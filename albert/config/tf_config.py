"""The processes that train one model together, as the environment variable TF_CONFIG lists them. No TensorFlow."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.io import json_values
from albert.io.text import format_value

_REMEDY = 'give it as {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'


class _Task(msgspec.Struct):
  """The part of TF_CONFIG about this process: its job, and its index among the processes of this job."""

  type: str
  index: json_values.Count | Annotated[str, msgspec.Meta(pattern="^[0-9]{1,9}$")]


class _TfConfig(msgspec.Struct):
  """The environment variable TF_CONFIG, as TensorFlow defines it."""

  cluster: dict[str, list[Annotated[str, msgspec.Meta(pattern="^.+:[0-9]{1,5}$")]]]
  task: _Task


def process_addresses() -> list[str]:
  """Returns the "host:port" address of each process in TF_CONFIG, the chief first; empty if TF_CONFIG is not set.

  Raises:
    UserError: TF_CONFIG does not have the form that TensorFlow defines, two processes have one address, or this process
      is not in its cluster.
  """
  return _read()[0]


def process_index() -> int:
  """Returns the index of this process in `process_addresses()`; 0 if TF_CONFIG is not set.

  Raises:
    UserError: see process_addresses.
  """
  return _read()[1]


def _read() -> tuple[list[str], int]:
  """Returns the addresses of the processes, and the index of this one."""
  text = os.environ.get("TF_CONFIG", "")
  if not text:
    return [], 0
  tf_config = json_values.parse("TF_CONFIG", text, _TfConfig, _REMEDY)
  # Processes of other jobs, such as an evaluator, take no part in training.
  jobs = {name: tf_config.cluster.get(name, []) for name in ("chief", "worker")}
  job, index = tf_config.task.type, int(tf_config.task.index)
  if job not in jobs or not 0 <= index < len(jobs[job]):
    raise UserError(f"TF_CONFIG={format_value(text)}: this process, {job} {index}, is not in its cluster")
  addresses = [*jobs["chief"], *jobs["worker"]]
  for number, address in enumerate(addresses):
    if address in addresses[:number]:
      raise UserError(f"TF_CONFIG: two processes have the address {address}: give each one an address of its own")
  return addresses, index + (len(jobs["chief"]) if job == "worker" else 0)


def training_addresses(train: TrainConfig) -> list[str]:
  """Returns the addresses of the processes that train with these settings; empty if it is this process only.

  Raises:
    UserError: see process_addresses; or multi_worker_mirrored is given, and TF_CONFIG is not set.
  """
  is_given = train.distribution_strategy == "multi_worker_mirrored"
  if not is_given and (train.distribution_strategy != "auto" or train.tpu):
    return []
  addresses = process_addresses()
  if is_given and not addresses:
    raise UserError(
      "--distribution_strategy=multi_worker_mirrored needs the addresses of the workers in the environment "
      "variable TF_CONFIG; it is not set"
    )
  return addresses
