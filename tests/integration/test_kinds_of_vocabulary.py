"""WordPiece for Chinese, byte-level BPE, and unigrams in tokenizer.json for Hindi: from shards to answers of exported
models and to converted weights."""

from __future__ import annotations

import dataclasses
import json
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import albert
from albert import tasks
from albert.convert.convert_checkpoint import convert
from albert.data.manifest import Manifest
from albert.estimator import Estimator
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.wordpiece import SPECIAL_PIECES
from data_prep.create_pretraining_data import prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.job import Job
from tests.synthetic import TINY_MODEL
from tests.tokenization import byte_bpe_reference, unigram_reference, wordpiece_reference

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("all_steps_eager")]

_SENTENCES_PER_DOCUMENT = 8


@dataclasses.dataclass(frozen=True)
class Language:
  words: tuple[Sequence[str], Sequence[str], Sequence[str]]
  space: str
  end: str
  masked: Sequence[str]
  rows: Sequence[tuple[str, str]]
  files: Sequence[str]
  texts: Sequence[str]

  def sentences(self, count: int) -> list[str]:
    rng = random.Random(1)
    return [self.space.join(map(rng.choice, self.words)) + self.end for _ in range(count)]


LANGUAGES = {
  "wordpiece": Language(
    (("老师", "船长", "她的姐姐", "ALBERT"), ("看见了", "忘记了", "卖了"), ("花园", "一封信", "3把钥匙")),
    "",
    "。",
    ["船长看见了[MASK]园。"],
    [
      ("船长卖了花园。", "花"),
      ("老师忘记了一封信。", "信"),
      ("她的姐姐卖了花园。", "花"),
      ("ALBERT看见了一封信。", "信"),
    ],
    ["vocab.txt"],
    ["船长卖了花园。", "老师"],
  ),
  "byte_level_bpe": Language(
    (("The captain", "她的姐姐", "Zoë 🙂"), ("sold", "卖了", "can't see"), ("a letter", "花园", "3 keys")),
    " ",
    ".",
    ["The captain [MASK] a letter.", "[MASK]\n她 的[MASK]姐姐"],
    [("The captain sold it.", "a"), ("她的姐姐卖了花园。", "b"), ("Zoë 🙂", "b"), ("a letter", "a")],
    ["vocab.json", "merges.txt"],
    ["The captain sold 3 keys.", "Zoë can't see 花园 🙂"],
  ),
  "unigram_json": Language(
    (("हिन्दी", "भारत", "Zoë"), ("बोली", "में"), ("भाषा", "किताब")),
    " ",
    "।",
    ["भारत [MASK] भाषा।"],
    [("हिन्दी बोली", "a"), ("भारत में", "b"), ("Zoë", "b"), ("किताब", "a")],
    ["tokenizer.json"],
    ["हिन्दी बोली किताब।", "Zoë"],
  ),
}


@dataclasses.dataclass(frozen=True)
class VocabularyFiles:
  """What the tests of a kind share: its name, its texts, the files, and the settings of a quick training."""

  kind: str
  language: Language
  vocabulary: str
  shards: Path
  settings: dict[str, Any]

  def pretrain(self, run: Path, **settings: Any) -> Estimator:
    task = tasks.Pretraining(self.shards / "*.tfrecord")
    estimator = Estimator(task, output_dir=str(run), **self.settings | settings)
    estimator.train()
    return estimator


def write_vocabulary(directory: Path, kind: str, sentences: Sequence[str]) -> str:
  if kind == "byte_level_bpe":
    return byte_bpe_reference.write_vocabulary(directory, *byte_bpe_reference.train(60, " ".join(sentences)))
  if kind == "unigram_json":
    text = unicodedata.normalize("NFKD", "".join(sentences).lower())
    characters = [c for c in text if unicodedata.category(c)[0] not in "MZ"]
    scores = {"▁": -2.0, ",": -9.0, "▁हनद": -5.0} | dict.fromkeys(characters, -4.0)
    return unigram_reference.write_vocabulary(directory, scores, ["NFKD", "StripAccents", "Lowercase"])
  characters = sorted(set("".join(sentences)) - set("ALBERT"))
  # [MASK] and the others are not the first pieces here.
  pieces = ["[PAD]", *characters, *SPECIAL_PIECES[1:], "al", "##bert", "##b"]
  return wordpiece_reference.write_vocabulary(directory / "vocab.txt", pieces)


