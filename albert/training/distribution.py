"""How a run is distributed: its devices, the strategy, the processes that train together, and each replica's batches.

All processes run the same program. Every process must call each collective operation, such as a sum over all devices,
or the others wait forever. So all processes must make the same decisions. If a decision depends on something that only
one process knows (a signal, the time, a file), the methods of Cluster tell it to the others.
"""

from __future__ import annotations

import csv
import ctypes
import dataclasses
import functools
import glob
import itertools
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import TrainConfig, process_addresses, process_index, training_addresses
from albert.data.dataset import Dataset, InputContext
from albert.errors import RunError, UserError
from albert.io.progress import log
from albert.io.text import counted
from albert.io.workers import describe_error, is_lost_process
from albert.weights.names import encoder_shapes, num_parameters

_GIB = 2**30
_INSTALL = "install TensorFlow with its CUDA libraries: make setup-gpu (docs/gpu.md)"
# Libraries that TensorFlow opens when it looks for GPUs, without their version.
_CUDA_LIBRARIES = ("libcudart", "libcublas", "libcudnn")
# The oldest driver of CUDA 12 on Linux (NVIDIA, CUDA Compatibility, minor version compatibility).
_OLDEST_DRIVER = (525, 60, 13)
_SECONDS_FOR_NVIDIA_SMI = 10.0
_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_FOR_AN_ANSWER = 10.0
_GO = b"go"


