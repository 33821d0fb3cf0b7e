"""Tests of the served models before they are saved: their answers equal those of the pipeline in Python."""

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
from albert.tokenization.tokenizer import SEP_ID
from tests.convert.files_of_weights import huggingface_tensors, without_pooler, write_huggingface
from tests.export.pipelines import FORMS, Run, make_race_examples, make_squad_examples, write_run
from tests.export.requests import english_like_texts, make_requests
from tests.golden.make_tiny_albert import random_weights
from tests.thorough import thorough_except
from tests.tokenization.reference import random_texts

TOLERANCE = 1e-5
_served_cache: dict[str, Served] = {}


class Served:
  """A run and its served model, with the functions of both signatures.

  Args:
    run: the run.
    task: see export_model.
  """

  def __init__(self, run: Run, task: str):
    self.run = run
    self.name = run.form.name
    self.checkpoint = open_checkpoint(run.directory)
    self.form = select_form(self.checkpoint, task, {})
    assert self.form.name == self.name
    self.model = self.form.model_class(self.checkpoint, self.form.settings)

  def card(self, **config_sections: Any) -> str:
    """The model card, as if the run's config.json had these sections."""
    checkpoint = dataclasses.replace(self.checkpoint, run={**self.checkpoint.run, **config_sections})
    description = describe_model("it", self.form, self.model, checkpoint)
    inputs = self.text_inputs(self.model.examples()[:1])
    example = (inputs, call(self.serving_default, inputs))
    return format_model_card(description, self.model, checkpoint, example, [])

  @functools.cached_property
  def serving_default(self) -> Any:
    """The function of the signature serving_default, which takes texts."""
    return text_function(self.model)

  @functools.cached_property
  def tokens(self) -> Any:
    """The function of the signature tokens, which takes ids."""
    return tokens_function(self.model)

  def text_inputs(self, requests: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Converts requests to input arrays of serving_default."""
    return text_inputs(self.model.fields, requests)


# The forms whose functions `make test` traces; it computes the answers of the other forms eagerly, once.
TRACED_FORMS = ("fill_mask", "classifier", "squad_v2", "race")


@pytest.fixture(params=thorough_except(TRACED_FORMS, FORMS))
def served(request: pytest.FixtureRequest, tmp_path: Path, spm_model: str) -> Served:
  """Each form, made only once."""
  name = request.param
  if name not in _served_cache:
    # Several forms fit a pretraining run, so --task must be given. Other runs have one form.
    task = name if FORMS[name].task == "pretraining" else ""
    _served_cache[name] = Served(write_run(tmp_path / name, FORMS[name], spm_model), task)
  return _served_cache[name]


def call(function: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Calls a function of tensors with arrays, and returns arrays."""
  answers = function(**{name: tf.constant(value) for name, value in inputs.items()})
  return {name: tensor.numpy() for name, tensor in answers.items()}


def assert_same_answers(answers: dict[str, np.ndarray], expected: dict[str, Any]) -> None:
  """Numbers must agree within TOLERANCE, and texts in all rows, or in 99% of a hundred or more."""
  for name, value in expected.items():
    if not isinstance(value, list):
      np.testing.assert_allclose(answers[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
      continue
    texts = [text.decode() for text in answers[name]]
    differing = [pair for pair in zip(texts, value, strict=True) if pair[0] != pair[1]]
    # Two candidates whose scores differ in the last bit may change places.
    assert len(differing) <= len(value) // 100, (name, differing[:5])


def test_answers_equal_those_of_the_python_pipeline(served: Served) -> None:
  requests = make_requests(served.name, english_like_texts(24))
  answers = call(served.serving_default, served.text_inputs(requests))
  assert_same_answers(answers, served.run.answer(requests))


@pytest.mark.parametrize("served", [name for name in FORMS if name not in TRACED_FORMS], indirect=True)
def test_answers_computed_eagerly_equal_those_of_the_python_pipeline(served: Served) -> None:
  requests = make_requests(served.name, english_like_texts(24))
  answers = call(served.model.answer_texts, served.text_inputs(requests))
  assert_same_answers(answers, served.run.answer(requests))


def id_test_batches(served: Served) -> dict[str, dict[str, np.ndarray]]:
  """The batches of ids that an export is checked with."""
  examples = token_inputs(served.model, served.text_inputs(served.model.examples()))
  return checks.id_test_batches(served.model, examples)


def code_blocks(card: str, language: str) -> list[str]:
  """The code blocks of a model card that are in this language."""
  return re.findall(rf"```{language}\n(.*?)```", card, re.DOTALL)


def test_the_example_of_the_model_card(served: Served) -> None:
  """The call in Python and the REST request of the card give the answer that the card shows."""
  card = served.card()
  (code,), (request, response) = code_blocks(card, "python"), code_blocks(card, "json")
  expression = re.search(r"print\(model\.signatures\[\"serving_default\"\]\((.*)\)\)\n", code)
  assert expression
  arguments = eval(f"dict({expression[1]})", {"tf": tf})
  python_answers = {name: values.numpy() for name, values in served.serving_default(**arguments).items()}
  (instance,) = json.loads(request)["instances"]
  rest_inputs = {name: np.array([value], object) for name, value in instance.items()}
  rest_answers = call(served.serving_default, rest_inputs)
  (expected,) = json.loads(response)["predictions"]
  expected = expected if isinstance(expected, dict) else {next(iter(python_answers)): expected}
  for answers in (python_answers, rest_answers):
    assert set(answers) == set(expected)
    for name, values in answers.items():
      (value,) = values
      assert np.shape(value) == np.shape(expected[name]), name
      if values.dtype.kind == "f":
        np.testing.assert_allclose(value, expected[name], atol=2e-6, err_msg=name)
      else:
        decode = np.vectorize(lambda item: item.decode() if isinstance(item, bytes) else item, otypes=[object])
        assert np.array_equal(decode(value), np.array(expected[name], object)), name


def test_long_texts_are_cut_as_the_model_card_says(served: Served) -> None:
  card, length = served.card(), served.form.settings.max_seq_length
  long_text = "letter " * 99
  texts = {field.name: [[long_text]] if field.is_list else [long_text] for field in served.model.fields}
  ids = served.model.encode(**{name: tf.constant(value) for name, value in texts.items()}).input_ids.numpy()
  assert ids.shape[-1] == length
  assert f" {length} tokens" in card
  if served.run.form.task == "squad":
    assert len(ids) > 5
    assert "A context may have any length: it is read in overlapping windows" in card
    # A question is cut after 9 tokens, and windows are 7 tokens apart.
    assert "each 7 tokens after the one before it" in card
    assert "A question is cut after 9 tokens, and an answer has at most 6." in card
    assert list(ids[0]).index(SEP_ID) <= 1 + 9
    context = " ".join(f"w{i}" for i in range(40)) + " stop"
    answers = call(served.serving_default, {"question": np.array([b"stop"]), "context": np.array([context.encode()])})
    assert (" is above 0.3 (null_score_diff_threshold)" in card) == (served.name == "squad_v2")
    probability = float(answers["no_answer_probability"][0])
    is_empty = served.name == "squad_v2" and np.log(probability / (1 - probability)) > 0.3
    assert (answers["answer"][0] == b"") == (is_empty or answers["best_text"][0] == b"")
  else:
    assert "is cut" in card or "the beginning of the article as far as it fits" in card
    assert "windows" not in card


@pytest.mark.parametrize("served", ["classifier"], indirect=True)
def test_the_model_card_lists_the_settings_that_had_an_effect(served: Served) -> None:
  train = {"num_train_steps": 200, "num_train_epochs": 0.0, "train_batch_size": 16, "seed": 3, "precision": "float32"}
  optimizer = {"optimizer": "adamw", "learning_rate": 1e-3, "num_warmup_steps": 3125, "weight_decay": 0.01}
  card = served.card(train=train, optimizer=optimizer | {"num_warmup_steps": 20, "warmup_proportion": 0.0})
  assert "| num_warmup_steps | 20 |" in card
  assert "warmup_proportion" not in card
  assert "num_train_epochs" not in card
  card = served.card(train=train | {"num_train_epochs": 3.0}, optimizer=optimizer | {"warmup_proportion": 0.1})
  assert "| num_warmup_steps | 20 |" in card
  assert "| warmup_proportion | 0.1 |" in card
  assert "| num_train_steps | 200 |\n| num_train_epochs | 3.0 |" in card
  assert "3125" not in card
  card = served.card(train=train, optimizer=optimizer | {"num_warmup_steps": 0, "scale_learning_rate": True})
  assert "| learning_rate | 6.25e-05 (learning_rate 0.001, scaled by the batch) |" in card
  data = {"masking": "static", "masked_lm_prob": 0.0, "ngram": 0, "max_seq_length": 512}
  card = served.card(task="pretraining", data=data)
  assert "| max_seq_length | 512 |" in card
  assert "masked_lm_prob" not in card
  data = {"task_name": "RTE", "label_column": "label", "num_processes": 4, "predict_file": "x.tsv", "data_dir": "glue"}
  card = served.card(data=data)
  assert "| task_name | RTE |\n| data_dir | glue |\n" in card
  assert not any(name in card for name in ("label_column", "num_processes", "predict_file"))
  assert "| loss | 1.25 |\n\nThe run measured these at step 7 on its own task (classifier), before the export." in card
  assert "none of this step" not in card


@pytest.mark.parametrize(
  "served",
  thorough_except(["fill_mask", "race"], FORMS),
  indirect=True,
)
def test_the_graph_of_other_formats_gives_the_savedmodels_answers_in_edge_cases(served: Served) -> None:
  """TensorFlow runs both graphs, so that this is tested also where no other runtime is installed."""
  function = portable_function(served.model)
  batches = id_test_batches(served)
  assert len(batches) >= 8 + (served.name == "fill_mask")
  for batch_name, inputs in batches.items():
    answers, expected = call(function, inputs), call(served.tokens, inputs)
    assert checks.largest_difference(answers, expected, exact="num_masks") < TOLERANCE, batch_name
    assert all(np.isfinite(values).all() for values in answers.values()), batch_name


@pytest.mark.parametrize("served", thorough_except(["fill_mask"], ["fill_mask", "squad_v1"]), indirect=True)
def test_tflite_gives_the_savedmodels_answers_in_edge_cases(served: Served) -> None:
  """Among them are a batch without [MASK] and an empty batch."""
  run = converters.tflite_runner(converters.to_tflite(portable_function(served.model), served.model, is_int8=False))
  for batch_name, inputs in id_test_batches(served).items():
    difference = checks.largest_difference(run(inputs), call(served.tokens, inputs), exact="num_masks")
    assert difference < converters.TOLERANCE, batch_name


@pytest.mark.parametrize("served", ["embeddings"], indirect=True)
def test_the_checks_refuse_differences_and_nan(served: Served) -> None:
  examples = {"serving_default": served.text_inputs(served.model.examples())}
  examples["tokens"] = token_inputs(served.model, examples["serving_default"])
  functions = {"serving_default": served.serving_default, "tokens": served.tokens}
  answers = checks.check_signatures(functions, served.model, examples)["the examples"]
  nan = {"pooled": answers["pooled"], "mean": answers["mean"] * np.nan}
  # NaN is found in the first answer and in the last one.
  assert np.isnan(checks.largest_difference(nan, answers))
  assert np.isnan(checks.largest_difference(nan, dict(reversed(answers.items()))))
  assert checks.largest_difference({"pooled": answers["pooled"]}, answers) == np.inf
  assert checks.largest_difference({name: v[:1] for name, v in answers.items()}, answers) == np.inf
  counts = {"num_masks": np.array([1, 0], np.int32)}
  assert checks.largest_difference(counts, {"num_masks": counts["num_masks"] + 1}, exact="num_masks") == np.inf
  bias = served.model.encoder.pooler.bias
  original_bias = bias.numpy()
  bias.assign(original_bias * np.nan)
  try:
    with pytest.raises(RunError, match="the signature serving_default: for the examples, 'pooled' is not finite"):
      checks.check_signatures(functions, served.model, examples)
  finally:
    bias.assign(original_bias)


@pytest.mark.thorough
def test_weights_without_a_pooler_are_served_in_forms_that_use_none(tmp_path: Path, spm_model: str) -> None:
  """transformers' AlbertForMaskedLM has no pooler. It can fill masks, and give the mean as an embedding."""
  run = write_run(tmp_path / "run", FORMS["fill_mask"], spm_model)
  tensors = huggingface_tensors(without_pooler(run.weights))
  path = write_huggingface(tmp_path / "hf", run.config, tensors)
  checkpoint = open_checkpoint(path, spm_model_file=spm_model)
  for name, missing_answers in (("fill_mask", set()), ("embeddings", {"pooled"})):
    requests = make_requests(name, english_like_texts(3))
    models = []
    for directory in (run.directory, path):
      opened = open_checkpoint(directory, spm_model_file=spm_model)
      form = select_form(opened, name, {})
      models.append(form.model_class(opened, form.settings))
    inputs = text_inputs(models[0].fields, requests)
    expected, answers = (call(text_function(model), inputs) for model in models)
    assert set(expected) - set(answers) == missing_answers
    assert set(answers) == set(models[1].available_answers())
    for answer, value in answers.items():
      np.testing.assert_array_equal(value, expected[answer], err_msg=answer)
  tensors |= huggingface_tensors(random_weights(run.config, 2, with_heads=("classifier", "sentence")))
  without_pooler_tensors = {name: value for name, value in tensors.items() if "pooler" not in name}
  path = write_huggingface(tmp_path / "heads", run.config, without_pooler_tensors)
  checkpoint = open_checkpoint(path, spm_model_file=spm_model)
  for name in ("sentence_order", "classifier", "race"):
    with pytest.raises(UserError, match=f"--task={name}: .*the checkpoint has no pooler .*: give weights with one"):
      select_form(checkpoint, name, {})


@pytest.mark.slow
def test_answers_to_a_thousand_random_strings(served: Served) -> None:
  texts = ["", " ", *random_texts(998, seed=21)]
  requests = make_requests(served.name, texts)
  answers = call(served.serving_default, served.text_inputs(requests))
  assert_same_answers(answers, served.run.answer(requests))
  if served.run.form.task == "squad":
    for request, text, begin, end in zip(requests, answers["best_text"], answers["start"], answers["end"], strict=True):
      assert request["context"][begin:end] == text.decode()
    assert sum(map(bool, answers["best_text"])) > 900


@pytest.mark.slow
def test_ids_equal_those_of_training(served: Served) -> None:
  requests = make_requests(served.name, [*english_like_texts(6), *random_texts(20, seed=4)])
  if served.run.form.task == "squad":
    examples = make_squad_examples(served.run, requests)[1]
    length = int(examples.longest_sequences.max())
    batch = examples.padded_batch(np.arange(examples.num_examples), length=length)
  elif served.run.form.task == "race":
    examples = make_race_examples(served.run, requests)
    length, num_sequences = int(examples.longest_sequences.max()), int(examples.sequence_counts.max())
    batch = examples.padded_batch(np.arange(examples.num_examples), length=length, num_sequences=num_sequences)
  else:
    return  # the tests of the answers also show differences in their ids
  for name, values in token_inputs(served.model, served.text_inputs(requests)).items():
    mask = batch["input_mask"]
    np.testing.assert_array_equal(values * mask, batch[name] * mask)
    assert name != "input_mask" or np.array_equal(values, mask)


@pytest.mark.slow
def test_ids_and_texts_give_the_same_answers(served: Served) -> None:
  # The texts are so short that a context is one window.
  texts = served.text_inputs(make_requests(served.name, ["River.", "A letter!", "Yes.", "Who?"]))
  text_answers = call(served.serving_default, texts)
  id_answers = call(served.tokens, token_inputs(served.model, texts))
  assert set(id_answers) <= set(text_answers)
  # In SQuAD, start and end count characters in serving_default, and tokens in the signature tokens.
  for name in set(id_answers) - {"start", "end"}:
    if text_answers[name].dtype.kind == "f":
      np.testing.assert_allclose(id_answers[name], text_answers[name], atol=TOLERANCE, err_msg=name)
    else:
      np.testing.assert_array_equal(id_answers[name], text_answers[name], err_msg=name)


@pytest.mark.slow
def test_padding_and_other_rows_do_not_change_an_answer(served: Served) -> None:
  requests = make_requests(served.name, english_like_texts(4))
  ids = token_inputs(served.model, served.text_inputs(requests))
  expected = call(served.tokens, ids)
  padded_ids = {name: np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, 100)]) for name, values in ids.items()}
  for answers in (call(served.tokens, padded_ids), _answer_one_by_one(served.tokens, ids)):
    for name, values in expected.items():
      if values.dtype.kind == "f":
        np.testing.assert_allclose(answers[name], values, atol=TOLERANCE, err_msg=name)


def _answer_one_by_one(function: Any, ids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The answers to each row alone, concatenated. Zeros pad shorter answers."""
  num_rows = len(ids["input_ids"])
  rows = [call(function, {name: values[i : i + 1] for name, values in ids.items()}) for i in range(num_rows)]
  answers = {}
  for name in (name for name, values in rows[0].items() if values.dtype.kind == "f"):
    largest_shape = np.max([row[name].shape for row in rows], axis=0)
    padded = []
    for row in rows:
      widths = [(0, size - length) for size, length in zip(largest_shape, row[name].shape, strict=True)]
      padded.append(np.pad(row[name], widths))
    answers[name] = np.concatenate(padded)
  return answers
