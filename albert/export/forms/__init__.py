"""The forms in which models are served. A class defines the request, its tokenization and the answers."""
