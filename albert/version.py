"""The version of the package. setup.py reads it, and --version prints it."""

from __future__ import annotations

VERSION = "0.1.0.dev0"
