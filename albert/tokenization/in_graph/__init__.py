"""Tokenization, offsets and packing as operations of a TensorFlow graph, for exported models."""
