"""Other libraries give our answers with what albert.convert writes for transformers.

Pipelines of transformers answer for each task, sentence-transformers computes embeddings, and keras-hub encodes text.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import albert
from albert import tasks
from albert.convert.convert_checkpoint import convert
from albert.estimator import Estimator
from albert.tokenization.tokenizer import Tokenizer, masked_batch
from tests.conftest import english_like_documents
from tests.convert.files_of_weights import write_tf1
from tests.docs.blocks import ROOT, blocks
from tests.golden.make_tiny_albert import random_weights
from tests.models.build_models import build_pretraining_model
from tests.parity.huggingface import to_tensors
from tests.small_downloads import small_config
from tests.synthetic import TINY_MODEL

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("all_steps_eager")

# tokenizer.json does not have the comma rule: see test_tokenizer_files.py.
SENTENCES = [
  sentence for document in english_like_documents(8, seed=4) for sentence in document if not re.search(r"\d,", sentence)
]
MAX_LENGTH = 64
TEXTS = ['The non-profit (see below) sold "it" in 1984.', *SENTENCES[:8]]
LONG_TEXT = " ".join(SENTENCES[:9])  # longer than MAX_LENGTH
KINDS = ["short", "long, very", "other"]
TASKS: dict[str, Any] = {
  "classes": lambda: tasks.Classification([(text, KINDS[i % 3]) for i, text in enumerate(SENTENCES)], eval_share=0),
  "pairs": lambda: tasks.Classification(
    [(text, other, KINDS[i % 2]) for i, (text, other) in enumerate(zip(SENTENCES, SENTENCES[::-1], strict=True))],
    text=("text", "pair"),
    eval_share=0,
  ),
  "regression": lambda: tasks.Regression([(text, len(text) / 20) for text in SENTENCES], eval_share=0),
  "labels": lambda: tasks.Classification(
    [(text, [word for word in ("the", "a", "in") if f" {word} " in text]) for text in SENTENCES],
    multi_label=True,
    eval_share=0,
  ),
  "tagging": lambda: tasks.Tagging(
    [
      {"tokens": text.split(), "tags": [("O", "B-SHORT", "B-LONG")[(len(word) + 1) // 4 % 3] for word in text.split()]}
      for text in SENTENCES
    ],
    word_rule="whitespace",
    eval_share=0,
  ),
}


def train_and_convert(name: str, spm_model: str, directory: Path, **settings: Any) -> tuple[Estimator, str]:
  """Trains a task for some steps, and returns the Estimator and the directory for transformers."""
  values: dict[str, Any] = {
    "model": dataclasses.replace(
      TINY_MODEL, vocab_size=Tokenizer(spm_model).vocab_size, max_position_embeddings=MAX_LENGTH
    ),
    "spm_model_file": spm_model,
    "from_scratch": True,
    "max_seq_length": MAX_LENGTH,
    "num_train_steps": 3,
    "train_batch_size": 8,
    "learning_rate": 0.05,
    "num_warmup_steps": 0,
    "precision": "float32",
  }
  estimator = Estimator(TASKS[name](), output_dir=directory / "run", **values | settings)
  estimator.train()
  convert(str(directory / "run"), str(directory / "hf"), "huggingface")
  return estimator, str(directory / "hf")


def pipeline(task: str, directory: str, **settings: Any) -> Any:
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  return transformers.pipeline(task, model=directory, device="cpu", **settings)


@pytest.mark.parametrize(("name", "do_lower_case"), [("classes", True), ("labels", False)])
def test_a_pipeline_gives_our_probabilities_by_the_names_of_the_labels(
  name: str, do_lower_case: bool, spm_model: str, tmp_path: Path
) -> None:
  estimator, directory = train_and_convert(name, spm_model, tmp_path, do_lower_case=do_lower_case)
  texts = [*TEXTS, LONG_TEXT]
  found = pipeline("text-classification", directory)(texts, top_k=None, truncation=True)
  for answer, theirs in zip(estimator.predict(texts), found, strict=True):
    probabilities = {row["label"]: row["score"] for row in theirs}
    assert probabilities == pytest.approx(dict(answer.probabilities), abs=1e-5)


def test_the_example_of_the_guide_prints_probabilities(
  spm_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  _, directory = train_and_convert("classes", spm_model, tmp_path)
  Path(directory).rename(tmp_path / "run_hf")
  monkeypatch.chdir(tmp_path)
  (example,) = (block for block in blocks(ROOT / "docs" / "from_transformers.md") if block.language == "python")
  exec(example.text, {})
  printed = capsys.readouterr().out
  assert [kind for kind in KINDS if repr(kind) not in printed] == []


def test_a_pipeline_gives_our_probabilities_of_pairs(spm_model: str, tmp_path: Path) -> None:
  """A pair that is too long may be cut otherwise by one token."""
  estimator, directory = train_and_convert("pairs", spm_model, tmp_path)
  pairs = list(zip(TEXTS, ["Nobody forgot it.", "A letter.", "Why?"] * 3, strict=True))
  inputs = [{"text": text, "text_pair": other} for text, other in pairs]
  found = pipeline("text-classification", directory)(inputs, top_k=None)
  for answer, theirs in zip(estimator.predict(pairs), found, strict=True):
    probabilities = {row["label"]: row["score"] for row in theirs}
    assert probabilities == pytest.approx(dict(answer.probabilities), abs=1e-5)


def test_a_pipeline_gives_our_numbers(spm_model: str, tmp_path: Path) -> None:
  estimator, directory = train_and_convert("regression", spm_model, tmp_path)
  found = pipeline("text-classification", directory)(TEXTS)
  assert [row["score"] for row in found] == pytest.approx(estimator.predict(TEXTS), abs=1e-4)


def test_a_pipeline_gives_our_tags_at_the_first_piece_of_each_word(spm_model: str, tmp_path: Path) -> None:
  """With an aggregation_strategy, transformers finds words by spaces, and cuts off a lone ▁ before them."""
  estimator, directory = train_and_convert("tagging", spm_model, tmp_path)
  found = pipeline("token-classification", directory, ignore_labels=[])(TEXTS)
  for text, answer, tokens in zip(TEXTS, estimator.predict(TEXTS), found, strict=True):
    tags: dict[int, str] = {}
    for token in tokens:
      tags.setdefault(token["start"], token["entity"])
    assert list(answer.words) == text.split()
    first_tags = [tags[match.start()] for match in re.finditer(r"\S+", text)]
    # Our tags are the most probable ones that follow the scheme, in which no I- may begin a span.
    pairs = [(tag, ours) for tag, ours in zip(first_tags, answer.tags, strict=True) if not tag.startswith("I-")]
    assert len(pairs) > 4
    assert all(tag == ours for tag, ours in pairs)


@pytest.fixture(scope="module")
def pretrained(spm_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
  """Weights of a model with the heads of pretraining, as transformers reads them, and the weights themselves."""
  directory = tmp_path_factory.mktemp("pretrained")
  config = small_config(spm_model)
  weights = random_weights(config, 3)
  source = write_tf1(directory / "tf1", config, weights)
  convert(source, str(directory / "hf"), "huggingface", spm_model_file=spm_model)
  return directory / "hf", weights


def test_a_pipeline_fills_masks_with_our_probabilities(pretrained: Any, spm_model: str) -> None:
  directory, weights = pretrained
  texts = ["The teacher [MASK] the old umbrella.", "nobody sold the (broken) [MASK].", "[MASK]s, in 1984"]
  batch = masked_batch(Tokenizer(spm_model), texts)
  positions = np.argmax(batch["input_ids"] == 4, axis=1)[:, None]
  model = build_pretraining_model(small_config(spm_model), weights)
  logits = model(to_tensors(batch | {"masked_lm_positions": positions})).masked_lm_logits.numpy()[:, 0]
  probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  for row, theirs in zip(probabilities, pipeline("fill-mask", str(directory), top_k=5)(texts), strict=True):
    assert [candidate["token"] for candidate in theirs] == np.argsort(-row)[:5].tolist()
    assert [candidate["score"] for candidate in theirs] == pytest.approx(np.sort(row)[::-1][:5], rel=1e-4)


def test_sentence_transformers_gives_our_embeddings(pretrained: Any) -> None:
  sentence_transformers = pytest.importorskip("sentence_transformers")
  directory, _ = pretrained
  model = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
  assert model.max_seq_length == 48
  texts = [*TEXTS, LONG_TEXT]
  assert np.allclose(model.encode(texts), albert.encode(texts, encoder=directory), atol=1e-5)


def test_keras_hub_encodes_lower_cased_text_as_we_do(pretrained: Any) -> None:
  """Its tokenizer reads spiece.model, without a normalization before it."""
  keras_hub = pytest.importorskip("keras_hub")
  directory, _ = pretrained
  ours = Tokenizer.from_pretrained(directory)
  theirs = keras_hub.models.AlbertTokenizer.from_preset(str(directory))
  for text in TEXTS:
    assert np.asarray(theirs(ours.normalize(text))).tolist() == ours.encode(text)
  batch = ours(TEXTS, max_length=48)
  backbone = keras_hub.models.AlbertBackbone.from_preset(str(directory))
  inputs = {"token_ids": "input_ids", "padding_mask": "input_mask", "segment_ids": "segment_ids"}
  found = backbone({theirs: batch[ours] for theirs, ours in inputs.items()})
  expected = albert.Encoder.from_pretrained(directory)(to_tensors(batch))
  assert np.allclose(np.asarray(found["pooled_output"]), expected.pooled_output, atol=1e-5)
