"""WordPiece and byte-level BPE models, served in every form: their answers equal those of tests/export/pipelines.py."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import albert
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.checks import array_function
from albert.export.companion_files import DESCRIPTION, text_inputs
from albert.export.export_model import export_model
from albert.export.other_formats import onnx_runner
from tests.export.pipelines import FORMS, Run, write_run
from tests.export.requests import english_like_texts, make_requests
from tests.export.served_runs import assert_same_answers
from tests.integration.test_kinds_of_vocabulary import LANGUAGES
from tests.test_javascript_example import EXAMPLE, find_node
from tests.tokenization import byte_bpe_reference, wordpiece_reference
from tests.torture.workplace import Workplace


def mixed_texts(count: int) -> list[str]:
  """Returns English-like texts and Chinese texts, in turn, some of them with both."""
  rng = random.Random(5)
  english, chinese = english_like_texts(count), LANGUAGES["wordpiece"].sentences(3 * count)
  makers = [lambda i: english[i], lambda i: "".join(chinese[3 * i : 3 * i + 3]), lambda i: english[i] + chinese[i]]
  return [rng.choice(makers)(index) for index in range(count)]


def write_wordpiece(directory: Path) -> str:
  """Writes a vocab.txt with the characters of the texts. Its special pieces have the ids of BERT, not of ALBERT."""
  directory.mkdir(parents=True)
  characters = sorted(set("".join(mixed_texts(50))) - set(" "))
  pieces = dict.fromkeys(
    [*wordpiece_reference.vocabulary_pieces(), *characters, *(f"##{character}" for character in characters)]
  )
  return wordpiece_reference.write_vocabulary(directory / "vocab.txt", list(pieces))


class Kind(NamedTuple):
  """A kind of vocabulary.

  Attributes:
    write: writes a vocabulary to a directory, and returns its path.
    names: the names of its files.
    cls: the id of its [CLS].
  """

  write: Callable[[Path], str]
  names: tuple[str, ...]
  cls: int


KINDS = {
  "wordpiece": Kind(write_wordpiece, ("vocab.txt",), 101),
  "byte_level_bpe": Kind(byte_bpe_reference.write_vocabulary, ("vocab.json", "merges.txt"), 0),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def write_run_of_kind(directory: Path, kind: str, form: str) -> Run:
  run = write_run(directory / "run", FORMS[form], KINDS[kind].write(directory / "vocabulary"))
  assert run.tokenizer.vocabulary.kind == kind
  assert run.tokenizer.special_ids.cls == KINDS[kind].cls
  return run


def select_task(form: str) -> str:
  """Returns the form if several fit the run, as those of pretraining do, else ""."""
  return form if FORMS[form].task == "pretraining" else ""


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("name", FORMS)
def test_answers_to_texts_equal_those_of_the_python_pipeline(tmp_path: Path, kind: str, name: str) -> None:
  run = write_run_of_kind(tmp_path, kind, name)
  checkpoint = open_checkpoint(run.directory)
  form = select_form(checkpoint, select_task(name), {})
  model = form.model_class(checkpoint, form)
  requests = make_requests(name, [*mixed_texts(24), "", " \u3000Zoë\t 🙂\n\n\u200bcan't see\u0301  3½ (keys).  "])
  answers = array_function(model.answer_texts)(text_inputs(model.fields, requests))
  assert_same_answers(answers, run.expected_answers(requests))


@pytest.mark.thorough
@each_kind
def test_albert_predict_answers_lines_of_text(tmp_path: Path, kind: str, commands: Workplace) -> None:
  """albert.predict loads the ops of the tokenizer itself, without tensorflow_text."""
  texts = [" The captain's  花园 🙂", "Zoë sold\t3 keys.", "", "老师"]
  run = write_run_of_kind(tmp_path, kind, "classifier")
  directory, path = export_model(run.directory, str(tmp_path / "models")), tmp_path / "texts.txt"
  path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
  finished = commands.run(["-m", "albert.predict", f"--model={directory}", f"--input_file={path}"])
  assert finished.unexpected_end() is None, finished.stderr
  found = [list(json.loads(line)["probabilities"].values()) for line in finished.stdout.splitlines()]
  expected = run.expected_answers([{"text": text} for text in texts])["probabilities"]
  np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.thorough
@each_kind
def test_an_export_holds_and_describes_its_vocabulary(tmp_path: Path, kind: str) -> None:
  run = write_run_of_kind(tmp_path, kind, "classifier")
  directory, tokenizer = Path(export_model(run.directory, str(tmp_path))), run.tokenizer
  for name in KINDS[kind].names:
    assert (directory / "assets" / name).read_bytes() == Path(run.directory, name).read_bytes()
  description = json.loads((directory / DESCRIPTION).read_text())
  assert description["vocabulary"] == {"kind": kind, "sha256": tokenizer.sha256, "size": len(tokenizer.pieces)}
  sentence = f"of the kind {kind} and has {tokenizer.vocab_size:,} pieces; its SHA-256 is {tokenizer.sha256}"
  assert sentence in (directory / "README.md").read_text()


@pytest.mark.serving
@each_kind
def test_the_onnx_file_answers_texts_that_python_tokenizes(tmp_path: Path, kind: str) -> None:
  directory = export_onnx(tmp_path, kind, "classifier")
  texts = mixed_texts(12)
  expected = call_saved_model(directory, text=texts)
  batch = albert.Tokenizer.from_pretrained(directory)(texts, max_length=40)
  answers = onnx_runner((directory / "model.onnx").read_bytes())(batch)
  np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-5)

  result = subprocess.run(
    [find_node(), str(EXAMPLE / "answer.mjs"), str(directory)], input="a\n", capture_output=True, text=True, check=False
  )
  if "onnxruntime-node" not in result.stderr:  # else it is not installed
    message = f"its vocabulary is of the kind {kind}: this example reads sentencepiece only"
    assert (result.returncode, result.stderr) == (2, f"error: {directory}: {message}\n")


@pytest.mark.serving
@each_kind
def test_the_onnx_file_answers_questions_with_characters_of_the_context(tmp_path: Path, kind: str) -> None:
  directory = export_onnx(tmp_path, kind, "squad_v1")
  tokenizer = albert.Tokenizer.from_pretrained(directory)
  run = onnx_runner((directory / "model.onnx").read_bytes())
  for question, context in (
    ("谁看见了花园？", "昨天ALBERT看见了花园。"),
    ("Who?", "The captain sold it, 老师 did not."),
  ):
    windows = albert.question_windows(tokenizer, question, context, max_length=40, max_query_length=9, doc_stride=7)
    answers = run(windows.inputs)
    assert len(answers["score"]) == 1  # with one window, the spans are those of the SavedModel
    expected = call_saved_model(directory, question=[question], context=[context])
    assert windows.text(0, answers["start"][0], answers["end"][0]) == expected["best_text"][0].decode()


def export_onnx(tmp_path: Path, kind: str, form: str) -> Path:
  run = write_run_of_kind(tmp_path, kind, form)
  return Path(export_model(run.directory, str(tmp_path / "models"), formats=("onnx",)))


def call_saved_model(directory: Path, **texts: list[str]) -> dict[str, np.ndarray]:
  model = tf.saved_model.load(str(directory))
  inputs = {name: np.array([text.encode() for text in column]) for name, column in texts.items()}
  return array_function(model.signatures["serving_default"])(inputs)
