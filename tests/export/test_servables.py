"""Tests of the served models before they are saved: their answers equal those of tests/export/pipelines.py."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.export import checks, other_formats
from albert.export.checkpoint import ExportCheckpoint, find_checkpoint, open_checkpoint, select_form
from albert.export.checks import array_function
from albert.export.companion_files import text_inputs
from albert.export.served_model import portable_function, text_function, token_inputs
from albert.tokenization.vocabulary import SEP_ID
from tests.convert.files_of_weights import huggingface_tensors, without_pooler, write_huggingface
from tests.export.pipelines import FORMS, make_race_examples, make_squad_examples, make_tagging_examples, write_run
from tests.export.requests import english_like_texts, make_requests
from tests.export.served_runs import TOLERANCE, ServedRun, assert_same_answers
from tests.golden.make_tiny_albert import random_weights
from tests.thorough import thorough_except
from tests.tokenization.reference import random_texts

_served_models: dict[str, ServedRun] = {}  # by form


# The forms whose functions `make test` traces; it computes the answers of the other forms eagerly, once.
TRACED_FORMS = ("fill_mask", "classifier", "squad_v2")


@pytest.fixture(params=thorough_except(TRACED_FORMS, FORMS))
def served(request: pytest.FixtureRequest, tmp_path: Path, spm_model: str) -> ServedRun:
  name = request.param
  if name not in _served_models:
    # Several forms fit a pretraining run, so --task must be given. Other runs have one form.
    task = name if FORMS[name].task == "pretraining" else ""
    _served_models[name] = ServedRun(write_run(tmp_path / name, FORMS[name], spm_model), task)
  return _served_models[name]


def test_answers_equal_those_of_the_python_pipeline(served: ServedRun) -> None:
  requests = make_requests(served.name, english_like_texts(24))
  answers = array_function(served.serving_default)(served.text_inputs(requests))
  assert_same_answers(answers, served.run.expected_answers(requests))


@pytest.mark.parametrize("served", [name for name in FORMS if name not in TRACED_FORMS], indirect=True)
def test_answers_computed_eagerly_equal_those_of_the_python_pipeline(served: ServedRun) -> None:
  requests = make_requests(served.name, english_like_texts(24))
  answers = array_function(served.model.answer_texts)(served.text_inputs(requests))
  assert_same_answers(answers, served.run.expected_answers(requests))


def id_test_batches(served: ServedRun) -> Mapping[str, Mapping[str, np.ndarray]]:
  """Name -> a batch of token ids with which an export is checked."""
  examples = token_inputs(served.model, served.text_inputs(served.model.examples()))
  return checks.id_test_batches(served.model, examples)


def find_code_blocks(card: str, language: str) -> list[str]:
  return re.findall(rf"```{language}\n(.*?)```", card, re.DOTALL)


def test_the_calls_in_the_model_card_give_the_answer_that_it_shows(served: ServedRun) -> None:
  card = served.model_card()
  (code,), (request, response) = find_code_blocks(card, "python"), find_code_blocks(card, "json")
  expression = re.search(r"print\(model\.signatures\[\"serving_default\"\]\((.*)\)\)\n", code)
  assert expression
  arguments = eval(f"dict({expression[1]})", {"tf": tf})
  python_answers = {name: values.numpy() for name, values in served.serving_default(**arguments).items()}
  (instance,) = json.loads(request)["instances"]
  rest_inputs = {name: np.array([value], object) for name, value in instance.items()}
  rest_answers = array_function(served.serving_default)(rest_inputs)
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
        assert np.array_equal(decode_texts(value), np.array(expected[name], object)), name


def decode_texts(array: Any) -> np.ndarray:
  items = [item.decode() if isinstance(item, bytes) else item for item in np.ravel(array)]
  return np.array(items, object).reshape(np.shape(array))


def test_long_texts_are_cut_as_the_model_card_says(served: ServedRun) -> None:
  card, length = served.model_card(), served.form.max_seq_length
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
    inputs = {"question": np.array([b"stop"]), "context": np.array([context.encode()])}
    answers = array_function(served.serving_default)(inputs)
    assert (" is above 0.3 (null_score_diff_threshold)" in card) == (served.name == "squad_v2")
    probability = float(answers["no_answer_probability"][0])
    has_no_answer = served.name == "squad_v2" and np.log(probability / (1 - probability)) > 0.3
    assert (answers["answer"][0] == b"") == (has_no_answer or answers["best_text"][0] == b"")
  elif served.run.form.task == "tagging":
    assert len(ids) > 5
    assert "A text may have any length: it is read in overlapping windows" in card
    assert "each 9 tokens after the one before it" in card
  else:
    assert "is cut" in card or "the beginning of the article as far as it fits" in card
    assert "windows" not in card


@pytest.mark.parametrize("served", ["classifier"], indirect=True)
def test_the_model_card_lists_the_settings_that_had_an_effect(served: ServedRun) -> None:
  train = {"num_train_steps": 200, "num_train_epochs": 0.0, "max_train_seconds": 90.0, "train_batch_size": 16}
  optimizer = {"optimizer": "adamw", "learning_rate": 1e-3, "num_warmup_steps": 20, "warmup_proportion": 0.0}
  card = served.model_card(train=train, optimizer=optimizer)
  assert "| num_train_steps | 200 |\n| max_train_seconds | 90.0 |" in card
  assert "| num_warmup_steps | 20 |" in card
  assert not any(name in card for name in ("warmup_proportion", "num_train_epochs"))
  card = served.model_card(train=train, optimizer=optimizer | {"warmup_proportion": 0.1, "scale_learning_rate": True})
  assert "| warmup_proportion | 0.1 |" in card
  assert "| scale_learning_rate | True |" in card
  assert "num_warmup_steps" not in card
  data_settings = {"masking": "static", "masked_lm_prob": 0.0, "ngram": 0, "max_seq_length": 512}
  card = served.model_card(task="pretraining", data=data_settings)
  assert "| max_seq_length | 512 |" in card
  assert "masked_lm_prob" not in card
  data_settings = {"task_name": "RTE", "label_column": "label", "num_processes": 4, "data_dir": "glue"}
  card = served.model_card(data=data_settings | {"predict_file": "x.tsv"})
  assert "| task_name | RTE |\n| data_dir | glue |\n" in card
  assert not any(name in card for name in ("label_column", "num_processes", "predict_file"))
  # write_run has written an evaluation at step 7.
  assert "| loss | 1.25 |\n\nThe run's last evaluation (task classifier, step 7) gave these, before the export." in card
  assert "none of this step" not in card


@pytest.mark.parametrize("served", thorough_except(["fill_mask", "race"], FORMS), indirect=True)
def test_the_graph_for_other_formats_gives_the_savedmodels_answers_in_edge_cases(served: ServedRun) -> None:
  """Both graphs run in TensorFlow, so this test needs no runtime of another format."""
  function = portable_function(served.model)
  batches = id_test_batches(served)
  assert len(batches) >= (9 if served.name == "fill_mask" else 8)  # fill_mask also has a batch without [MASK]
  for batch_name, inputs in batches.items():
    answers, expected = array_function(function)(inputs), array_function(served.tokens)(inputs)
    assert checks.largest_difference(answers, expected, exact="num_masks") < TOLERANCE, batch_name
    assert all(np.isfinite(values).all() for values in answers.values()), batch_name


@pytest.mark.parametrize("served", thorough_except(["fill_mask"], ["fill_mask", "squad_v1"]), indirect=True)
def test_tflite_gives_the_savedmodels_answers_in_edge_cases(served: ServedRun) -> None:
  run = other_formats.tflite_runner(other_formats.to_tflite(portable_function(served.model), served.model))
  for batch_name, inputs in id_test_batches(served).items():
    difference = checks.largest_difference(run(inputs), array_function(served.tokens)(inputs), exact="num_masks")
    assert difference < other_formats.TOLERANCE, batch_name


@pytest.mark.parametrize("served", ["embeddings"], indirect=True)
def test_the_checks_refuse_differences_and_nan(served: ServedRun) -> None:
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
  num_masks = np.array([1, 0], np.int32)
  difference = checks.largest_difference({"num_masks": num_masks}, {"num_masks": num_masks + 1}, exact="num_masks")
  assert difference == np.inf
  pooler = served.model.encoder.pooler
  assert pooler is not None
  bias = pooler.bias
  original_bias = bias.numpy()
  bias.assign(original_bias * np.nan)
  try:
    with pytest.raises(RunError, match="the signature serving_default: for the examples, 'pooled' is not finite"):
      checks.check_signatures(functions, served.model, examples)
  finally:
    bias.assign(original_bias)


def serve_checkpoint(checkpoint: ExportCheckpoint, name: str) -> Any:
  """The served model of a checkpoint in the form with this name."""
  form = select_form(checkpoint, name, {})
  return form.model_class(checkpoint, form)


@pytest.mark.thorough
def test_weights_without_a_pooler_are_served_in_forms_that_need_none(tmp_path: Path, spm_model: str) -> None:
  """transformers' AlbertForMaskedLM has no pooler. It can fill masks, and its mean output is an embedding."""
  run = write_run(tmp_path / "run", FORMS["fill_mask"], spm_model)
  tensors = huggingface_tensors(without_pooler(run.weights))
  path = write_huggingface(tmp_path / "hf", run.config, tensors)
  checkpoint = open_checkpoint(find_checkpoint(path, spm_model_file=spm_model))
  for name, missing_answers in (("fill_mask", set()), ("embeddings", {"pooled"})):
    requests = make_requests(name, english_like_texts(3))
    complete_model = serve_checkpoint(open_checkpoint(run.directory), name)
    model = serve_checkpoint(checkpoint, name)
    inputs = text_inputs(model.fields, requests)
    expected = array_function(text_function(complete_model))(inputs)
    answers = array_function(text_function(model))(inputs)
    assert set(expected) - set(answers) == missing_answers
    assert set(answers) == set(model.available_answers())
    for answer, value in answers.items():
      np.testing.assert_array_equal(value, expected[answer], err_msg=answer)
  tensors |= huggingface_tensors(random_weights(run.config, 2, with_heads=("classifier", "sentence")))
  without_pooler_tensors = {name: value for name, value in tensors.items() if "pooler" not in name}
  path = write_huggingface(tmp_path / "heads", run.config, without_pooler_tensors)
  checkpoint = open_checkpoint(find_checkpoint(path, spm_model_file=spm_model))
  for name in ("sentence_order", "classifier", "race"):
    with pytest.raises(UserError, match=f"--task={name}: .*the checkpoint has no pooler .*: give weights with one"):
      select_form(checkpoint, name, {})


