"""ALBERT (Lan et al., ICLR 2020): pretraining, fine-tuning and serving in TensorFlow 2."""

import os

# oneDNN's kernels, which TensorFlow takes by itself on some processors alone, make a training step 1.1 to 1.4 times as
# fast on the others, too. TensorFlow reads this when it is first imported: import albert before it, or set it yourself.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
