"""The forms in which models are served. Each class defines its request, its tokenization and its answers."""
