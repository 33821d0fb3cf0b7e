"""Measures the L2 distance and the angle between the input and the output of each layer (ALBERT, figure 1)."""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import itertools

import msgspec
import numpy as np
from absl import flags

from albert import app
from albert.config import command_flags
from albert.io import files
from albert.io.files import expand_globs

FILE_NAME = "layers.json"
# Number of examples that the distances are measured on.
_NUM_EXAMPLES = 64


class Distances(msgspec.Struct):
  """The content of layers.json.

  Attributes:
    l2: the L2 distance between the input and the output of each layer.
    degrees: the angle between the input and the output of each layer, in degrees.
  """

  l2: list[float]
  degrees: list[float]


def mean_distances(states: list[np.ndarray], mask: np.ndarray) -> dict[str, list[float]]:
  """Computes the distances between the input and the output of each layer, as means over all tokens.

  Args:
    states: the input of the first layer and the outputs of all layers, each [B, S, H].
    mask: [B, S], 1 for tokens and 0 for padding.
  Returns: `l2`, the L2 distances, and `degrees`, the angles in degrees, one number per layer.
  """
  token_states = [state[mask > 0].astype(np.float64) for state in states]  # each [tokens, H]
  l2_distances: list[float] = []
  degrees: list[float] = []
  for before, after in itertools.pairwise(token_states):
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosines = np.clip((before * after).sum(axis=1) / norms, -1, 1)
    l2_distances.append(float(np.linalg.norm(after - before, axis=1).mean()))
    degrees.append(float(np.degrees(np.arccos(cosines)).mean()))
  return {"l2": l2_distances, "degrees": degrees}


def main() -> None:
  """Measures the distances of the checkpoint on the first 64 examples, and writes them to --output_file as JSON."""
  from albert.io import records
  from albert.models.encoder import Encoder

  flag_values = flags.FLAGS
  encoder = Encoder.from_pretrained(flag_values.checkpoint)
  all_records = itertools.chain.from_iterable(map(records.read_records, expand_globs(flag_values.input_file)))
  examples = [records.decode_example(record) for record in itertools.islice(all_records, _NUM_EXAMPLES)]
  names = ("input_ids", "input_mask", "segment_ids")
  batch = {name: np.array([example[name] for example in examples], np.int32) for name in names}
  states = [state.numpy() for state in encoder(batch).hidden_states]
  files.write_json(flag_values.output_file, mean_distances(states, batch["input_mask"]))


# albert.experiments calls this module. It is no command for users, so it has no console command.
if __name__ == "__main__":
  for name, help_text in (
    ("checkpoint", "pretrained weights: output_dir of a run, or a checkpoint"),
    ("input_file", "TFRecord shards: comma-separated globs"),
    ("output_file", "JSON file to write"),
  ):
    command_flags.define("str", name, None, help_text, required=True)
  app.run(main)
