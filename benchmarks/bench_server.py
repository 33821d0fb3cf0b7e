"""Measures examples/serve.py under load, beside calls of the model in one process, one instance at a time.

  python benchmarks/bench_server.py --model=models/cola --num_requests=256 --clients=1,8,64

The model takes one text. Each client sends its requests one after the other on one connection. The texts have one to
four sentences. Server and clients share the cores of the machine. It needs the extra `server`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.errors import UserError  # noqa: E402
from albert.predict.exported_model import newest_version  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.server_load import RunningServer, call_alone, send_load, table  # noqa: E402

FLAGS = flags.FLAGS


def make_instances(count: int) -> list[dict[str, str]]:
  """Makes instances of one to four English sentences, always the same ones."""
  text = (ROOT / "benchmarks" / "sentence_samples" / "en.txt").read_text(encoding="utf-8")
  sentences = [line for line in text.splitlines() if line]
  starts = [7 * index % (len(sentences) - 4) for index in range(count)]
  return [{"text": " ".join(sentences[start : start + 1 + index % 4])} for index, start in enumerate(starts)]


def main() -> None:
  """Runs the benchmark."""
  import tensorflow as tf
  import tensorflow_text  # noqa: F401

  model = tf.saved_model.load(newest_version(FLAGS.model))
  signature = model.signatures["serving_default"]
  if list(signature.structured_input_signature[1]) != ["text"]:
    raise UserError(f"--model={FLAGS.model}: give a model whose requests have one field, text")
  instances = make_instances(FLAGS.num_requests)
  load_average = os.getloadavg()[0]
  call_alone(signature, instances[:8])  # the first calls are slow
  loads = [call_alone(signature, instances)]
  with RunningServer(FLAGS.model) as server:
    for num_clients in FLAGS.clients:
      send_load(server, instances[:8], 1)
      loads.append(send_load(server, instances, int(num_clients)))
  print(f"Machine: {machine.describe()}; load average at the start {load_average:.1f}.\n\n{table(loads)}")


if __name__ == "__main__":
  flags.DEFINE_string("model", None, "the directory of an exported model's versions", required=True)
  flags.DEFINE_integer("num_requests", 256, "number of requests for each number of clients", lower_bound=2)
  flags.DEFINE_list("clients", ["1", "8", "64"], "numbers of clients that send requests at the same time")
  app.run(main)