@pytest.mark.slow
def test_answers_to_a_thousand_random_strings(served: ServedRun) -> None:
  texts = ["", " ", *random_texts(998, seed=21)]
  requests = make_requests(served.name, texts)
  answers = array_function(served.serving_default)(served.text_inputs(requests))
  assert_same_answers(answers, served.run.expected_answers(requests))
  if served.run.form.task == "squad":
    for row, request in enumerate(requests):
      span = request["context"][answers["start"][row] : answers["end"][row]]
      assert span == answers["best_text"][row].decode()
    assert sum(map(bool, answers["best_text"])) > 900


@pytest.mark.slow
def test_ids_equal_those_of_training(served: ServedRun) -> None:
  requests = make_requests(served.name, [*english_like_texts(6), *random_texts(20, seed=4)])
  if served.run.form.task == "squad":
    _, examples = make_squad_examples(served.run, requests)
    length = int(examples.longest_sequences.max())
    batch = examples.padded_batch(np.arange(examples.num_examples), length=length)
  elif served.run.form.task == "race":
    examples = make_race_examples(served.run, requests)
    length, num_sequences = int(examples.longest_sequences.max()), int(examples.sequence_counts.max())
    batch = examples.padded_batch(np.arange(examples.num_examples), length=length, num_sequences=num_sequences)
  elif served.run.form.task == "tagging":
    _, examples = make_tagging_examples(served.run, requests)
    batch = examples.padded_batch(np.arange(examples.num_examples), length=int(examples.longest_sequences.max()))
  else:
    return  # the tests of the answers also show differences in their ids
  inputs, mask = token_inputs(served.model, served.text_inputs(requests)), batch["input_mask"]
  np.testing.assert_array_equal(inputs["input_mask"], mask)
  for name, values in inputs.items():
    np.testing.assert_array_equal(values * mask, batch[name] * mask)


