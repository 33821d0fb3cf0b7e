"""The training loop, evaluation, the plan of a run, its strategy and its processes. No module here names a task."""
