"""The model form of each task head: what goes in, what comes out."""
