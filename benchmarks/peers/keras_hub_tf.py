"""Training steps of keras-hub on Keras 3 and TensorFlow.

The model is AlbertBackbone with keras-hub's masked-LM head, and a dense layer on the pooled output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from benchmarks.peers import protocol


def main() -> None:
  """Builds the model and answers requests for steps."""
  options = protocol.make_parser().parse_args()
  tf.config.threading.set_intra_op_parallelism_threads(options.threads)
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy("mixed_bfloat16" if options.precision == "bfloat16" else "float32")
  config = options.config
  backbone = keras_hub.models.AlbertBackbone(
    vocabulary_size=config["vocab_size"],
    num_layers=config["num_hidden_layers"],
    num_heads=config["num_attention_heads"],
    embedding_dim=config["embedding_size"],
    hidden_dim=config["hidden_size"],
    intermediate_dim=config["intermediate_size"],
    dropout=0.0,
    max_sequence_length=config["max_position_embeddings"],
  )
  masked_lm = keras_hub.layers.MaskedLMHead(
    vocabulary_size=config["vocab_size"], token_embedding=backbone.token_embedding, intermediate_activation="gelu"
  )
  positions = keras.Input([options.predictions], dtype="int32", name="mask_positions")
  encoded = backbone(backbone.input)
  logits = masked_lm(encoded["sequence_output"], mask_positions=positions)
  order = keras.layers.Dense(2, name="order")(encoded["pooled_output"])
  model = keras.Model({**backbone.input, "mask_positions": positions}, {"logits": logits, "order": order})
  cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0)
  model.compile(optimizer, loss={"logits": cross_entropy, "order": cross_entropy})
  batch = protocol.random_batch(options)
  inputs = {
    "token_ids": batch["input_ids"].astype(np.int32),
    "segment_ids": batch["segment_ids"].astype(np.int32),
    "padding_mask": np.ones_like(batch["input_ids"], np.int32),
    "mask_positions": batch["positions"].astype(np.int32),
  }
  labels = {"logits": batch["labels"], "order": batch["order"]}

  def do_steps(num_steps: int) -> float:
    # fit() is not used, since it waits for seconds at the end of an epoch, which would be counted as time of steps.
    for _ in range(num_steps):
      logs = model.train_on_batch(inputs, labels, return_dict=True)
    return float(logs["loss"])

  protocol.serve(do_steps)


if __name__ == "__main__":
  main()
