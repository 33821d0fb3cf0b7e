"""Embeddings of texts: `albert.encode` in Python, and `python -m albert.embed` for the texts of a file."""
