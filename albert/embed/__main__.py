"""Computes an embedding of each text of a file, and writes them to a .npy or Parquet file in the order of the texts.

python -m albert.embed --checkpoint=run --input_file=texts.txt --output_file=vectors.npy

With --queries=FILE, writes the nearest texts of each text of another file instead.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from albert import startup
from albert.config import command_flags
from albert.config.command_flags import MAX_BATCH_SIZE, Range
from albert.embed.input_output import Ids, InputTexts, NearestRows, check_output, open_texts, write_vectors
from albert.embed.sentence_vectors import POOLINGS
from albert.errors import UserError
from albert.io import files, json_text
from albert.io.progress import Progress, log
from albert.io.text import counted
from albert.tokenization.vocabulary import NO_VOCABULARY
from albert.weights.files import find_weights

if TYPE_CHECKING:
  import numpy as np

  from albert.embed.text_encoder import TextEncoder

# Texts that are sorted by length together, and whose embeddings are in memory together: 25 MB for a hidden size of 768.
_CHUNK_TEXTS = 8192
_DEFAULT_TOP_K = 10


def define_flags() -> None:
  """Defines the flags of this command."""

  def define_text(name: str, meaning: str) -> None:
    required = name in ("checkpoint", "input_file", "output_file")
    command_flags.define("str", name, None if required else "", meaning, required=required)

  define_text(
    "checkpoint",
    "output_dir of a run, a step-N directory, or any weights that --init_checkpoint of training takes; the vocabulary "
    "is beside them or in the run",
  )
  define_text("input_file", "file of texts: each line is a text, or with --text_column a table")
  define_text(
    "output_file",
    "file to write, in the order of the texts: NAME.npy, float32 [texts, size], and NAME.ids.txt with the ids; "
    "or NAME.parquet with the columns id and embedding; with --queries NAME.jsonl",
  )
  define_text(
    "queries",
    "file of texts in the form of --input_file (a file of lines also beside a table): for each of them, write the most "
    "similar texts of --input_file, by the cosine of their embeddings",
  )
  command_flags.define(
    "int", "top_k", None, "texts to write for each text of --queries (default: 10)", allowed=Range(1)
  )
  define_text(
    "text_column",
    "column of the texts, if --input_file is a table: .csv, .jsonl, .json, .ndjson, .parquet or tab-separated",
  )
  define_text("id_column", "column of the ids (default: the ids are the numbers of the lines, from 1)")
  command_flags.define(
    "str",
    "pooling",
    None,
    "mean: the mean of the last layer over all tokens; pooled: the output of the pooler at [CLS] (default: what a "
    "directory of sentence-transformers says, else mean)",
    choices=POOLINGS,
  )
  command_flags.define(
    "int",
    "max_seq_length",
    None,
    "largest number of tokens of a text, [CLS] and [SEP] included; longer texts are cut (default: what a "
    "directory of sentence-transformers says, else the number of the model's positions)",
    allowed=Range(3),
  )
  command_flags.define("int", "batch_size", 32, "texts computed together", allowed=Range(1, MAX_BATCH_SIZE))


def main() -> None:
  """Writes the embeddings of the texts."""
  values = flags.FLAGS
  weights = find_weights(values.checkpoint, flag="--checkpoint", select="")
  config = weights.require_config()
  if weights.vocabulary is None:
    raise UserError(f"--checkpoint={values.checkpoint}: {NO_VOCABULARY}")
  if values.max_seq_length and values.max_seq_length > config.max_position_embeddings:
    raise UserError(
      f"--max_seq_length={values.max_seq_length}: the model has only {config.max_position_embeddings} positions"
    )
  if values.top_k and not values.queries:
    raise UserError(f"--top_k={values.top_k}: give --queries, too: the file of the texts to search for")
  check_output(values.output_file, for_queries=bool(values.queries))
  texts = open_texts(values.input_file, values.text_column, values.id_column)
  queries = open_texts(values.queries, values.text_column, values.id_column, "--queries") if values.queries else None
  with startup.quick_imports():
    from albert.embed.text_encoder import TextEncoder  # imports TensorFlow, which takes seconds

  max_length, batch_size = values.max_seq_length, values.batch_size
  encoder = TextEncoder(weights.path, pooling=values.pooling, max_length=max_length, batch_size=batch_size)
  log(f"embeddings from {weights.path}")
  if queries is not None:
    _write_nearest(queries, texts, encoder)
    return
  path, size = values.output_file, encoder.hidden_size
  with write_vectors(path, texts.num_texts, size, ids_are_numbers=texts.ids_are_numbers) as write:
    for ids, vectors in _embed(texts, encoder):
      write(ids, vectors)
  print(f"wrote {path}: {counted(texts.num_texts, 'embedding')} of {size} numbers")


def _write_nearest(queries: InputTexts, texts: InputTexts, encoder: TextEncoder) -> None:
  """Writes the nearest texts of each query. The input is read twice, so that only they are in memory."""
  values = flags.FLAGS
  query_ids, query_texts = zip(*queries.pairs, strict=True)
  nearest = NearestRows(encoder.encode(query_texts), values.top_k or _DEFAULT_TOP_K)
  for _, vectors in _embed(texts, encoder):
    nearest.add(vectors)
  rows, scores = (part.tolist() for part in nearest.result())
  wanted = set(itertools.chain.from_iterable(rows))
  again = open_texts(values.input_file, values.text_column, values.id_column).pairs
  found = {row: pair for row, pair in enumerate(again) if row in wanted}
  with files.write_whole(values.output_file) as file:
    for query_id, rows_of_query, scores_of_query in zip(query_ids, rows, scores, strict=True):
      for row, score in zip(rows_of_query, scores_of_query, strict=True):
        text_id, text = found[row]
        line = {"query": query_id, "id": text_id, "score": round(score, 6), "text": text}
        file.write(f"{json_text.dumps(line, ensure_ascii=False)}\n".encode())
  print(f"wrote {values.output_file}: the nearest texts of {counted(queries.num_texts, 'text')}")


def _embed(texts: InputTexts, encoder: TextEncoder) -> Iterator[tuple[Ids, np.ndarray]]:
  """Yields the ids and the embeddings of the texts of a file, chunk by chunk. At the end, logs warnings."""
  num_empty = 0
  with Progress(texts.num_texts, " texts", "embedding") as progress:
    while chunk := list(itertools.islice(texts.pairs, _CHUNK_TEXTS)):
      ids, chunk_texts = zip(*chunk, strict=True)
      num_empty += sum(not text or text.isspace() for text in chunk_texts)
      yield ids, encoder.encode(chunk_texts, progress.update)
  encoder.log_warnings(" and ".join(filter(None, (flags.FLAGS.input_file, flags.FLAGS.queries))), "--max_seq_length")
  if num_empty:
    log(f"warning: {counted(num_empty, 'text')} of {texts.num_texts} without a character: such embeddings mean nothing")


if __name__ == "__main__":
  startup.run_command_of(__name__)
