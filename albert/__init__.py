"""ALBERT (Lan et al., ICLR 2020): pretraining, fine-tuning and serving in TensorFlow 2."""

import os

from albert.version import VERSION as __version__  # noqa: F401

# Enables the oneDNN kernels, which make a training step 1.1 to 1.4 times as fast; TensorFlow enables them by default on
# some processors only. TensorFlow reads the variable when it is first imported: import albert before TensorFlow, or set
# the variable yourself.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
