"""The same training step in this project and in other libraries. bench_step.py runs each in its own environment."""
