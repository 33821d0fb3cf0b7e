"""What a run leaves in its output_dir: names of files, lock, metrics, evaluations and curves."""
