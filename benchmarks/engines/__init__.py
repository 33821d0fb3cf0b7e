"""The parts of bench_engines.py: the engines, their models, their processes, and the tables."""
