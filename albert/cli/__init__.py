"""The command line of the run_* scripts: their flags and their --help."""

from albert.cli.script import run as run