@pytest.mark.slow
def test_ids_and_texts_give_the_same_answers(served: ServedRun) -> None:
  if served.name == "tagging":
    return  # the answer to ids has the tags of tokens, and the answer to texts has spans
  # The texts are so short that a context is one window.
  texts = served.text_inputs(make_requests(served.name, ["River.", "A letter!", "Yes.", "Who?"]))
  text_answers = array_function(served.serving_default)(texts)
  id_answers = array_function(served.tokens)(token_inputs(served.model, texts))
  assert set(id_answers) <= set(text_answers)
  # In SQuAD, start and end count characters in serving_default, and tokens in the signature tokens.
  for name in set(id_answers) - {"start", "end"}:
    if text_answers[name].dtype.kind == "f":
      np.testing.assert_allclose(id_answers[name], text_answers[name], atol=TOLERANCE, err_msg=name)
    else:
      np.testing.assert_array_equal(id_answers[name], text_answers[name], err_msg=name)


@pytest.mark.slow
def test_padding_and_other_rows_do_not_change_an_answer(served: ServedRun) -> None:
  requests = make_requests(served.name, english_like_texts(4))
  ids = token_inputs(served.model, served.text_inputs(requests))
  expected = array_function(served.tokens)(ids)
  padded_ids = {name: np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, 100)]) for name, values in ids.items()}
  for answers in (array_function(served.tokens)(padded_ids), _answer_one_by_one(served.tokens, ids)):
    for name, values in expected.items():
      if values.dtype.kind == "f":
        np.testing.assert_allclose(answers[name], values, atol=TOLERANCE, err_msg=name)


def _answer_one_by_one(function: Any, ids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The numbers in the answers when each row is a batch of its own, concatenated. Shorter answers end with zeros."""
  num_rows = len(ids["input_ids"])
  row_answers = [
    array_function(function)({name: values[row : row + 1] for name, values in ids.items()}) for row in range(num_rows)
  ]
  answers = {}
  for name, first_values in row_answers[0].items():
    if first_values.dtype.kind == "f":
      shapes = np.array([answer[name].shape for answer in row_answers])
      paddings = shapes.max(axis=0) - shapes  # [rows, axes]
      padded = [
        np.pad(answer[name], [(0, int(size)) for size in padding])
        for answer, padding in zip(row_answers, paddings, strict=True)
      ]
      answers[name] = np.concatenate(padded)
  return answers
