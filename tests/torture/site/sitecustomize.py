"""Runs the prelude of a command (see Workplace.start). Python imports this module when an interpreter starts."""

from tests.torture.forks import call_prelude

call_prelude()
