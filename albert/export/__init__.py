"""Models for serving: SavedModels that take text, and what other runtimes take: `python -m albert.export --help`."""
