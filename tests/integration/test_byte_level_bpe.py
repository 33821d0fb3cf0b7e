"""Text with a byte-level BPE vocabulary, from shards to answers of an exported model and to converted weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import albert
from albert import tasks
from albert.convert.convert_checkpoint import convert
from albert.data.manifest import Manifest
from albert.errors import UserError
from albert.estimator import Estimator
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest
from albert.tokenization.tokenizer import Tokenizer
from tests.integration.shards_of_vocabularies import VocabularyFiles, prepare_shards
from tests.tokenization.byte_bpe_reference import train, write_vocabulary

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("all_steps_eager")]


def sentences(count: int, seed: int) -> list[str]:
  rng = random.Random(seed)
  subjects, verbs, objects = (
    ("The captain", "她的姐姐", "Zoë 🙂"),
    ("sold", "卖了", "can't see"),
    ("a letter", "花园", "3 keys"),
  )
  return [f"{rng.choice(subjects)} {rng.choice(verbs)} {rng.choice(objects)}." for _ in range(count)]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> VocabularyFiles:
  directory = tmp_path_factory.mktemp("bpe")
  text = sentences(160, seed=1)
  pieces, merges = train(60, " ".join(text))
  vocabulary = write_vocabulary(directory, pieces, merges)
  return prepare_shards(directory, vocabulary, text)


def pretrain(bpe: VocabularyFiles, run: Path, **settings: Any) -> Estimator:
  task = tasks.Pretraining(bpe.shards / "*.tfrecord")
  estimator = Estimator(task, output_dir=str(run), **{**bpe.settings, **settings})
  estimator.train()
  return estimator


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_pretraining_then_fill_mask_and_a_classifier(bpe: VocabularyFiles, tmp_path: Path, masking: str) -> None:
  manifest = Manifest.load(str(bpe.shards))
  tokenizer = Tokenizer(bpe.vocabulary)
  assert manifest is not None
  assert (manifest.vocab_kind, manifest.vocab_sha256) == ("byte_level_bpe", tokenizer.sha256)
  assert manifest.num_unknown_tokens == 0
  run = tmp_path / "run"
  estimator = pretrain(bpe, run, masking=masking)
  data = json.loads((run / "config.json").read_text())["data"]
  assert (data["vocab_kind"], data["vocab_sha256"]) == ("byte_level_bpe", tokenizer.sha256)
  for name in ("vocab.json", "merges.txt"):
    assert (run / name).read_bytes() == Path(bpe.vocabulary).with_name(name).read_bytes()
  assert Tokenizer.from_pretrained(run).sha256 == tokenizer.sha256
  texts = ["The captain [MASK] a letter.", "[MASK]\n她 的[MASK]姐姐"]
  candidates = estimator.predict(texts)
  exported = ExportedModel(estimator.export(tmp_path / "models", form="fill_mask"))
  name = exported.fields[0]["name"]
  answers = exported.answer([PredictRequest(i, {name: text.encode()}) for i, text in enumerate(texts, start=1)])
  assert [answer["num_masks"] for answer in answers] == [1, 2]
  for answer, of_text in zip(answers, candidates, strict=True):
    for pieces, probabilities, of_mask in zip(answer["pieces"], answer["probabilities"], of_text, strict=False):
      piece, probability = next(iter(of_mask.items()))
      assert pieces[0] == piece
      assert np.isclose(probabilities[0], probability, atol=1e-4)
  rows = [("The captain sold it.", "a"), ("她的姐姐卖了花园。", "b"), ("Zoë 🙂", "b"), ("a letter", "a")]
  settings: dict[str, Any] = {"num_train_steps": 1, "train_batch_size": 2, "max_seq_length": 24}
  classifier = Estimator(
    tasks.Classification(rows, eval_share=0), init_checkpoint=str(run), output_dir=str(tmp_path / "c"), **settings
  )
  assert classifier.train().step == 1  # with the vocabulary beside the weights
  served = ExportedModel(classifier.export(tmp_path / "classifiers"))
  (answer,) = served.answer([PredictRequest(1, {served.fields[0]["name"]: "Zoë\t sold\n a".encode()})])
  (expected,) = classifier.predict(["Zoë\t sold\n a"])
  assert answer["label"] == expected.label
  card = next(Path(served.directory).glob("**/README.md")).read_text()
  assert "taken with its case" in card


def test_a_question_is_answered_with_text_of_the_context(bpe: VocabularyFiles, tmp_path: Path) -> None:
  rows: list[dict[str, Any]] = [
    {
      "question": "Who?",
      "context": "Zoë 🙂  sold\n a letter.",
      "answers": {"text": ["a letter"], "answer_start": [13]},
    },
    {"question": "谁？", "context": " 她的姐姐 卖了花园。", "answers": {"text": ["花园"], "answer_start": [8]}},
  ]
  settings = {**bpe.settings, "max_seq_length": 48, "max_query_length": 8, "train_batch_size": 2, "from_scratch": True}
  estimator = Estimator(tasks.QuestionAnswering(rows), output_dir=str(tmp_path / "run"), **settings)
  estimator.train()
  predicted = estimator.predict(rows)
  exported = ExportedModel(estimator.export(tmp_path / "models"))
  requests = [
    PredictRequest(number, {name: str(row[name]).encode() for name in ("question", "context")})
    for number, row in enumerate(rows, start=1)
  ]
  for row, found, answer in zip(rows, exported.answer(requests), predicted, strict=True):
    assert row["context"][found["start"] : found["end"]] == found["best_text"] == found["best_text"].strip()
    assert found["best_text"] == answer.text


def test_a_vocabulary_with_other_merges_is_refused(bpe: VocabularyFiles, tmp_path: Path) -> None:
  pieces, merges = json.loads(Path(bpe.vocabulary).read_text("utf-8")), train(60, " ".join(sentences(160, seed=1)))[1]
  other = write_vocabulary(tmp_path / "other", pieces, merges[::-1])
  with pytest.raises(
    UserError, match=r"\(byte_level_bpe\) is not the vocabulary .* made with \(byte_level_bpe; its SHA"
  ):
    pretrain(bpe, tmp_path / "run", spm_model_file=other)
  pretrain(bpe, tmp_path / "run")
  rows = [("The captain", "a"), ("Zoë", "b"), ("a letter", "a"), ("3 keys", "b")]
  classifier = Estimator(
    tasks.Classification(rows, eval_share=0),
    init_checkpoint=str(tmp_path / "run"),
    output_dir=str(tmp_path / "classifier"),
    spm_model_file=other,
    num_train_steps=1,
  )
  with pytest.raises(UserError, match=r"its vocabulary is .*vocab\.json \(SHA-256 .*other/vocab\.json is a different"):
    classifier.train()


def test_converted_weights_have_the_vocabulary_and_its_special_ids(bpe: VocabularyFiles, tmp_path: Path) -> None:
  pretrain(bpe, tmp_path / "run")
  convert(str(tmp_path / "run"), str(tmp_path / "hf"), "huggingface")
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (1, 0, 2)
  tokenizer_config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
  assert tokenizer_config["tokenizer_class"] == "PreTrainedTokenizerFast"
  assert (tokenizer_config["cls_token"], tokenizer_config["mask_token"]) == ("<s>", "<mask>")
  tokenizer = Tokenizer.from_pretrained(tmp_path / "hf")
  text = "Zoë can't see 花园 🙂"
  assert tokenizer.encode(text) == Tokenizer(bpe.vocabulary).encode(text)
  texts = ["The captain sold 3 keys.", "花园"]
  vectors = albert.encode(texts, encoder=tmp_path / "run")
  assert np.array_equal(albert.encode(texts, encoder=tmp_path / "hf"), vectors)
  convert(str(tmp_path / "hf"), str(tmp_path / "back"), "tf1")
  assert Tokenizer.from_pretrained(tmp_path / "back").sha256 == tokenizer.sha256
  transformers = pytest.importorskip("transformers")
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hf"))
  assert theirs(text)["input_ids"] == [0, *tokenizer.encode(text), 2]
  assert theirs(*texts)["input_ids"] == tokenizer([texts[0]], [texts[1]])["input_ids"][0].tolist()
