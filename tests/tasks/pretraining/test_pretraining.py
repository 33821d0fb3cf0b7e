"""The pretraining task: losses compared with NumPy, settings read from the shards, and filled masks."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.data.manifest import ShardInfo
from albert.data.shards import count_and_hash_shards
from albert.data.tables import read_header, read_table
from albert.errors import UserError
from albert.io import files, records
from albert.tasks.base import Batch
from albert.tasks.pretraining.files import PretrainingData
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask, record_features
from albert.tasks.pretraining.results import count_guessed, guessing_metrics
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks
from albert.tokenization.vocabulary import MASK_ID
from albert.training.model_weights import deterministic_ops
from tests.remote_files import RemoteFiles, gfile_replacement
from tests.synthetic import NUM_PREDICTIONS, TINY_MODEL, encode_example, example, write_manifest, write_shards


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns the cross-entropy of each label, in float64. The logits have one more axis, the last one: classes."""
  shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
  log_sum = np.log(np.exp(shifted).sum(axis=-1))
  return log_sum - np.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]


def make_task_and_batch(tmp_path: Path, **config_fields: Any) -> tuple[PretrainingTask, dict[str, tf.Tensor]]:
  """Makes a task and a batch of five examples and three rows of padding."""
  write_shards(tmp_path, [5])
  task = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=str(tmp_path / "*"), **config_fields))
  return task, next(iter(task.training_data().evaluation_batches(batch_size=8)))


def test_losses_and_accuracies_leave_out_padding(tmp_path):
  task, batch = make_task_and_batch(tmp_path)
  model = task.build_model()
  sums = task.forward(model, batch, training=False).sums
  output = model(batch)

  weights = batch["masked_lm_weights"].numpy()
  masked_ids = batch["masked_lm_ids"].numpy()
  masked_lm_logits = output.masked_lm_logits.numpy()
  masked_lm_losses = cross_entropy(masked_lm_logits, masked_ids)
  # Five examples with three predictions each. In the examples 1 and 3 the last prediction is padding.
  assert float(sums["masked_lm_loss"].weight) == weights.sum() == 5 * 3 - 2
  np.testing.assert_allclose(float(sums["masked_lm_loss"].total), (masked_lm_losses * weights).sum(), rtol=1e-5)
  is_correct = masked_lm_logits.argmax(-1) == masked_ids
  assert float(sums["masked_lm_accuracy"].total) == (is_correct * weights).sum()

  order_labels = batch["next_sentence_labels"].numpy()[:, 0]
  order_losses = cross_entropy(output.sentence_logits.numpy(), order_labels)[:5]
  np.testing.assert_allclose(float(sums["sentence_order_loss"].total), order_losses.sum(), rtol=1e-5)
  assert float(sums["sentence_order_loss"].weight) == 5

  weights_of_sums = {name: float(sums[name].weight) for name in ("masked_lm_loss", "sentence_order_loss")}
  assert {name: float(weight) for name, weight in task.loss_weights(batch).items()} == weights_of_sums


def test_held_out_shards_may_have_another_number_of_masked_tokens(tmp_path):
  """Two more predictions, which are padding, change no metric."""
  (path,) = write_shards(tmp_path / "train", [5])
  (tmp_path / "padded").mkdir()
  with records.RecordWriter(str(tmp_path / "padded" / "a.tfrecord")) as writer:
    for record in records.read_records(path):
      example = records.decode_example(record, path)
      padding = {name: np.append(values, [0, 0]) for name, values in example.items() if name.startswith("masked_lm")}
      writer.write(encode_example({**example, **padding}))
  metrics = []
  # The last config is that of a later command, which knows the number of predictions of the training shards only.
  for config in (
    PretrainingConfig(input_file=path, eval_input_file=path),
    PretrainingConfig(input_file=path, eval_input_file=str(tmp_path / "padded" / "*")),
    PretrainingConfig(eval_input_file=str(tmp_path / "padded" / "*"), max_predictions_per_seq=NUM_PREDICTIONS),
  ):
    task = PretrainingTask(TINY_MODEL, config)
    (batch,) = task.evaluation_data()["heldout"].evaluation_batches(batch_size=5)
    keras.utils.set_random_seed(1)
    sums = task.forward(task.build_model(), batch, training=False).sums
    metrics.append([float(pair.total) / float(pair.weight) for pair in sums.values()])
    metrics[-1] += task.evaluation_metrics("heldout", {}).values()
  assert batch["masked_lm_ids"].shape == (5, NUM_PREDICTIONS + 2)
  np.testing.assert_allclose(metrics[1:], [metrics[0], metrics[0]], rtol=1e-6)