class Cluster:
  """The processes of a strategy. Make it after the strategy, in every process.

  Args:
    strategy: the strategy of the run.

  Attributes:
    num_processes: number of processes that train together.
    is_chief: whether this process is the one that writes the checkpoints and the results.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy
    has_processes = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    self.num_processes = len(process_addresses()) if has_processes else 1
    self.is_chief = not has_processes or process_index() == 0

  def sum(self, *values: float) -> list[float]:
    """Returns the sum of each value over all processes. Every process must call it with the same number of values."""
    if self.num_processes == 1:
      return list(values)
    # The sum is taken over all replicas, so each replica of a process adds an equal share of the value.
    replicas_per_process = self._strategy.num_replicas_in_sync // self.num_processes
    sums = self._sum_over_replicas(tf.constant(values, tf.float64) / replicas_per_process)
    return [float(value) for value in self._strategy.experimental_local_results(sums)[0]]

  @tf.function(autograph=False)
  def _sum_over_replicas(self, values: tf.Tensor) -> Any:
    def all_reduce(values: tf.Tensor) -> tf.Tensor:
      replica_values = tf.identity(values)  # copies them to the replica's device, where all_reduce expects them
      return tf.distribute.get_replica_context().all_reduce("SUM", replica_values)

    return self._strategy.run(all_reduce, args=(values,))

  def any(self, condition: bool) -> bool:
    """Whether the condition is true in at least one process. Every process must call it."""
    return self.sum(float(condition))[0] > 0

  def is_true_in_chief(self, condition: bool) -> bool:
    """Whether the condition is true in the chief. Every process must call it, and gets the same result."""
    return self.any(condition and self.is_chief)

  @contextmanager
  def report_lost_processes(self, make_advice: Callable[[], str]) -> Iterator[None]:
    """Within this context, TensorFlow's errors about a lost process or TPU become a RunError.

    Args:
      make_advice: returns the end of the message, which says how to continue.
    Raises:
      RunError: another process, the TPU or a remote service does not answer any more.
    """
    try:
      yield
    except tf.errors.OpError as error:
      if not is_lost_process(error):
        raise
      if self.num_processes > 1:
        problem = f"another of the {self.num_processes} processes is gone ({type(error).__name__}), so this one stops"
      elif isinstance(self._strategy, tf.distribute.TPUStrategy):
        problem = f"the TPU was preempted or restarted, or the connection to it is lost ({describe_error(error)})"
      else:
        problem = f"a service that this run uses does not answer ({describe_error(error)})"
      raise RunError(f"{problem}; {make_advice()}") from error


@functools.cache
def wait_for_processes(addresses: tuple[str, ...], index: int) -> None:
  """Returns when every process has called this function, before TensorFlow connects them.

  TensorFlow waits for the processes, too, but it keeps Python's lock and has its own handler of SIGTERM, so no signal
  ends its wait. Therefore they meet here first: on the chief's port, which TensorFlow uses afterwards. Only the first
  call of a process waits.

  Args:
    addresses: the "host:port" address of each process, the chief first.
    index: the index of this process in `addresses`.

  Raises:
    RunError: the chief cannot listen on its port.
  """
  host, _, port = addresses[0].rpartition(":")
  if index:
    while not _report_to_chief(host.strip("[]"), int(port), index):
      time.sleep(_SECONDS_BETWEEN_TRIES)
    return
  has_ipv6 = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
  try:
    server = socket.create_server(("", int(port)), family=family, dualstack_ipv6=has_ipv6)
  except (OSError, OverflowError) as error:
    raise RunError(f"TF_CONFIG: cannot listen on {addresses[0]} ({error}): give this process a free port") from error
  with server:
    connections: dict[int, socket.socket] = {}
    while len(connections) < len(addresses) - 1:
      connection = server.accept()[0]
      connection.settimeout(_SECONDS_FOR_AN_ANSWER)
      try:
        sender = int(connection.recv(16))
      except (OSError, ValueError):  # a connection of another program
        continue
      if 0 < sender < len(addresses):  # a process that was started again replaces its first connection
        connections[sender] = connection
  for connection in connections.values():
    connection.sendall(_GO)
  for connection in connections.values():
    connection.recv(1)  # the other end closes first; otherwise the system would keep the port for a while
    connection.close()


def _report_to_chief(host: str, port: int, index: int) -> bool:
  """Tells the chief that this process has started. Returns whether the chief has answered that all have."""
  try:
    with socket.create_connection((host, port), _SECONDS_FOR_AN_ANSWER) as connection:
      connection.sendall(str(index).encode())
      connection.settimeout(None)
      return connection.recv(len(_GO)) == _GO
  except OSError:
    return False


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
  if name == "tpu" or (name == "auto" and config.tpu):
    return _make_tpu(config)
  if name == "multi_worker_mirrored" or (name == "auto" and len(training_addresses(config)) > 1):
    return _make_multi_worker_mirrored(config)
  gpus = tf.config.list_logical_devices("GPU")
  if name == "mirrored" or (name == "auto" and len(gpus) > 1):
    devices = gpus or tf.config.list_logical_devices("CPU")
    return _mirrored_strategy(tuple(device.name for device in devices))
  return tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0")


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
  replicas, micro_batches = strategy.num_replicas_in_sync, config.gradient_accumulation_steps
  shares = []
  if trains:
    sharers = f"{replicas} replicas x {micro_batches} accumulation steps"
    shares.append(("--train_batch_size", config.train_batch_size, replicas * micro_batches, sharers))
    sharers = f"{config.input_parts} input parts"
    shares.append(("--train_batch_size", config.train_batch_size, max(1, config.input_parts), sharers))
  if evaluates:
    shares.append(("--eval_batch_size", config.eval_batch_size, replicas, f"{replicas} replicas"))
  for flag, size, divisor, sharers in shares:
    if size % divisor:
      raise UserError(f"{flag}={size} cannot be shared evenly by {sharers}: give a multiple of {divisor}")


def num_hosts(strategy: tf.distribute.Strategy) -> int:
  """The number of machines that read training data. Each of them feeds its own devices."""
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return int(strategy.extended.num_hosts)
  if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return len(process_addresses())
  return 1


@functools.cache
def _mirrored_strategy(devices: tuple[str, ...]) -> tf.distribute.MirroredStrategy:
  """Returns the strategy of these devices. All estimators of a process share it."""
  # Each strategy numbers its sums over replicas from the same number on, and TensorFlow tells sums apart by it. So
  # the sums of a second one would be taken for those of the first, and fail if their shapes differ.
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


def _make_tpu(config: TrainConfig) -> tf.distribute.Strategy:
  if not config.tpu:
    raise UserError("--distribution_strategy=tpu needs --tpu=NAME, or --tpu=local on the TPU's own machine")
  previous_timeout = socket.getdefaulttimeout()
  socket.setdefaulttimeout(_CONNECTION_TIMEOUT_SECONDS)
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=config.tpu)
    if config.tpu != "local":
      # TensorFlow itself would retry for minutes to connect to a host that does not answer.
      for address in itertools.chain.from_iterable(resolver.cluster_spec().as_dict().values()):
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port))).close()
      tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  except Exception as error:  # raised by the resolver's clients (urllib, Google's), sockets or TensorFlow
    raise UserError(
      f"--tpu={config.tpu}: cannot reach that TPU ({describe_error(error)}); give its name or grpc:// address, or "
      "--tpu=local on its own machine with the packages of constraints/tpu.txt"
    ) from error
  finally:
    socket.setdefaulttimeout(previous_timeout)
  return tf.distribute.TPUStrategy(resolver)


ElementSpec = Mapping[str, tf.TensorSpec]
# A tf.data.Dataset or a tf.distribute.DistributedDataset.
DistributedBatches = Iterable[Mapping[str, tf.Tensor]]


def distribute_training_batches(
  strategy: tf.distribute.Strategy, train_config: TrainConfig, data: Dataset, first_step: int
) -> DistributedBatches:
  """Distributes the training batches over the replicas, beginning with the batch of `first_step`.

  A single device reads the dataset itself. Several devices, and TPUs, read through TensorFlow's iterators for several
  devices, which have a thread for tuning: the end of a run, a stage or an evaluation can wait up to a minute for it.

  Args:
    strategy: the strategy to distribute them with.
    train_config: batch size, seed and input parts.
    data: the training data.
    first_step: number of updates done so far; their batches are skipped.
  Returns: an endless dataset. Each replica gets (train_batch_size / number of replicas) examples of every batch.
  Raises:
    UserError: a TPU cannot use batches of this data.
  """

  def make_host_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    input_context = InputContext(
      context.input_pipeline_id, context.num_input_pipelines, strategy.num_replicas_in_sync, train_config.input_parts
    )
    batches = _host_batches(train_config, data, first_step, input_context)
    if isinstance(strategy, tf.distribute.TPUStrategy):
      check_static_shapes(batches.element_spec)
      train_config.check_tpu(needs_python=data.needs_python)
    return batches

  if isinstance(strategy, tf.distribute.OneDeviceStrategy):
    return cast("DistributedBatches", make_host_batches(tf.distribute.InputContext()))
  return cast("DistributedBatches", strategy.distribute_datasets_from_function(make_host_batches))


def distribute_evaluation_batches(
  strategy: tf.distribute.Strategy, data: Dataset, batch_size: int
) -> DistributedBatches:
  """Distributes batches over the replicas for evaluation; see distribute_training_batches.

  Args:
    strategy: the strategy to distribute them with.
    data: the dataset.
    batch_size: number of examples in a batch of all replicas together. On a single device the last batch may be
      smaller, so that the prediction of one text computes one text.
  Returns: a dataset in which each replica gets an equal share of every batch.
  """
  has_one_device = isinstance(strategy, tf.distribute.OneDeviceStrategy)
  batches = data.evaluation_batches(batch_size=batch_size, pad_last=not has_one_device)
  if has_one_device:
    return cast("DistributedBatches", batches)
  # With several hosts, every host reads all examples, and drops those that are for other hosts.
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
  return cast("DistributedBatches", strategy.experimental_distribute_dataset(batches.with_options(options)))


@contextmanager
def explain_reading_errors(data: Dataset) -> Iterator[None]:
  """In this context, TensorFlow's errors about a damaged record become a UserError that names its file and number."""
  try:
    yield
  except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
    if not is_lost_process(error):
      data.explain_failure()  # raises a UserError if it finds a damaged record
    raise


