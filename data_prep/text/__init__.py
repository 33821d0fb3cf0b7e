"""Reads and checks plain text, and splits it into sentences."""
