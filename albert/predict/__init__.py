"""`python -m albert.predict`: answers lines of text with a model that `python -m albert.export` wrote."""
