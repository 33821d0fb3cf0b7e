"""Shards of a short text with a given vocabulary, and the settings of a quick training on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albert.tokenization.tokenizer import Tokenizer
from data_prep.create_pretraining_data import prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.job import Job
from tests.synthetic import TINY_MODEL

_SENTENCES_PER_DOCUMENT = 8


@dataclasses.dataclass(frozen=True)
class VocabularyFiles:
  """The files that the tests share: the vocabulary, the shards, and the settings of a quick training."""

  vocabulary: str
  shards: Path
  settings: dict[str, Any]


def prepare_shards(
  directory: Path, vocabulary: str, sentences: Sequence[str], *, dupe_factor: int = 1
) -> VocabularyFiles:
  """Writes the sentences, in documents of 8, and the shards made from them.

  Args:
    directory: the directory for the text and the shards.
    vocabulary: path of the vocabulary.
    sentences: the text.
    dupe_factor: how many examples with other masks are made of each sequence.
  """
  starts = range(0, len(sentences), _SENTENCES_PER_DOCUMENT)
  documents = ["\n".join(sentences[start : start + _SENTENCES_PER_DOCUMENT]) for start in starts]
  text = directory / "text.txt"
  text.write_text("\n\n".join(documents), "utf-8")
  shards = directory / "shards"
  preparation = PreparationSettings(max_seq_length=48, dupe_factor=dupe_factor)
  prepare(Job(inputs=(str(text),), output_dir=str(shards), spm_model_file=vocabulary, settings=preparation))
  model = dataclasses.replace(TINY_MODEL, vocab_size=Tokenizer(vocabulary).vocab_size, max_position_embeddings=64)
  training = {"num_train_steps": 2, "num_warmup_steps": 1, "train_batch_size": 4, "log_every_steps": 1}
  settings = {"model": model, "spm_model_file": vocabulary, "precision": "float32", **training}
  return VocabularyFiles(vocabulary, shards, settings)
