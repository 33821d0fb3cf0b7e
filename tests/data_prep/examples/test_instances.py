"""PreparationSettings, and making instances of a unit of text with a real vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import CLS_ID, MASK_ID, SEP_ID
from data_prep.block_files import Block
from data_prep.blocks import BlockTask, make_block, start_worker
from data_prep.documents import Counts
from data_prep.examples.instances import InstanceMaker
from data_prep.examples.settings import PreparationSettings
from data_prep.units import TextUnit, plan_units, read_range
from tests.conftest import english_like_documents


@pytest.mark.parametrize(
  ("max_seq_length", "masked_lm_prob", "expected"),
  [(512, 0.15, 77), (128, 0.15, 20), (100, 0.15, 15), (64, 0.2, 13)],  # the rounded product
)
def test_max_predictions_per_seq_follows_from_length_and_probability(
  max_seq_length: int, masked_lm_prob: float, expected: int
) -> None:
  derived = PreparationSettings(max_seq_length=max_seq_length, masked_lm_prob=masked_lm_prob)
  assert derived.max_predictions_per_seq == expected
  assert PreparationSettings(max_seq_length=max_seq_length, max_predictions_per_seq=5).max_predictions_per_seq == 5


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


@pytest.mark.parametrize(
  ("input_format", "prediction", "message"),
  [("full_sentences", "sop", "these inputs have one segment"), ("sentence_pair", "none", "give sop or nsp")],
)
def test_settings_that_exclude_each_other_are_refused(input_format: str, prediction: str, message: str) -> None:
  message = f"--input_format={input_format} with --sentence_prediction={prediction}: .*{message}"
  with pytest.raises(UserError, match=message):
    PreparationSettings(input_format=input_format, sentence_prediction=prediction)


def test_instances_hold_the_tokens_of_the_text(corpus_file: str, spm_model: str) -> None:
  settings = PreparationSettings(max_seq_length=128, dupe_factor=2)
  maker = InstanceMaker(settings, spm_model)
  (unit,) = plan_units([corpus_file], with_donors=False)
  documents, num_used, counts = maker.load(unit)
  text = Path(corpus_file).read_text(encoding="utf-8")
  tokenizer = Tokenizer(spm_model)
  assert documents.ids.tolist() == [token for line in text.split("\n") for token in tokenizer.encode(line)]
  assert counts == Counts(documents=300, tokens=documents.ids.size, dropped=0, cut=0)
  assert num_used == 300
  num_tokens = 0
  for batch in maker.make_batches(documents, num_used):
    unmasked_ids = batch.masked.ids.copy()
    unmasked_ids[batch.masked.positions] = batch.masked.labels
    ids_of_instances = np.split(unmasked_ids, batch.tokens.row_splits[1:-1])
    for row, ids in enumerate(ids_of_instances):
      # Offsets in documents.ids.
      a_start, a_end, b_start, b_end = (int(column[row]) for column in batch.instances[:4])
      segment_a, segment_b = documents.ids[a_start:a_end], documents.ids[b_start:b_end]
      assert ids.tolist() == [CLS_ID, *segment_a.tolist(), SEP_ID, *segment_b.tolist(), SEP_ID]
      num_tokens += segment_a.size + segment_b.size
    replacements = batch.masked.ids[batch.masked.positions]
    assert not maker.tokenizer.is_special[replacements[replacements != MASK_ID]].any()
  # dupe_factor is 2, so all text is used twice. Only pairs that are too long lose tokens, about half a sentence each.
  assert 0.8 < num_tokens / (2 * documents.ids.size) <= 1


def test_random_replacements_are_never_special(spm_model: str) -> None:
  maker = InstanceMaker(PreparationSettings(), spm_model)
  assert maker.random_ids.tolist() == list(range(5, maker.tokenizer.vocab_size))  # 0 to 4 are special


def test_full_sentences_cross_documents_with_separators(corpus_file: str, spm_model: str) -> None:
  settings = PreparationSettings(
    max_seq_length=128, dupe_factor=1, short_seq_prob=0, sentence_prediction="none", input_format="full_sentences"
  )
  maker = InstanceMaker(settings, spm_model)
  (unit,) = plan_units([corpus_file], with_donors=False)
  documents, num_used, counts = maker.load(unit)
  assert (len(documents), num_used, counts.documents) == (1, 1, 300)
  ids_by_start: list[tuple[int, np.ndarray]] = []  # (offset of the first token, ids) of each instance
  for batch in maker.make_batches(documents, num_used):
    unmasked_ids = batch.masked.ids.copy()
    unmasked_ids[batch.masked.positions] = batch.masked.labels
    assert not (batch.masked.labels == SEP_ID).any()
    starts = batch.instances.a_start
    ids_of_instances = np.split(unmasked_ids, batch.tokens.row_splits[1:-1])
    ids_by_start += zip(starts.tolist(), ids_of_instances, strict=True)
  tokenizer = Tokenizer(spm_model)
  text_ids = [
    token for line in Path(corpus_file).read_text(encoding="utf-8").splitlines() for token in tokenizer.encode(line)
  ]
  # Together, the instances hold the text of all documents in order.
  instances = [ids.tolist() for _, ids in sorted(ids_by_start, key=lambda item: item[0])]
  assert [token for ids in instances for token in ids[1:] if token != SEP_ID] == text_ids
  # Each instance has a separator at its end, and some instances have one between two documents.
  assert sum(ids.count(SEP_ID) for ids in instances) > len(instances)
  lengths = [len(ids) for ids in instances]
  assert max(lengths) <= 128
  assert np.median(lengths) > 110  # sentences of this text have about 10 tokens


def test_a_document_is_held_out_or_trained_on_but_never_both(tmp_path: Path, spm_model: str) -> None:
  documents = english_like_documents(200, seed=5)
  long_document = [f"the captain sold the river {number}" for number in range(1500)]  # 45 KB, several units
  path = tmp_path / "text.txt"
  path.write_text("\n\n".join("\n".join(document) for document in (*documents, long_document, *documents[:50])))
  units = [
    TextUnit((read_range(unit.ranges[0], 4096),))
    for unit in plan_units([str(path)], with_donors=False, unit_bytes=4096)
  ]

  def load(**settings: object) -> dict[int, bytes]:
    """Returns the first byte of each document of all units -> its ids."""
    maker = InstanceMaker(PreparationSettings(), spm_model).with_settings(PreparationSettings(**settings))  # type: ignore[arg-type]
    loaded = [maker.load(unit)[0] for unit in units]
    parts = [(d.offsets, np.split(d.ids, d.splits[1:-1])) for d in loaded if len(d)]
    return {offset: ids.tobytes() for offsets, all_ids in parts for offset, ids in zip(offsets, all_ids, strict=True)}

  everything, training, heldout = load(), load(eval_share=0.25), load(eval_share=0.25, heldout=True)
  assert everything == training | heldout
  assert not {*training.values()} & {*heldout.values()}
  assert len({*heldout.values()}) == pytest.approx(0.25 * 200, abs=4 * (200 * 0.25 * 0.75) ** 0.5)
  long_start = len("\n\n".join("\n".join(document) for document in documents).encode()) + 2
  parts_of_long = [offset for offset in everything if long_start <= offset < long_start + 44_000]
  assert len(parts_of_long) > 3
  assert not heldout.keys() & {*parts_of_long}
  assert load(eval_share=0.25, heldout=True, random_seed=1).keys() != heldout.keys()


@pytest.mark.parametrize(("next_document", "num_dropped"), [("one more\n", 0), ("", 1)])
def test_a_document_alone_in_its_unit_needs_another_in_the_next_unit_for_nsp(
  tmp_path: Path, spm_model: str, next_document: str, num_dropped: int
) -> None:
  """Random second segments come from the next unit. If that has no document, the document is dropped."""
  (tmp_path / "a.txt").write_text("the captain sold the river\nnobody watched\n" * 5)
  (tmp_path / "b.txt").write_text(next_document + "\n")
  settings = PreparationSettings(max_seq_length=32, sentence_prediction="nsp", dupe_factor=20)
  maker = InstanceMaker(settings, spm_model)
  paths = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
  unit = next(iter(plan_units(paths, with_donors=True, unit_bytes=200)))
  documents, num_used, counts = maker.load(unit)
  assert counts.dropped == num_dropped
  assert num_used == 1 - num_dropped
  path = str(tmp_path / "a.block")
  start_worker(settings, spm_model)
  assert make_block(BlockTask((unit,), path, (), settings))
  block = Block.load(path)
  assert block is not None
  labels = block.summary["labels"]  # numbers of instances with label 0 and with label 1
  if num_dropped:
    assert labels == [0, 0]
  else:
    (batch,) = maker.make_batches(documents, num_used)
    # The second document is the one of the next unit.
    is_from_next_unit = batch.instances.b_start >= documents.splits[1]
    np.testing.assert_array_equal(is_from_next_unit, batch.instances.labels == 1)
    assert min(labels) > 0
