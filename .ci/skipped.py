"""Prints the tests that were skipped in every environment: `python .ci/skipped.py JUNIT_FILE...`."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable
from xml.etree import ElementTree


def find_skipped_tests(paths: Iterable[str]) -> dict[str, list[str]]:
  """Finds the tests that no run executed.

  Args:
    paths: JUnit files, one for each run of pytest.

  Returns:
    Reason -> the names of the tests, in order. A module that is skipped as a whole counts as one test.
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
  # If a whole module is skipped, the file has one test case with the name of the module.
  executed_modules = {name.rpartition("::")[0] for name in executed}
  names_by_reason: dict[str, list[str]] = collections.defaultdict(list)
  for name, reason in reasons.items():
    if name not in executed and name not in executed_modules:
      names_by_reason[reason].append(name)
  return dict(names_by_reason)


def main() -> None:
  names_by_reason = find_skipped_tests(sys.argv[1:])
  if not names_by_reason:
    print("Every test ran in at least one environment.")
  for reason, names in names_by_reason.items():
    print(f"Skipped in every environment, {len(names)} test(s): {reason}")
    for name in names:
      print(f"  {name}")


if __name__ == "__main__":
  main()
