"""Prints the tests that were skipped in every environment that has them: `python .ci/skipped.py JUNIT_FILE...`."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable
from xml.etree import ElementTree


def skipped_everywhere(paths: Iterable[str]) -> dict[str, list[str]]:
  """The tests that no run executed.

  Args:
    paths: JUnit files, one for each run of pytest.
  Returns: reason -> the names of the tests, in order. A module that is skipped as a whole counts as one test.
  """
  executed: set[str] = set()
  reasons: dict[str, str] = {}
  for path in paths:
    for case in ElementTree.parse(path).iter("testcase"):
      name = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
      skipped = case.find("skipped")
      if skipped is None:
        executed.add(name)
      else:
        reasons.setdefault(name, skipped.get("message") or "no reason is given")
  # A skipped module is one test case with the module's own name.
  modules = {name.rpartition("::")[0] for name in executed}
  listed: dict[str, list[str]] = collections.defaultdict(list)
  for name, reason in reasons.items():
    if name not in executed and name not in modules:
      listed[reason].append(name)
  return dict(listed)


def main() -> None:
  listed = skipped_everywhere(sys.argv[1:])
  if not listed:
    print("Every test ran in at least one environment.")
  for reason, names in listed.items():
    print(f"Skipped in every environment, {len(names)} test(s): {reason}")
    for name in names:
      print(f"  {name}")


if __name__ == "__main__":
  main()
