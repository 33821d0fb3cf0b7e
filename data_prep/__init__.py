"""Offline data preparation: raw text to a vocabulary and to TFRecord shards with masks and sentence pairs."""
