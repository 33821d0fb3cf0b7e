"""One self-contained HTML page about one or several runs: `python -m albert.report --help`. No TensorFlow."""
