"""Makes tiny_albert.npz with the NumPy float64 reference: `python -m tests.golden.make_tiny_albert`.

The model is a tiny ALBERT with two groups of two inner blocks. The file holds one batch and its outputs, and the
results of eight steps of LAMB and of AdamW. Its keys are `weights/NAME`, `batch/FEATURE`, `outputs/...`, and for each
optimizer `OPTIMIZER/losses` and `OPTIMIZER/weights/NAME`. Losses and outputs are float64, all other floats float32. A
test compares the results of this script with the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from albert.config.model import ModelConfig
from albert.weights.names import encoder_shapes, heads
from tests.reference.albert import Reference
from tests.reference.training import train

PATH = Path(__file__).with_name("tiny_albert.npz")
CONFIG = ModelConfig(
  vocab_size=53,
  embedding_size=6,
  hidden_size=20,
  num_hidden_layers=4,
  num_hidden_groups=2,
  inner_group_num=2,
  num_attention_heads=5,
  intermediate_size=28,
  max_position_embeddings=16,
)
# Linear warm-up to 2e-3 over 3 steps, then linear decay to 0 at step 20. The first rate is 0.
LEARNING_RATES = [2e-3 * (step / 3 if step < 3 else 1 - step / 20) for step in range(8)]
BATCH, LENGTH = 3, 11


def random_weights(config: ModelConfig, seed: int, *, with_heads: tuple[str, ...] = ("masked_lm", "sentence"),
                   num_classes: int = 3) -> dict[str, np.ndarray]:  # fmt: skip
  """Returns random float32 weights. The scales of LayerNorm (around 1) and the biases are random, too."""
  rng = np.random.default_rng(seed)
  shapes: dict[str, tuple[int | None, ...]] = {**encoder_shapes(config)}
  for name in with_heads:
    shapes |= heads(config)[name].shapes
  weights = {}
  for name, shape in shapes.items():
    sizes = [num_classes if size is None else size for size in shape]
    mean = 1.0 if name.endswith("gamma") else 0.0
    weights[name] = (mean + 0.12 * rng.standard_normal(sizes)).astype(np.float32)
  return weights


def random_batch(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
  """Returns three examples with different lengths and numbers of masked tokens."""
  rng = np.random.default_rng(seed)
  lengths = np.array([LENGTH, LENGTH - 4, LENGTH - 1])
  mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
  segments = (np.arange(LENGTH) >= lengths[:, None] // 2).astype(np.int32) * mask
  # Ids from 5 on are those of ordinary pieces.
  return {
    "input_ids": (rng.integers(5, config.vocab_size, (BATCH, LENGTH)) * mask).astype(np.int32),
    "input_mask": mask,
    "segment_ids": segments,
    "masked_lm_positions": np.array([[1, 4, 7, 9], [2, 3, 5, 0], [3, 8, 0, 0]], np.int32),
    "masked_lm_ids": rng.integers(5, config.vocab_size, (BATCH, 4)).astype(np.int32),
    "masked_lm_weights": np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], np.float32),
    "next_sentence_labels": np.array([[0], [1], [1]], np.int32),
  }


def make_arrays() -> dict[str, np.ndarray]:
  weights, examples = random_weights(CONFIG, seed=7), random_batch(CONFIG, seed=8)
  computed = Reference(CONFIG, weights).pretrain(examples)
  arrays = {f"weights/{name}": value for name, value in weights.items()}
  arrays |= {f"batch/{name}": value for name, value in examples.items()}
  arrays |= {
    "outputs/embedding_output": computed.encoder.embedding_output,
    "outputs/hidden_states": np.stack(computed.encoder.hidden_states),
    "outputs/pooled_output": computed.encoder.pooled_output,
    "outputs/masked_lm_log_probs": computed.masked_lm_log_probs,
    "outputs/sentence_log_probs": computed.sentence_log_probs,
    "outputs/losses": np.array([computed.masked_lm_loss, computed.sentence_loss]),
  }
  for name, rescale in (("lamb", True), ("adamw", False)):  # LAMB is AdamW with rescaled updates
    losses, final_weights = train(CONFIG, weights, examples, LEARNING_RATES, rescale=rescale)
    arrays[f"{name}/losses"] = losses
    arrays |= {f"{name}/weights/{key}": value.astype(np.float32) for key, value in final_weights.items()}
  return arrays


if __name__ == "__main__":
  np.savez_compressed(PATH, **make_arrays())  # type: ignore[arg-type]  # NumPy's stub takes a name for allow_pickle
