"""The model for classification and regression of texts and text pairs: encoder, dropout, linear head on [CLS]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.models import layers
from albert.models.heads import EncoderModel, LinearHead
from albert.models.layers import PACKAGE, AnyConfig
from albert.weights.initial_weights import Pretrained

# B batch, S sequence, H hidden, C classes.

# `dropout_index` of the dropout in front of a task head (see layers.dropout). It differs from the other numbers that
# are folded into the same seed: 0 for the dropout of the embeddings, and 1, 2, ... for the seeds of the blocks.
_HEAD_DROPOUT_INDEX = 101


def head_dropout(x: tf.Tensor, config: ModelConfig, *, training: bool | None, seed: tf.Tensor | None) -> tf.Tensor:
  """Applies the dropout in front of a task head, see layers.dropout."""
  rate = config.classifier_dropout_prob
  return layers.dropout(x, rate, dropout_index=_HEAD_DROPOUT_INDEX, training=training, seed=seed)


@keras.saving.register_keras_serializable(PACKAGE)
class ClassifierModel(EncoderModel):
  """The encoder and a linear layer on its pooled output, a Keras model.

  Args:
    config: the encoder's config, or its name, such as "albert_base". Its classifier_dropout_prob is the dropout rate in
      front of the head. The original uses 0.1 there, even if the encoder has no dropout.
    num_classes: number of logits C; 1 for a regression, whose logit is the predicted number.
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Raises:
    UserError: there is no model of this name.

  Example:
    >>> import albert
    >>> import numpy as np
    >>> import tf_keras as keras
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> model = albert.ClassifierModel.from_pretrained("downloads/albert_base", num_classes=2)
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(optimizer=albert.optimizers.AdamW(2e-5), loss=loss, metrics=["accuracy"])
    >>> history = model.fit(tokenizer(["They drank it.", "Nobody did."]), np.array([1, 0]), verbose=0)
    >>> model.predict(tokenizer(["They drank it."]), verbose=0).shape
    (1, 2)
  """

  head_names = ("classifier",)

  def __init__(self, config: AnyConfig, num_classes: int, name: str = "albert_classifier", **kwargs: Any):
    super().__init__(config, name, **kwargs)
    self.num_classes = num_classes
    self.head = LinearHead(num_classes, self.config.initializer_range, name="classifier")

  @classmethod
  def pretrained_arguments(
    cls, pretrained: Pretrained, arguments: dict[str, Any], *, new_heads: bool
  ) -> dict[str, Any]:
    """Adds num_classes, if it is not given: the number of classes of the pretrained classifier."""
    head = None if new_heads else pretrained.file.entries.get("output_weights")
    saved_num_classes = head.shape[0] if head else None
    if saved_num_classes is None and "num_classes" not in arguments:
      raise UserError(f"weights={pretrained.file.path}: no classifier is loaded from it: give num_classes")
    if saved_num_classes is not None and arguments.get("num_classes", saved_num_classes) != saved_num_classes:
      raise UserError(
        f"weights={pretrained.file.path}: its classifier has {saved_num_classes} classes, not "
        f"{arguments['num_classes']}: give new_heads=True to initialize the head anew"
      )
    return {"num_classes": saved_num_classes, **arguments}

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Computes the logits of a batch.

    Args:
      inputs: input_ids, input_mask, segment_ids int [B, S].
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      Logits float32 [B, C].
    """
    no_positions = inputs["input_ids"][:, :0]  # the pooled output needs [CLS] only
    encoded = self.encoder(inputs, training=training, seed=seed, positions=no_positions)
    return self.head(head_dropout(encoded.pooled_output, self.config, training=training, seed=seed))

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments of the constructor, for Keras' serialization."""
    return {**super().get_config(), "num_classes": self.num_classes}
