"""Each form's answers to texts against the Python pipeline's, before it is saved."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.export import checks, converters
from albert.export.checkpoint import open_checkpoint
from albert.export.description import describe_model
from albert.export.model_card import format_model_card
from albert.export.selection import select_form
from albert.export.signatures import portable_function, text_function, text_inputs, token_inputs, tokens_function
from tests.convert.files_of_weights import huggingface_tensors, without_pooler, write_huggingface
from tests.export.pipelines import FORMS, Run, race_examples, squad_examples, write_run
from tests.export.requests import plain_texts, requests_of
from tests.golden.make_tiny_albert import random_weights
from tests.tokenization.test_tokenizer import random_texts

TOLERANCE = 1e-5
_made: dict[str, Made] = {}


class Made:
  """A run, its model, and the functions of texts and of ids."""

  def __init__(self, run: Run, task: str):
    self.run = run
    self.name = run.form.name
    self.checkpoint = open_checkpoint(run.directory)
    self.form = select_form(self.checkpoint, task, {})
    assert self.form.name == self.name
    self.model = self.form.model_class(self.checkpoint, self.form.settings)

  def card(self, **run: Any) -> str:
    """The model card; of a run with other sections of config.json, if they are given."""
    checkpoint = dataclasses.replace(self.checkpoint, run={**self.checkpoint.run, **run})
    description = describe_model("it", self.form, self.model, checkpoint)
    first = self.texts(self.model.examples()[:1])
    return format_model_card(description, self.model, checkpoint, (first, call(self.ask, first)), [])

  @functools.cached_property
  def ask(self) -> Any:
    """serving_default."""
    return text_function(self.model)

  @functools.cached_property
  def ask_ids(self) -> Any:
    """tokens."""
    return tokens_function(self.model)

  def texts(self, requests: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Requests as arrays."""
    return text_inputs(self.model.fields, requests)


@pytest.fixture(params=list(FORMS))
def made(request: pytest.FixtureRequest, tmp_path: Path, spm_model: str) -> Made:
  """Each form, made once."""
  name = request.param
  if name not in _made:
    is_asked_for = FORMS[name].task == "pretraining"  # the others are what their run was trained for
    _made[name] = Made(write_run(tmp_path / name, FORMS[name], spm_model), name if is_asked_for else "")
  return _made[name]


