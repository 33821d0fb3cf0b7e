"""The training loop, evaluation, the plan of a run, and the strategies and processes it runs on. It knows no task."""
