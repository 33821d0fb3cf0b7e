"""Weights from and to the formats of the original and of Hugging Face: `python -m albert.convert --help`."""
