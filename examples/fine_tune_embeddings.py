"""Trains an encoder so that the cosine of two sentences' embeddings is their similarity (Sentence-BERT, section 3).

python examples/fine_tune_embeddings.py --checkpoint=downloads/albert_base --train_file=glue/STS-B/train.tsv \
  --output_dir=embedder
python -m albert.embed --checkpoint=embedder --input_file=texts.txt --output_file=vectors.npy

--train_file is a table with the columns sentence1, sentence2 and score (0 to 5), as that of STS-B.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import albert
from albert.data.tables import read_table
from albert.io.files import write_json
from albert.tokenization import vocabulary

MAX_SCORE = 5.0


def main() -> None:
  """Trains, and writes weights, config and vocabulary to a directory."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  for name in ("checkpoint", "train_file", "output_dir"):
    parser.add_argument(f"--{name}", required=True)
  parser.add_argument("--learning_rate", type=float, default=2e-5)
  parser.add_argument("--batch_size", type=int, default=16)
  parser.add_argument("--epochs", type=int, default=4)
  arguments = parser.parse_args()

  tokenizer = albert.Tokenizer.from_pretrained(arguments.checkpoint)
  encoder = albert.Encoder.from_pretrained(arguments.checkpoint)

  import tensorflow as tf  # after albert has imported it, which hides its messages

  table = read_table(arguments.train_file, ["sentence1", "sentence2", "score"], tolerated_damage=0.01)
  first, second = (np.array(table.columns[name], object) for name in ("sentence1", "sentence2"))
  targets = table.numbers("score", 0, MAX_SCORE) / MAX_SCORE
  max_length = encoder.config.max_position_embeddings
  weights = [weight for name, weight in encoder.named_weights().items() if "/pooler/" not in name]  # it is not used
  optimizer = albert.optimizers.AdamW(arguments.learning_rate, bias_correction=True)
  signature = {name: tf.TensorSpec([None, None], tf.int32) for name in ("input_ids", "input_mask", "segment_ids")}

  def embed(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the mean of the last layer over all tokens, scaled to length 1, [B, H]."""
    mask = tf.cast(inputs["input_mask"], tf.float32)[:, :, tf.newaxis]
    states = encoder(inputs, training=True).sequence_output * mask
    return tf.math.l2_normalize(tf.reduce_sum(states, axis=1) / tf.reduce_sum(mask, axis=1), axis=1)

  @tf.function(input_signature=[signature, signature, tf.TensorSpec([None], tf.float32)])
  def train_step(
    first_inputs: dict[str, tf.Tensor], second_inputs: dict[str, tf.Tensor], target: tf.Tensor
  ) -> tf.Tensor:
    with tf.GradientTape() as tape:
      cosines = tf.reduce_sum(embed(first_inputs) * embed(second_inputs), axis=1)
      loss = tf.reduce_mean(tf.square(cosines - target))
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 1.0)
    optimizer.apply_gradients(zip(gradients, weights, strict=True))
    return loss

  rng = np.random.default_rng(12345)
  for epoch in range(arguments.epochs):
    order = rng.permutation(len(targets))
    losses = []
    for start in range(0, len(order), arguments.batch_size):
      rows = order[start : start + arguments.batch_size]
      inputs = [
        {name: tf.constant(values) for name, values in tokenizer(texts[rows].tolist(), max_length=max_length).items()}
        for texts in (first, second)
      ]
      losses.append(float(train_step(*inputs, tf.constant(targets[rows]))))
    print(
      f"epoch {epoch + 1} of {arguments.epochs}: mean squared error {np.mean(losses):.4f}", file=sys.stderr, flush=True
    )

  output_dir = Path(arguments.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  save_file({name: value.numpy() for name, value in encoder.named_weights().items()}, output_dir / "model.safetensors")
  write_json(str(output_dir / "albert_config.json"), encoder.config.to_dict())
  for name, source in vocabulary.vocabulary_copies(tokenizer.model_file).items():
    shutil.copyfile(source, output_dir / name)
  print(f"wrote {output_dir}: give --checkpoint={output_dir} to albert.embed")


if __name__ == "__main__":
  try:
    main()
  except albert.UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
