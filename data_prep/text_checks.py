"""Tells the user what is wrong with the text of data preparation."""

from __future__ import annotations

# A vocabulary trained on text of the same kind leaves far less: 0.02% of a novel's tokens with the defaults.
_MUCH_UNKNOWN = 0.01


def unknown_warning(where: str, share: float) -> str | None:
  """A line if more than 1% of the tokens are <unk>; `where` begins it."""
  if share <= _MUCH_UNKNOWN:
    return None
  return (
    f"warning: {where}: {share:.1%} of the tokens are <unk>, since the vocabulary lacks characters of this text: "
    "train a vocabulary on text of this kind (data_prep.train_vocab, with a greater --character_coverage), or give "
    "text in the language of the vocabulary"
  )
