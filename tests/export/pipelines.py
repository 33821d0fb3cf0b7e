"""What each form must answer: the same weights through the tokenizer in Python and the models of training."""

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
from albert.data.packing import pack_pair, pack_single
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
  """A directory as a run leaves it, with random weights, and what answers in Python."""

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
    """What the Python pipeline makes of requests: name -> array or list, a row a request."""
    return self.form.answer(self, requests)


@dataclasses.dataclass(frozen=True)
class Form:
  """A --task of albert.export: the task it belongs to, its settings there, its head and how Python answers."""

  name: str
  task: str
  data: dict[str, Any]
  heads: tuple[str, ...]
  answer: Callable[[Run, Requests], AnswerTensors]
  num_classes: int = 3


def write_run(directory: Path, form: Form, vocabulary: str, **changes: Any) -> Run:
  """Makes a run of small random weights."""
  size = sentencepiece.SentencePieceProcessor(model_file=vocabulary).get_piece_size()
  sizes = {"vocab_size": size, "embedding_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
           "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 48}  # fmt: skip
  config = ModelConfig(**(sizes | changes))
  weights = random_weights(config, seed=len(form.name), with_heads=form.heads, num_classes=form.num_classes)
  directory.mkdir(parents=True)
  shutil.copyfile(vocabulary, directory / "spiece.model")
  data = form.data | ({} if form.task == "pretraining" else {"max_seq_length": MAX_LENGTH})
  (directory / "config.json").write_text(json.dumps({"task": form.task, "data": data}))
  (directory / "eval_results.json").write_text(json.dumps({"step": STEP, "loss": 1.25}))
  CheckpointManager(str(directory / "checkpoints"), keep=1, model_config=config).save(STEP, weights)
  return Run(str(directory), form, config, weights, Tokenizer(vocabulary))


def _texts(requests: Requests, name: str) -> list[str]:
  return [request[name] for request in requests]


def _batch(ids: np.ndarray, lengths: np.ndarray) -> dict[str, tf.Tensor]:
  """Packed sequences -> a padded batch."""
  examples = TokenizedExamples(ids, lengths, np.ones(len(lengths), np.int32))
  return _padded(examples)


def _padded(examples: TokenizedExamples, **options: Any) -> dict[str, tf.Tensor]:
  length = int(examples.longest_sequences.max())
  batch = examples.padded_batch(np.arange(examples.num_examples), length=length, **options)
  return {name: tf.constant(values) for name, values in batch.items()}


def _packed(run: Run, requests: Requests, *names: str, length: int) -> dict[str, tf.Tensor]:
  encoded = [run.tokenizer.encode_batch_flat(_texts(requests, name)) for name in names]
  return _batch(*(pack_single(*encoded, length) if len(encoded) == 1 else pack_pair(*encoded, length)))


def _softmax(logits: Any) -> np.ndarray:
  return np.asarray(tf.nn.softmax(logits))


def _model(run: Run, make: Callable[[ModelConfig], Any], batch: dict[str, tf.Tensor], **options: Any) -> Any:
  """The outputs of a model with the weights of the run."""
  model = make(run.config)
  first = {name: values[:1] for name, values in batch.items()}
  model(first, **{name: value[:1] if name == "start_positions" else value for name, value in options.items()})
  assign(model.named_weights(), {name: run.weights[name] for name in model.named_weights()})
  return model(batch, **options)


def _pretrained(run: Run, batch: dict[str, tf.Tensor], positions: Any) -> Any:
  model = pretraining_model(run.config, run.weights)
  return model(batch | {"masked_lm_positions": tf.constant(positions, tf.int32)})


def _fill_mask(run: Run, requests: Requests) -> AnswerTensors:
  length = run.config.max_position_embeddings
  rows = [encode_with_masks(run.tokenizer, text)[: length - 2] for text in _texts(requests, "text")]
  rows = [[CLS_ID, *row, SEP_ID] for row in rows]
  places = [[i for i, token in enumerate(row) if token == MASK_ID] for row in rows]
  most = max(map(len, places))
  batch = _batch(np.concatenate(rows).astype(np.int32), np.array([len(row) for row in rows], np.int32))
  padded = [[*row, *[0] * (most - len(row))] for row in places]
  probabilities = _softmax(_pretrained(run, batch, padded).masked_lm_logits)
  best = np.sort(probabilities, axis=-1)[..., ::-1][..., :5]
  counts = np.array([len(row) for row in places])
  return {"probabilities": best * (np.arange(most) < counts[:, None])[..., None], "num_masks": counts}


def _sentence_order(run: Run, requests: Requests) -> AnswerTensors:
  batch = _packed(run, requests, "text_a", "text_b", length=run.config.max_position_embeddings)
  probabilities = _softmax(_pretrained(run, batch, np.zeros([len(requests), 1])).sentence_logits)
  return {"probabilities": probabilities, "label": [("in_order", "swapped")[i] for i in probabilities.argmax(1)]}


def _embeddings(run: Run, requests: Requests) -> AnswerTensors:
  batch = _packed(run, requests, "text", length=run.config.max_position_embeddings)
  model = pretraining_model(run.config, run.weights)
  encoded = model.encoder(batch)
  weights = np.asarray(batch["input_mask"], np.float64)[..., None]
  mean = (np.asarray(encoded.sequence_output) * weights).sum(axis=1) / weights.sum(axis=1)
  return {"pooled": np.asarray(encoded.pooled_output), "mean": mean}


def _classifier(run: Run, requests: Requests) -> AnswerTensors:
  batch = _packed(run, requests, *requests[0], length=MAX_LENGTH)  # a text or a pair
  logits = _model(run, lambda config: ClassifierModel(config, 3), batch)
  probabilities = _softmax(logits)
  return {"probabilities": probabilities, "label": [LABELS[i] for i in probabilities.argmax(1)]}


def _regression(run: Run, requests: Requests) -> AnswerTensors:
  batch = _packed(run, requests, "text_a", "text_b", length=MAX_LENGTH)
  return {"value": np.asarray(_model(run, lambda config: ClassifierModel(config, 1), batch))[:, 0]}


def squad_examples(run: Run, requests: Requests) -> tuple[list[SquadQuestion], TokenizedExamples]:
  """Questions and their windows."""
  config = run.task_config
  questions = [
    SquadQuestion(str(i), i, request["question"], SquadParagraph("", request["context"]))
    for i, request in enumerate(requests)
  ]
  featurizer = SquadFeaturizer(run.tokenizer.config, MAX_LENGTH, config.max_query_length, config.doc_stride)
  return questions, featurizer(questions)


def _squad(run: Run, requests: Requests, *, version_2: bool) -> AnswerTensors:
  config = run.task_config
  questions, examples = squad_examples(run, requests)
  batch = _padded(examples, token_features=[P_MASK])
  lengths = {"n_best_size": 3, "max_answer_length": config.max_answer_length}
  index = {EXAMPLE_INDEX: np.arange(examples.num_examples)}
  if version_2:
    options = {"num_starts": config.start_n_top, "num_ends": config.end_n_top}
    found = _model(run, SquadV2Model, batch, start_positions=tf.zeros([examples.num_examples], tf.int32), **options)
    outputs = {name: np.asarray(values) for name, values in found.beams._asdict().items()}
    outputs |= index | {"null_logits": np.asarray(found.null_logits)}
    predictions = squad_predictions.predictions_v2(questions, outputs, examples, **lengths)
    scores = ("start_log_prob", "end_log_prob")
  else:
    spans = _model(run, SquadV1Model, batch)
    outputs = index | {"start_logits": np.asarray(spans.start), "end_logits": np.asarray(spans.end)}
    predictions = squad_predictions.predictions_v1(questions, outputs, examples, **lengths)
    scores = ("start_logit", "end_logit")
  entries = [predictions.nbest[question.id] for question in questions]
  answers = predictions.answers(config.null_score_diff_threshold)
  odds = predictions.null_odds or dict.fromkeys(answers, -np.inf)
  return {
    "answer": [answers[question.id] for question in questions],
    "best_text": [entry[0]["text"] if entry else "" for entry in entries],
    "score": np.array([sum(entry[0][name] for name in scores) if entry else -1e30 for entry in entries]),
    "no_answer_probability": np.array([1 / (1 + np.exp(-odds[question.id])) for question in questions]),
  }


def race_examples(run: Run, requests: Requests) -> TokenizedExamples:
  """A sequence for each option."""
  questions = [
    ChoiceQuestion(str(i), request["article"], request["question"], tuple(request["options"]))
    for i, request in enumerate(requests)
  ]
  return RaceFeaturizer(run.tokenizer.config, MAX_LENGTH, run.task_config.max_qa_length)(questions)


def _race(run: Run, requests: Requests) -> AnswerTensors:
  examples = race_examples(run, requests)
  batch = _padded(examples, num_sequences=int(examples.sequence_counts.max()))
  probabilities = _softmax(_model(run, MultipleChoiceModel, batch))
  best = probabilities.argmax(axis=1)
  text = [request["options"][i] for request, i in zip(requests, best, strict=True)]
  return {"probabilities": probabilities, "option": best, "text": text}


_SQUAD = {"max_query_length": 9, "doc_stride": 7, "max_answer_length": 6}
FORMS = {
  form.name: form
  for form in (
    Form("fill_mask", "pretraining", {}, ("masked_lm", "sentence"), _fill_mask),
    Form("sentence_order", "pretraining", {}, ("masked_lm", "sentence"), _sentence_order),
    Form("embeddings", "pretraining", {}, ("masked_lm", "sentence"), _embeddings),
    Form(
      "classifier",
      "classifier",
      {"task_name": "custom", "text_columns": "review", "labels": ",".join(LABELS)},
      ("classifier",),
      _classifier,
    ),
    Form("regression", "classifier", {"task_name": "STS-B"}, ("classifier",), _regression, num_classes=1),
    Form("squad_v1", "squad", _SQUAD, ("squad",), functools.partial(_squad, version_2=False)),
    Form(
      "squad_v2",
      "squad",
      _SQUAD | {"version_2_with_negative": True, "null_score_diff_threshold": 0.3},
      ("squad_v2",),
      functools.partial(_squad, version_2=True),
    ),
    Form("race", "race", {"max_qa_length": 14}, ("classifier",), _race, num_classes=1),
  )
}
assert set(FORMS) == set(export_registry.FORMS)
PAIR = dataclasses.replace(
  FORMS["classifier"], name="pair", data=FORMS["classifier"].data | {"text_columns": "review,summary"}
)
