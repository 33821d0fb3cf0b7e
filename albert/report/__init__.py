"""One self-contained HTML page about one or more runs (`python -m albert.report --help`), without TensorFlow."""
