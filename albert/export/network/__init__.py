"""The encoder and the heads of served models, written for inference: no dropout and no trainable variables."""
