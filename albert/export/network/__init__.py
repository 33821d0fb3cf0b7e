"""The network as it is served: encoder and heads as constants of a graph."""
