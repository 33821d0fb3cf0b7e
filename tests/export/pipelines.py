"""The expected answers of each served form: the same weights in the Python tokenizer and the models for training."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.export import registry as export_registry
from albert.models.classifier import ClassifierModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import P_MASK, SquadV1Model, SquadV2Model
from albert.tasks import registry
from albert.tasks.fill_mask import encode_with_masks
from albert.tasks.race.data import ChoiceQuestion
from albert.tasks.race.features import RaceFeaturizer
from albert.tasks.squad import predictions as squad_predictions
from albert.tasks.squad.data import SquadParagraph, SquadQuestion
from albert.tasks.squad.features import SquadFeaturizer
from albert.tokenization.packing import pack_pair, pack_single
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, SEP_ID, Tokenizer
from albert.weights.checkpoints import CheckpointManager
from tests.golden.make_tiny_albert import random_weights
from tests.models.built import assign, pretraining_model

MAX_LENGTH = 40
STEP = 7
LABELS = ("bad", "fair", "good")

Requests = Sequence[dict[str, Any]]
AnswerTensors = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
  """The output_dir of a run with random weights.

  Attributes:
    directory: the output_dir.
    form: the form in which its model will be served.
    config: the model's config.
    weights: name -> weight.
    tokenizer: the tokenizer in Python.
  """

  directory: str
  form: Form
  config: ModelConfig
  weights: dict[str, np.ndarray]
  tokenizer: Tokenizer

  @property
  def task_config(self) -> Any:
    """The config of the task."""
    return registry.TASKS[self.form.task].config_class(**self.form.data)

  def answer(self, requests: Requests) -> AnswerTensors:
    """The answers of the Python pipeline: name -> array or list with one row for each request."""
    return self.form.answer(self, requests)


@dataclasses.dataclass(frozen=True)
class Form:
  """A form in which models are served, and its pipeline in Python.

  Attributes:
    name: the name in albert.export.registry.FORMS.
    task: the task of its runs.
    data: the settings of the task.
    heads: the heads that the checkpoint gets.
    answer: answers requests in Python.
    num_classes: number of outputs of a classifier head.
  """

  name: str
  task: str
  data: dict[str, Any]
  heads: tuple[str, ...]
  answer: Callable[[Run, Requests], AnswerTensors]
  num_classes: int = 3


def write_run(directory: Path, form: Form, vocabulary: str, **config_changes: Any) -> Run:
  """Writes the output_dir of a run with a small model and random weights."""
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=vocabulary).get_piece_size()
  sizes = {"vocab_size": vocab_size, "embedding_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
           "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 48}  # fmt: skip
  config = ModelConfig(**(sizes | config_changes))
  weights = random_weights(config, seed=len(form.name), with_heads=form.heads, num_classes=form.num_classes)
  directory.mkdir(parents=True)
  shutil.copyfile(vocabulary, directory / "spiece.model")
  data = form.data | ({} if form.task == "pretraining" else {"max_seq_length": MAX_LENGTH})
  (directory / "config.json").write_text(json.dumps({"task": form.task, "data": data}))
  (directory / "eval_results.json").write_text(json.dumps({"step": STEP, "loss": 1.25}))
  CheckpointManager(str(directory / "checkpoints"), keep=1, model_config=config).save(STEP, weights)
  return Run(str(directory), form, config, weights, Tokenizer(vocabulary))


def _field_values(requests: Requests, name: str) -> list[str]:
  return [request[name] for request in requests]


def _make_batch(ids: np.ndarray, lengths: np.ndarray) -> dict[str, tf.Tensor]:
  """Makes a padded batch of sequences that are concatenated in `ids`."""
  examples = TokenizedExamples(ids, lengths, np.ones(len(lengths), np.int32))
  return _pad(examples)


def _pad(examples: TokenizedExamples, **options: Any) -> dict[str, tf.Tensor]:
  """Makes one padded batch of all examples."""
  length = int(examples.longest_sequences.max())
  batch = examples.padded_batch(np.arange(examples.num_examples), length=length, **options)
  return {name: tf.constant(values) for name, values in batch.items()}


def _tokenize(run: Run, requests: Requests, *names: str, length: int) -> dict[str, tf.Tensor]:
  """Tokenizes one field of the requests, or a pair of fields."""
  encoded = [run.tokenizer.encode_batch_flat(_field_values(requests, name)) for name in names]
  return _make_batch(*(pack_single(*encoded, length) if len(encoded) == 1 else pack_pair(*encoded, length)))


def _softmax(logits: Any) -> np.ndarray:
  return np.asarray(tf.nn.softmax(logits))


def _call_model(run: Run, make_model: Callable[[ModelConfig], Any], batch: dict[str, tf.Tensor], **options: Any) -> Any:
  """The outputs of a model with the weights of the run."""
  model = make_model(run.config)
  first_row = {name: values[:1] for name, values in batch.items()}
  # The first call creates the variables.
  model(first_row, **{name: value[:1] if name == "start_positions" else value for name, value in options.items()})
  assign(model.named_weights(), {name: run.weights[name] for name in model.named_weights()})
  return model(batch, **options)


def _call_pretraining_model(run: Run, batch: dict[str, tf.Tensor], positions: Any) -> Any:
  model = pretraining_model(run.config, run.weights)
  return model(batch | {"masked_lm_positions": tf.constant(positions, tf.int32)})


def _answer_fill_mask(run: Run, requests: Requests) -> AnswerTensors:
  length = run.config.max_position_embeddings
  texts = _field_values(requests, "text")
  rows = [[CLS_ID, *encode_with_masks(run.tokenizer, text)[: length - 2], SEP_ID] for text in texts]
  positions = [[i for i, token in enumerate(row) if token == MASK_ID] for row in rows]
  num_masks = np.array([len(row) for row in positions])
  batch = _make_batch(np.concatenate(rows).astype(np.int32), np.array([len(row) for row in rows], np.int32))
  padded_positions = [[*row, *[0] * (num_masks.max() - len(row))] for row in positions]
  probabilities = _softmax(_call_pretraining_model(run, batch, padded_positions).masked_lm_logits)
  best = np.sort(probabilities, axis=-1)[..., ::-1][..., :5]
  is_mask = np.arange(num_masks.max()) < num_masks[:, None]
  return {"probabilities": best * is_mask[..., None], "num_masks": num_masks}


def _answer_sentence_order(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, "text_a", "text_b", length=run.config.max_position_embeddings)
  probabilities = _softmax(_call_pretraining_model(run, batch, np.zeros([len(requests), 1])).sentence_logits)
  return {"probabilities": probabilities, "label": [("in_order", "swapped")[i] for i in probabilities.argmax(1)]}


def _answer_embeddings(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, "text", length=run.config.max_position_embeddings)
  model = pretraining_model(run.config, run.weights)
  encoded = model.encoder(batch)
  mask = np.asarray(batch["input_mask"], np.float64)[..., None]
  mean = (np.asarray(encoded.sequence_output) * mask).sum(axis=1) / mask.sum(axis=1)
  return {"pooled": np.asarray(encoded.pooled_output), "mean": mean}


def _answer_classifier(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, *requests[0], length=MAX_LENGTH)  # the fields are those of a text or a pair
  logits = _call_model(run, lambda config: ClassifierModel(config, 3), batch)
  probabilities = _softmax(logits)
  return {"probabilities": probabilities, "label": [LABELS[i] for i in probabilities.argmax(1)]}


def _answer_regression(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, "text_a", "text_b", length=MAX_LENGTH)
  return {"value": np.asarray(_call_model(run, lambda config: ClassifierModel(config, 1), batch))[:, 0]}


def make_squad_examples(run: Run, requests: Requests) -> tuple[list[SquadQuestion], TokenizedExamples]:
  """Makes the questions of the requests, and their windows."""
  config = run.task_config
  questions = [
    SquadQuestion(str(i), i, request["question"], SquadParagraph("", request["context"]))
    for i, request in enumerate(requests)
  ]
  featurizer = SquadFeaturizer(run.tokenizer.config, MAX_LENGTH, config.max_query_length, config.doc_stride)
  return questions, featurizer(questions)


def _answer_squad(run: Run, requests: Requests, *, version_2: bool) -> AnswerTensors:
  config = run.task_config
  questions, examples = make_squad_examples(run, requests)
  batch = _pad(examples, token_features=[P_MASK])
  limits = {"n_best_size": 3, "max_answer_length": config.max_answer_length}
  indices = {EXAMPLE_INDEX: np.arange(examples.num_examples)}
  if version_2:
    options = {"num_starts": config.start_n_top, "num_ends": config.end_n_top}
    starts = tf.zeros([examples.num_examples], tf.int32)
    result = _call_model(run, SquadV2Model, batch, start_positions=starts, **options)
    outputs = {name: np.asarray(values) for name, values in result.beams._asdict().items()}
    outputs |= indices | {"null_logits": np.asarray(result.null_logits)}
    predictions = squad_predictions.predictions_v2(questions, outputs, examples, **limits)
    score_names = ("start_log_prob", "end_log_prob")
  else:
    spans = _call_model(run, SquadV1Model, batch)
    outputs = indices | {"start_logits": np.asarray(spans.start), "end_logits": np.asarray(spans.end)}
    predictions = squad_predictions.predictions_v1(questions, outputs, examples, **limits)
    score_names = ("start_logit", "end_logit")
  entries = [predictions.nbest[question.id] for question in questions]
  answers = predictions.answers(config.null_score_diff_threshold)
  null_odds = predictions.null_odds or dict.fromkeys(answers, -np.inf)
  return {
    "answer": [answers[question.id] for question in questions],
    "best_text": [entry[0]["text"] if entry else "" for entry in entries],
    "score": np.array([sum(entry[0][name] for name in score_names) if entry else -1e30 for entry in entries]),
    "no_answer_probability": np.array([1 / (1 + np.exp(-null_odds[question.id])) for question in questions]),
  }


def make_race_examples(run: Run, requests: Requests) -> TokenizedExamples:
  """Makes one sequence for each option of the requests."""
  questions = [
    ChoiceQuestion(str(i), request["article"], request["question"], tuple(request["options"]))
    for i, request in enumerate(requests)
  ]
  return RaceFeaturizer(run.tokenizer.config, MAX_LENGTH, run.task_config.max_qa_length)(questions)


def _answer_race(run: Run, requests: Requests) -> AnswerTensors:
  examples = make_race_examples(run, requests)
  batch = _pad(examples, num_sequences=int(examples.sequence_counts.max()))
  probabilities = _softmax(_call_model(run, MultipleChoiceModel, batch))
  best = probabilities.argmax(axis=1)
  text = [request["options"][i] for request, i in zip(requests, best, strict=True)]
  return {"probabilities": probabilities, "option": best, "text": text}


_SQUAD = {"max_query_length": 9, "doc_stride": 7, "max_answer_length": 6}
FORMS = {
  form.name: form
  for form in (
    Form("fill_mask", "pretraining", {}, ("masked_lm", "sentence"), _answer_fill_mask),
    Form("sentence_order", "pretraining", {}, ("masked_lm", "sentence"), _answer_sentence_order),
    Form("embeddings", "pretraining", {}, ("masked_lm", "sentence"), _answer_embeddings),
    Form(
      "classifier",
      "classifier",
      {"task_name": "custom", "text_columns": "review", "labels": ",".join(LABELS)},
      ("classifier",),
      _answer_classifier,
    ),
    Form("regression", "classifier", {"task_name": "STS-B"}, ("classifier",), _answer_regression, num_classes=1),
    Form("squad_v1", "squad", _SQUAD, ("squad",), functools.partial(_answer_squad, version_2=False)),
    Form(
      "squad_v2",
      "squad",
      _SQUAD | {"version_2_with_negative": True, "null_score_diff_threshold": 0.3},
      ("squad_v2",),
      functools.partial(_answer_squad, version_2=True),
    ),
    Form("race", "race", {"max_qa_length": 14}, ("classifier",), _answer_race, num_classes=1),
  )
}
assert set(FORMS) == set(export_registry.FORMS)
PAIR = dataclasses.replace(
  FORMS["classifier"], name="pair", data=FORMS["classifier"].data | {"text_columns": "review,summary"}
)
