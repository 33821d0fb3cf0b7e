"""The settings of a tokenizer."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """Which vocabulary a tokenizer uses and how it normalizes text.

  `albert.tokenization.recorded_settings` finds the values that a vocabulary was made with.

  Attributes:
    model_file: path of the vocabulary (--spm_model_file); its name says of which kind it is.
    do_lower_case: whether text is lower-cased. It must be as it was when the vocabulary was trained.
    convert_quotes: whether `` and '' are replaced by ". The original ALBERT does not do this.
    keep_accents: whether characters are neither decomposed nor lose their accents, which the original ALBERT does not
      do. It must be as it was when the vocabulary was trained.
  """

  model_file: str
  do_lower_case: bool = True
  convert_quotes: bool = False
  keep_accents: bool = False

  def switches(self) -> dict[str, bool]:
    """Returns the settings besides the vocabulary by name, the arguments of `normalization.normalize_text`."""
    return {name: value for name, value in vars(self).items() if name != "model_file"}