def call(function: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {name: v.numpy() for name, v in function(**{n: tf.constant(v) for n, v in inputs.items()}).items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, Any]) -> None:
  """Numbers within TOLERANCE; words where the numbers leave no doubt about them."""
  for name, wanted in expected.items():
    if not isinstance(wanted, list):
      np.testing.assert_allclose(found[name], wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
  words = {name: wanted for name, wanted in expected.items() if isinstance(wanted, list)}
  for name, wanted in words.items():
    differing = [(a.decode(), b) for a, b in zip(found[name], wanted, strict=True) if a.decode() != b]
    # Two candidates whose scores differ in the last bit may change places.
    assert len(differing) <= len(wanted) // 100, (name, differing[:5])


def test_answers_are_the_python_pipelines(made: Made) -> None:
  requests = requests_of(made.name, plain_texts(24))
  assert_same(call(made.ask, made.texts(requests)), made.run.answer(requests))


def id_test_batches(made: Made) -> dict[str, dict[str, np.ndarray]]:
  """The batches of ids that an export is checked with."""
  examples = token_inputs(made.model, made.texts(made.model.examples()))
  return checks.id_test_batches(made.model, examples)


def blocks(card: str, language: str) -> list[str]:
  """The code blocks of a card."""
  return re.findall(rf"```{language}\n(.*?)```", card, re.DOTALL)


def test_the_example_of_the_card(made: Made) -> None:
  """The call in Python and the request of REST, as the card shows them, give the answer that it shows."""
  card = made.card()
  (code,), (request, answer) = blocks(card, "python"), blocks(card, "json")
  expression = re.search(r"print\(model\.signatures\[\"serving_default\"\]\((.*)\)\)\n", code)
  assert expression
  given = eval(f"dict({expression[1]})", {"tf": tf})
  found = {name: values.numpy() for name, values in made.ask(**given).items()}
  (instance,) = json.loads(request)["instances"]
  by_rest = call(made.ask, {name: np.array([value], object) for name, value in instance.items()})
  (shown,) = json.loads(answer)["predictions"]
  shown = shown if isinstance(shown, dict) else {next(iter(found)): shown}
  for answers in (found, by_rest):
    assert set(answers) == set(shown)
    for name, values in answers.items():
      (value,) = values
      assert np.shape(value) == np.shape(shown[name]), name
      if values.dtype.kind == "f":
        np.testing.assert_allclose(value, shown[name], atol=2e-6, err_msg=name)
      else:
        plain = np.vectorize(lambda x: x.decode() if isinstance(x, bytes) else x, otypes=[object])(value)
        assert np.array_equal(plain, np.array(shown[name], object)), name


def test_what_the_card_says_of_long_text(made: Made) -> None:
  """What it says is cut is cut, and what it says is not is not: by the ids and the answers of the model."""
  limits, length = made.card(), made.form.settings.max_seq_length
  word = "letter "
  texts = {f.name: [[word * 99]] if f.is_list else [word * 99] for f in made.model.fields}
  given = {name: tf.constant(value) for name, value in texts.items()}
  ids = made.model.encode(**given).input_ids.numpy()
  assert ids.shape[-1] == length
  assert f" {length} tokens" in limits
  if made.run.form.task == "squad":
    assert len(ids) > 5
    assert "A context may have any length: it is read in overlapping windows" in limits
    # A question is cut after 9 tokens, windows are 7 tokens apart.
    assert "each 7 tokens after the one before it" in limits
    assert "A question is cut after 9 tokens, and an answer has at most 6." in limits
    assert list(ids[0]).index(3) <= 1 + 9
    context = " ".join(f"w{i}" for i in range(40)) + " stop"
    last = call(made.ask, {"question": np.array([b"stop"]), "context": np.array([context.encode()])})
    assert (" is above 0.3 (null_score_diff_threshold)" in limits) == (made.name == "squad_v2")
    p = float(last["no_answer_probability"][0])
    is_empty = made.name == "squad_v2" and np.log(p / (1 - p)) > 0.3
    assert (last["answer"][0] == b"") == (is_empty or last["best_text"][0] == b"")
  else:
    assert "is cut" in limits or "the beginning of the article as far as it fits" in limits
    assert "windows" not in limits


@pytest.mark.parametrize("made", ["classifier"], indirect=True)
def test_what_the_card_says_of_training(made: Made) -> None:
  """Of two settings for one thing it lists the one that decided."""
  train = {"num_train_steps": 200, "num_train_epochs": 0.0, "train_batch_size": 16, "seed": 3, "precision": "float32"}
  optimizer = {"optimizer": "adamw", "learning_rate": 1e-3, "num_warmup_steps": 3125, "weight_decay": 0.01}
  card = made.card(train=train, optimizer=optimizer | {"num_warmup_steps": 20, "warmup_proportion": 0.0})
  assert "| num_warmup_steps | 20 |" in card
  assert "warmup_proportion" not in card
  assert "num_train_epochs" not in card
  card = made.card(train=train | {"num_train_epochs": 3.0}, optimizer=optimizer | {"warmup_proportion": 0.1})
  assert "| num_warmup_steps | 20 |" in card
  assert "| warmup_proportion | 0.1 |" in card
  assert "| num_train_steps | 200 |\n| num_train_epochs | 3.0 |" in card
  assert "3125" not in card
  card = made.card(train=train, optimizer=optimizer | {"num_warmup_steps": 0, "scale_learning_rate": True})
  assert "| learning_rate | 6.25e-05 (learning_rate 0.001, scaled by the batch) |" in card
  data = {"masking": "static", "masked_lm_prob": 0.0, "ngram": 0, "max_seq_length": 512}
  card = made.card(task="pretraining", data=data)
  assert "| max_seq_length | 512 |" in card
  assert "masked_lm_prob" not in card
  data = {"task_name": "RTE", "label_column": "label", "num_processes": 4, "predict_file": "x.tsv", "data_dir": "glue"}
  card = made.card(data=data)
  assert "| task_name | RTE |\n| data_dir | glue |\n" in card
  assert not any(name in card for name in ("label_column", "num_processes", "predict_file"))
  assert "| loss | 1.25 |\n\nThe run measured these at step 7 on its own task (classifier), before the export." in card
  assert "none of this step" not in card


_slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  "made",
  [name if name in ("fill_mask", "embeddings", "squad_v2", "race") else _slow(name) for name in FORMS],
  indirect=True,
)
def test_the_graph_of_other_formats_agrees_with_the_savedmodel_at_the_edges(made: Made) -> None:
  """Both as TensorFlow runs them, so that it is tested where no other runtime is installed."""
  numbers = portable_function(made.model)
  cases = id_test_batches(made)
  assert len(cases) >= 8 + (made.name == "fill_mask")
  for case, inputs in cases.items():
    found, expected = call(numbers, inputs), call(made.ask_ids, inputs)
    assert checks.largest_difference(found, expected, exact="num_masks") < TOLERANCE, case
    assert all(np.isfinite(values).all() for values in found.values()), case


