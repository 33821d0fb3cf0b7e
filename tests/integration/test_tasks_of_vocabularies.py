"""A tagger with WordPiece and byte-level BPE vocabularies, from texts to the exported model.

Half of the texts are English, with spaces between words, and half are Chinese, without.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from albert import tasks
from albert.estimator import Estimator
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.wordpiece import SPECIAL_PIECES
from tests.synthetic import TINY_MODEL
from tests.tokenization import byte_bpe_reference, wordpiece_reference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("all_steps_eager")]

# Subjects, verbs, objects, what is between them, and the end of a sentence.
_LANGUAGES = (
  (("The captain", "Zoë 🙂", "ALBERT"), ("sold", "can't see"), ("a letter", "3 keys"), " ", "."),
  (("老师", "船长", "她的姐姐"), ("看见了", "卖了"), ("花园", "一封信"), "", "。"),
)


def make_sentences(count: int, seed: int) -> list[tuple[str, str]]:
  """Returns the subject of each sentence, and the sentence. The languages take turns."""
  rng = random.Random(seed)
  sentences = []
  for index in range(count):
    subjects, verbs, objects, space, end = _LANGUAGES[index % 2]
    subject = rng.choice(subjects)
    sentences.append((subject, space.join([subject, rng.choice(verbs), rng.choice(objects)]) + end))
  return sentences


def write_vocabulary(directory: Path, kind: str) -> str:
  text = " ".join(sentence for _, sentence in make_sentences(100, seed=1))
  if kind == "byte_level_bpe":
    return byte_bpe_reference.write_vocabulary(directory, *byte_bpe_reference.train(200, text))
  characters = sorted(set(text.lower().replace("ë", "e") + "昨天，") - {" "})
  pieces = ["[PAD]", *characters, *(f"##{character}" for character in characters), *SPECIAL_PIECES[1:]]
  return wordpiece_reference.write_vocabulary(directory / "vocab.txt", pieces)


@pytest.fixture(params=["wordpiece", "byte_level_bpe"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
  """The settings of a quick training with a vocabulary of each kind."""
  vocabulary = write_vocabulary(tmp_path, request.param)
  tokenizer = Tokenizer(vocabulary)
  assert tokenizer.vocabulary.kind == request.param
  model = dataclasses.replace(TINY_MODEL, vocab_size=tokenizer.vocab_size, max_position_embeddings=64)
  return {"model": model, "spm_model_file": vocabulary, "precision": "float32", "from_scratch": True,
          "output_dir": str(tmp_path / "run"), "num_warmup_steps": 1, "log_every_steps": 20}  # fmt: skip


def test_a_tagger_learns_spans(settings: dict[str, Any], tmp_path: Path) -> None:
  rows: list[dict[str, Any]] = []
  for index, (subject, sentence) in enumerate(make_sentences(60, seed=5)):
    before = ("", "", " \t", "昨天，", "  keys  \n", "昨天，")[index % 6]  # spans at several positions
    start, end = len(before), len(before) + len(subject)
    rows.append({"text": before + sentence, "spans": [{"start": start, "end": end, "label": "WHO"}]})
  estimator = Estimator(
    tasks.Tagging(rows, eval=rows),
    num_train_steps=100,
    train_batch_size=8,
    max_seq_length=48,
    learning_rate=3e-3,
    **settings,
  )
  estimator.train()
  assert estimator.evaluate()["f1"] == 1.0
  texts = [row["text"] for row in rows]
  predicted = [[(span.start, span.end) for span in answer.spans] for answer in estimator.predict(texts)]
  assert predicted == [[(span["start"], span["end"]) for span in row["spans"]] for row in rows]
  exported = ExportedModel(estimator.export(tmp_path / "models"))
  answers = exported.answer([PredictRequest(i, {"text": text.encode()}) for i, text in enumerate(texts, start=1)])
  for text, spans, answer in zip(texts, predicted, answers, strict=True):
    assert [*zip(answer["start"], answer["end"], strict=True)] == spans
    assert answer["span"] == [text[start:end] for start, end in spans]
