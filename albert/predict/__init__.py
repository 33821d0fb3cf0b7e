"""`python -m albert.predict`: answers of a model that `python -m albert.export` wrote to lines of text."""
