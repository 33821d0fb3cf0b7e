"""The same training step in this project and in others, each run in its own environment by bench_step.py."""
