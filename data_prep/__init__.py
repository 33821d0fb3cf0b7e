"""Data preparation: trains a vocabulary on plain text, and turns the text into TFRecord shards for pretraining."""
