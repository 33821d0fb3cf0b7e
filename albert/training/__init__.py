"""The training loop, its strategies, checkpoints and logs. Names no task."""
