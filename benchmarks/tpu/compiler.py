"""Compiles StableHLO for TPUs with libtpu, without a TPU, and reads how much memory and computation it needs.

It runs as a process: each line of stdin is a request in JSON, and each line of stdout is an answer in JSON (see
`serve`).
"""

from __future__ import annotations

import functools
import re
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.extend.backend import get_compile_options
from jax.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir

from benchmarks.tpu import protocol
from benchmarks.tpu.chips import CHIPS

# The effort that the compiler makes to find a fast program, from -1 to 1. At -1 it needs a third of the time that it
# needs at 0 (35 s instead of 109 s for albert_base at length 512). Temporaries, flops and bytes are the same as at 0,
# and the code is a fourth as large.
_COMPILER_EFFORT = -1.0

# "Ran out of memory in memory space hbm. Used 30.47G of 15.75G hbm."
_OUT_OF_MEMORY = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_aliases(text: str) -> tuple[bytes, int]:
  """Makes result i of a program use the memory of argument i, as the assignment to a variable does.

  Args:
    text: a StableHLO program whose results have the types of its first arguments.

  Returns:
    The program, and the bytes of the aliased arguments as StableHLO counts them.

  Raises:
    ValueError: the types differ.
  """
  with mlir.make_ir_context():
    module = ir.Module.parse(text)
    main = next(f for f in module.body.operations if ir.StringAttr(f.attributes["sym_name"]).value == "main")
    signature = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    num_results = len(signature.results)
    if signature.inputs[:num_results] != signature.results:
      raise ValueError("the results of the program do not have the types of its first arguments")
    int32 = ir.IntegerType.get_signless(32)
    aliases = [
      ir.DictAttr.get({"tf.aliasing_output": ir.IntegerAttr.get(int32, i)} if i < num_results else {})
      for i in range(len(signature.inputs))
    ]
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(aliases)
    num_bytes = sum(_num_bytes(ir.RankedTensorType(result)) for result in signature.results)
    return module.operation.get_asm(binary=False).encode(), num_bytes


def _num_bytes(tensor: ir.RankedTensorType) -> int:
  """The bytes of a tensor of integers or of 32-bit floats."""
  bits = ir.IntegerType(tensor.element_type).width if ir.IntegerType.isinstance(tensor.element_type) else 32
  return int(np.prod(tensor.shape, dtype=np.int64)) * bits // 8


@functools.cache
def _devices(chip_name: str, num_cores: int) -> list[Any]:
  chip = CHIPS[chip_name]
  config = {"chip_config_name": chip.config} if chip.config else {}
  description = topologies.get_topology_desc(topology_name=chip.topologies[num_cores], platform="tpu", **config)
  return list(description.devices)


def compile_program(path: str, chip_name: str, num_cores: int) -> dict[str, Any]:
  """Compiles a program for several cores that train together, and returns what it needs on each of them.

  Args:
    path: file of a StableHLO program.
    chip_name: a key of CHIPS.
    num_cores: a key of the chip's topologies.

  Returns:
    A dict with `seconds`, the processor time of the compiler. If the program does not fit into the memory, it also has
    `needs` and `limit`, in bytes of HBM. If it fits, it has `argument`, `output`, `alias`, `temporary` and `code`, in
    bytes of HBM, and `flops` and `bytes_accessed`.
  """
  started = time.process_time()
  devices = _devices(chip_name, num_cores)
  if len(devices) != num_cores:
    raise ValueError(f"{CHIPS[chip_name].topologies[num_cores]} has {len(devices)} cores, {num_cores} were expected")
  program, variable_bytes = add_aliases(Path(path).read_text(encoding="utf-8"))
  options = get_compile_options(
    num_replicas=num_cores, num_partitions=1, device_assignment=np.arange(num_cores).reshape(num_cores, 1)
  )
  options.executable_build_options.exec_time_optimization_effort = _COMPILER_EFFORT
  try:
    executable = devices[0].client.compile(program, xla_client.DeviceList(tuple(devices)), options)
  except jax.errors.JaxRuntimeError as error:
    match = _OUT_OF_MEMORY.search(str(error))
    if not match:
      raise
    used, unit, limit, limit_unit = match.groups()
    return {
      "seconds": time.process_time() - started,
      "needs": round(float(used) * _UNITS[unit]),
      "limit": round(float(limit) * _UNITS[limit_unit]),
    }
  memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
  if memory.alias_size_in_bytes < variable_bytes:
    raise ValueError(f"only {memory.alias_size_in_bytes} of {variable_bytes} bytes of variables were aliased")
  return {
    "seconds": time.process_time() - started,
    "argument": memory.argument_size_in_bytes,
    "output": memory.output_size_in_bytes,
    "alias": memory.alias_size_in_bytes,
    "temporary": memory.temp_size_in_bytes,
    "code": memory.generated_code_size_in_bytes,
    "flops": cost["flops"],
    "bytes_accessed": cost["bytes accessed"],
  }


def serve() -> None:
  """Answers requests {"path", "chip", "num_cores"} with the result of compile_program.

  The answers also have `host_peak`, the largest number of bytes of the host's memory that this process had so far.
  """

  def answer(request: dict[str, Any]) -> dict[str, Any]:
    result = compile_program(request["path"], request["chip"], request["num_cores"])
    return result | {"host_peak": protocol.peak_memory()}

  protocol.serve(answer)


if __name__ == "__main__":
  serve()
