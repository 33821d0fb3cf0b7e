"""Imports the libraries of an exported model: TensorFlow without Keras, and the SentencePiece ops of tensorflow-text.

An exported model needs neither Keras nor the Python modules of tensorflow-text. Without them, the imports take a third
less time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from albert import startup

# TensorFlow imports one of these at the end of its own import, and continues without it if that fails.
_KERAS_MODULES = ("keras.src", "tf_keras.src")
# The library of the ops SentencepieceOp and SentencepieceTokenizeOp, in the directory of tensorflow_text.
_OPS_LIBRARY = os.path.join("python", "ops", "_sentencepiece_tokenizer.so")


def import_tensorflow() -> Any:
  """Imports TensorFlow, unless it is imported already, and registers the SentencePiece ops.

  Returns: the module tensorflow. Its attribute `keras` imports Keras when it is used.
  """
  with startup.quick_imports(*_KERAS_MODULES):
    import tensorflow as tf
  spec = importlib.util.find_spec("tensorflow_text")
  directories = (spec.submodule_search_locations if spec else None) or []
  paths = [os.path.join(directory, _OPS_LIBRARY) for directory in directories]
  libraries = [path for path in paths if os.path.exists(path)]
  if libraries and "tensorflow_text" not in sys.modules:
    tf.load_op_library(libraries[0])
  else:
    import tensorflow_text  # noqa: F401  (registers the ops)
  return tf
