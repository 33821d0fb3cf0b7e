"""How well cosines of embeddings agree with people's judgement of similarity: Spearman's correlation on STS-B.

python benchmarks/sts_similarity.py --checkpoint=downloads/albert_base --checkpoint=run --file=glue/STS-B/dev.tsv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import albert
from albert.data.tables import read_table
from albert.embed.text_encoder import POOLINGS


def spearman(checkpoint: str, pooling: str, first: list[str], second: list[str], scores: np.ndarray) -> float:
  """Returns Spearman's correlation of the cosines of the pairs' embeddings with the scores."""
  from scipy.stats import spearmanr

  vectors = albert.encode([*first, *second], checkpoint, pooling=pooling)
  vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  cosines = (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1)
  return float(spearmanr(cosines, scores).statistic)


def main() -> None:
  """Prints a line of a table for each checkpoint."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--checkpoint", action="append", required=True, help="weights, may be given several times")
  parser.add_argument("--file", required=True, help="train.tsv or dev.tsv of STS-B")
  arguments = parser.parse_args()
  table = read_table(arguments.file, ["sentence1", "sentence2", "score"], tolerated_damage=0.01)
  scores = table.numbers("score", 0, 5)
  print(f"| weights | {' | '.join(POOLINGS)} |\n|---|{'---|' * len(POOLINGS)}")
  for checkpoint in arguments.checkpoint:
    values = [
      spearman(checkpoint, pooling, table.columns["sentence1"], table.columns["sentence2"], scores)
      for pooling in POOLINGS
    ]
    print(f"| {checkpoint} | {' | '.join(f'{value:.3f}' for value in values)} |", flush=True)


if __name__ == "__main__":
  main()
