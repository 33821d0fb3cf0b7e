"""A model that transformers 5 saved with a head is served as it is, and gives the outputs of transformers."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import albert
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.companion_files import text_inputs
from albert.export.export_model import export_model
from albert.export.served_model import token_inputs
from albert.tokenization.tokenizer import Tokenizer
from albert.weights.files import open_weights
from tests.conftest import train_small_model
from tests.docs.blocks import ROOT, blocks
from tests.docs.smaller_commands import run_block, write_python
from tests.parity.huggingface import TOLERANCE, run_theirs
from tests.parity.test_published_forms import has_known_difference, sentences

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
pytest.importorskip("tensorflow_text")  # the ops of the tokenizers

MULTI_LABEL = "multi_label_classification"
LABELS = {"good": 0, "bad, or so": 1, "other": 2}
TAGS = {"B-PER": 0, "O": 1, "I-PER": 2}  # not in the order of our tags
# The class -> its labels and problem_type, and our form.
HEADS: dict[str, tuple[dict[str, Any], str]] = {
  "Model": ({}, "embeddings"),
  "ForPreTraining": ({}, "fill_mask"),
  "ForMaskedLM": ({}, "fill_mask"),
  "ForSequenceClassification": ({"label2id": LABELS}, "classifier"),
  "ForSequenceClassification, labels": ({"label2id": LABELS, "problem_type": MULTI_LABEL}, "multi_label"),
  "ForSequenceClassification, number": ({"num_labels": 1}, "regression"),
  "ForSequenceClassification, no names": ({}, "classifier"),
  "ForTokenClassification": ({"label2id": TAGS}, "tagging"),
  "ForQuestionAnswering": ({}, "squad_v1"),
  "ForMultipleChoice": ({}, "race"),
}


def make_model(class_name: str, vocab_size: int, **settings: Any) -> Any:
  """Makes a model of transformers with random weights."""
  torch.manual_seed(5)
  labels = settings.get("label2id")
  settings |= {"id2label": {i: name for name, i in labels.items()}} if labels else {}
  sizes: dict[str, Any] = {"embedding_size": 16, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3}
  sizes |= {"intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.2}
  config = transformers.AlbertConfig(vocab_size=vocab_size, **sizes, **settings)
  return getattr(transformers, f"Albert{class_name}")(config)


def expected_answers(form: str, theirs: Any, ids: dict[str, np.ndarray], mask_id: int) -> dict[str, np.ndarray]:
  """Returns the numbers of our answers to some ids that the outputs of transformers give."""
  mask = ids["input_mask"].astype(bool)
  if form == "embeddings":
    states = theirs.last_hidden_state.numpy() * mask[..., None]
    return {"mean": states.sum(1) / mask.sum(1, keepdims=True), "pooled": theirs.pooler_output.numpy()}
  if form == "squad_v1":
    starts, ends = theirs.start_logits.numpy(), theirs.end_logits.numpy()
    is_context = (ids["segment_ids"] == 1) & (np.cumsum(mask, 1) < mask.sum(1, keepdims=True))  # without [SEP]
    pairs = [(s, e) for s, e in itertools.product(range(mask.shape[1]), repeat=2) if 0 <= e - s < 30]
    scores = [np.where(is_context[:, s] & is_context[:, e], starts[:, s] + ends[:, e], -np.inf) for s, e in pairs]
    return {"score": np.max(scores, axis=0)}
  logits = theirs.prediction_logits if "prediction_logits" in theirs else theirs.logits
  if form == "regression":
    return {"value": logits[:, 0].numpy()}
  if form == "multi_label":
    return {"probabilities": torch.sigmoid(logits).numpy()}
  if form == "race":
    logits = logits.masked_fill(~torch.tensor(mask.any(-1)), -np.inf)  # some questions have fewer options
  probabilities = torch.softmax(logits, -1).numpy()
  if form == "tagging":
    order = [TAGS[tag] for tag in ("O", "B-PER", "I-PER")]
    return {"tag_probabilities": probabilities[..., order] * mask[..., None]}
  if form == "fill_mask":
    best = -np.sort(-probabilities, -1)[..., :5]
    rows = [row[row_ids == mask_id] for row, row_ids in zip(best, ids["input_ids"], strict=True)]
    return {"probabilities": np.stack([np.pad(row, [(0, max(map(len, rows)) - len(row)), (0, 0)]) for row in rows])}
  return {"probabilities": probabilities}


@pytest.mark.parametrize("head", HEADS)
def test_each_head_is_served_without_training(head: str, spm_model: str, tmp_path: Path) -> None:
  class_name, (settings, form_name) = head.partition(",")[0], HEADS[head]
  hub = tmp_path / "hub"
  tokenizer = Tokenizer(spm_model)
  their_model = make_model(class_name, tokenizer.vocab_size, **settings)
  their_model.save_pretrained(hub)
  shutil.copyfile(spm_model, hub / "spiece.model")
  checkpoint = open_checkpoint(str(hub))
  form = select_form(checkpoint, "", {})
  assert form.name == form_name
  model = form.model_class(checkpoint, form)
  requests = model.examples()
  texts = text_inputs(model.fields, requests)
  ids = token_inputs(model, texts)
  theirs = run_theirs(hub, f"Albert{class_name}", ids)
  expected = expected_answers(form_name, theirs, ids, tokenizer.special_ids.mask)
  version = export_model(str(hub), str(tmp_path / "models"))
  signatures = tf.saved_model.load(version).signatures
  answers = signatures["tokens"](**{name: tf.constant(values) for name, values in ids.items()})
  for name, values in expected.items():
    assert np.abs(answers[name].numpy() - values).max() < TOLERANCE, name
  # Texts have the same answers: in the export, and without one, from a pickle.
  answers = signatures["serving_default"](**{name: tf.constant(values) for name, values in texts.items()})
  for name in expected.keys() & answers.keys() - {"score"}:  # the best score of several windows
    assert np.abs(answers[name].numpy() - expected[name]).max() < TOLERANCE, name
  (hub / "model.safetensors").unlink()
  torch.save(their_model.state_dict(), hub / "pytorch_model.bin")
  assert albert.Predictor(hub)(requests) == albert.Predictor(version)(requests)


@pytest.mark.parametrize("is_zip", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_files_of_torch_save_have_the_values_of_torch(dtype: str, is_zip: bool, tmp_path: Path) -> None:
  weights = make_model("ForPreTraining", 50).to(getattr(torch, dtype)).state_dict()
  name = "predictions.dense.weight"
  weights[name] = torch.nn.Parameter(weights[name].t().contiguous().t())  # in the other order of memory
  weights["albert.embeddings.position_ids"] = torch.arange(64)
  torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
  entries = open_weights(str(tmp_path)).entries.values()
  assert len(entries) == len(weights) - 3  # without position_ids and the tied weights
  for entry in entries:
    value = weights[entry.array.name].detach().float().numpy()
    np.testing.assert_array_equal(entry.read(), value.T if entry.is_transposed else value)


def test_the_commands_of_the_guide_take_a_model_of_other_scripts_there_and_back(tmp_path: Path) -> None:
  """Like IndicBERT: pieces of several scripts, accents are kept, special tokens have names and ids of their own."""
  hub = tmp_path / "downloads" / "albert_base"
  texts = [text for text in sentences(90, seed=4) if not has_known_difference(text)]
  hub.mkdir(parents=True)
  special: dict[str, Any] = {"pad_id": 3, "unk_id": 0, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>"}
  special |= {"control_symbols": ["[SEP]", "[CLS]"], "user_defined_symbols": ["[MASK]"]}
  settings = special | {"character_coverage": 1.0, "hard_vocab_limit": False}
  vocabulary = train_small_model(hub / "spiece.model", sentences(2000, seed=1), 1500, **settings)
  (hub / "tokenizer_config.json").write_text('{"do_lower_case": true, "keep_accents": true, "remove_space": true}')
  make_model("ForPreTraining", Tokenizer.from_pretrained(hub).vocab_size).save_pretrained(hub)
  assert Tokenizer(vocabulary, True, keep_accents=True).special_ids.pad == 3
  rows = [f'"{text}",{("short", "long, very")[len(text) % 2]!r}\n'.replace("'", '"') for text in texts]
  for name in ("train.csv", "dev.csv"):
    (tmp_path / name).write_text("comment,kind\n" + "".join(rows), encoding="utf-8")
  for script in ROOT.glob("run_*.py"):
    (tmp_path / script.name).symlink_to(script)
  write_python(tmp_path / "bin" / "python", {}, allows_others=True)
  commands = [block.text for block in blocks(ROOT / "docs" / "from_transformers.md") if block.language == "sh"]
  printed = [run_block(text, tmp_path, tmp_path / "bin") for text in commands]
  # The run and the directory that was made of it have the same results.
  assert printed[-1].splitlines()[0] == printed[0].splitlines()[-1]
  served = tf.saved_model.load(str(tmp_path / "models" / "theirs" / "1")).signatures["serving_default"]
  ours = served(text=tf.constant(texts))["probabilities"].numpy()
  classify = transformers.pipeline("text-classification", model=str(tmp_path / "run_hf"), device="cpu")
  for row, theirs in zip(ours, classify(texts, top_k=None, truncation=True), strict=True):
    scores = {answer["label"]: answer["score"] for answer in theirs}
    assert np.abs([scores["long, very"], scores["short"]] - row).max() < TOLERANCE
