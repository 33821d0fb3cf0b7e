"""ALBERT and its optimizers in NumPy float64: the second route by which the tests get their numbers."""
