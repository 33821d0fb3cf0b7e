"""ALBERT and its optimizers in NumPy float64. Tests compare the TensorFlow implementation with them."""