def write_shard(path: Path, removed: str = "", **changes: np.ndarray) -> str:
  """Writes a shard of five examples, with some features changed or one removed, and no manifest. Returns its path."""
  with records.RecordWriter(str(path)) as writer:
    for number in range(5):
      features = example(number, np.random.default_rng(number)) | changes
      features.pop(removed, None)
      writer.write(encode_example(features))
  return str(path)


def test_shards_without_masks_are_refused_if_there_is_no_manifest(tmp_path):
  unmasked = write_shard(tmp_path / "unmasked.tfrecord", masked_lm_weights=np.zeros(NUM_PREDICTIONS, np.float32))
  task = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=unmasked))
  with pytest.raises(UserError, match=rf"--input_file={unmasked}: these shards have no masks: give --masking=dynamic"):
    task.training_data()
  task = PretrainingTask(TINY_MODEL, PretrainingConfig(eval_input_file=unmasked))
  with pytest.raises(UserError, match=rf"--eval_input_file={unmasked}: these shards have no masks\. Evaluations"):
    task.evaluation_data()


def test_without_a_sentence_loss_shards_need_no_sentence_labels(tmp_path):
  path = write_shard(tmp_path / "unlabeled.tfrecord", removed="next_sentence_labels")
  config = PretrainingConfig(input_file=path, eval_input_file=path, sentence_prediction="none")
  task = PretrainingTask(TINY_MODEL, config)
  (batch,) = task.training_data().evaluation_batches(batch_size=5)
  assert list(task.forward(task.build_model(), batch, training=False).sums) == ["masked_lm_loss", "masked_lm_accuracy"]
  of_guessing = list(task.evaluation_metrics("heldout", {}))
  assert of_guessing == ["masked_lm_baseline_accuracy", "masked_lm_guessing_loss", "guessing_loss"]


@pytest.mark.parametrize("is_masked", [True, False])
def test_the_loss_of_guessing_is_that_of_the_shares_of_tokens_and_labels(tmp_path, is_masked):
  """Without masks, all tokens count. The mean over the single tokens is the second route."""
  path, ids, labels = str(tmp_path / "shard.tfrecord"), [], []
  with records.RecordWriter(path, compress=False) as writer:
    for number in range(7):
      features = example(number, np.random.default_rng(number))
      if not is_masked:
        features["masked_lm_weights"] = np.zeros_like(features["masked_lm_weights"])
      weights = features["masked_lm_weights" if is_masked else "input_mask"]
      ids += list(features["masked_lm_ids" if is_masked else "input_ids"][weights > 0])
      labels += list(features["next_sentence_labels"])
      writer.write(encode_example(features))
  specs = record_features(PretrainingData(TINY_MODEL, PretrainingConfig(input_file=path)), NUM_PREDICTIONS)
  tokens, of_labels = count_guessed([path], specs, TINY_MODEL.vocab_size)
  np.testing.assert_array_equal(tokens, np.bincount(ids, minlength=TINY_MODEL.vocab_size))
  np.testing.assert_array_equal(of_labels, np.bincount(labels, minlength=2))
  assert count_guessed([path], specs, TINY_MODEL.vocab_size, max_records=1)[0].sum() < len(ids)
  known = np.arange(TINY_MODEL.vocab_size)
  shares = (tokens + known) / (tokens + known).sum()
  metrics = guessing_metrics(tokens, of_labels, "sentence_order", known)
  assert metrics["masked_lm_guessing_loss"] == pytest.approx(-np.log(shares[ids]).mean())
  assert metrics["sentence_order_guessing_loss"] == pytest.approx(-np.log(np.bincount(labels)[labels] / 7).mean())
  assert metrics["guessing_loss"] == metrics["masked_lm_guessing_loss"] + metrics["sentence_order_guessing_loss"]


@pytest.mark.parametrize(
  ("sentence_prediction", "sentence_metrics"),
  [
    ("sop", ["sentence_order_loss", "sentence_order_accuracy"]),
    ("nsp", ["next_sentence_loss", "next_sentence_accuracy"]),
    ("none", []),
  ],
)
def test_sentence_prediction_selects_the_sentence_loss(tmp_path, sentence_prediction, sentence_metrics):
  task, batch = make_task_and_batch(tmp_path, sentence_prediction=sentence_prediction)
  metric_names = ["masked_lm_loss", "masked_lm_accuracy", *sentence_metrics]
  assert list(task.metric_names()) == metric_names
  assert list(task.forward(task.build_model(), batch, training=False).sums) == metric_names
  loss_names = ["masked_lm_loss", *sentence_metrics[:1]]
  assert list(task.loss_weights(batch)) == list(task.loss_names()) == loss_names
  # The loss is the sum of the terms in loss_names. The metrics are powers of two, so each sum of terms is different.
  means = {name: 2.0**index for index, name in enumerate(metric_names)}
  assert task.with_loss(means) == {"loss": sum(means[name] for name in loss_names), **means}


