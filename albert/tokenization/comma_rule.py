"""The comma rule of ALBERT's tokenizer: a comma after a digit is a token of its own.

A piece of at least two characters that ends in a digit and "," is encoded again without the comma, and the comma
becomes a token of its own. For example, "1999," becomes `▁1999` `,`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sentencepiece

from albert.tokenization.normalization import has_newer_characters
from albert.tokenization.pieces import UNK_ID, WORD_START


def ends_in_digit_comma(piece: str) -> bool:
  """Returns whether the comma rule applies to a piece: it ends in a digit and a comma."""
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() and not has_newer_characters(piece[-2])


class CommaRule:
  """Applies the comma rule to the ids of a vocabulary.

  Args:
    processor: the SentencePiece model.
    pieces: the V pieces, in order of their ids.
    is_special: bool [V], True for pieces that do not represent text (control symbols, <unk>, unused pieces).

  Attributes:
    ids_decide: whether the ids alone tell to which tokens the rule applies. This is so if "," is a piece, because an
      <unk> then never stands for text with a comma.
    splits: id of a piece to which the rule applies -> the ids that replace it.
  """

  def __init__(self, processor: sentencepiece.SentencePieceProcessor, pieces: Sequence[str], is_special: np.ndarray):
    self._processor = processor
    self._is_special = is_special
    self.ids_decide = processor.piece_to_id(",") != UNK_ID
    self.splits: dict[int, list[int]] = {
      i: self.split_ids(piece) for i, piece in enumerate(pieces) if ends_in_digit_comma(piece) and not is_special[i]
    }
    self._ids_with_split = frozenset(self.splits)

  def apply(self, batch: list[list[int]], texts: list[str]) -> list[list[int]]:
    """Applies the rule to the ids of texts.

    Args:
      batch: the ids of each text. The outer list may be changed.
      texts: the normalized texts.

    Returns:
      The new ids of each text.
    """
    if not self.ids_decide:
      surfaces = self._processor.encode(texts, out_type=str, num_threads=1)
      return [self._apply_by_surface(ids, text_surfaces) for ids, text_surfaces in zip(batch, surfaces, strict=True)]
    for index, ids in enumerate(batch):
      if not self._ids_with_split.isdisjoint(ids):
        batch[index] = [new_id for old_id in ids for new_id in self.splits.get(old_id, (old_id,))]
    return batch

  def _apply_by_surface(self, ids: list[int], surfaces: list[str]) -> list[int]:
    """Applies the rule to one text. `surfaces`: the text of each id. An <unk> may stand for a number and ","."""
    new_ids: list[int] = []
    for i, surface in zip(ids, surfaces, strict=True):
      if ends_in_digit_comma(surface):
        new_ids += self.split_ids(surface)
      else:
        new_ids.append(i)
    return new_ids

  def split_ids(self, piece: str) -> list[int]:
    """Returns the ids that replace a piece (or the text of an <unk>) to which the rule applies."""
    ids = [int(self._processor.piece_to_id(surface)) for surface in self.split_surfaces(piece)]
    return [UNK_ID if self._is_special[i] else i for i in ids]

  def split_surfaces(self, piece: str) -> list[str]:
    """Returns the texts of the tokens that replace a piece (or the text of an <unk>); the last one is ","."""
    surfaces: list[str] = self._processor.encode(piece[:-1].replace(WORD_START, ""), out_type=str)
    # SentencePiece puts ▁ before every text. It is removed if the piece has none.
    if not piece.startswith(WORD_START) and surfaces[0].startswith(WORD_START):
      surfaces[0] = surfaces[0].removeprefix(WORD_START)
      if not surfaces[0]:
        del surfaces[0]
    return [*surfaces, ","]
