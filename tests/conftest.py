"""Fixtures that many tests share: an English-like generated corpus, a small vocabulary, and processes for commands."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import hashlib
import importlib.metadata
import io
import os
import random
import signal
import struct
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sentencepiece

import albert  # before TensorFlow, since it selects TensorFlow's kernels
from albert.io.protobuf import encode_bytes_field, encode_varint
from albert.runs import figures
from tests.report.run_files import one_pixel_png

# A command that a shell starts with & ignores SIGINT. Processes that a test starts would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
  from tests.torture.workplace import Workplace

_LONGEST_FILES = {"test_every_task.py", "test_startup_imports.py", "test_golden.py", "test_serve.py", "test_quality.py",
                  "test_published_heads.py"}  # fmt: skip
VOCAB_SIZE = 800
_ORIGINAL_PNG = figures.png  # a fixture replaces figures.png

_SUBJECTS = ("the teacher", "a small child", "my old neighbour", "the captain", "her sister", "an unknown writer",
             "the whole village", "nobody", "the young painter", "your friend")  # fmt: skip
_VERBS = ("watched", "remembered", "followed", "carried", "described", "forgot", "discovered", "repaired", "sold",
          "promised")  # fmt: skip
_OBJECTS = ("the broken window", "a letter from paris", "the river and the bridge", "an orange umbrella",
            "the long winter", "every question", "a story about horses", "the garden behind the house",
            "three quiet mornings", "the key to the library")  # fmt: skip
_ENDINGS = ("before breakfast", "with great patience", "although it was raining", "in the year {year},",
            "for {price} dollars,", "because the train was late", "at {hour} o'clock", "near the harbour",
            "without saying a word", "after {count}, {more}, or {most}, of them had left")  # fmt: skip
_CLOSINGS = ("and then went home", "which surprised everyone", "but nothing changed", "while the others laughed",
             "as the newspaper reported")  # fmt: skip


def _sentence(rng: random.Random) -> str:
  ending = rng.choice(_ENDINGS).format(
    year=rng.randrange(1850, 2030),
    price=f"{rng.randrange(1, 10)},{rng.randrange(1000):03d}",
    hour=rng.randrange(1, 13),
    count=rng.randrange(10),
    more=rng.randrange(10, 100),
    most=rng.randrange(100, 1000),
  )
  words = [rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS), ending]
  if rng.random() < 0.5:
    words.append(rng.choice(_CLOSINGS))
  sentence = " ".join(words).rstrip(",")
  return sentence[0].upper() + sentence[1:] + rng.choice([".", ".", ".", ".", ".", "?", "!", ";"])


def english_like_documents(num_documents: int, seed: int = 0) -> list[list[str]]:
  """Generates documents of 2 to 14 sentences. The same arguments give the same documents."""
  rng = random.Random(seed)
  return [[_sentence(rng) for _ in range(rng.randrange(2, 15))] for _ in range(num_documents)]


@pytest.fixture
def verbose() -> Iterator[None]:
  """Details are logged, as with --verbose."""
  before = albert.set_verbosity("verbose")
  yield
  albert.set_verbosity(before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
  """Saves seconds while the test modules are imported.

  The garbage collector is off, since imports leave no garbage. TF_USE_LEGACY_KERAS makes TensorFlow import tf_keras
  instead of Keras 3, as in a command.

  The variable is not set for TensorFlow 2.15, so that it imports Keras 2.15 together with tf_keras. Both register
  classes under the same names, and load_model takes the classes that were registered last. These would be the wrong
  ones if a test were the first to import Keras 2.15.
  """
  with pytest.MonkeyPatch.context() as patch:
    if not importlib.metadata.version("keras").startswith("2."):
      patch.setenv("TF_USE_LEGACY_KERAS", os.environ.get("TF_USE_LEGACY_KERAS", "1"))
    gc.disable()
    try:
      return (yield)
    finally:
      gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Puts the longest files first. A worker runs a whole file, so the others would wait for a long one at the end."""
  items.sort(key=lambda item: item.path.name not in _LONGEST_FILES)


def pytest_collection_finish() -> None:
  """Excludes all objects that exist after the imports from garbage collection.

  TensorFlow's graphs are cyclic garbage, so Python collects often, and would visit all objects of TensorFlow's modules
  each time.
  """
  gc.collect()
  gc.freeze()


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> str:
  """Path of a text file of 300 documents, with a sentence on each line and a blank line after each document."""
  path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
  documents = english_like_documents(300)
  path.write_text("".join("\n".join(document) + "\n\n" for document in documents), encoding="utf-8")
  return str(path)


def train_small_model(
  path: Path, lines: list[str], vocab_size: int = VOCAB_SIZE, model_type: str = "unigram", **settings: Any
) -> str:
  """Trains a SentencePiece model with ALBERT's control symbols, and returns its path."""
  special_ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
  control_symbols = ["[CLS]", "[SEP]", "[MASK]"]
  settings = special_ids | {"user_defined_symbols": list('()"-.–£€'), "control_symbols": control_symbols} | settings
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=model,
    vocab_size=vocab_size,
    model_type=model_type,
    num_threads=1,
    minloglevel=2,
    **settings,
  )
  path.write_bytes(model.getvalue())
  return str(path)


