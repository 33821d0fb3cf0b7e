"""Converts input files to the text that is tokenized: a sentence on each line, a blank line after each document."""
