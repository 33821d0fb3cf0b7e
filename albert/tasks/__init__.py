"""The tasks. Each one defines its model, features, losses, metrics and predictions."""
