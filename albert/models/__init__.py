"""Keras layers of ALBERT and BERT: embeddings, attention and feed-forward blocks, the encoder, the heads."""
