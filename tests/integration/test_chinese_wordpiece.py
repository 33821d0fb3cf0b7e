"""Chinese text with a WordPiece vocabulary, from the vocabulary to answers of an exported model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import albert
from albert import tasks
from albert.data.manifest import Manifest
from albert.errors import UserError
from albert.estimator import Estimator
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.wordpiece import SPECIAL_PIECES
from tests.integration.shards_of_vocabularies import VocabularyFiles, prepare_shards
from tests.tokenization.wordpiece_reference import write_vocabulary

pytestmark = pytest.mark.usefixtures("all_steps_eager")

_SUBJECTS, _VERBS, _OBJECTS = (
  ("老师", "船长", "她的姐姐", "ALBERT"),
  ("看见了", "忘记了", "卖了"),
  ("花园", "一封信", "3把钥匙"),
)


def chinese_sentences(count: int, seed: int) -> list[str]:
  rng = random.Random(seed)
  return [f"{rng.choice(_SUBJECTS)}{rng.choice(_VERBS)}{rng.choice(_OBJECTS)}。" for _ in range(count)]


@pytest.fixture(scope="module")
def chinese(tmp_path_factory: pytest.TempPathFactory) -> VocabularyFiles:
  directory = tmp_path_factory.mktemp("chinese")
  sentences = chinese_sentences(200, seed=1)
  characters = sorted(set("".join(sentences)) - set("ALBERT"))
  # [MASK] and the others are not the first pieces here.
  pieces = ["[PAD]", *characters, *SPECIAL_PIECES[1:], "al", "##bert", "##b"]
  vocabulary = write_vocabulary(directory / "vocab.txt", pieces)
  return prepare_shards(directory, vocabulary, sentences, dupe_factor=2)


@pytest.mark.thorough
def test_pretraining_on_shards_then_fill_mask(chinese: VocabularyFiles, tmp_path: Path) -> None:
  manifest = Manifest.load(str(chinese.shards))
  tokenizer = Tokenizer(chinese.vocabulary)
  assert manifest is not None
  assert (manifest.vocab_kind, manifest.vocab_sha256) == ("wordpiece", tokenizer.sha256)
  assert manifest.num_unknown_tokens == 0
  run = str(tmp_path / "run")
  estimator = Estimator(
    tasks.Pretraining(chinese.shards / "*.tfrecord"), output_dir=run, masking="dynamic", **chinese.settings
  )
  estimator.train()
  ((candidates,),) = estimator.predict(["船长看见了[MASK]园。"])
  (piece, probability), *_ = candidates.items()
  data = json.loads(Path(run, "config.json").read_text())["data"]
  assert (data["vocab_kind"], data["vocab_sha256"]) == ("wordpiece", tokenizer.sha256)
  assert Path(run, "vocab.txt").read_bytes() == Path(chinese.vocabulary).read_bytes()
  assert Tokenizer.from_pretrained(run).sha256 == tokenizer.sha256

  rows = [
    ("船长卖了花园。", "花"),
    ("老师忘记了一封信。", "信"),
    ("她的姐姐卖了花园。", "花"),
    ("ALBERT看见了一封信。", "信"),
  ]
  classifier = Estimator(
    tasks.Classification(rows, eval_share=0),
    init_checkpoint=run,
    num_train_steps=1,
    train_batch_size=2,
    max_seq_length=16,
  )
  assert classifier.train().step == 1  # with the vocabulary beside the weights

  exported = ExportedModel(estimator.export(tmp_path / "models", form="fill_mask"))
  (answer,) = exported.answer([PredictRequest(1, {exported.fields[0]["name"]: "船长看见了[MASK]园。".encode()})])
  assert answer["num_masks"] == 1
  assert answer["pieces"][0][0] == piece
  assert np.isclose(answer["probabilities"][0][0], probability, atol=1e-4)


@pytest.mark.thorough
def test_a_question_is_answered_with_characters_of_the_context(chinese: VocabularyFiles, tmp_path: Path) -> None:
  rows: list[dict[str, Any]] = [
    {"question": "谁？", "context": "昨天船长卖了花园。", "answers": {"text": ["船长"], "answer_start": [2]}},
    {"question": "什么？", "context": "老师忘记了一封信。", "answers": {"text": ["一封信"], "answer_start": [5]}},
  ]
  settings = {
    **chinese.settings,
    "max_seq_length": 32,
    "max_query_length": 8,
    "train_batch_size": 2,
    "from_scratch": True,
  }
  estimator = Estimator(tasks.QuestionAnswering(rows), output_dir=str(tmp_path / "run"), **settings)
  estimator.train()
  assert len(estimator.predict(rows)) == 2
  exported = ExportedModel(estimator.export(tmp_path / "models"))
  requests = [
    PredictRequest(number, {name: str(row[name]).encode() for name in ("question", "context")})
    for number, row in enumerate(rows, start=1)
  ]
  answers = exported.answer(requests)
  for row, found in zip(rows, answers, strict=True):
    assert row["context"][found["start"] : found["end"]] == found["best_text"]


def test_another_kind_of_vocabulary_is_refused(chinese: VocabularyFiles, spm_model: str, tmp_path: Path) -> None:
  settings = {**chinese.settings, "spm_model_file": spm_model}
  with pytest.raises(UserError, match=r"\(sentencepiece\) is not the vocabulary .* made with \(wordpiece; its SHA-256"):
    Estimator(tasks.Pretraining(chinese.shards / "*.tfrecord"), output_dir=str(tmp_path), **settings).train()


def test_converted_weights_have_the_vocabulary_and_its_special_ids(chinese: VocabularyFiles, tmp_path: Path) -> None:
  from albert.convert.convert_checkpoint import convert

  run = tmp_path / "run"
  Estimator(tasks.Pretraining(chinese.shards / "*.tfrecord"), output_dir=str(run), **chinese.settings).train()
  convert(str(run), str(tmp_path / "hf"), "huggingface")
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  special_ids = Tokenizer(chinese.vocabulary).special_ids
  assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (
    0,
    special_ids.cls,
    special_ids.sep,
  )
  tokenizer_config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
  expected = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True, "strip_accents": True}
  assert expected.items() <= tokenizer_config.items()
  assert Tokenizer.from_pretrained(tmp_path / "hf").encode("船长") == Tokenizer(chinese.vocabulary).encode("船长")
  texts = ["船长卖了花园。", "老师"]
  assert np.array_equal(albert.encode(texts, encoder=tmp_path / "hf"), albert.encode(texts, encoder=run))
