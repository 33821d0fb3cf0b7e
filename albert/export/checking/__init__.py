"""Checks of a model before its export is finished: on edge cases, and on data of its task."""
