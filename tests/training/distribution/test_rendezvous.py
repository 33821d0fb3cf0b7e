"""Processes wait for each other: here each is a thread."""

from __future__ import annotations

import socket
from concurrent import futures

import pytest

from albert.errors import RunError
from albert.training import distribution


def test_every_process_goes_on_as_soon_as_all_have_started(monkeypatch):
  monkeypatch.setattr(distribution, "_SECONDS_BETWEEN_TRIES", 0.01)
  with socket.create_server(("localhost", 0)) as server:
    address = f"localhost:{server.getsockname()[1]}"
  addresses = (address, "other:1", "third:1")
  with futures.ThreadPoolExecutor() as pool:
    ended = [pool.submit(distribution.wait_for_processes, addresses, index) for index in (2, 0)]
    while True:  # a connection of another program, such as a health check, counts as no process
      try:
        with socket.create_connection(("localhost", int(address.rpartition(":")[2]))) as connection:
          connection.sendall(b"GET / HTTP/1.1")
        break
      except OSError:
        continue
    with pytest.raises(futures.TimeoutError):
      ended[0].result(timeout=0.2)
    assert not any(process.done() for process in ended)
    ended.append(pool.submit(distribution.wait_for_processes, addresses, 1))
    assert [process.result(timeout=30) for process in ended] == [None, None, None]
  with socket.create_server(("localhost", int(address.rpartition(":")[2]))):  # the port is free again
    pass


def test_a_port_that_is_in_use_is_refused():
  with socket.create_server(("", 0)) as server:
    address = f"localhost:{server.getsockname()[1]}"
    with pytest.raises(RunError, match=rf"TF_CONFIG: cannot listen on {address} .*: give this process a free port"):
      distribution.wait_for_processes((address, "other:1"), 0)
