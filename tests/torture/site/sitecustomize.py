"""Python runs this at the start of an interpreter whose PYTHONPATH has this directory: see tests.torture.workplace."""

from tests.torture.forks import prelude

prelude()
