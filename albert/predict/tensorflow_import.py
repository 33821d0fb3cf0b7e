"""Imports the libraries of an exported model: TensorFlow without Keras, and tensorflow-text's ops of tokenizers.

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
# The libraries of the tokenizers' ops, such as SentencepieceOp, in the directory of tensorflow_text.
_OPS_LIBRARIES = tuple(
  os.path.join("python", "ops", name) for name in ("_sentencepiece_tokenizer.so", "_fast_wordpiece_tokenizer.so")
)


def import_tensorflow() -> Any:
  """Imports TensorFlow, unless it is imported already, and registers the ops of tokenizers.

  Returns: the module tensorflow. Its attribute `keras` imports Keras when it is used.
  """
  with startup.quick_imports(*_KERAS_MODULES):
    import tensorflow as tf
  spec = importlib.util.find_spec("tensorflow_text")
  directories = (spec.submodule_search_locations if spec else None) or []
  paths = [os.path.join(directory, name) for directory in directories[:1] for name in _OPS_LIBRARIES]
  if paths and all(map(os.path.exists, paths)) and "tensorflow_text" not in sys.modules:
    for path in paths:
      tf.load_op_library(path)
  else:
    import tensorflow_text  # noqa: F401  (registers the ops)
  return tf