@pytest.fixture(scope="module", params=LANGUAGES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VocabularyFiles:
  """The files of each kind: its vocabulary, and shards of documents of 8 sentences."""
  directory, language = tmp_path_factory.mktemp(request.param), LANGUAGES[request.param]
  sentences = language.sentences(160)
  vocabulary = write_vocabulary(directory, request.param, sentences)
  starts = range(0, len(sentences), _SENTENCES_PER_DOCUMENT)
  text = directory / "text.txt"
  text.write_text("\n\n".join("\n".join(sentences[i : i + _SENTENCES_PER_DOCUMENT]) for i in starts), "utf-8")
  shards = directory / "shards"
  preparation = PreparationSettings(max_seq_length=48, dupe_factor=2)
  prepare(Job(inputs=(str(text),), output_dir=str(shards), spm_model_file=vocabulary, settings=preparation))
  # In one case, the embeddings are padded.
  vocab_size = Tokenizer(vocabulary).vocab_size + (900 if request.param == "unigram_json" else 0)
  model = dataclasses.replace(TINY_MODEL, vocab_size=vocab_size, max_position_embeddings=64)
  training = {"num_train_steps": 2, "num_warmup_steps": 1, "train_batch_size": 4, "log_every_steps": 1}
  settings = {"model": model, "spm_model_file": vocabulary, "precision": "float32", **training}
  kind = "sentencepiece" if request.param == "unigram_json" else request.param
  return VocabularyFiles(kind, language, vocabulary, shards, settings)


@pytest.mark.parametrize("masking", ["static", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_pretraining_then_fill_mask_and_a_classifier(files: VocabularyFiles, tmp_path: Path, masking: str) -> None:
  manifest, tokenizer = Manifest.load(str(files.shards)), Tokenizer(files.vocabulary)
  assert manifest is not None
  assert (manifest.vocab_kind, manifest.vocab_sha256) == (files.kind, tokenizer.sha256)
  assert manifest.num_unknown_tokens == 0
  run = tmp_path / "run"
  estimator = files.pretrain(run, masking=masking)
  data = json.loads((run / "config.json").read_text())["data"]
  assert (data["vocab_kind"], data["vocab_sha256"]) == (files.kind, tokenizer.sha256)
  for name in files.language.files:
    assert (run / name).read_bytes() == Path(files.vocabulary).with_name(name).read_bytes()
  assert Tokenizer.from_pretrained(run).sha256 == tokenizer.sha256
  candidates = estimator.predict(files.language.masked)
  exported = ExportedModel(estimator.export(tmp_path / "models", form="fill_mask"))
  name = exported.description.fields[0].name
  requests = [PredictRequest(i, {name: text.encode()}) for i, text in enumerate(files.language.masked, start=1)]
  for text, answer, of_text in zip(files.language.masked, exported.answer(requests), candidates, strict=True):
    assert answer["num_masks"] == len(of_text) == text.count("[MASK]")
    for pieces, probabilities, of_mask in zip(answer["pieces"], answer["probabilities"], of_text, strict=False):
      piece, probability = next(iter(of_mask.items()))
      assert pieces[0] == piece
      assert np.isclose(probabilities[0], probability, atol=1e-4)
  settings: dict[str, Any] = {"num_train_steps": 1, "train_batch_size": 2, "max_seq_length": 24}
  task = tasks.Classification(files.language.rows, eval_share=0)
  classifier = Estimator(task, init_checkpoint=str(run), output_dir=str(tmp_path / "c"), **settings)
  assert classifier.train().step == 1  # with the vocabulary beside the weights
  served = ExportedModel(classifier.export(tmp_path / "classifiers"))
  text = "Zoë\t sold\n a 船长"
  (answer,) = served.answer([PredictRequest(1, {served.description.fields[0].name: text.encode()})])
  (expected,) = classifier.predict([text])
  assert answer["label"] == expected.label
  card = next(Path(served.directory).glob("**/README.md")).read_text()
  assert ("taken with its case" in card) == (files.kind == "byte_level_bpe")


def test_converted_weights_have_the_vocabulary_and_its_special_ids(files: VocabularyFiles, tmp_path: Path) -> None:
  files.pretrain(tmp_path / "run")
  convert(str(tmp_path / "run"), str(tmp_path / "hf"), "huggingface")
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  ids = Tokenizer(files.vocabulary).special_ids
  expected_ids = (1, 0, 2) if files.kind == "byte_level_bpe" else (0, ids.cls, ids.sep)
  assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == expected_ids
  tokenizer_config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
  expected: dict[str, Any]
  if files.kind == "byte_level_bpe":
    expected = {"cls_token": "<s>", "mask_token": "<mask>"}
  elif files.kind == "sentencepiece":
    expected = {"do_lower_case": True, "keep_accents": False, "cls_token": "[CLS]"}
  else:
    expected = {"do_lower_case": True, "strip_accents": True}
  assert (expected | {"tokenizer_class": "PreTrainedTokenizerFast"}).items() <= tokenizer_config.items()
  tokenizer, texts = Tokenizer.from_pretrained(tmp_path / "hf"), list(files.language.texts)
  assert [tokenizer.encode(text) for text in texts] == [Tokenizer(files.vocabulary).encode(text) for text in texts]
  vectors = albert.encode(texts, encoder=tmp_path / "run")
  assert np.array_equal(albert.encode(texts, encoder=tmp_path / "hf"), vectors)
  convert(str(tmp_path / "hf"), str(tmp_path / "back"), "tf1")
  assert Tokenizer.from_pretrained(tmp_path / "back").sha256 == tokenizer.sha256
  if files.kind == "byte_level_bpe":
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hf"))
    assert theirs(texts[1])["input_ids"] == [0, *tokenizer.encode(texts[1]), 2]
    assert theirs(*texts)["input_ids"] == tokenizer([texts[0]], [texts[1]])["input_ids"][0].tolist()
