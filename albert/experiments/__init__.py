"""The experiments of the ALBERT paper, and RoBERTa's options, by name: `python -m albert.experiments --help`."""