@pytest.mark.parametrize(("loss", "perplexity"), [(0.0, 1.0), (np.log(7.5), 7.5), (1000.0, np.inf), (np.nan, np.nan)])
def test_the_perplexity_is_that_of_the_masked_tokens(tmp_path, loss, perplexity):
  """A model that guesses among n tokens has a perplexity of n. The sentence loss does not count."""
  task, _ = make_task_and_batch(tmp_path)
  metrics = task.metrics_from_means({"masked_lm_loss": loss, "sentence_order_loss": 3.0})
  assert metrics == pytest.approx({"masked_lm_perplexity": perplexity}, nan_ok=True)


def test_the_vocabulary_must_be_the_one_of_the_shards(tmp_path, spm_model):
  write_shards(tmp_path, [5])
  manifest = write_manifest(tmp_path, [], [])
  config = PretrainingConfig(input_file=str(tmp_path / "*.tfrecord"), spm_model_file=str(spm_model))
  with pytest.raises(UserError, match=r"is not the vocabulary that .*manifest\.json was made with"):
    PretrainingTask(TINY_MODEL, config)
  dataclasses.replace(manifest, vocab_sha256=Tokenizer(str(spm_model)).sha256).save(str(tmp_path))
  PretrainingTask(TINY_MODEL, config)


def test_the_case_is_that_of_the_shards(tmp_path):
  write_shards(tmp_path, [5])
  write_manifest(tmp_path, [], [], settings={"do_lower_case": False})
  globs = str(tmp_path / "*.tfrecord")
  settings = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=globs)).settings()
  assert (settings["do_lower_case"], settings["keep_accents"]) == (False, False)
  for name in ("do_lower_case", "keep_accents"):
    changes: dict[str, Any] = {name: True}
    with pytest.raises(UserError, match=rf"manifest\.json: the shards were made with {name}=false, but true is given"):
      PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=globs, **changes))


NUM_SHARDS = 4096
SHARD_PATHS = [f"mem://bucket/shards/pretraining-{i:05d}-of-04096.tfrecord" for i in range(NUM_SHARDS)]
MANIFEST_PATH = "mem://bucket/shards/manifest.json"


def make_remote_shards(tmp_path: Path, settings: dict[str, object], num_readable: int) -> RemoteFiles:
  """Makes a remote folder of 4096 shards and their manifest. Only the first num_readable shards have a content.

  According to the manifest, shards have 5 and 6 examples in turn.
  """
  (path,) = write_shards(tmp_path / "local", [5])
  content = Path(path).read_bytes()
  shards = [ShardInfo(Path(path).name, 5 + i % 2, len(content), f"{i:064x}") for i, path in enumerate(SHARD_PATHS)]
  write_manifest(tmp_path, [], [], settings=settings, shards=tuple(shards))
  contents = dict.fromkeys(SHARD_PATHS[:num_readable], content)
  contents[MANIFEST_PATH] = (tmp_path / "manifest.json").read_bytes()
  return RemoteFiles(contents, dict.fromkeys(SHARD_PATHS[num_readable:], len(content)))


def test_starting_on_4096_remote_shards_opens_one_of_them(tmp_path, monkeypatch):
  remote = make_remote_shards(tmp_path, {"compress": False}, num_readable=1)
  monkeypatch.setattr(files, "_gfile", gfile_replacement(remote))
  task = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file="mem://bucket/shards/*.tfrecord"))
  dataset = task.training_data()
  assert dataset.num_examples == 5 * NUM_SHARDS + NUM_SHARDS // 2
  assert dataset.shards.compressed == (False,) * NUM_SHARDS
  assert remote.calls["stat"] <= NUM_SHARDS
  assert remote.max_concurrent > 8
  assert remote.calls["open rb"] <= 3  # the manifest at most twice, and a shard for the lengths of its features
  assert remote.bytes_read <= 2 * len(remote.contents[MANIFEST_PATH]) + len(remote.contents[SHARD_PATHS[0]])
  assert sum(remote.calls.values()) <= NUM_SHARDS + 10


