"""The same training step in this project and in other libraries. bench_step.py runs each one in its own environment."""
