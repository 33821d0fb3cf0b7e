"""Token classification: named entities, chunks and other spans of words."""
