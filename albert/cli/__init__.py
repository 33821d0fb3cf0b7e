"""The command line of the run_* scripts: their flags, their --help, and where the value of each setting comes from."""

from albert.cli.script import run as run
