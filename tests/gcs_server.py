"""A server of Google Cloud Storage in this process, which counts what TensorFlow's own gs:// file system requests.

TensorFlow reaches it by an HTTPS proxy, and trusts its certificate. So what is counted are the requests of the file
system that a training run uses, not those of a replacement. The objects are periodic, so they may be large.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import shutil
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_HOSTS = ("storage.googleapis.com", "www.googleapis.com")


def has_openssl() -> bool:
  """Whether the program that makes the certificate is installed."""
  return shutil.which("openssl") is not None


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def log_message(self, *unused: Any) -> None:
    """Prints nothing."""

  def do_CONNECT(self) -> None:
    """Answers the request for a tunnel; what follows in it is TLS."""
    self.send_response(200)
    self.end_headers()
    self.connection = self.server.context.wrap_socket(self.connection, server_side=True)  # type: ignore[attr-defined]
    self.rfile = self.connection.makefile("rb", -1)
    self.wfile = socketserver._SocketWriter(self.connection)  # type: ignore[attr-defined]

  def do_GET(self) -> None:
    """Sends the size of an object, or a range of its bytes."""
    objects, requests = self.server.objects, self.server.requests  # type: ignore[attr-defined]
    if metadata := re.match(r"/storage/v1/b/[^/]+/o/([^?]+)", self.path):
      name = unquote(metadata[1])
      size = len(objects[name][0]) * objects[name][1]
      self._reply(200, json.dumps({"size": str(size), "generation": "1", "updated": "2026-01-01T00:00:00Z"}).encode())
      return
    name = unquote(self.path.split("/", 2)[2])
    piece, repetitions = objects[name]
    first, last = map(int, re.findall(r"\d+", self.headers["Range"]))
    end = min(last + 1, len(piece) * repetitions)
    if first >= end:
      self._reply(416, b"")
      return
    requests.append((name, first, end - first))
    start = first // len(piece)
    data = piece * (end // len(piece) + 1 - start)
    self._reply(206, data[first - start * len(piece) : end - start * len(piece)])

  def _reply(self, status: int, body: bytes) -> None:
    self.send_response(status)
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
  daemon_threads = True


@contextlib.contextmanager
def serve(objects: Mapping[str, tuple[bytes, int]], directory: Path) -> Iterator[tuple[list[Any], dict[str, str]]]:
  """Serves objects in a bucket of any name.

  Args:
    objects: name -> a piece of content, and how often it is repeated.
    directory: for the certificate.

  Yields:
    A list that gets (name of the object, first byte, number of bytes) for each request of content; and the environment
    variables with which TensorFlow in another process reads from this server.
  """
  certificate, key = directory / "certificate.pem", directory / "key.pem"
  subjects = ",".join(f"DNS:{host}" for host in _HOSTS)
  command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
  command += ["-addext", f"subjectAltName={subjects}", "-keyout", str(key), "-out", str(certificate)]
  subprocess.run(command, check=True, capture_output=True)
  with _Server(("127.0.0.1", 0), _Handler) as server:
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # type: ignore[attr-defined]
    server.context.load_cert_chain(certificate, key)  # type: ignore[attr-defined]
    server.objects, server.requests = dict(objects), []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
      "https_proxy": f"http://127.0.0.1:{server.server_port}",
      "CURL_CA_BUNDLE": str(certificate),
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
      "NO_GCE_CHECK": "true",
      "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    yield server.requests, environment  # type: ignore[attr-defined]
    server.shutdown()
