"""The files of a run in its output_dir: their names, the lock, the logs of metrics and evaluations, and the curves."""
