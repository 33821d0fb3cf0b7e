"""Texts with [MASK] become batches. tests/tasks/pretraining/test_pretraining.py tests the ids of a single text."""

from __future__ import annotations

import pytest

from albert.errors import UserError
from albert.tokenization.masked_texts import encode_with_masks, masked_batch
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, SEP_ID, Tokenizer


def test_a_batch_holds_the_ids_of_each_text(spm_model: str) -> None:
  tokenizer = Tokenizer(spm_model)
  texts = ["the [MASK] sold the [MASK].", "", "[MASK]", "the captain " * 20]
  max_length = 12
  batch = masked_batch(tokenizer, texts, max_length=max_length)
  assert batch["input_ids"].shape == (4, max_length)
  for text, ids, mask, segments in zip(texts, *batch.values(), strict=True):
    expected = [CLS_ID, *encode_with_masks(tokenizer, text)[: max_length - 2], SEP_ID]  # without [CLS] and [SEP]
    assert ids[: mask.sum()].tolist() == expected
    assert not ids[mask.sum() :].any()
    assert not segments.any()
  assert (batch["input_ids"] == MASK_ID).sum(axis=1).tolist() == [2, 0, 1, 0]
  assert masked_batch(tokenizer, [])["input_ids"].shape == (0, 0)


def test_a_single_text_is_refused(spm_model: str) -> None:
  with pytest.raises(UserError, match=r"texts is the single text 'a \[MASK\]': give a list of texts"):
    masked_batch(Tokenizer(spm_model), "a [MASK]")
