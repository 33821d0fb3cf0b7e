"""PreparationSettings, and turning a unit of text into instances with a real vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from albert.errors import UserError
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, SEP_ID, Tokenizer
from data_prep.documents import Counts
from data_prep.instances import InstanceMaker, make_batches, replacement_ids
from data_prep.runners.unit_spills import UnitTask, write_spill
from data_prep.settings import PreparationSettings
from data_prep.sorting.spills import Spill
from data_prep.units import plan_units


@pytest.mark.parametrize(
  ("length", "prob", "expected"), [(512, 0.15, 77), (128, 0.15, 20), (100, 0.15, 15), (64, 0.2, 13)]
)
def test_derived_predictions(length: int, prob: float, expected: int) -> None:
  assert PreparationSettings(max_seq_length=length, masked_lm_prob=prob).max_predictions_per_seq == expected
  assert PreparationSettings(max_seq_length=length, max_predictions_per_seq=5).max_predictions_per_seq == 5


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("max_seq_length", 7),
    ("max_seq_length", 1 << 16),
    ("max_predictions_per_seq", 513),
    ("max_predictions_per_seq", -1),
    ("masked_lm_prob", 0.0),
    ("masked_lm_prob", 1.5),
    ("ngram", 0),
    ("short_seq_prob", -0.1),
    ("dupe_factor", 0),
    ("sentence_prediction", "both"),
    ("input_format", "pages"),
  ],
)
def test_bad_settings_name_the_flag(name: str, value: object) -> None:
  with pytest.raises(UserError, match=f"^{name} must be .*, got {value!r}$"):
    PreparationSettings(**{name: value})  # type: ignore[arg-type]


def test_instances_restore_the_text(corpus_file: str, spm_model: str) -> None:
  settings = PreparationSettings(max_seq_length=128, dupe_factor=2)
  maker = InstanceMaker(settings, spm_model)
  (unit,) = plan_units([corpus_file], with_donors=False)
  documents, num_used, counts = maker.load(unit)
  text = Path(corpus_file).read_text(encoding="utf-8")
  tokenizer = Tokenizer(spm_model)
  assert documents.ids.tolist() == [i for line in text.split("\n") for i in tokenizer.encode(line)]
  assert counts == Counts(documents=300, tokens=documents.ids.size, dropped=0, cut=0)
  assert num_used == 300
  num_tokens = 0
  for batch in make_batches(documents, num_used, settings, maker.random_ids):
    restored = batch.masked.ids.copy()
    restored[batch.masked.positions] = batch.masked.labels
    for row, ids in enumerate(np.split(restored, batch.tokens.row_splits[1:-1])):
      instance = [int(column[row]) for column in batch.instances[:4]]
      a, b = documents.ids[instance[0] : instance[1]], documents.ids[instance[2] : instance[3]]
      assert ids.tolist() == [CLS_ID, *a.tolist(), SEP_ID, *b.tolist(), SEP_ID]
      num_tokens += a.size + b.size
    changed = batch.masked.ids[batch.masked.positions]
    assert not maker.tokenizer.is_special[changed[changed != MASK_ID]].any()
  # All text is used twice, except for the tokens that are cut from pairs that are too long (half a sentence each).
  assert 0.8 < num_tokens / (2 * documents.ids.size) <= 1


def test_random_replacements_are_never_special(spm_model: str) -> None:
  tokenizer = Tokenizer(spm_model)
  ids = replacement_ids(tokenizer)
  assert ids.tolist() == list(range(5, tokenizer.vocab_size))


def test_full_sentences_cross_documents_with_separators(corpus_file: str, spm_model: str) -> None:
  settings = PreparationSettings(
    max_seq_length=128, dupe_factor=1, short_seq_prob=0, sentence_prediction="none", input_format="full_sentences"
  )
  maker = InstanceMaker(settings, spm_model)
  (unit,) = plan_units([corpus_file], with_donors=False)
  documents, num_used, counts = maker.load(unit)
  assert (len(documents), num_used, counts.documents) == (1, 1, 300)
  rows = []
  for batch in make_batches(documents, num_used, settings, maker.random_ids):
    restored = batch.masked.ids.copy()
    restored[batch.masked.positions] = batch.masked.labels
    assert not (batch.masked.labels == SEP_ID).any()
    starts = batch.instances.a_start
    rows += list(zip(starts.tolist(), np.split(restored, batch.tokens.row_splits[1:-1]), strict=True))
  tokenizer = Tokenizer(spm_model)
  whole = Path(corpus_file).read_text(encoding="utf-8").strip().split("\n\n")
  texts = [[i for line in document.split("\n") for i in tokenizer.encode(line)] for document in whole]
  # The instances contain the text of all documents in order. Separators are between documents.
  pieces = [ids[1:].tolist() for _, ids in sorted(rows, key=lambda row: row[0])]
  assert [i for piece in pieces for i in piece if i != SEP_ID] == [i for text in texts for i in text]
  assert sum(piece.count(SEP_ID) for piece in pieces) > len(pieces)
  lengths = [len(piece) + 1 for piece in pieces]
  assert max(lengths) <= 128
  assert np.median(lengths) > 110  # sentences of this text are about 10 tokens


@pytest.mark.parametrize(("donors", "expected"), [("one more\n", 0), ("", 1)])
def test_nsp_document_alone_in_its_unit(tmp_path: Path, spm_model: str, donors: str, expected: int) -> None:
  """Random second segments come from the next unit. If it has no documents, the document is dropped."""
  (tmp_path / "a.txt").write_text("the captain sold the river\nnobody watched\n" * 5)
  (tmp_path / "b.txt").write_text(donors + "\n")
  settings = PreparationSettings(max_seq_length=32, sentence_prediction="nsp", dupe_factor=20)
  maker = InstanceMaker(settings, spm_model)
  paths = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
  unit = next(iter(plan_units(paths, with_donors=True, unit_bytes=200)))
  documents, num_used, counts = maker.load(unit)
  assert counts.dropped == expected
  assert num_used == 1 - expected
  path = str(tmp_path / "unit.spill")
  write_spill(maker, UnitTask(unit, path))
  spill = Spill.load(path)
  assert spill is not None
  labels = spill.summary["labels"]
  if expected:
    assert labels == [0, 0]
  else:
    (batch,) = make_batches(documents, num_used, settings, maker.random_ids)
    foreign = batch.instances.b_start >= documents.splits[1]
    np.testing.assert_array_equal(foreign, batch.instances.labels == 1)
    assert min(labels) > 0
