"""A real browser for the tests of report pages: Chromium, driven by chromedriver through the W3C WebDriver protocol."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_SECONDS_TO_START = 60


def missing_program() -> str:
  """Returns a sentence about the program that is not installed, or "" if the browser and its driver are installed."""
  if not any(map(shutil.which, _BROWSERS)):
    return f"no browser: none of {', '.join(_BROWSERS)} is installed (Debian: chromium)"
  return "" if shutil.which("chromedriver") else "no chromedriver is installed (Debian: chromium-driver)"


class Browser:
  """A headless browser with its profile and its log in a directory. It runs while the `with` statement does."""

  def __init__(self, directory: Path):
    self._log = directory / "chromedriver.log"
    self._profile = directory / "profile"
    self._session = ""

  def __enter__(self) -> Browser:
    command = ["chromedriver", "--port=0"]
    self._driver = subprocess.Popen(command, stdout=self._log.open("wb"), stderr=subprocess.STDOUT)
    try:
      self._session = f"http://127.0.0.1:{self._port()}/session"
      arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={self._profile}"]
      if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's sandbox refuses root
      options = {
        "goog:chromeOptions": {"args": arguments, "binary": next(filter(None, map(shutil.which, _BROWSERS)))},
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
      }
      session = self._request("POST", "", {"capabilities": {"alwaysMatch": options}})
      self._session += f"/{session['sessionId']}"
    except BaseException:
      self._driver.kill()
      raise
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    try:
      self._request("DELETE", "")
    finally:
      self._driver.terminate()
      self._driver.wait(timeout=30)

  def _port(self) -> int:
    """Reads the port that the driver has chosen from its output."""
    for _ in range(_SECONDS_TO_START * 10):
      match = re.search(r"successfully on port (\d+)", self._log.read_text(encoding="utf-8"))
      if match:
        return int(match[1])
      time.sleep(0.1)
    raise TimeoutError(f"chromedriver did not start: {self._log.read_text(encoding='utf-8')}")

  def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    content = None if body is None else json.dumps(body).encode("utf-8")
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(self._session + path, content, headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as response:
      return json.load(response)["value"]

  def command(self, name: str, **parameters: Any) -> Any:
    """Runs a command of the DevTools protocol and returns its result."""
    return self._request("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

  def show(self, path: Path, *, width: int, height: int, scheme: str = "light") -> None:
    """Opens a file in a window of this size. One narrower than 600 pixels is a phone. `scheme` may be "dark"."""
    self.command(
      "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=width < 600
    )
    self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    self._request("POST", "/url", {"url": path.as_uri()})

  def run(self, script: str) -> Any:
    """Runs JavaScript as the body of a function, and returns the function's result."""
    return self._request("POST", "/execute/sync", {"script": script, "args": []})

  def messages(self) -> list[str]:
    """Returns the messages of the browser's console since the last call."""
    return [entry["message"] for entry in self._request("POST", "/se/log", {"type": "browser"})]

  def requested_addresses(self, page: Path) -> list[str]:
    """Returns the addresses that a page has requested since the last call."""
    entries = self._request("POST", "/se/log", {"type": "performance"})
    events = [json.loads(entry["message"])["message"] for entry in entries]
    requests = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in requests if request["documentURL"] == page.as_uri()]
