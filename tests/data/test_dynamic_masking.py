"""Dynamic masking: the rules of data preparation; masks are a function of the seed and the example's number."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig
from albert.data import pipeline, schema
from albert.data.dataset import InputContext
from albert.data.dynamic_masking import DynamicMasking, unmasked_ids
from albert.data.shards import count_and_hash_shards
from albert.errors import UserError
from albert.io.globs import expand_globs
from albert.tasks.pretraining import PretrainingTask
from albert.tokenization.tokenizer import MASK_ID, Tokenizer
from data_prep.create_pretraining_data import prepare
from data_prep.documents import Counts
from data_prep.instances import InstanceMaker, make_batches
from data_prep.packing import unpack
from data_prep.runners.job import Job
from data_prep.settings import PreparationSettings
from data_prep.units import plan_units
from tests.conftest import english_like_documents, train_small_model
from tests.synthetic import PREDICTIONS, SEQ_LENGTH, example

LENGTH = 64
PREDICTED = 10  # ceil(0.15 * 64)


def _features(num_examples: int, length: int = SEQ_LENGTH) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(7)
  examples = [example(number, rng, length) for number in range(num_examples)]
  return {
    name: np.stack([features[name] for features in examples]).astype(first_value.dtype)
    for name, first_value in examples[0].items()
  }


def _masking(vocab_size: int = 64, masked_lm_prob: float = 0.15, ngram: int = 3) -> DynamicMasking:
  starts = np.random.default_rng(1).random(vocab_size) < 0.7
  return DynamicMasking(starts, np.arange(5, vocab_size), masked_lm_prob, ngram)


def test_new_masks_keep_the_text():
  features, masking = _features(40), _masking()
  first, second = (features | masking.mask(features, np.arange(40) + start, seed=3) for start in (0, 40))
  text = unmasked_ids(features)
  for masked in (first, second):
    np.testing.assert_array_equal(unmasked_ids(masked), text)
    for name, value in features.items():
      assert (masked[name].shape, masked[name].dtype) == (value.shape, value.dtype)
    weights, positions = masked[schema.MASKED_LM_WEIGHTS], masked[schema.MASKED_LM_POSITIONS]
    assert (np.diff(weights) <= 0).all()  # predictions first, then padding
    assert not positions[weights == 0].any()
    assert not masked[schema.MASKED_LM_IDS][weights == 0].any()
    for row, count in enumerate(weights.sum(axis=1).astype(int)):
      assert (np.diff(positions[row, :count]) > 0).all()
  assert (first[schema.MASKED_LM_POSITIONS] != second[schema.MASKED_LM_POSITIONS]).any(axis=1).mean() > 0.8


def test_masks_depend_only_on_seed_and_number():
  features, masking = _features(12), _masking()
  numbers = np.array([5, 900, 2**40, 7, 1, 2, 3, 4, 60, 61, 62, 63])
  together = masking.mask(features, numbers, seed=3)
  for row in (0, 2, 11):
    row_features = {name: value[row : row + 1] for name, value in features.items()}
    alone = masking.mask(row_features, numbers[row : row + 1], seed=3)
    for name, value in alone.items():
      np.testing.assert_array_equal(value[0], together[name][row])
  other_seed = masking.mask(features, numbers, seed=4)
  assert (other_seed[schema.INPUT_IDS] != together[schema.INPUT_IDS]).any()
  # The masks that an example had before make no difference.
  remasked = masking.mask(features | together, numbers, seed=3)
  for name, value in together.items():
    np.testing.assert_array_equal(remasked[name], value)


def test_replacements_and_whole_words_over_many_epochs():
  """80% of the masked tokens become [MASK], 10% a random token, 10% stay. Words are masked as a whole."""
  num_epochs, masking = 3000, _masking(ngram=1)
  example_features = _features(1)
  features = {name: np.repeat(value, num_epochs, axis=0) for name, value in example_features.items()}
  masked = features | masking.mask(features, np.arange(num_epochs), seed=1)
  original_ids, is_prediction = unmasked_ids(features), masked[schema.MASKED_LM_WEIGHTS] > 0
  rows, slots = np.nonzero(is_prediction)
  columns = masked[schema.MASKED_LM_POSITIONS][rows, slots]
  input_ids, labels = masked[schema.INPUT_IDS][rows, columns], masked[schema.MASKED_LM_IDS][rows, slots]
  np.testing.assert_array_equal(labels, original_ids[rows, columns])
  tolerance = 4 * 0.5 / np.sqrt(input_ids.size)  # four times the largest standard deviation of a fraction
  assert np.mean(input_ids == MASK_ID) == pytest.approx(0.8, abs=tolerance)
  assert np.mean(input_ids == labels) == pytest.approx(0.1 + 0.1 / 59, abs=tolerance)
  length = int(example_features[schema.INPUT_MASK].sum())
  budget = min(PREDICTIONS, max(1, round(length * 0.15)))
  assert is_prediction.sum(axis=1).max() == budget
  positions = np.arange(length)
  word_of_token = np.cumsum(masking.word_starts[original_ids[0, :length]] | (positions == 1))
  is_masked = np.zeros((num_epochs, length), bool)
  is_masked[rows, columns] = True
  for word in set(word_of_token[1:-1].tolist()):
    masked_in_word = is_masked[:, (word_of_token == word) & (positions > 0) & (positions < length - 1)]
    assert (masked_in_word.all(axis=1) == masked_in_word.any(axis=1)).all()


def _shards(directory: Path, corpus_file: str, spm_model: str, masking: str) -> str:
  settings = PreparationSettings(max_seq_length=LENGTH, dupe_factor=1, masking=masking)
  output_dir = str(directory / masking)
  prepare(Job(inputs=(corpus_file,), output_dir=output_dir, spm_model_file=spm_model, settings=settings, num_shards=4))
  return str(directory / masking / "*.tfrecord*")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, corpus_file: str, spm_model: str) -> dict[str, str]:
  directory = tmp_path_factory.mktemp("shards")
  return {masking: _shards(directory, corpus_file, spm_model, masking) for masking in ("static", "none")}


def _task(spm_model: str, **config: object) -> PretrainingTask:
  sizes = {"embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
  model = ModelConfig(vocab_size=Tokenizer(spm_model).vocab_size, intermediate_size=32, **sizes)  # type: ignore[arg-type]
  return PretrainingTask(model, PretrainingConfig(**config))  # type: ignore[arg-type]


Batch = dict[str, np.ndarray]
ONE_HOST = InputContext(0, 1, 1, 2)


def _batches(
  task: PretrainingTask, count: int, first: int, context: InputContext = ONE_HOST, batch_size: int = 16
) -> list[Batch]:
  stream = task.training_data().training_batches(batch_size=batch_size, first_step=first, seed=9, context=context)
  return list(stream.take(count * context.num_replicas // context.num_hosts).as_numpy_iterator())


def _assert_equal(batches: list[Batch], expected_batches: list[Batch]) -> None:
  assert len(batches) == len(expected_batches) > 0
  for batch, expected in zip(batches, expected_batches, strict=True):
    assert batch.keys() == expected.keys()
    for name in batch:
      np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)


def test_training_on_shards_with_and_without_masks(shards: dict[str, str], spm_model: str):
  """Shards with and without masks give the same batches, because masks are made in training."""
  unmasked = _task(spm_model, input_file=shards["none"], spm_model_file=spm_model)
  remasked = _task(spm_model, input_file=shards["static"], spm_model_file=spm_model, masking="dynamic")
  assert unmasked.settings()["masking"] == "dynamic"
  assert (unmasked.settings()["masked_lm_prob"], unmasked.settings()["ngram"]) == (0.15, 3)
  num_examples = unmasked.training_data().num_examples
  steps_per_epoch = -(-num_examples // 16)
  two_epochs = _batches(unmasked, 2 * steps_per_epoch, 0)
  _assert_equal(_batches(remasked, 5, 0), two_epochs[:5])
  # A resumed stream continues with the same masks, also beyond the end of an epoch.
  for first in (3, steps_per_epoch - 1, steps_per_epoch + 2):
    _assert_equal(_batches(unmasked, 3, first), two_epochs[first : first + 3])
  # Two hosts together read the same examples as one host.
  hosts = [_batches(unmasked, 4, 2, InputContext(host, 2, 2, 2)) for host in range(2)]
  joined = [
    {name: np.concatenate([batch_of_host_0[name], batch_of_host_1[name]]) for name in batch_of_host_0}
    for batch_of_host_0, batch_of_host_1 in zip(*hosts, strict=True)
  ]
  _assert_equal(joined, two_epochs[2:6])
  # A large batch is masked alone, and several small ones are masked together; the results are the same.
  (large,) = _batches(unmasked, 1, 0, batch_size=160)
  # With two parts, the first half of each batch comes from the first part, so the halves are joined separately.
  joined_batches = {
    name: np.concatenate([batch[name][half] for half in (np.s_[:8], np.s_[8:]) for batch in two_epochs[:10]])
    for name in large
  }
  _assert_equal([large], [joined_batches])
  # An example has other masks in the second epoch than in the first.
  masked_versions: dict[bytes, list[bytes]] = {}
  for batch in two_epochs:
    for original_ids, input_ids in zip(unmasked_ids(batch), batch[schema.INPUT_IDS], strict=True):
      masked_versions.setdefault(original_ids.tobytes(), []).append(input_ids.tobytes())
  assert np.mean([len(set(versions)) == len(versions) for versions in masked_versions.values()]) > 0.95
  num_tokens = sum(batch[schema.INPUT_MASK].sum() for batch in two_epochs)
  num_predictions = sum(batch[schema.MASKED_LM_WEIGHTS].sum() for batch in two_epochs)
  assert num_predictions / num_tokens == pytest.approx(0.15, abs=0.01)


def test_word_starts_equal_those_of_data_preparation(corpus_file: str, spm_model: str):
  """Dynamic masking computes word starts from the vocabulary, data preparation from the text."""
  maker = InstanceMaker(PreparationSettings(max_seq_length=LENGTH, dupe_factor=1), spm_model)
  (unit,) = plan_units([corpus_file], with_donors=False)
  documents, num_own, _ = maker.load(unit)
  starts = DynamicMasking.from_tokenizer(Tokenizer(spm_model), 0.15, 3).word_starts
  for batch in make_batches(documents, num_own, maker.settings, maker.random_ids):
    tokens = batch.tokens
    np.testing.assert_array_equal(starts[tokens.ids][tokens.maskable], tokens.word_starts[tokens.maskable])


def _words_by_decoding(tokenizer: Tokenizer, ids: list[int]) -> list[list[int]]:
  """Returns the token positions of each word. Byte pieces are first joined to characters."""
  # (text, positions) of each ordinary piece, and of each character that is made of byte pieces.
  units: list[tuple[str, list[int]]] = []
  undecoded, positions = b"", []
  for position, piece in enumerate(map(tokenizer.piece, ids)):
    positions = [*positions, position]
    is_byte = re.fullmatch("<0x[0-9A-F]{2}>", piece)
    undecoded += bytes([int(piece[3:5], 16)]) if is_byte else piece.encode()
    with contextlib.suppress(UnicodeDecodeError):  # the first bytes of a character
      units.append((undecoded.decode(), positions))
      undecoded, positions = b"", []
  words: list[list[int]] = []
  for text, positions in units:
    has_no_spaces = unicodedata.name(text[0]).startswith(("CJK UNIFIED", "HIRAGANA", "KATAKANA"))
    if not words or text[0] in "▁.,!?();" or has_no_spaces:
      words.append([])
    words[-1] += positions
  return words


def test_byte_pieces_of_a_word_are_masked_together(tmp_path: Path):
  """Static and dynamic masking mask whole words, also of text that is encoded as byte pieces."""
  lines = [line.lower() for document in english_like_documents(40) for line in document]
  model = train_small_model(
    tmp_path / "bytes.model", lines, vocab_size=400, byte_fallback=True, hard_vocab_limit=False, character_coverage=1
  )
  tokenizer = Tokenizer(model)
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
  maker = InstanceMaker(settings, model)
  (unit,) = plan_units([str(text)], with_donors=False)
  documents, _, counts = maker.load(unit)
  assert counts.unknown == 0
  expected = np.zeros(documents.ids.size, bool)
  for start, end in itertools.pairwise([0, *documents.sentence_ends.tolist()]):
    for word in _words_by_decoding(tokenizer, documents.ids[start:end].tolist()):
      expected[start + word[0]] = True
  np.testing.assert_array_equal(documents.word_starts, expected)
  # Either all bytes of a word are masked or none, with both kinds of masking.
  dynamic = DynamicMasking.from_tokenizer(tokenizer, 0.3, 3)
  num_words_masked = np.zeros(2, int)  # of more than one token, with static and with dynamic masking
  for batch in maker.packed_batches(unit):
    if isinstance(batch, Counts):
      continue
    starts = np.cumsum(batch.sizes) - batch.sizes
    features = unpack(batch.words, starts, settings.max_seq_length, settings.max_predictions_per_seq)
    remasked = features | dynamic.mask(features, np.arange(starts.size), seed=1)
    for kind, masked in enumerate((features, remasked)):
      original_ids = unmasked_ids(masked)
      for row, length in enumerate(features[schema.INPUT_MASK].sum(axis=1)):
        is_prediction = masked[schema.MASKED_LM_WEIGHTS][row] > 0
        masked_positions = set(masked[schema.MASKED_LM_POSITIONS][row][is_prediction].tolist())
        for word in _words_by_decoding(tokenizer, original_ids[row, 1 : length - 1].tolist()):
          word_positions = {1 + position for position in word}  # after [CLS]
          assert word_positions <= masked_positions or not word_positions & masked_positions
          num_words_masked[kind] += len(word_positions & masked_positions) > 1
  assert (num_words_masked > 100).all()


def test_shards_written_without_masks_have_none(shards: dict[str, str]):
  paths = expand_globs(shards["none"])
  features = schema.pretraining_features(LENGTH, PREDICTED)
  for batch in pipeline.evaluation_batches(count_and_hash_shards(paths), features, batch_size=64).as_numpy_iterator():
    assert not batch[schema.MASKED_LM_WEIGHTS].any()
    assert not (batch[schema.INPUT_IDS] == MASK_ID).any()


def test_wrong_vocabulary_or_settings_give_one_line_errors(shards: dict[str, str], spm_model: str):
  unmasked = {"input_file": shards["none"]}
  static = {"input_file": shards["static"], "spm_model_file": spm_model}
  for config, message in [
    (unmasked, "dynamic masks need --spm_model_file"),
    (unmasked | {"masking": "static"}, "--masking=static: the shards of --input_file were written without masks"),
    (static | {"ngram": 2}, "--ngram=2 has an effect only on dynamic masks: also give --masking=dynamic"),
  ]:
    with pytest.raises(UserError, match=message):
      _task(spm_model, **config)
  task = _task(spm_model, eval_input_file=shards["none"])
  with pytest.raises(UserError, match=r"these shards have no masks\. Evaluations are compared with each other"):
    task.evaluation_data()
  assert _task(spm_model, **static).masking is None


@pytest.mark.thorough
def test_each_stage_has_its_own_masking_rate(shards: dict[str, str], spm_model: str):
  stages = json.dumps([{"until": 0.5, "masked_lm_prob": 0.05}, {"until": 1}])
  for kind, masking in (("none", "auto"), ("static", "dynamic")):
    task = _task(spm_model, input_file=shards[kind], spm_model_file=spm_model, masking=masking, stages=stages)
    low, usual = task.training_stages()
    assert (low.settings["masked_lm_prob"], usual.settings["masked_lm_prob"]) == (0.05, 0.15)
    shares = []
    for stage in (low, usual):
      stream = stage.data.training_batches(batch_size=64, first_step=0, seed=9, context=ONE_HOST)
      batch = next(stream.as_numpy_iterator())
      shares.append(batch["masked_lm_weights"].sum() / batch["input_mask"].sum())
    assert shares == pytest.approx([0.05, 0.15], abs=0.02)


def test_stages_cannot_have_static_and_dynamic_masks(shards: dict[str, str], spm_model: str):
  stages = json.dumps([{"until": 0.5, "input_file": shards["none"]}, {"until": 1}])
  mixed = _task(spm_model, input_file=shards["static"], spm_model_file=spm_model, stages=stages)
  with pytest.raises(UserError, match=r"stage 1 of 2: .* were written without masks, .* also give --masking=dynamic"):
    mixed.training_stages()
