"""Turns tokenized documents into pretraining examples: segments, instances, and their packed form."""
