"""Dynamic masking follows the rules of data preparation. Masks depend on the seed and the example's number only."""

from __future__ import annotations

import contextlib
import json
import math
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.model import ModelConfig
from albert.data import pipeline, schema
from albert.data.dataset import InputContext
from albert.data.dynamic_masking import DynamicMasking, unmasked_ids
from albert.data.shards import count_and_hash_shards
from albert.errors import UserError
from albert.io.files import expand_globs
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import MASK_ID, SENTENCE_PIECE_IDS
from data_prep.create_pretraining_data import prepare
from data_prep.examples.instances import InstanceMaker
from data_prep.examples.packing import pack, unpack
from data_prep.examples.settings import PreparationSettings
from data_prep.job import Job
from data_prep.units import TextUnit, plan_units
from tests.conftest import english_like_documents, train_small_model
from tests.synthetic import SEQ_LENGTH, example

LENGTH = 64
MAX_PREDICTIONS = 10  # ceil(0.15 * 64)


def _make_features(num_examples: int, length: int = SEQ_LENGTH) -> dict[str, np.ndarray]:
  """Feature -> its values for all examples, [examples, length]."""
  rng = np.random.default_rng(7)
  examples = [example(number, rng, length) for number in range(num_examples)]
  return {
    name: np.stack([features[name] for features in examples]).astype(first_value.dtype)
    for name, first_value in examples[0].items()
  }


def _make_masking(vocab_size: int = 64, masked_lm_prob: float = 0.15, ngram: int = 3) -> DynamicMasking:
  """Dynamic masking for a vocabulary in which 70% of the pieces start a word."""
  word_starts = np.random.default_rng(1).random(vocab_size) < 0.7
  random_ids = np.arange(5, vocab_size)  # without the 5 special tokens
  return DynamicMasking(word_starts, random_ids, masked_lm_prob, ngram, SENTENCE_PIECE_IDS)


def test_new_masks_keep_the_text():
  features, masking = _make_features(40), _make_masking()
  first_epoch = features | masking.mask(features, np.arange(40), seed=3)
  second_epoch = features | masking.mask(features, np.arange(40) + 40, seed=3)
  text = unmasked_ids(features)
  for masked in (first_epoch, second_epoch):
    np.testing.assert_array_equal(unmasked_ids(masked), text)
    for name, value in features.items():
      assert (masked[name].shape, masked[name].dtype) == (value.shape, value.dtype)
    weights, positions = masked[schema.MASKED_LM_WEIGHTS], masked[schema.MASKED_LM_POSITIONS]
    assert (np.diff(weights) <= 0).all()  # predictions first, then padding
    assert not positions[weights == 0].any()
    assert not masked[schema.MASKED_LM_IDS][weights == 0].any()
    for row, count in enumerate(weights.sum(axis=1).astype(int)):
      assert (np.diff(positions[row, :count]) > 0).all()
  has_new_masks = first_epoch[schema.MASKED_LM_POSITIONS] != second_epoch[schema.MASKED_LM_POSITIONS]
  assert has_new_masks.any(axis=1).mean() > 0.8


def test_masks_depend_only_on_seed_and_example_number():
  features, masking = _make_features(12), _make_masking()
  example_numbers = np.array([5, 900, 2**40, 7, 1, 2, 3, 4, 60, 61, 62, 63])
  together = masking.mask(features, example_numbers, seed=3)
  for row in (0, 2, 11):
    row_features = {name: value[row : row + 1] for name, value in features.items()}
    alone = masking.mask(row_features, example_numbers[row : row + 1], seed=3)
    for name, value in alone.items():
      np.testing.assert_array_equal(value[0], together[name][row])
  other_seed = masking.mask(features, example_numbers, seed=4)
  assert (other_seed[schema.INPUT_IDS] != together[schema.INPUT_IDS]).any()
  # The result does not depend on the masks that the example had before.
  remasked = masking.mask(features | together, example_numbers, seed=3)
  for name, value in together.items():
    np.testing.assert_array_equal(remasked[name], value)


