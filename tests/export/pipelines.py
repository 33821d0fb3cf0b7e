"""The expected answers of each served form, which the tests of exported models compare with.

The Python tokenizer and the models for training compute them from the same weights.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.export import registry as export_registry
from albert.models.classifier import ClassifierModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import P_MASK, SquadV1Model, SquadV2Model
from albert.models.tagger import TaggingModel
from albert.tasks import registry
from albert.tasks.race.features import RaceFeaturizer
from albert.tasks.race.files import ChoiceQuestion
from albert.tasks.squad.features import SquadFeaturizer
from albert.tasks.squad.files import SquadParagraph, SquadQuestion
from albert.tasks.squad.nbest import find_answers
from albert.tasks.tagging.features import TaggingFeaturizer
from albert.tasks.tagging.files import TaggedText
from albert.tasks.tagging.results import predict_tags
from albert.tasks.tagging.schemes import SCHEMES
from albert.tokenization.packing import pack_pair, pack_single
from albert.tokenization.tokenizer import Tokenizer, encode_with_masks
from albert.tokenization.vocabulary import vocabulary_copies
from albert.tokenization.words import split_words
from albert.weights.checkpoints import CheckpointManager
from tests.golden.make_tiny_albert import random_weights
from tests.models.build_models import assign_weights, build_pretraining_model

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
    return registry.TASKS[self.form.task].config_class(**self.form.data_settings)

  def expected_answers(self, requests: Requests) -> AnswerTensors:
    """The answers of the Python pipeline: name -> array or list with one row for each request."""
    return self.form.answer(self, requests)


@dataclasses.dataclass(frozen=True)
class Form:
  """A form in which models are served, and its pipeline in Python.

  Attributes:
    name: the name in albert.export.registry.FORMS.
    task: the task of the runs that it serves.
    data_settings: the settings of the task.
    heads: the heads that the checkpoint gets.
    answer: answers requests in Python.
    num_classes: number of outputs of a classifier head.
  """

  name: str
  task: str
  data_settings: dict[str, Any]
  heads: tuple[str, ...]
  answer: Callable[[Run, Requests], AnswerTensors]
  num_classes: int = 3


def write_run(directory: Path, form: Form, vocabulary: str, **config_changes: Any) -> Run:
  """Writes the output_dir of a run with a small model and random weights."""
  tokenizer = Tokenizer(vocabulary)
  sizes = {"vocab_size": tokenizer.vocab_size, "embedding_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
           "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 48}  # fmt: skip
  config = ModelConfig(**(sizes | config_changes))
  weights = random_weights(config, seed=len(form.name), with_heads=form.heads, num_classes=form.num_classes)
  directory.mkdir(parents=True)
  for name, source in vocabulary_copies(vocabulary).items():
    shutil.copyfile(source, directory / name)
  data_settings = form.data_settings
  if form.task != "pretraining":
    data_settings = data_settings | {"max_seq_length": MAX_LENGTH}
  (directory / "config.json").write_text(json.dumps({"task": form.task, "data": data_settings}))
  (directory / "eval_results.json").write_text(json.dumps({"step": STEP, "loss": 1.25}))
  CheckpointManager(str(directory / "checkpoints"), keep=1, model_config=config).save(STEP, weights)
  return Run(str(directory), form, config, weights, tokenizer)


def _field_values(requests: Requests, name: str) -> list[str]:
  return [request[name] for request in requests]


def _make_batch(ids: np.ndarray, lengths: np.ndarray) -> dict[str, tf.Tensor]:
  """Makes a padded batch of the concatenated ids of all sequences."""
  return _pad(TokenizedExamples(ids, lengths, np.ones(len(lengths), np.int32)))


def _pad(examples: TokenizedExamples, **options: Any) -> dict[str, tf.Tensor]:
  """Makes one padded batch of all examples."""
  length = int(examples.longest_sequences.max())
  batch = examples.padded_batch(np.arange(examples.num_examples), length=length, **options)
  return {name: tf.constant(values) for name, values in batch.items()}


def _tokenize(run: Run, requests: Requests, *names: str, length: int) -> dict[str, tf.Tensor]:
  """Tokenizes one field of the requests, or a pair of fields."""
  encoded = [run.tokenizer.encode_batch_flat(_field_values(requests, name)) for name in names]
  first, *second = encoded
  ids, lengths = (
    pack_pair(first, second[0], length, run.tokenizer.special_ids)
    if second
    else pack_single(first, length, run.tokenizer.special_ids)
  )
  return _make_batch(ids, lengths)


def _softmax(logits: Any) -> np.ndarray:
  return np.asarray(tf.nn.softmax(logits))


def _call_model(run: Run, make_model: Callable[[ModelConfig], Any], batch: dict[str, tf.Tensor], **options: Any) -> Any:
  """The outputs of a model with the weights of the run. `options` are further arguments of the call."""
  model = make_model(run.config)
  model(batch, **options)  # creates the variables
  assign_weights(model.named_weights(), {name: run.weights[name] for name in model.named_weights()})
  return model(batch, **options)


def _call_pretraining_model(run: Run, batch: dict[str, tf.Tensor], positions: Any) -> Any:
  model = build_pretraining_model(run.config, run.weights)
  return model(batch | {"masked_lm_positions": tf.constant(positions, tf.int32)})


def _answer_fill_mask(run: Run, requests: Requests) -> AnswerTensors:
  length = run.config.max_position_embeddings
  texts = _field_values(requests, "text")
  max_text_tokens = length - 2  # besides [CLS] and [SEP]
  special = run.tokenizer.special_ids
  sequences = [[special.cls, *encode_with_masks(run.tokenizer, text)[:max_text_tokens], special.sep] for text in texts]
  batch = _make_batch(np.concatenate(sequences).astype(np.int32), np.array(list(map(len, sequences)), np.int32))
  mask_positions = [np.flatnonzero(np.array(sequence) == special.mask) for sequence in sequences]
  num_masks = np.array([len(positions) for positions in mask_positions])
  padded_positions = np.zeros([len(sequences), num_masks.max()])
  for row, positions in enumerate(mask_positions):
    padded_positions[row, : len(positions)] = positions
  probabilities = _softmax(_call_pretraining_model(run, batch, padded_positions).masked_lm_logits)
  highest_five = -np.sort(-probabilities, axis=-1)[..., :5]  # SelectedForm.top_k is 5
  is_mask = np.arange(num_masks.max()) < num_masks[:, None]
  return {"probabilities": highest_five * is_mask[..., None], "num_masks": num_masks}


def _answer_sentence_order(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, "text_a", "text_b", length=run.config.max_position_embeddings)
  probabilities = _softmax(_call_pretraining_model(run, batch, np.zeros([len(requests), 1])).sentence_logits)
  return {"probabilities": probabilities, "label": [("in_order", "swapped")[i] for i in probabilities.argmax(1)]}


def _answer_embeddings(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, "text", length=run.config.max_position_embeddings)
  model = build_pretraining_model(run.config, run.weights)
  encoded = model.encoder(batch)
  mask = np.asarray(batch["input_mask"], np.float64)[..., None]
  mean = (np.asarray(encoded.sequence_output) * mask).sum(axis=1) / mask.sum(axis=1)
  return {"pooled": np.asarray(encoded.pooled_output), "mean": mean}


def _answer_classifier(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, *requests[0], length=MAX_LENGTH)  # a request holds a text or a pair of texts
  logits = _call_model(run, lambda config: ClassifierModel(config, 3), batch)
  probabilities = _softmax(logits)
  return {"probabilities": probabilities, "label": [LABELS[i] for i in probabilities.argmax(1)]}


def _answer_multi_label(run: Run, requests: Requests) -> AnswerTensors:
  batch = _tokenize(run, requests, "text", length=MAX_LENGTH)
  logits = np.asarray(_call_model(run, lambda config: ClassifierModel(config, 3), batch), np.float64)
  probabilities = 1 / (1 + np.exp(-logits))
  labels = []
  for row in probabilities:
    above = sorted((i for i in range(3) if row[i] >= 0.5), key=lambda i: -row[i])
    labels.append([LABELS[i] for i in above] + [""] * (3 - len(above)))
  return {"labels": labels, "probabilities": probabilities}


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


def _squad_v1_outputs(run: Run, batch: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
  spans = _call_model(run, SquadV1Model, batch)
  return {"start_logits": np.asarray(spans.start), "end_logits": np.asarray(spans.end)}


def _squad_v2_outputs(run: Run, batch: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
  config = run.task_config
  result = _call_model(
    run,
    SquadV2Model,
    batch,
    start_positions=tf.zeros(batch["input_ids"].shape[:1], tf.int32),
    num_starts=config.start_n_top,
    num_ends=config.end_n_top,
  )
  beams = {name: np.asarray(values) for name, values in result.beams._asdict().items()}
  return beams | {"null_logits": np.asarray(result.null_logits)}


def _answer_squad(run: Run, requests: Requests, *, version_2: bool) -> AnswerTensors:
  config = run.task_config
  questions, examples = make_squad_examples(run, requests)
  batch = _pad(examples, token_features=[P_MASK])
  if version_2:
    outputs = _squad_v2_outputs(run, batch)
    score_names = ("start_log_prob", "end_log_prob")
  else:
    outputs = _squad_v1_outputs(run, batch)
    score_names = ("start_logit", "end_logit")
  outputs[EXAMPLE_INDEX] = np.arange(examples.num_examples)
  predictions = find_answers(questions, outputs, examples, n_best_size=3, max_answer_length=config.max_answer_length)
  chosen = predictions.answers(config.null_score_diff_threshold)
  null_odds = predictions.null_odds or dict.fromkeys(chosen, -np.inf)
  # A question whose windows hold no possible span has no best entry. Its score is that of a masked token.
  no_span = {"text": "", score_names[0]: -1e30, score_names[1]: 0.0}
  best_entries = [(predictions.nbest[question.id] or [no_span])[0] for question in questions]
  return {
    "answer": [chosen[question.id] for question in questions],
    "best_text": [entry["text"] for entry in best_entries],
    "score": np.array([entry[score_names[0]] + entry[score_names[1]] for entry in best_entries]),
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
  best_options = probabilities.argmax(axis=1)
  texts = [request["options"][option] for request, option in zip(requests, best_options, strict=True)]
  return {"probabilities": probabilities, "option": best_options, "text": texts}


def make_tagging_examples(run: Run, requests: Requests) -> tuple[list[TaggedText], TokenizedExamples]:
  """Makes the texts of the requests, and their windows."""
  config = run.task_config
  texts = []
  for index, text in enumerate(_field_values(requests, "text")):
    ranges = split_words(text, config.word_rule)
    texts.append(TaggedText(index, "", [text[start:end] for start, end in ranges], (), text, ranges))
  scheme = SCHEMES[config.scheme]
  tags = scheme.tags(config.labels.split(","))
  return texts, TaggingFeaturizer(run.tokenizer.config, MAX_LENGTH, config.doc_stride, scheme, tags)(texts)


def _answer_tagging(run: Run, requests: Requests) -> AnswerTensors:
  scheme = SCHEMES[run.task_config.scheme]
  tags = scheme.tags(run.task_config.labels.split(","))
  texts, examples = make_tagging_examples(run, requests)
  logits = _call_model(run, functools.partial(TaggingModel, num_classes=len(tags)), _pad(examples))
  outputs = {
    "log_probabilities": np.asarray(tf.nn.log_softmax(logits)),
    EXAMPLE_INDEX: np.arange(examples.num_examples),
  }
  all_spans = [found.json_spans() for found in predict_tags(outputs, examples, texts, scheme, tags)]
  length = max(map(len, all_spans))

  def column(name: str, padding: Any) -> list[Any]:
    return [[*(span[name] for span in spans), *[padding] * (length - len(spans))] for spans in all_spans]

  numbers = {name: np.array(column(name, 0)) for name in ("start", "end", "probability")}
  counts = np.array([len(spans) for spans in all_spans])
  return numbers | {"num_spans": counts, "label": column("label", ""), "span": column("text", "")}


_SQUAD_SETTINGS = {"max_query_length": 9, "doc_stride": 7, "max_answer_length": 6}
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
    Form(
      "multi_label",
      "classifier",
      {
        **{"task_name": "custom", "text_columns": "review", "labels": ",".join(LABELS)},
        **{"multi_label": True, "thresholds": "0.5"},
      },
      ("classifier",),
      _answer_multi_label,
    ),
    Form("regression", "classifier", {"task_name": "STS-B"}, ("classifier",), _answer_regression, num_classes=1),
    Form("squad_v1", "squad", _SQUAD_SETTINGS, ("squad",), functools.partial(_answer_squad, version_2=False)),
    Form(
      "squad_v2",
      "squad",
      _SQUAD_SETTINGS | {"version_2_with_negative": True, "null_score_diff_threshold": 0.3},
      ("squad_v2",),
      functools.partial(_answer_squad, version_2=True),
    ),
    Form("race", "race", {"max_qa_length": 14}, ("classifier",), _answer_race, num_classes=1),
    Form(
      "tagging",
      "tagging",
      {"scheme": "BILOU", "labels": "LOC,PER", "doc_stride": 9},
      ("classifier",),
      _answer_tagging,
      num_classes=9,
    ),
  )
}
assert set(FORMS) == set(export_registry.FORMS), "each form needs a pipeline here"
