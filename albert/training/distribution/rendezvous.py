"""Waits until all processes of TF_CONFIG have started, before TensorFlow connects them.

TensorFlow, too, waits for them, but it keeps Python's lock and has its own handler of SIGTERM, so no signal ends its
wait. Therefore the processes meet here first: on the chief's port, which TensorFlow uses afterwards.
"""

from __future__ import annotations

import functools
import socket
import time

from albert.errors import RunError

_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_FOR_AN_ANSWER = 10.0
_GO = b"go"


@functools.cache
def wait_for_processes(addresses: tuple[str, ...], index: int) -> None:
  """Returns when every process has called this function. Only the first call of a process waits.

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
      sender = _read_index(connection)
      if 0 < sender < len(addresses):  # a process that was started again replaces its first connection
        connections[sender] = connection
  for connection in connections.values():
    connection.sendall(_GO)
  for connection in connections.values():
    connection.recv(1)  # the other end closes first; otherwise the system would keep the port for a while
    connection.close()


def _read_index(connection: socket.socket) -> int:
  """Reads the index of the process that has connected; 0 if it is none of the processes."""
  try:
    return int(connection.recv(16))
  except (OSError, ValueError):
    return 0


def _report_to_chief(host: str, port: int, index: int) -> bool:
  """Tells the chief that this process has started. Returns whether the chief has answered that all have."""
  try:
    with socket.create_connection((host, port), _SECONDS_FOR_AN_ANSWER) as connection:
      connection.sendall(str(index).encode())
      connection.settimeout(None)
      return connection.recv(len(_GO)) == _GO
  except OSError:
    return False
