"""Text classification and regression: GLUE, and tasks of one's own."""
