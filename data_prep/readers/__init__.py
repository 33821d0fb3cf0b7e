"""Readers of text in the forms in which corpora are found: one module for each form, and the flags they share."""
