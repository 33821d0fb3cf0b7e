"""The version of the package. setup.py reads it, and --version prints it."""

from __future__ import annotations

VERSION = "1.0.0"
