"""Measures data preparation with vocabularies of several kinds: text per second of processor time of one process.

  python benchmarks/bench_vocabularies.py --input_file='text/*.txt' spiece.model vocab.txt

Each vocabulary tokenizes the text alone, and then makes the instances of shards from it (InstanceMaker.make_batches:
reading, tokenization, segments and masks). The best of several rounds counts, in processor time, so that other work on
the machine changes little.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from albert.io.files import expand_globs
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import TokenizerConfig
from benchmarks import machine
from data_prep.examples.instances import InstanceMaker
from data_prep.examples.settings import PreparationSettings
from data_prep.units import TextUnit, plan_units


def best_seconds(run: Callable[[], object], rounds: int) -> float:
  """Returns the shortest processor time of several calls, in seconds."""
  seconds = []
  for _ in range(rounds):
    start = time.process_time()
    run()
    seconds.append(time.process_time() - start)
  return min(seconds)


def make_instances(maker: InstanceMaker, units: list[TextUnit]) -> None:
  """Makes the instances of all units, and drops them."""
  for unit in units:
    documents, num_used, _ = maker.load(unit)
    for _ in maker.make_batches(documents, num_used):
      pass


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--input_file", required=True, help="text files, see data_prep.create_pretraining_data")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("vocabularies", nargs="+", help="the first one is what the others are compared with")
  options = parser.parse_args()
  paths = expand_globs(options.input_file)
  units = list(plan_units(paths, with_donors=False))
  lines = [line for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines()]
  megabytes = sum(Path(path).stat().st_size for path in paths) / 1e6
  print(f"{machine.describe()}; {megabytes:.1f} MB of text, one process, best of {options.rounds} rounds")
  print(f"{'vocabulary':24}{'kind':16}{'tokens alone':>14}{'instances':>12}{'ratio':>8}")
  first = 0.0
  for path in options.vocabularies:
    tokenizer = Tokenizer.from_config(TokenizerConfig(path))
    maker = InstanceMaker(PreparationSettings(dupe_factor=1), path)
    tokens = best_seconds(functools.partial(tokenizer.encode_batch, lines), options.rounds)
    instances = best_seconds(functools.partial(make_instances, maker, units), options.rounds)
    first = first or instances
    name, kind = Path(path).name, tokenizer.vocabulary.kind
    rates = f"{megabytes / tokens:9.2f} MB/s{megabytes / instances:7.2f} MB/s"
    print(f"{name:24}{kind:16}{rates}{first / instances:8.2f}")


if __name__ == "__main__":
  main()