def _write_shards(directory: Path, corpus_file: str, spm_model: str, masking: str) -> str:
  """Prepares shards with static masks or none. Returns their glob."""
  settings = PreparationSettings(max_seq_length=LENGTH, dupe_factor=1, masking=masking)
  output_dir = str(directory / masking)
  prepare(Job(inputs=(corpus_file,), output_dir=output_dir, spm_model_file=spm_model, settings=settings, num_shards=4))
  return str(directory / masking / "*.tfrecord*")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, corpus_file: str, spm_model: str) -> dict[str, str]:
  """--masking of data preparation -> glob of its shards."""
  directory = tmp_path_factory.mktemp("shards")
  return {masking: _write_shards(directory, corpus_file, spm_model, masking) for masking in ("static", "none")}


def _make_task(spm_model: str, **config: object) -> PretrainingTask:
  sizes = {"embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
  model = ModelConfig(vocab_size=Tokenizer(spm_model).vocab_size, intermediate_size=32, **sizes)  # type: ignore[arg-type]
  return PretrainingTask(model, PretrainingConfig(**config))  # type: ignore[arg-type]


Batch = dict[str, np.ndarray]
ONE_HOST = InputContext(host_index=0, num_hosts=1, num_replicas=1, input_parts=2)


def _batches(
  task: PretrainingTask, num_steps: int, first_step: int, context: InputContext = ONE_HOST, batch_size: int = 16
) -> list[Batch]:
  """The batches that a host gives its replicas in `num_steps` steps, from step `first_step` on."""
  stream = task.training_data().training_batches(batch_size=batch_size, first_step=first_step, seed=9, context=context)
  return list(stream.take(num_steps * context.num_replicas // context.num_hosts).as_numpy_iterator())


def _assert_equal(batches: list[Batch], expected_batches: list[Batch]) -> None:
  assert len(batches) == len(expected_batches) > 0
  for batch, expected in zip(batches, expected_batches, strict=True):
    assert batch.keys() == expected.keys()
    for name in batch:
      np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)


@pytest.fixture
def unmasked_task(shards: dict[str, str], spm_model: str) -> PretrainingTask:
  """Pretraining on shards without masks."""
  return _make_task(spm_model, input_file=shards["none"], spm_model_file=spm_model)


def test_shards_with_and_without_masks_give_the_same_batches(
  shards: dict[str, str], spm_model: str, unmasked_task: PretrainingTask
):
  remasked_task = _make_task(spm_model, input_file=shards["static"], spm_model_file=spm_model, masking="dynamic")
  assert unmasked_task.settings()["masking"] == "dynamic"
  assert (unmasked_task.settings()["masked_lm_prob"], unmasked_task.settings()["ngram"]) == (0.15, 3)
  _assert_equal(_batches(remasked_task, 5, 0), _batches(unmasked_task, 5, 0))


def test_masks_do_not_depend_on_resumption_hosts_or_batch_size(unmasked_task: PretrainingTask):
  steps_per_epoch = math.ceil(unmasked_task.training_data().num_examples / 16)
  uninterrupted = _batches(unmasked_task, 2 * steps_per_epoch, 0)
  # A resumed stream continues with the same masks, also beyond the end of an epoch.
  for first_step in (3, steps_per_epoch - 1, steps_per_epoch + 2):
    _assert_equal(_batches(unmasked_task, 3, first_step), uninterrupted[first_step : first_step + 3])
  # Two hosts together read the same examples as one host.
  contexts = [InputContext(host_index=host, num_hosts=2, num_replicas=2, input_parts=2) for host in range(2)]
  host_0, host_1 = (_batches(unmasked_task, 4, 2, context) for context in contexts)
  joined = [
    {name: np.concatenate([batch_0[name], batch_1[name]]) for name in batch_0}
    for batch_0, batch_1 in zip(host_0, host_1, strict=True)
  ]
  _assert_equal(joined, uninterrupted[2:6])
  # A batch of 160 examples gets the same masks as ten batches of 16.
  (large,) = _batches(unmasked_task, 1, 0, batch_size=160)
  # ONE_HOST has two input parts. Each of them gives one half of every batch.
  ten_batches = {}
  for name in large:
    first_halves = [batch[name][:8] for batch in uninterrupted[:10]]
    second_halves = [batch[name][8:] for batch in uninterrupted[:10]]
    ten_batches[name] = np.concatenate(first_halves + second_halves)
  _assert_equal([large], [ten_batches])


def test_examples_get_new_masks_in_every_epoch(unmasked_task: PretrainingTask):
  steps_per_epoch = math.ceil(unmasked_task.training_data().num_examples / 16)
  two_epochs = _batches(unmasked_task, 2 * steps_per_epoch, 0)
  masked_versions: dict[bytes, list[bytes]] = {}  # original ids -> the ids with masks
  for batch in two_epochs:
    for original_ids, input_ids in zip(unmasked_ids(batch), batch[schema.INPUT_IDS], strict=True):
      masked_versions.setdefault(original_ids.tobytes(), []).append(input_ids.tobytes())
  assert np.mean([len(set(versions)) == len(versions) for versions in masked_versions.values()]) > 0.95
  num_tokens = sum(batch[schema.INPUT_MASK].sum() for batch in two_epochs)
  num_predictions = sum(batch[schema.MASKED_LM_WEIGHTS].sum() for batch in two_epochs)
  assert num_predictions / num_tokens == pytest.approx(0.15, abs=0.01)


def _words_by_decoding(tokenizer: Tokenizer, ids: list[int]) -> list[list[int]]:
  """Returns the indices in `ids` of each word's tokens. Byte pieces are first joined to characters."""
  # (text, positions) of each ordinary piece, and of each character that is made of byte pieces.
  decoded: list[tuple[str, list[int]]] = []
  undecoded_bytes = b""
  positions: list[int] = []
  for position, piece in enumerate(map(tokenizer.piece, ids)):
    positions = [*positions, position]
    is_byte = re.fullmatch("<0x[0-9A-F]{2}>", piece)
    undecoded_bytes += bytes([int(piece[3:5], 16)]) if is_byte else piece.encode()
    with contextlib.suppress(UnicodeDecodeError):  # raised if the last byte of a character is missing
      decoded.append((undecoded_bytes.decode(), positions))
      undecoded_bytes, positions = b"", []
  words: list[list[int]] = []
  for text, positions in decoded:
    has_no_spaces = unicodedata.name(text[0]).startswith(("CJK UNIFIED", "HIRAGANA", "KATAKANA"))
    if not words or text[0] in "▁.,!?();" or has_no_spaces:
      words.append([])
    words[-1] += positions
  return words


@pytest.fixture
def byte_piece_corpus(tmp_path: Path) -> tuple[Tokenizer, InstanceMaker, TextUnit]:
  """A text with many characters that its vocabulary lacks, so that they are encoded as byte pieces."""
  lines = [line.lower() for document in english_like_documents(40) for line in document]
  model = train_small_model(
    tmp_path / "bytes.model", lines, vocab_size=400, byte_fallback=True, hard_vocab_limit=False, character_coverage=1
  )
  sentences = [
    "The captain sold a letter from Łódź, Москва and Ærø before breakfast.",
    "Her sister followed 🙂 and the þorn ŋ ( 川の中国 ) to the river!",
    "Nobody watched the ßø, жжж; the train was late?",
  ]
  text = tmp_path / "text.txt"
  text.write_text("\n".join(sentences * 12), encoding="utf-8")
  settings = PreparationSettings(
    max_seq_length=128, dupe_factor=30, masked_lm_prob=0.3, sentence_prediction="none", input_format="doc_sentences"
  )
  (unit,) = plan_units([str(text)], with_donors=False)
  return Tokenizer(model), InstanceMaker(settings, model), unit


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_the_byte_pieces_of_a_word_are_masked_together(
  byte_piece_corpus: tuple[Tokenizer, InstanceMaker, TextUnit], masking: str
):
  tokenizer, maker, unit = byte_piece_corpus
  dynamic_masking = DynamicMasking.from_tokenizer(tokenizer, 0.3, 3)
  num_masked_words = 0  # words of several tokens
  documents, num_own, _ = maker.load(unit)
  for batch in maker.make_batches(documents, num_own):
    words, sizes = pack(batch.tokens, batch.masked, batch.instances.labels, np.dtype("<u2"))
    starts = np.cumsum(sizes) - sizes  # where each instance begins in the words
    features = unpack(words, starts, maker.settings.max_seq_length, maker.settings.max_predictions_per_seq)
    if masking == "dynamic":
      features |= dynamic_masking.mask(features, np.arange(starts.size), seed=1)
    original_ids = unmasked_ids(features)
    for row, length in enumerate(features[schema.INPUT_MASK].sum(axis=1)):
      is_prediction = features[schema.MASKED_LM_WEIGHTS][row] > 0
      masked_positions = set(features[schema.MASKED_LM_POSITIONS][row][is_prediction].tolist())
      for word in _words_by_decoding(tokenizer, original_ids[row, 1 : length - 1].tolist()):
        word_positions = {1 + position for position in word}  # the first token is [CLS]
        assert word_positions <= masked_positions or not word_positions & masked_positions
        if len(word_positions & masked_positions) > 1:
          num_masked_words += 1
  assert num_masked_words > 100  # so there were enough such words to test


def test_shards_written_without_masks_have_none(shards: dict[str, str]):
  paths = expand_globs(shards["none"])
  features = schema.pretraining_features(LENGTH, MAX_PREDICTIONS)
  for batch in (
    pipeline.ShardDataset(count_and_hash_shards(paths), features).evaluation_batches(batch_size=64).as_numpy_iterator()
  ):
    assert not batch[schema.MASKED_LM_WEIGHTS].any()
    assert not (batch[schema.INPUT_IDS] == MASK_ID).any()


def test_wrong_vocabulary_or_settings_give_one_line_errors(shards: dict[str, str], spm_model: str):
  unmasked = {"input_file": shards["none"]}
  static = {"input_file": shards["static"], "spm_model_file": spm_model}
  configs: list[tuple[dict[str, Any], str]] = [
    (unmasked, "dynamic masks need --spm_model_file"),
    (unmasked | {"masking": "static"}, "these shards were written without masks: give --masking=dynamic"),
    (static | {"ngram": 2}, "--ngram=2 has an effect only on dynamic masks: also give --masking=dynamic"),
  ]
  for config, message in configs:
    with pytest.raises(UserError, match=message):
      _make_task(spm_model, **config)
  task = _make_task(spm_model, eval_input_file=shards["none"])
  with pytest.raises(UserError, match=r"these shards have no masks\. Evaluations are compared with each other"):
    task.evaluation_data()
  assert _make_task(spm_model, **static).data.masking is None


@pytest.mark.thorough
def test_each_stage_has_its_own_masking_rate(shards: dict[str, str], spm_model: str):
  stages = json.dumps([{"until": 0.5, "masked_lm_prob": 0.05}, {"until": 1}])
  for masking_of_shards, masking in (("none", "auto"), ("static", "dynamic")):
    input_file = shards[masking_of_shards]
    task = _make_task(spm_model, input_file=input_file, spm_model_file=spm_model, masking=masking, stages=stages)
    masked_shares = []
    for stage, masked_lm_prob in zip(task.training_stages(), (0.05, 0.15), strict=True):
      assert stage.settings["masked_lm_prob"] == masked_lm_prob
      stream = stage.data.training_batches(batch_size=64, first_step=0, seed=9, context=ONE_HOST)
      batch = next(stream.as_numpy_iterator())
      masked_shares.append(batch["masked_lm_weights"].sum() / batch["input_mask"].sum())
    assert masked_shares == pytest.approx([0.05, 0.15], abs=0.02)


def test_stages_cannot_have_static_and_dynamic_masks(shards: dict[str, str], spm_model: str):
  stages = json.dumps([{"until": 0.5, "input_file": shards["none"]}, {"until": 1}])
  mixed = _make_task(spm_model, input_file=shards["static"], spm_model_file=spm_model, stages=stages)
  with pytest.raises(UserError, match=r"stage 1 of 2: .* were written without masks: give --masking=dynamic"):
    mixed.training_stages()