def element_spec(strategy: tf.distribute.Strategy, train_config: TrainConfig, data: Dataset) -> ElementSpec:
  """Returns the shapes and dtypes of the features that one replica gets of each training batch.

  Args:
    strategy: the strategy whose replicas share a batch.
    train_config: batch size, seed and input parts.
    data: the training data.
  """
  context = InputContext(0, num_hosts(strategy), strategy.num_replicas_in_sync, train_config.input_parts)
  return cast("ElementSpec", _host_batches(train_config, data, 0, context).element_spec)


def _host_batches(train_config: TrainConfig, data: Dataset, first_step: int, context: InputContext) -> tf.data.Dataset:
  """Returns the dataset of the batches that one host reads."""
  return data.training_batches(
    batch_size=train_config.train_batch_size, first_step=first_step, seed=train_config.seed, context=context
  )


def features_of_varying_shape(spec: ElementSpec) -> list[str]:
  """Returns the names of the features whose shapes may differ from batch to batch."""
  return [name for name, feature in spec.items() if not feature.shape.is_fully_defined()]


def check_static_shapes(spec: ElementSpec) -> None:
  """Checks that all batches have the same shapes, which a TPU needs: it runs programs of fixed shapes only.

  Raises:
    UserError: the shape of a feature may differ from batch to batch.
  """
  varying_features = features_of_varying_shape(spec)
  if varying_features:
    shape = f"shape {spec[varying_features[0]].shape.as_list()}"
    raise UserError(f"{varying_features[0]} has {shape}, but a TPU needs one shape: give --pad_to_max_length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
  """A GPU that NVIDIA's driver reports.

  Attributes:
    name: its name, such as "NVIDIA A100-SXM4-40GB".
    memory_mib: its memory in MiB; 0 if it is not known.
  """

  name: str
  memory_mib: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuFacts:
  """What the system says about its GPUs, independently of whether TensorFlow can use them.

  Attributes:
    gpus: the GPUs that the driver reports.
    driver_version: such as "550.54.15"; "" if it is not known.
    visible_devices: the environment variable CUDA_VISIBLE_DEVICES; None if it is not set.
    built_with_cuda: whether this TensorFlow can use GPUs at all.
    missing_libraries: the CUDA libraries that TensorFlow needs and that cannot be opened.
    has_device_files: whether this process may open /dev/nvidia*. A container without GPUs has none.
  """

  gpus: Sequence[Gpu] = ()
  driver_version: str = ""
  visible_devices: str | None = None
  built_with_cuda: bool = True
  missing_libraries: Sequence[str] = ()
  has_device_files: bool = True


def unused_gpu_warning(facts: GpuFacts) -> str | None:
  """Explains in one line why TensorFlow finds no GPU though the machine has one.

  Args:
    facts: what the system says. The function is called only if TensorFlow has found no GPU.

  Returns: The line, with the remedy; None if the machine has no GPU.
  """
  if not facts.gpus:
    return None
  return f"warning: {facts.gpus[0].name} is not used: {_reason_and_remedy(facts)}"


def _reason_and_remedy(facts: GpuFacts) -> str:
  visible = facts.visible_devices
  if visible is not None and (not visible.strip() or visible.strip().startswith("-1")):
    return f"CUDA_VISIBLE_DEVICES={visible!r} hides it: unset this variable to use the GPU"
  if not facts.built_with_cuda:
    return f"this TensorFlow was built without CUDA: {_INSTALL}"
  if facts.missing_libraries:
    return f"TensorFlow needs {', '.join(facts.missing_libraries)}, which cannot be opened: {_INSTALL}"
  driver_version = tuple(map(int, re.findall(r"\d+", facts.driver_version)))
  if driver_version and driver_version < _OLDEST_DRIVER:
    oldest = ".".join(map(str, _OLDEST_DRIVER))
    return f"its driver {facts.driver_version} is older than {oldest}, which CUDA 12 needs: install a newer driver"
  if not facts.has_device_files:
    return "this process cannot open /dev/nvidia*: give the container its GPUs (docker run --gpus all)"
  return "TensorFlow does not say why: run again with TF_CPP_MIN_LOG_LEVEL=0, which shows TensorFlow's messages"


def find_gpu_facts() -> GpuFacts:
  """Asks nvidia-smi for the GPUs of the system."""
  gpus, driver_version = _ask_nvidia_smi()
  if not gpus:
    return GpuFacts()
  device_files = glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dxg")  # in Windows' subsystem for Linux
  return GpuFacts(
    gpus=gpus,
    driver_version=driver_version,
    visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    built_with_cuda=tf.test.is_built_with_cuda(),
    missing_libraries=_missing_libraries(),
    has_device_files=any(os.access(path, os.R_OK | os.W_OK) for path in device_files),
  )


def _ask_nvidia_smi() -> tuple[list[Gpu], str]:
  """Returns the GPUs and the version of the driver; ([], "") if nvidia-smi is missing or fails."""
  query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
  try:
    answer = subprocess.run(query, capture_output=True, text=True, timeout=_SECONDS_FOR_NVIDIA_SMI, check=True)
  except (OSError, subprocess.SubprocessError):
    return [], ""
  rows = [row for row in csv.reader(answer.stdout.splitlines(), skipinitialspace=True) if len(row) == 3]
  gpus = [Gpu(name=name, memory_mib=int(memory) if memory.isdecimal() else 0) for name, memory, _ in rows]
  return gpus, rows[0][2] if rows else ""


def _missing_libraries() -> list[str]:
  """Returns the CUDA libraries that can be opened neither by name nor in the packages nvidia-* of this Python."""
  build = tf.sysconfig.get_build_info()
  cuda, cudnn = (str(build.get(key, "")).partition(".")[0] for key in ("cuda_version", "cudnn_version"))
  missing = []
  for library in _CUDA_LIBRARIES:
    name = f"{library}.so.{cudnn if library == 'libcudnn' else cuda}"
    if any(glob.glob(os.path.join(path, "nvidia", "*", "lib", name)) for path in sys.path):
      continue
    try:
      ctypes.CDLL(name)
    except OSError:
      missing.append(name)
  return missing


def describe_devices(strategy: tf.distribute.Strategy, precision: str, facts: GpuFacts) -> str:
  """Returns a line that names the devices of a run, their memory and the precision.

  Args:
    strategy: the strategy over the devices.
    precision: the compute dtype.
    facts: what the system says about its GPUs; only their memory is used.
  """
  replicas = strategy.num_replicas_in_sync
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return f"device: TPU, {counted(replicas, 'core')}, {precision}"
  gpus = tf.config.list_physical_devices("GPU")
  if gpus:
    details = tf.config.experimental.get_device_details(gpus[0])
    name = details.get("device_name", "GPU")
    memory = next((gpu.memory_mib for gpu in facts.gpus if gpu.name in (name, f"NVIDIA {name}")), 0)
    size = f"{memory / 1024:.0f} GiB" if memory else "memory unknown"
    count = f"{replicas} x " if replicas > 1 else ""
    return f"device: {count}{name}, {size}{' each' if replicas > 1 and memory else ''}, {precision}"
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  return f"device: CPU, {counted(cores, 'core')}, {_memory_bytes() / _GIB:.0f} GiB, {precision}"


def check_memory(model: ModelConfig, strategy: tf.distribute.Strategy, *, trains: bool) -> None:
  """Checks that a machine without a GPU or TPU has enough memory for the weights, and for their moments if it trains.

  Activations are not counted, because their size depends on the batch.

  Raises:
    UserError: weights and moments take more than the machine's memory.
  """
  if isinstance(strategy, tf.distribute.TPUStrategy) or tf.config.list_logical_devices("GPU"):
    return
  parameters = num_parameters(encoder_shapes(model))
  needed_bytes = parameters * 4 * (3 if trains else 1)  # float32
  if needed_bytes > _memory_bytes():
    raise UserError(
      f"a model with hidden_size {model.hidden_size}, intermediate_size {model.intermediate_size} and vocab_size "
      f"{model.vocab_size} has {parameters:.3g} parameters, which take {needed_bytes / _GIB:,.0f} GiB"
      f"{' with the moments of the optimizer' if trains else ''}; this machine has {_memory_bytes() / _GIB:,.0f} GiB "
      "of memory: give a smaller model"
    )


def _memory_bytes() -> int:
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
