"""ALBERT (Lan et al., ICLR 2020): pretraining, fine-tuning and serving in TensorFlow 2."""
