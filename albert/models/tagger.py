"""The model for token classification: encoder, dropout, linear head on every token."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
import tf_keras as keras

from albert.models.classifier import ClassifierModel, head_dropout
from albert.models.layers import PACKAGE, AnyConfig
from albert.weights.initial_weights import POOLER_UNUSED

# B batch, S sequence, H hidden, C classes.


@keras.saving.register_keras_serializable(PACKAGE)
class TaggingModel(ClassifierModel):
  """The encoder and a linear layer on the output of every token, a Keras model.

  Its head has the names of ClassifierModel's head, as in transformers' AlbertForTokenClassification.

  Args:
    config: the encoder's config or its name, see ClassifierModel.
    num_classes: number of tags C.
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Raises:
    UserError: there is no model of this name.

  Example:
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> model = albert.TaggingModel.from_pretrained("downloads/albert_base", num_classes=5)
    >>> batch = tokenizer(["They drank the pub dry."])
    >>> model(batch).shape[:2] == batch["input_ids"].shape
    True
  """

  on_missing_pooler = POOLER_UNUSED

  def __init__(self, config: AnyConfig, num_classes: int, name: str = "albert_tagger", **kwargs: object):
    super().__init__(config, num_classes, name, **kwargs)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Computes the logits of a batch.

    Args:
      inputs: input_ids, input_mask, segment_ids int [B, S].
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      Logits float32 [B, S, C].
    """
    encoded = self.encoder(inputs, training=training, seed=seed)
    return self.head(head_dropout(encoded.sequence_output, self.config, training=training, seed=seed))
