"""What can be trained. A task says what its model, features, losses and metrics are; the loop asks it."""
