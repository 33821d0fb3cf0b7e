"""A mark for the tests that load saved Keras models."""

from __future__ import annotations

import pytest
import tf_keras as keras

# TensorFlow 2.15 also installs keras 2.15, whose classes have the same registered names as those of tf_keras.
# Which of them load_model takes depends on the order of imports, that is on the tests that ran before in the process.
# With the wrong classes it fails, or does not end.
loads_models = pytest.mark.skipif(
  keras.__version__.startswith("2.15"), reason="load_model of tf_keras 2.15 may take the classes of keras 2.15"
)
