"""Chooses the tf.distribute strategy of a run, and checks that batches and weights fit its devices."""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import TrainConfig
from albert.config.tf_config import process_addresses, process_index, training_addresses
from albert.errors import RunError, UserError
from albert.io.progress import log
from albert.io.workers import describe_error, is_lost_process
from albert.training.distribution.cluster import wait_for_processes
from albert.weights.names import encoder_shapes, num_parameters

_BYTES_PER_FLOAT32 = 4
# A TPU host counts as unreachable if it does not accept a connection within this time.
_CONNECTION_TIMEOUT_SECONDS = 10.0


def make_strategy(config: TrainConfig) -> tf.distribute.Strategy:
  """Makes the tf.distribute strategy of a run.

  `auto` selects the first of these that applies: a TPU if --tpu is given, several workers if TF_CONFIG lists them,
  all GPUs if there are several, otherwise one device. `mirrored` without a GPU uses all logical CPU devices.

  Args:
    config: the training settings. Only distribution_strategy and tpu are used.
  Raises:
    UserError: there is no such device.
    RunError: the other processes cannot be reached.
  """
  name = config.distribution_strategy
  if name == "auto":
    name = _select_strategy(config)
  return _STRATEGY_MAKERS[name](config)


def check_batches(config: TrainConfig, strategy: tf.distribute.Strategy, *, trains: bool, evaluates: bool) -> None:
  """Checks that the replicas can share each batch evenly.

  Args:
    config: the batch sizes, the accumulation steps, and the resolved number of input parts (see RunPlan).
    strategy: the strategy whose replicas share the batches.
    trains: whether the command trains. If not, train_batch_size is not checked.
    evaluates: whether the command evaluates or predicts. If not, eval_batch_size is not checked.
  Raises:
    UserError: eval_batch_size is not a multiple of the number of replicas, or train_batch_size is not a multiple of
      replicas x accumulation steps and of the number of input parts.
  """
  replicas = strategy.num_replicas_in_sync
  if trains:
    num_micro_batches = replicas * config.gradient_accumulation_steps
    if config.train_batch_size % num_micro_batches:
      raise UserError(
        f"--train_batch_size={config.train_batch_size} cannot be shared evenly by {replicas} replicas x "
        f"{config.gradient_accumulation_steps} accumulation steps: give a multiple of {num_micro_batches}"
      )
    if config.train_batch_size % max(1, config.input_parts):
      raise UserError(
        f"--train_batch_size={config.train_batch_size} cannot take equally many examples from each of "
        f"{config.input_parts} input parts: give a multiple of {config.input_parts}"
      )
  if evaluates and config.eval_batch_size % replicas:
    raise UserError(
      f"--eval_batch_size={config.eval_batch_size} cannot be shared evenly by {replicas} replicas: give a multiple of "
      f"{replicas}"
    )


def check_memory(model: ModelConfig, strategy: tf.distribute.Strategy, *, trains: bool) -> None:
  """Checks that a machine without a GPU or TPU has enough memory for the weights of the model.

  In training, the two moments of the optimizer are counted, too. Activations are not counted, because their size
  depends on the batch; TensorFlow reports an error if there is too little memory for them.

  Args:
    model: sizes of the encoder.
    strategy: the strategy of the run.
    trains: whether the command trains.
  Raises:
    UserError: weights and moments take more than the machine's memory and swap space.
  """
  if isinstance(strategy, tf.distribute.TPUStrategy) or tf.config.list_logical_devices("GPU"):
    return
  parameters = num_parameters(encoder_shapes(model))
  copies = 3 if trains else 1  # the weights and the two moments
  needed_bytes = _BYTES_PER_FLOAT32 * parameters * copies
  available_bytes = memory_bytes()
  if available_bytes and needed_bytes > available_bytes:
    raise UserError(
      f"a model with hidden_size {model.hidden_size}, intermediate_size {model.intermediate_size} and vocab_size "
      f"{model.vocab_size} has {parameters:.3g} parameters, which take {needed_bytes / 1e9:,.0f} GB"
      f"{' with the moments of the optimizer' if trains else ''}; this machine has {available_bytes / 1e9:,.0f} GB of "
      "memory: give a smaller model"
    )