@pytest.mark.parametrize("made", ["fill_mask", _slow("squad_v1")], indirect=True)
def test_tflite_at_the_edges(made: Made) -> None:
  """No [MASK] in a batch, and no row: TFLite's interpreter, which TensorFlow has too, answers as the SavedModel."""
  run = converters.tflite_runner(converters.to_tflite(portable_function(made.model), made.model, is_int8=False))
  for case, inputs in id_test_batches(made).items():
    difference = checks.largest_difference(run(inputs), call(made.ask_ids, inputs), exact="num_masks")
    assert difference < converters.TOLERANCE, case


@pytest.mark.parametrize("made", ["embeddings"], indirect=True)
def test_what_the_check_refuses(made: Made) -> None:
  examples = {"serving_default": made.texts(made.model.examples())}
  examples["tokens"] = token_inputs(made.model, examples["serving_default"])
  functions = {"serving_default": made.ask, "tokens": made.ask_ids}
  answers = checks.check_signatures(functions, made.model, examples)["the examples"]
  nan = {"pooled": answers["pooled"], "mean": answers["mean"] * np.nan}
  # NaN counts whichever answer it is in.
  assert np.isnan(checks.largest_difference(nan, answers))
  assert np.isnan(checks.largest_difference(nan, dict(reversed(answers.items()))))
  assert checks.largest_difference({"pooled": answers["pooled"]}, answers) == np.inf
  assert checks.largest_difference({name: v[:1] for name, v in answers.items()}, answers) == np.inf
  count = {"num_masks": np.array([1, 0], np.int32)}
  assert checks.largest_difference(count, {"num_masks": count["num_masks"] + 1}, exact="num_masks") == np.inf
  pooler = made.model.encoder.pooler.bias
  kept = pooler.numpy()
  pooler.assign(kept * np.nan)
  try:
    with pytest.raises(RunError, match="the signature serving_default: for the examples, 'pooled' is not finite"):
      checks.check_signatures(functions, made.model, examples)
  finally:
    pooler.assign(kept)


def test_weights_without_a_pooler_are_served_where_none_is_used(tmp_path: Path, spm_model: str) -> None:
  """transformers' AlbertForMaskedLM: masks filled as with the pooler, the mean as an embedding, and no more."""
  run = write_run(tmp_path / "run", FORMS["fill_mask"], spm_model)
  tensors = huggingface_tensors(without_pooler(run.weights))
  path = write_huggingface(tmp_path / "hf", run.config, tensors)
  checkpoint = open_checkpoint(path, spm_model_file=spm_model)
  for name, left in (("fill_mask", set()), ("embeddings", {"pooled"})):
    requests = requests_of(name, plain_texts(3))
    servables = []
    for directory in (run.directory, path):
      opened = open_checkpoint(directory, spm_model_file=spm_model)
      form = select_form(opened, name, {})
      servables.append(form.model_class(opened, form.settings))
    texts = text_inputs(servables[0].fields, requests)
    expected, found = (call(text_function(model), texts) for model in servables)
    assert set(expected) - set(found) == left
    assert set(found) == set(servables[1].available_answers())
    for answer, value in found.items():
      np.testing.assert_array_equal(value, expected[answer], err_msg=answer)
  tensors |= huggingface_tensors(random_weights(run.config, 2, with_heads=("classifier", "sentence")))
  pooled = {name: value for name, value in tensors.items() if "pooler" not in name}
  checkpoint = open_checkpoint(write_huggingface(tmp_path / "heads", run.config, pooled), spm_model_file=spm_model)
  for name in ("sentence_order", "classifier", "race"):
    with pytest.raises(UserError, match=f"--task={name}: .*the checkpoint has no pooler .*: give weights with one"):
      select_form(checkpoint, name, {})