def test_each_shard_is_opened_if_the_manifest_does_not_give_the_compression(tmp_path, monkeypatch):
  remote = make_remote_shards(tmp_path, {}, num_readable=NUM_SHARDS)
  monkeypatch.setattr(files, "_gfile", gfile_replacement(remote))
  shards = count_and_hash_shards(SHARD_PATHS[:100])
  assert shards.compressed == (False,) * 100
  assert remote.calls["open rb"] == 1 + 100  # the manifest and the shards
  assert remote.max_concurrent > 8
  # 12 bytes, the header of the first record, show whether a shard is compressed.
  assert remote.bytes_read == len(remote.contents[MANIFEST_PATH]) + 100 * 12


def test_a_mask_is_one_token_and_text_right_after_it_does_not_start_a_word(spm_model):
  tokenizer = Tokenizer(str(spm_model))
  ids = encode_with_masks(tokenizer, "the [MASK] and [MASK].")
  pieces = [tokenizer.piece(i) for i in ids]
  assert ids.count(MASK_ID) == 2
  assert pieces[0] == "▁the"
  assert pieces[-1] == "."
  assert encode_with_masks(tokenizer, "the and") == tokenizer.encode("the and")


def make_fill_mask_task(tmp_path: Path, spm_model: str, text: str) -> PretrainingTask:
  path = tmp_path / "sentences.txt"
  path.write_text(text)
  model = dataclasses.replace(TINY_MODEL, vocab_size=Tokenizer(spm_model).vocab_size)
  return PretrainingTask(model, PretrainingConfig(predict_file=str(path), spm_model_file=spm_model))


def test_every_mask_is_filled_with_ranked_pieces(tmp_path, spm_model, capsys):
  text = 'the [MASK] of\tthe [MASK].\n\n"and" [MASK]\nno mask\n'
  task = make_fill_mask_task(tmp_path, spm_model, text)
  model = task.build_model()
  (path,) = task.predict(model, lambda data: {}, str(tmp_path))
  rows = read_table(path, read_header(path))
  assert list(zip(rows.columns["line"], rows.columns["mask"], strict=True)) == [("1", "1"), ("1", "2"), ("3", "1")]
  assert rows.columns["text"] == ["the [MASK] of the [MASK]."] * 2 + ['"and" [MASK]']
  assert "sentences.txt: 1 line without [MASK], the first is line 4" in capsys.readouterr().err
  answers_of_lines = task.answers(model, lambda data: {})
  assert [len(answers) for answers in answers_of_lines] == [2, 1, 0]
  answers = [candidates for line in answers_of_lines for candidates in line]
  for row, candidates in enumerate(answers):
    probabilities = list(candidates.values())
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 < probabilities[0] < 1
    assert [rows.columns[f"piece_{k}"][row] for k in range(1, 6)] == list(candidates)
    assert [float(rows.columns[f"probability_{k}"][row]) for k in range(1, 6)] == probabilities


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("nothing to fill\n", r"sentences\.txt: no line with \[MASK\] to fill"),
    ("[MASK] " + "the " * 40, "line 1: 43 tokens, the model takes 32"),  # with [CLS] and [SEP]
  ],
)
def test_a_file_without_masks_or_a_line_with_too_many_tokens_is_named(tmp_path, spm_model, text, message):
  task = make_fill_mask_task(tmp_path, spm_model, text)
  with pytest.raises(UserError, match=message):
    task.check_inputs(train=False, evaluate=False, predict=True)


def test_a_batch_with_more_logits_than_tensorflow_can_differentiate_is_refused() -> None:
  task = PretrainingTask(TINY_MODEL, PretrainingConfig())

  @tf.function(autograph=False)
  def compute_loss(logits: tf.Tensor) -> None:
    def model(batch: Batch, **options: Any) -> Any:
      del batch, options
      return types.SimpleNamespace(masked_lm_logits=logits)

    with contextlib.suppress(KeyError):  # the batch has no features; the logits are checked before they are needed
      task.forward(model, {}, training=True)

  too_many = tf.TensorSpec([1024, 77, 30_000])
  with deterministic_ops():
    compute_loss.get_concrete_function(tf.TensorSpec([929, 77, 30_000]))
    message = (
      r"1,024 examples x 77 .* x 30,000 pieces are 2,365,440,000 logits .* --gradient_accumulation_steps=2 or more"
    )
    with pytest.raises(UserError, match=message):
      compute_loss.get_concrete_function(too_many)
  compute_loss.get_concrete_function(too_many)