def memory_bytes() -> int:
  """Size of this machine's memory and swap space in bytes; 0 if the system does not report it."""
  sizes = {}
  try:
    with open("/proc/meminfo", encoding="ascii") as file:
      for line in file:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) * 1024  # the file gives kibibytes
  except (OSError, ValueError, IndexError):  # not Linux
    return 0
  return sizes.get("MemTotal", 0) + sizes.get("SwapTotal", 0)


def num_hosts(strategy: tf.distribute.Strategy) -> int:
  """The number of machines that read training data. Each of them feeds its own devices."""
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return int(strategy.extended.num_hosts)
  if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return max(1, len(process_addresses()))
  return 1


def _select_strategy(config: TrainConfig) -> str:
  """Returns the name of the strategy that `auto` selects (see make_strategy)."""
  if config.tpu:
    return "tpu"
  if len(training_addresses(config)) > 1:
    return "multi_worker_mirrored"
  return "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one_device"


def _make_one_device(config: TrainConfig) -> tf.distribute.Strategy:
  del config
  return tf.distribute.OneDeviceStrategy("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")


def _make_mirrored(config: TrainConfig) -> tf.distribute.Strategy:
  del config
  devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
  return _mirrored_strategy(tuple(device.name for device in devices))


@functools.cache
def _mirrored_strategy(devices: tuple[str, ...]) -> tf.distribute.MirroredStrategy:
  """Returns the strategy of these devices. All estimators of a process share it.

  A strategy numbers its sums over replicas from the same number on, and TensorFlow tells sums apart by this number. So
  the sums of a second strategy would be taken for those of the first, and fail if their shapes differ.
  """
  return tf.distribute.MirroredStrategy(list(devices))


def _make_multi_worker_mirrored(config: TrainConfig) -> tf.distribute.Strategy:
  addresses = training_addresses(config)
  log(f"waiting until all {len(addresses)} processes of TF_CONFIG have started")
  wait_for_processes(tuple(addresses), process_index())
  try:
    return tf.distribute.MultiWorkerMirroredStrategy()
  except tf.errors.OpError as error:
    if not is_lost_process(error):
      raise
    raise RunError(
      f"the processes of TF_CONFIG cannot reach each other ({describe_error(error)}): check that all of them run and "
      "that their ports are open, then start all of them again"
    ) from error


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
  """Sets the default timeout of sockets within this context, so that connecting fails in seconds instead of minutes."""
  previous = socket.getdefaulttimeout()
  socket.setdefaulttimeout(seconds)
  try:
    yield
  finally:
    socket.setdefaulttimeout(previous)


def _check_hosts(addresses_by_job: Mapping[str, Sequence[str]]) -> None:
  """Connects to each address, because TensorFlow itself would retry for minutes.

  Args:
    addresses_by_job: job name -> "host:port" addresses.
  Raises:
    OSError: an address does not accept a connection.
  """
  for address in itertools.chain.from_iterable(addresses_by_job.values()):
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port))).close()


def _make_tpu(config: TrainConfig) -> tf.distribute.Strategy:
  if not config.tpu:
    raise UserError("--distribution_strategy=tpu needs --tpu=NAME, or --tpu=local on the TPU's own machine")
  try:
    with _socket_timeout(_CONNECTION_TIMEOUT_SECONDS):
      resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=config.tpu)
      if config.tpu != "local":
        _check_hosts(resolver.cluster_spec().as_dict())
    if config.tpu != "local":
      tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  except Exception as error:  # raised by the resolver's clients (urllib, Google's), sockets or TensorFlow
    raise UserError(
      f"--tpu={config.tpu}: cannot reach that TPU ({describe_error(error)}); give its name or grpc:// address, or "
      "--tpu=local on its own machine with the packages of constraints/tpu.txt"
    ) from error
  return tf.distribute.TPUStrategy(resolver)


_STRATEGY_MAKERS = {
  "one_device": _make_one_device,
  "mirrored": _make_mirrored,
  "multi_worker_mirrored": _make_multi_worker_mirrored,
  "tpu": _make_tpu,
}
