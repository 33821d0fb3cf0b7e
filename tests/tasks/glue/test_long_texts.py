"""Tests of --long_texts=windows: the windows, and logits pooled over them, against each window run by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.models.multiple_choice import pool_windows
from albert.tasks.glue.model import TextTask
from albert.tokenization.tokenizer import load_tokenizer
from tests.conftest import english_like_documents
from tests.tasks.glue.conftest import MakeTask

LENGTH, STRIDE, MAX_WINDOWS = 12, 7, 4
ROOM = LENGTH - 2


@pytest.fixture(scope="module")
def texts() -> list[str]:
  """Texts of no word, of a few words, and of one to nine sentences."""
  documents = english_like_documents(9, seed=3)
  return [
    "",
    "river",
    "a dog",
    "two birds",
    *(" ".join((document * 3)[: 1 + index]) for index, document in enumerate(documents)),
  ]


@pytest.fixture
def make_windowed_task(texts: list[str], make_task: MakeTask, tmp_path: Path) -> Any:
  """Returns a function that makes the task of the texts; its argument are further flags."""

  def make(**flags: Any) -> TextTask:
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{index % 3}\n" for index, text in enumerate(texts)))
    options: dict[str, Any] = {"long_texts": "windows", "doc_stride": STRIDE, "max_windows": MAX_WINDOWS} | flags
    files = dict.fromkeys(("train_file", "eval_file"), str(path))
    return make_task(initializer_range=0.5, max_seq_length=LENGTH, **files, **options)

  return make


def cut(task: TextTask, text: str) -> list[list[int]]:
  """Cuts a text into windows by the definition: while tokens are left, the next one begins STRIDE tokens later."""
  tokenizer = load_tokenizer(task.data.tokenizer_config)
  special_ids, ids = tokenizer.special_ids, tokenizer.encode(text)
  windows, start = [], 0
  while True:
    windows.append([special_ids.cls, *ids[start : start + ROOM], special_ids.sep])
    start += STRIDE
    if start - STRIDE + ROOM >= len(ids) or len(windows) == MAX_WINDOWS:
      return windows


def test_the_tokens_that_do_not_fit_are_counted(
  make_windowed_task: Any, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
  task = make_windowed_task()
  tokenizer = load_tokenizer(task.data.tokenizer_config)
  num_tokens = np.array([len(tokenizer.encode(text)) for text in texts])
  num_cut = np.maximum(0, num_tokens - (MAX_WINDOWS - 1) * STRIDE - ROOM)
  num_windows = sum(len(cut(task, text)) for text in texts)
  needed = len(range(0, num_tokens.max() - ROOM + STRIDE, STRIDE))
  assert num_windows > len(texts) > np.count_nonzero(num_cut) > 1
  assert task.sets.examples("train").cut_tokens.tolist() == num_cut.tolist()
  source = str(task.config.train_file)
  assert capsys.readouterr().err.splitlines()[-2:] == [
    f"{source}: {len(texts)} texts in {num_windows} windows",
    f"warning: {source}: texts longer than {MAX_WINDOWS} windows: {np.count_nonzero(num_cut)} of {len(texts)}, "
    f"{num_cut.sum():,} tokens cut off: --max_windows={needed} reads all tokens",
  ]
  make_windowed_task(max_windows=needed).sets.examples("dev")
  assert "cut off" not in capsys.readouterr().err


@pytest.mark.parametrize(
  ("length", "remedy"),
  [
    (20, "training with --max_seq_length=64 keeps more of them and --long_texts=windows reads them in windows"),
    (64, "--long_texts=windows reads them in windows"),
  ],
)
def test_a_text_that_is_cut_gives_a_warning(
  make_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str], length: int, remedy: str
) -> None:
  path = tmp_path / "train.tsv"
  path.write_text("text\tlabel\n" + "river " * 99 + "\t0\nriver\t1\n")
  task = make_task(max_seq_length=length, train_file=str(path))
  num_tokens = task.data.tokenizer.encode_batch_flat(["river " * 99])[0].size
  task.sets.examples("train")
  assert capsys.readouterr().err.splitlines()[-1] == (
    f"warning: {path}: texts longer than max_seq_length={length}: 1 of 2, {num_tokens + 2 - length} "
    f"tokens cut off: {remedy}"
  )


def outputs_of(task: TextTask, model: Any, name: str, batch_size: int = 4) -> tuple[np.ndarray, list[Any]]:
  """Runs the development set. Returns the output of each row, and the shapes of the batches of ids."""
  rows: dict[int, np.ndarray] = {}
  shapes = []
  for batch in task.sets.dataset("dev").evaluation_batches(batch_size=batch_size):
    outputs = task.forward(model, batch, training=False).outputs[name].numpy()
    rows |= {int(index): output for index, output in zip(batch["example_index"], outputs, strict=True)}
    shapes.append(batch["input_ids"].shape.as_list())
  return np.stack([rows[index] for index in range(len(rows))]), shapes


def run_each_window(task: TextTask, model: Any, text: str) -> np.ndarray:
  """The logits of each window of a text, run by itself, [windows, C]."""
  logits = []
  for window in cut(task, text):
    ids = tf.constant([window])
    inputs = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
    logits.append(model(inputs, training=False).numpy()[0])
  return np.stack(logits)


@pytest.mark.parametrize(("pooling", "pool"), [("mean", np.mean), ("max", np.max)])
def test_pooled_logits_are_those_of_windows_run_by_themselves(
  make_windowed_task: Any, texts: list[str], pooling: str, pool: Any
) -> None:
  task = make_windowed_task(pooling=pooling)
  model = task.build_model()
  logits, shapes = outputs_of(task, model, "logits")
  expected = np.stack([pool(run_each_window(task, model, text), axis=0) for text in texts])
  assert expected.shape == (len(texts), 3)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
  counts = [len(cut(task, text)) for text in texts]
  assert (min(counts), max(counts)) == (1, MAX_WINDOWS)
  # Rows of similar numbers of tokens are batched, and K is the largest number of windows in the batch.
  assert shapes[0][:2] == [4, MAX_WINDOWS]
  assert shapes[-1][1] < MAX_WINDOWS


def test_a_regression_pools_numbers(make_windowed_task: Any, texts: list[str]) -> None:
  task = make_windowed_task(regression=True)
  model = task.build_model()
  values, _ = outputs_of(task, model, "values")
  expected = [run_each_window(task, model, text)[:, 0].mean() for text in texts]
  np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


def test_with_batches_of_one_shape_the_logits_are_the_same(make_windowed_task: Any) -> None:
  task, fixed_task = make_windowed_task(), make_windowed_task(pad_to_max_length=True)
  model = task.build_model()
  logits, _ = outputs_of(task, model, "logits")
  fixed_logits, shapes = outputs_of(fixed_task, model, "logits")
  assert shapes == [[4, MAX_WINDOWS, LENGTH]] * len(shapes)
  np.testing.assert_allclose(fixed_logits, logits, rtol=1e-4, atol=1e-5)


def test_short_texts_have_the_logits_of_a_truncating_task(make_windowed_task: Any, texts: list[str]) -> None:
  task, truncating_task = make_windowed_task(), make_windowed_task(long_texts="truncate")
  model = task.build_model()
  logits, _ = outputs_of(task, model, "logits")
  truncated_logits, _ = outputs_of(truncating_task, model, "logits")
  is_short = np.array([len(cut(task, text)) == 1 for text in texts])
  np.testing.assert_allclose(logits[is_short], truncated_logits[is_short], rtol=1e-4, atol=1e-5)
  assert np.abs(logits - truncated_logits)[~is_short].max() > 1e-3
  assert task.sets.settings != truncating_task.sets.settings


def test_tflite_pools_windows_as_tensorflow_does() -> None:
  signature = [tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, None], tf.bool)]
  function = tf.function(lambda logits, is_window: pool_windows(logits, is_window, "mean"), input_signature=signature)
  content = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], tf.Module()).convert()
  logits, is_window = np.arange(12, dtype=np.float32).reshape(2, 2, 3), np.array([[True, False], [True, True]])
  run = tf.lite.Interpreter(model_content=content).get_signature_runner()
  (pooled,) = run(logits=logits, is_window=is_window).values()
  np.testing.assert_allclose(pooled, function(logits, is_window), rtol=1e-6)


def test_gradients_of_padding_windows_are_zero() -> None:
  logits = tf.Variable(np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32))
  is_window = np.array([[True, False, False], [True, True, True]])
  for pooling, pool in (("mean", np.mean), ("max", np.max)):
    with tf.GradientTape() as tape:
      pooled = pool_windows(logits, tf.constant(is_window), pooling)
    np.testing.assert_allclose(pooled[0], logits.numpy()[0, 0], rtol=1e-6)
    np.testing.assert_allclose(pooled[1], pool(logits.numpy()[1], axis=0), rtol=1e-6)
    gradient = tape.gradient(pooled, logits).numpy()
    assert not gradient[0, 1:].any()
    np.testing.assert_allclose(gradient.sum(axis=1), np.ones([2, 4]), rtol=1e-6)
