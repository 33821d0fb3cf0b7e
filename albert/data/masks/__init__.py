"""Masks of pretraining: which tokens are selected, and what replaces them."""
