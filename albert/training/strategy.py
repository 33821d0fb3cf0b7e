"""Which devices a run uses, and in which arithmetic."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.config.ranges import INT32_MAX
from albert.config.run import TrainConfig
from albert.errors import RunError, UserError
from albert.io.lost_processes import LOST, reason
from albert.runs.metrics_log import log
from albert.training import cluster
from albert.weights.names import encoder_shapes, num_parameters

_BYTES_OF_FLOAT32 = 4
# A TPU's host that does not answer in this time is not there.
_SECONDS_TO_ANSWER = 10.0


def make_strategy(config: TrainConfig) -> tf.distribute.Strategy:
  """The tf.distribute strategy of a run.

  `auto` takes a TPU if --tpu names one, several workers if TF_CONFIG lists them, all GPUs if there are
  several, else one device. `mirrored` without a GPU runs on the logical CPU devices.
  Raises:
    UserError: no such device.
    RunError: the other processes cannot be reached.
  """
  name = config.distribution_strategy
  if name == "auto":
    name = _detect(config)
  return _STRATEGIES[name](config)


def check_batches(config: TrainConfig, strategy: tf.distribute.Strategy, *, trains: bool, evaluates: bool) -> None:
  """Checks that the replicas can share the batches of what a command does.

  Args:
    config: its batch sizes, and its input parts by with_input_parts.
    strategy: the replicas.
    trains: whether train_batch_size is used.
    evaluates: whether eval_batch_size is used, in an evaluation or a prediction.
  Raises:
    UserError: a batch size that is not a multiple of the number of replicas; of training, also of accumulation steps
      and of input parts.
  """
  replicas = strategy.num_replicas_in_sync
  if trains:
    parts = replicas * config.gradient_accumulation_steps
    if config.train_batch_size % parts:
      raise UserError(
        f"--train_batch_size={config.train_batch_size} cannot be shared evenly by {replicas} replicas x "
        f"{config.gradient_accumulation_steps} accumulation steps: give a multiple of {parts}"
      )
    if config.train_batch_size % max(1, config.input_parts):
      raise UserError(
        f"--train_batch_size={config.train_batch_size} does not hold as many examples of each of {config.input_parts} "
        f"input parts: give a multiple of {config.input_parts}"
      )
  if evaluates and config.eval_batch_size % replicas:
    raise UserError(
      f"--eval_batch_size={config.eval_batch_size} cannot be shared evenly by {replicas} replicas: give a multiple of "
      f"{replicas}"
    )


def check_memory(model: ModelConfig, strategy: tf.distribute.Strategy, *, trains: bool) -> None:
  """Checks that the weights, and in training the optimizer's two moments, can fit the memory of a machine without GPUs.

  What else a step needs depends on the batch; TensorFlow says so when it gets no memory for it.
  Raises:
    UserError: they take more than the machine's memory and swap space.
  """
  if isinstance(strategy, tf.distribute.TPUStrategy) or tf.config.list_logical_devices("GPU"):
    return
  parameters = num_parameters(encoder_shapes(model))
  needed, there = _BYTES_OF_FLOAT32 * parameters * (3 if trains else 1), _memory_bytes()
  if there and needed > there:
    raise UserError(
      f"a model with hidden_size {model.hidden_size}, intermediate_size {model.intermediate_size} and vocab_size "
      f"{model.vocab_size} has {parameters:.3g} parameters, which take {needed / 1e9:,.0f} GB"
      f"{' with the moments of the optimizer' if trains else ''}; this machine has {there / 1e9:,.0f} GB of memory: "
      "give a smaller model"
    )


def _memory_bytes() -> int:
  """Memory and swap space of this machine; 0 where the system does not say."""
  found = {}
  try:
    with open("/proc/meminfo", encoding="ascii") as file:
      for line in file:
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) << 10
  except (OSError, ValueError, IndexError):  # not Linux
    return 0
  return found.get("MemTotal", 0) + found.get("SwapTotal", 0)


def num_hosts(strategy: tf.distribute.Strategy) -> int:
  """Machines that read data, each for devices of its own."""
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return int(strategy.extended.num_hosts)
  if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return max(1, len(cluster.addresses()))
  return 1


def _detect(config: TrainConfig) -> str:
  if config.tpu:
    return "tpu"
  if len(cluster.addresses()) > 1:
    return "multi_worker_mirrored"
  return "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one_device"


def _one_device(config: TrainConfig) -> tf.distribute.Strategy:
  del config
  return tf.distribute.OneDeviceStrategy("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")


def _mirrored(config: TrainConfig) -> tf.distribute.Strategy:
  del config
  devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
  return tf.distribute.MirroredStrategy([device.name for device in devices])


def _multi_worker_mirrored(config: TrainConfig) -> tf.distribute.Strategy:
  del config
  if not cluster.addresses():
    raise UserError(
      "--distribution_strategy=multi_worker_mirrored needs the addresses of the workers in the environment "
      "variable TF_CONFIG; it is not set"
    )
  log(f"waiting until all {len(cluster.addresses())} processes of TF_CONFIG have started")
  try:
    return tf.distribute.MultiWorkerMirroredStrategy()
  except LOST as error:
    raise RunError(
      f"the processes of TF_CONFIG cannot reach each other ({reason(error)}): check that all of them run and "
      "that their ports are open, then start all of them again"
    ) from error


@contextlib.contextmanager
def _answer_within(seconds: float) -> Iterator[None]:
  """Python's connections that are made within give up after so many seconds, instead of minutes."""
  previous = socket.getdefaulttimeout()
  socket.setdefaulttimeout(seconds)
  try:
    yield
  finally:
    socket.setdefaulttimeout(previous)


def _check_hosts(hosts: Mapping[str, Sequence[str]]) -> None:
  """Connects to the addresses of a cluster: TensorFlow itself would try for minutes. OSError if one does not answer."""
  for address in itertools.chain.from_iterable(hosts.values()):
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port))).close()


def _tpu(config: TrainConfig) -> tf.distribute.Strategy:
  if not config.tpu:
    raise UserError("--distribution_strategy=tpu needs --tpu=NAME, or --tpu=local on the TPU's own machine")
  try:
    with _answer_within(_SECONDS_TO_ANSWER):
      resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=config.tpu)
      if config.tpu != "local":
        _check_hosts(resolver.cluster_spec().as_dict())
    if config.tpu != "local":
      tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  except Exception as error:  # of the resolver's clients (urllib, Google's), of sockets, of TensorFlow
    raise UserError(
      f"--tpu={config.tpu}: cannot reach that TPU ({reason(error)}); give its name or grpc:// address, or "
      "--tpu=local on its own machine with the packages of constraints/tpu.txt"
    ) from error
  return tf.distribute.TPUStrategy(resolver)


_STRATEGIES = {
  "one_device": _one_device,
  "mirrored": _mirrored,
  "multi_worker_mirrored": _multi_worker_mirrored,
  "tpu": _tpu,
}
