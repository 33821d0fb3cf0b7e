"""The vocabularies that the variants of an experiment are trained with. Each type is trained on the same text."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from albert.errors import UserError
from albert.experiments.commands import Command, command_line
from albert.experiments.inputs import Inputs
from albert.io import files
from albert.runs import output_files
from albert.tokenization.vocabulary import vocabulary_paths

# The type of a variant that names none: ALBERT's SentencePiece unigram model.
UNIGRAM = "unigram"
# Value of train_vocab --type -> name of the file that it writes.
FILE_NAMES = {
  UNIGRAM: output_files.VOCABULARY,
  "bpe": output_files.VOCABULARY,
  "wordpiece": "vocab.txt",
  "byte_level_bpe": "vocab.json",
}
# The types that the package tokenizers trains. A small text gives fewer pieces of them than --vocab_size.
_TRAINED_BY_TOKENIZERS = ("wordpiece", "byte_level_bpe")


class Vocabularies:
  """The paths of an experiment's vocabularies, and the commands that train them.

  Args:
    types: the type of each variant, from FILE_NAMES.
    inputs: the inputs that the user gives.
    texts: globs of the text to train on.
    shared_directory: returns the directory for a name, the flags of a command and the user's files that it reads.
    source: the flag that names the experiment, for error messages.
  Raises:
    UserError: a vocabulary is given although the experiment compares several, or the package tokenizers is missing
      that trains one of them.
  """

  def __init__(
    self,
    types: Sequence[str],
    inputs: Inputs,
    texts: str,
    shared_directory: Callable[[str, Mapping[str, Any], str], str],
    *,
    source: str,
  ):
    self._types = list(dict.fromkeys(types))
    self._inputs, self._texts, self._shared_directory = inputs, texts, shared_directory
    if inputs.spm_model_file and self._types != [UNIGRAM]:
      raise UserError(
        f"{source} trains vocabularies of the types {', '.join(self._types)}: leave out "
        f"--spm_model_file={inputs.spm_model_file}"
      )
    for kind in self._types:
      is_trainable = kind not in _TRAINED_BY_TOKENIZERS or importlib.util.find_spec("tokenizers")
      if not is_trainable and not files.exists(self._last_file(kind)):
        raise UserError(
          f"{source} trains a vocabulary of the type {kind}, which needs the package tokenizers: "
          "pip install 'tokenizers>=0.20,<1'"
        )

  def path(self, kind: str) -> str:
    """Returns the path of the vocabulary of a type: the user's, or that of the vocabulary that is trained."""
    return self._inputs.spm_model_file or files.join(self._directory(kind), FILE_NAMES[kind])

  def may_be_smaller(self, kind: str) -> bool:
    """Returns whether a vocabulary of this type may have fewer pieces than `vocab_size` of the inputs."""
    return kind in _TRAINED_BY_TOKENIZERS

  def training_commands(self) -> list[Command]:
    """Returns the commands that train the vocabularies; none if the user gives one."""
    if self._inputs.spm_model_file:
      return []
    return [self._training_command(kind) for kind in self._types]

  def _training_command(self, kind: str) -> Command:
    words = command_line("data_prep.train_vocab", output_dir=self._directory(kind), **self._flags(kind))
    return Command("vocabulary" if kind == UNIGRAM else f"vocabulary: {kind}", words, self._last_file(kind))

  def _flags(self, kind: str) -> dict[str, Any]:
    """Returns the flags of train_vocab. They have no --type if it is the default, which keeps earlier directories."""
    type_flag = {} if kind == UNIGRAM else {"type": kind}
    return {"input_file": self._texts, "vocab_size": self._inputs.vocab_size, **type_flag}

  def _directory(self, kind: str) -> str:
    name = "vocab" if kind == UNIGRAM else f"vocab-{kind}"
    return self._shared_directory(name, self._flags(kind), self._inputs.corpus)

  def _last_file(self, kind: str) -> str:
    """Returns the file that train_vocab writes last: of vocab.json and merges.txt the second."""
    return vocabulary_paths(files.join(self._directory(kind), FILE_NAMES[kind]))[-1]