@pytest.mark.slow
def test_a_thousand_random_strings(made: Made) -> None:
  texts = ["", " ", *random_texts(998, seed=21)]
  requests = requests_of(made.name, texts)
  expected = made.run.answer(requests)
  found = call(made.ask, made.texts(requests))
  assert_same(found, expected)
  if made.run.form.task == "squad":
    for request, answer, begin, end in zip(requests, found["best_text"], found["start"], found["end"], strict=True):
      assert request["context"][begin:end] == answer.decode()
    assert sum(map(bool, found["best_text"])) > 900


@pytest.mark.slow
def test_ids_are_those_of_training(made: Made) -> None:
  requests = requests_of(made.name, [*plain_texts(6), *random_texts(20, seed=4)])
  if made.run.form.task == "squad":
    examples = squad_examples(made.run, requests)[1]
    shape = (examples.num_examples, int(examples.longest_sequences.max()))
    batch = examples.padded_batch(np.arange(shape[0]), length=shape[1])
  elif made.run.form.task == "race":
    examples = race_examples(made.run, requests)
    length, most = int(examples.longest_sequences.max()), int(examples.sequence_counts.max())
    batch = examples.padded_batch(np.arange(examples.num_examples), length=length, num_sequences=most)
  else:
    return  # their ids are what the answers are compared by
  for name, values in token_inputs(made.model, made.texts(requests)).items():
    mask = batch["input_mask"]
    np.testing.assert_array_equal(values * mask, batch[name] * mask)
    assert name != "input_mask" or np.array_equal(values, mask)


@pytest.mark.slow
def test_ids_and_texts_give_the_same_answers(made: Made) -> None:
  # So short that a context is one window.
  texts = made.texts(requests_of(made.name, ["River.", "A letter!", "Yes.", "Who?"]))
  found, by_ids = call(made.ask, texts), call(made.ask_ids, token_inputs(made.model, texts))
  assert set(by_ids) <= set(found)
  for name in set(by_ids) - {"start", "end"}:  # of SQuAD: characters there, tokens here
    if found[name].dtype.kind == "f":
      np.testing.assert_allclose(by_ids[name], found[name], atol=TOLERANCE, err_msg=name)
    else:
      np.testing.assert_array_equal(by_ids[name], found[name], err_msg=name)


@pytest.mark.slow
def test_padding_and_other_rows_change_nothing(made: Made) -> None:
  requests = requests_of(made.name, plain_texts(4))
  ids = token_inputs(made.model, made.texts(requests))
  whole = call(made.ask_ids, ids)
  wider = {name: np.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, 100)]) for name, v in ids.items()}
  for found in (call(made.ask_ids, wider), _one_by_one(made.ask_ids, ids)):
    for name, values in whole.items():
      if values.dtype.kind == "f":
        rest = tuple(slice(size) for size in values.shape)
        np.testing.assert_allclose(found[name], values[rest], atol=TOLERANCE, err_msg=name)


def _one_by_one(function: Any, ids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The answers to single rows, together; shorter ones filled up with zeros."""
  rows = [call(function, {n: v[i : i + 1] for n, v in ids.items()}) for i in range(len(ids["input_ids"]))]
  found = {}
  for name in (name for name, values in rows[0].items() if values.dtype.kind == "f"):
    most = np.max([row[name].shape for row in rows], axis=0)
    widths = [[(0, m - s) for m, s in zip([1, *most[1:]], row[name].shape, strict=True)] for row in rows]
    found[name] = np.concatenate([np.pad(row[name], width) for row, width in zip(rows, widths, strict=True)])
  return found
