"""The settings of a tokenizer."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """Which vocabulary a tokenizer uses and how it normalizes text.

  Attributes:
    model_file: path of the vocabulary (--spm_model_file); its name says of which kind it is.
    do_lower_case: whether text is lower-cased. It must be as it was when the vocabulary was trained.
    convert_quotes: whether `` and '' are replaced by ". The original ALBERT does not do this.
  """

  model_file: str
  do_lower_case: bool = True
  convert_quotes: bool = False
