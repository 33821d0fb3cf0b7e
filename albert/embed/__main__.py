"""Computes an embedding of each text of a file, and writes them to a .npy or Parquet file in the order of the texts.

python -m albert.embed --checkpoint=run --input_file=texts.txt --output_file=vectors.npy
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import itertools
from typing import TYPE_CHECKING

from absl import flags

from albert import startup
from albert.config import command_flags
from albert.config.command_flags import MAX_BATCH_SIZE, Range
from albert.embed.input_output import InputTexts, check_output, open_texts, write_vectors
from albert.embed.sentence_vectors import POOLINGS
from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress, log
from albert.io.text import counted
from albert.tokenization.vocabulary import NO_VOCABULARY
from albert.weights.files import CONFIG_NAMES, find_weights

if TYPE_CHECKING:
  from albert.embed.text_encoder import TextEncoder

# Texts that are sorted by length together, and whose embeddings are in memory together: 25 MB for a hidden size of 768.
_CHUNK_TEXTS = 8192


def define_flags() -> None:
  """Defines the flags of this command."""

  def define_text(name: str, meaning: str) -> None:
    required = name in ("checkpoint", "input_file", "output_file")
    command_flags.define("str", name, None if required else "", meaning, required=required)

  define_text(
    "checkpoint",
    "output_dir of a run, a step-N directory, or any weights that --init_checkpoint of run_* takes; the vocabulary "
    "is beside them or in the run",
  )
  define_text("input_file", "file of texts: each line is a text, or with --text_column a table")
  define_text(
    "output_file",
    "file to write, in the order of the texts: NAME.npy, float32 [texts, hidden size], and NAME.ids.txt with the ids; "
    "or NAME.parquet with the columns id and embedding",
  )
  define_text(
    "text_column",
    "column of the texts, if --input_file is a table: .csv, .jsonl (or .json, .ndjson), .parquet, or tab-separated "
    "columns with a header",
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
  config = weights.config()
  if config is None:
    raise UserError(f"--checkpoint={values.checkpoint}: has no {' or '.join(CONFIG_NAMES)} beside it: put it there")
  if weights.vocabulary is None:
    raise UserError(f"--checkpoint={values.checkpoint}: {NO_VOCABULARY}")
  if values.max_seq_length and values.max_seq_length > config.max_position_embeddings:
    raise UserError(
      f"--max_seq_length={values.max_seq_length}: the model has only {config.max_position_embeddings} positions"
    )
  if not files.exists(values.input_file):
    raise UserError(f"--input_file={values.input_file}: no such file")
  check_output(values.output_file)
  texts = open_texts(values.input_file, values.text_column, values.id_column)
  with startup.quick_imports():
    from albert.embed.text_encoder import TextEncoder  # imports TensorFlow, which takes seconds

  encoder = TextEncoder(
    weights.path,
    pooling=values.pooling,
    max_length=values.max_seq_length,
    batch_size=values.batch_size,
  )
  log(f"embeddings from {weights.path}")
  _write(texts, values.input_file, encoder, values.output_file)
  print(f"wrote {values.output_file}: {counted(texts.num_texts, 'embedding')} of {encoder.hidden_size} numbers")


def _write(texts: InputTexts, source: str, encoder: TextEncoder, path: str) -> None:
  """Writes the embeddings of the texts of a file to another, chunk by chunk."""
  num_empty = 0
  with (
    write_vectors(path, texts.num_texts, encoder.hidden_size, ids_are_numbers=texts.ids_are_numbers) as write,
    Progress(texts.num_texts, " texts", "embedding") as progress,
  ):
    while chunk := list(itertools.islice(texts.pairs, _CHUNK_TEXTS)):
      ids, chunk_texts = zip(*chunk, strict=True)
      num_empty += sum(not text or text.isspace() for text in chunk_texts)
      write(ids, encoder.encode(chunk_texts, progress.update))
  encoder.log_warnings(source, "--max_seq_length")
  if num_empty:
    log(f"warning: {counted(num_empty, 'text')} of {texts.num_texts} without a character: such embeddings mean nothing")


if __name__ == "__main__":
  startup.run_command_of(__name__)
