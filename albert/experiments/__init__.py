"""Repeats experiments of the ALBERT paper, and RoBERTa's options: `python -m albert.experiments --help`."""
