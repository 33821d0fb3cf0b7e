"""Tokenizes texts in which [MASK] stands for a token that a masked language model predicts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from albert.tokenization.packing import pack_single, padded
from albert.tokenization.tokenizer import Tokenizer, check_texts

MASK = "[MASK]"


def masked_batch(tokenizer: Tokenizer, texts: Iterable[str], *, max_length: int = 512) -> dict[str, np.ndarray]:
  """Converts texts with [MASK] to a padded batch, the input of a masked language model.

  Args:
    tokenizer: the tokenizer of the model.
    texts: N texts, in which each [MASK] stands for one token. (In `tokenizer(texts)`, "[MASK]" is text like any other.)
    max_length: largest number of tokens in a sequence, [CLS] and [SEP] included; a longer text is cut at its end.

  Returns:
    input_ids, input_mask and segment_ids, int32 [N, S], see Tokenizer.__call__.

  Raises:
    UserError: texts is a single string, one of the texts is no string, or max_length leaves no room for text.

  Example:
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> batch = albert.masked_batch(tokenizer, ["They drank the [MASK] dry."])
    >>> int((batch["input_ids"] == 4).sum())
    1
  """
  ids_of_texts = [encode_with_masks(tokenizer, text) for text in check_texts(texts, "texts")]
  offsets = np.cumsum([0, *map(len, ids_of_texts)])
  ids = np.array([token for text_ids in ids_of_texts for token in text_ids], np.int32)
  special_ids = tokenizer.special_ids
  return padded(*pack_single((ids, offsets), max_length, special_ids), pad_id=special_ids.pad)


def encode_with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
  """Encodes a text that contains [MASK].

  Args:
    tokenizer: the tokenizer.
    text: the text. Each [MASK] stands for one piece.
  Returns: the ids, without [CLS] and [SEP].
  """
  ids: list[int] = []
  parts = text.split(MASK)
  for index, part in enumerate(parts):
    if index:
      ids.append(tokenizer.special_ids.mask)
    # The space before a mask belongs to the token that the mask stands for. Only byte-level BPE has tokens for spaces.
    part_ids = tokenizer.encode(part if index == len(parts) - 1 else part.rstrip())
    if index and part_ids and not part[0].isspace():
      # SentencePiece marks the first piece of a text as the start of a word. If text such as "." follows a mask
      # without a space, its first piece must not be marked.
      first_id = int(tokenizer.vocabulary.ids_inside_word[part_ids[0]])
      part_ids[:1] = [first_id] if first_id >= 0 else []
    ids += part_ids
  return ids