@pytest.fixture(scope="session")
def spm_model(tmp_path_factory: pytest.TempPathFactory, corpus_file: str) -> str:
  """Path of a lower-cased SentencePiece model of at most 800 pieces, trained on `corpus_file`."""
  lines = [line.lower() for line in Path(corpus_file).read_text(encoding="utf-8").splitlines() if line]
  return train_small_model(tmp_path_factory.mktemp("vocab") / "spiece.model", lines, hard_vocab_limit=False)


@pytest.fixture(scope="session", autouse=True)
def _pictures_are_not_rendered() -> Iterator[None]:
  """Replaces every figure by a picture of one pixel. Rendering curves.png takes a fifth of a short training run."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(figures, "png", lambda figure: one_pixel_png())
    yield


@pytest.fixture
def rendered_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
  """Renders figures as the commands do, for tests of the functions that draw them."""
  monkeypatch.setattr(figures, "png", _ORIGINAL_PNG)


@contextlib.contextmanager
def eager_functions() -> Iterator[None]:
  """A context in which TensorFlow calls functions eagerly: it doesn't trace them."""
  import tensorflow as tf

  tf.config.run_functions_eagerly(True)
  try:
    yield
  finally:
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def eager_steps() -> Iterator[None]:
  """Runs training and evaluation steps without tracing them. Tracing takes most of the time of a run of a few steps.

  Use it in tests of what happens between the steps. Other tests trace them: the contract of all tasks (in `make test`
  for one task), the tests of the loop's numbers, and every command that runs in a process of its own.
  """
  with eager_functions():
    yield


@pytest.fixture(scope="module")
def all_steps_eager() -> Iterator[None]:
  """As eager_steps, for all tests of a module and for the runs that they share."""
  with eager_functions():
    yield


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
  """Runs commands in processes of their own: `commands.run(["-m", "albert.convert", ...])`.

  Each process is a fork of a process that has imported TensorFlow, which saves seconds. Use this fixture if the
  process itself is tested, for example its exit code; otherwise call the command's function. A test of the start of an
  interpreter needs `subprocess`.
  """
  from tests.torture.workplace import Workplace

  with Workplace(tmp_path_factory.mktemp("commands")) as workplace:
    yield workplace


def _encode_field(field_number: int, value: int | float | str | bytes) -> bytes:
  """Encodes one field in protobuf's wire format: as a varint, a float, or bytes with their length.

  A field starts with a tag, which is its number and the wire type in the lowest three bits: 0 varint, 5 float32.
  """
  if isinstance(value, float):
    return bytes([field_number << 3 | 5]) + struct.pack("<f", value)
  if isinstance(value, int):
    return encode_varint(field_number << 3) + encode_varint(value % (1 << 64))  # a negative value in two's complement
  return encode_bytes_field(field_number, value.encode("utf-8") if isinstance(value, str) else value)


class PieceType(enum.IntEnum):
  """The types of pieces in sentencepiece_model.proto."""

  NORMAL = 1
  UNKNOWN = 2
  CONTROL = 3
  USER_DEFINED = 4
  UNUSED = 5
  BYTE = 6


SaveModel = Callable[..., str]


def save_sentencepiece(
  directory: Path, pieces: list[tuple[str, float]], types: dict[str, PieceType] | None = None
) -> str:
  """Writes a unigram model of these pieces and their scores, and returns its path.

  The control symbols are added before them. A piece without a type is normal. The model does not normalize text.
  """
  special_types = dict.fromkeys(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), PieceType.CONTROL)
  special_types["<unk>"] = PieceType.UNKNOWN
  all_pieces = [*((special, 0.0) for special in special_types), *pieces]
  all_types = special_types | (types or {})
  # The numbers of fields are those of sentencepiece_model.proto. ModelProto has pieces (1), trainer_spec (2) and
  # normalizer_spec (3).
  model = b""
  for piece, score in all_pieces:
    piece_type = all_types.get(piece, PieceType.NORMAL)
    model += _encode_field(1, _encode_field(1, piece) + _encode_field(2, score) + _encode_field(3, piece_type))
  # model_type unigram (1), vocab_size, unk_id, bos_id, eos_id and pad_id.
  trainer_spec = {3: 1, 4: len(all_pieces), 40: 1, 41: -1, 42: -1, 43: 0}
  if PieceType.BYTE in all_types.values():
    trainer_spec[35] = 1  # byte_fallback
  model += _encode_field(2, b"".join(_encode_field(number, value) for number, value in trainer_spec.items()))
  model += _encode_field(3, _encode_field(1, "identity"))
  path = directory / f"hand_made_{hashlib.sha256(model).hexdigest()[:8]}.model"
  path.write_bytes(model)
  return str(path)


@pytest.fixture
def save_model(tmp_path: Path) -> SaveModel:
  """`save_model([(piece, score), ...], {piece: type})` writes a model (see save_sentencepiece) to tmp_path."""
  return functools.partial(save_sentencepiece, tmp_path)
