"""Writes the directory that transformers' ALBERT or BERT classes load: the weights, their config, and the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.config.huggingface import ACTIVATION_NAMES, to_bert_config
from albert.convert.formats import CLASSES_WITH_POOLER
from albert.convert.model import ConvertedModel, ReportLine, expand_sharing, report_line
from albert.convert.tokenizer_files import write_tokenizer
from albert.errors import UserError
from albert.io import files
from albert.tasks.glue.flags import parse_labels
from albert.tasks.tagging.schemes import SCHEMES
from albert.tokenization.pieces import SENTENCE_PIECE_IDS
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.weights.arrays import SAFETENSORS_FILE
from albert.weights.bert_names import to_bert
from albert.weights.names import NO_POOLER, POOLER, PROJECTION, heads, to_huggingface

# The fields of ModelConfig that have the same name and meaning in transformers.
_COMMON_FIELDS = (
  "vocab_size",
  "embedding_size",
  "hidden_size",
  "num_hidden_layers",
  "num_hidden_groups",
  "inner_group_num",
  "num_attention_heads",
  "intermediate_size",
  "hidden_dropout_prob",
  "attention_probs_dropout_prob",
  "classifier_dropout_prob",
  "max_position_embeddings",
  "type_vocab_size",
  "initializer_range",
)


def write_huggingface(model: ConvertedModel, directory: str, architecture: str = "") -> list[ReportLine]:
  """Writes model.safetensors and config.json, and with a vocabulary tokenizer.json and tokenizer_config.json.

  Args:
    model: the model.
    directory: an existing directory.
    architecture: the class that config.json names; empty for the class with the model's head.
  Returns:
    The lines of the report.
  Raises:
    UserError: the classifier has one output, which may be multiple choice or a regression, and `architecture` is empty;
      or `architecture` needs a pooler and the model has none; or it is a BERT's and the model cannot be one.
  """
  from safetensors.numpy import save

  is_bert = architecture.startswith("Bert")
  if is_bert:
    _check_is_bert(model, architecture)
  model = expand_sharing(model, for_huggingface=True, for_bert=is_bert)
  architecture = architecture or _choose_architecture(model)
  if architecture in CLASSES_WITH_POOLER and not _has_pooler(model):
    raise UserError(f"--architecture={architecture}: the weights have {NO_POOLER}")
  tensors: dict[str, np.ndarray] = {}
  report = []
  for name, value in model.weights.items():
    translated = to_huggingface(name)
    assert translated is not None, name  # read_model accepts no other names
    target = to_bert(translated.name) if is_bert else translated.name
    tensors[target] = np.ascontiguousarray(value.T if translated.is_transposed else value)
    report.append(report_line(model.sources[name], target, tensors[target]))
  if model.config.embedding_size == model.config.hidden_size and not is_bert:
    report += _add_identity(tensors, model.config.hidden_size)
  files.write_atomically(files.join(directory, SAFETENSORS_FILE), save(tensors, metadata={"format": "pt"}))
  tokenizer = load_tokenizer(model.tokenizer_config) if model.tokenizer_config else None
  config = _transformers_config(model, architecture, tokenizer)
  files.write_json(files.join(directory, "config.json"), to_bert_config(config) if is_bert else config)
  if tokenizer:
    max_length = model.run.get("data", {}).get("max_seq_length") or model.config.max_position_embeddings
    write_tokenizer(tokenizer, directory, max_length=max_length, fills_masks="masked_lm" in model.heads)
  return report


def _check_is_bert(model: ConvertedModel, architecture: str) -> None:
  config = model.config
  if config.embedding_size != config.hidden_size or config.inner_group_num != 1:
    raise UserError(
      f"--architecture={architecture}: the model has embeddings of size {config.embedding_size}, hidden states of size "
      f"{config.hidden_size} and {config.inner_group_num} block(s) in each layer; a BERT has embeddings of the size of "
      "the hidden states and one block: give a class of ALBERT"
    )


def _has_pooler(model: ConvertedModel) -> bool:
  return all(name in model.weights for name in POOLER)


def _add_identity(tensors: dict[str, np.ndarray], size: int) -> list[ReportLine]:
  """Adds a projection of the embeddings that is the identity, because transformers has a projection even if E = H."""
  kernel_name, bias_name = PROJECTION
  identity = {kernel_name: np.eye(size, dtype=np.float32), bias_name: np.zeros(size, np.float32)}
  report = []
  for name, value in identity.items():
    translated = to_huggingface(name)
    assert translated is not None
    tensors[translated.name] = value
    report.append(report_line("(identity, since E = H)", translated.name, value))
  return report


def _choose_architecture(model: ConvertedModel) -> str:
  """Returns the transformers class that has the model's heads."""
  has_pooler = _has_pooler(model)
  task = model.run.get("task")
  if model.heads == ("classifier",) and (task == "tagging" or not has_pooler):
    return "AlbertForTokenClassification"
  if "masked_lm" in model.heads:
    return "AlbertForPreTraining" if "sentence" in model.heads and has_pooler else "AlbertForMaskedLM"
  if model.heads == ("classifier",) and len(model.weights["output_weights"]) == 1:
    if task == "race":
      return "AlbertForMultipleChoice"
    if _problem_type(model.run) == "regression":
      return "AlbertForSequenceClassification"
    raise UserError(
      "the classifier head has one output: say with --architecture whether it is AlbertForMultipleChoice or "
      "AlbertForSequenceClassification (a regression)"
    )
  return heads(model.config)[model.heads[0]].huggingface_class if model.heads else "AlbertModel"


def _transformers_config(model: ConvertedModel, architecture: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
  """Returns the content of config.json."""
  values = model.config.to_dict()
  config: dict[str, Any] = {"architectures": [architecture], "model_type": "albert"}
  config |= {name: values[name] for name in _COMMON_FIELDS}
  config |= {
    "hidden_act": ACTIVATION_NAMES[model.config.hidden_act],
    "layer_norm_eps": 1e-12,
    "tie_word_embeddings": True,
  }
  # Without a vocabulary, the ids of ALBERT's SentencePiece models.
  special_ids = tokenizer.special_ids if tokenizer else SENTENCE_PIECE_IDS
  config |= {
    "pad_token_id": special_ids.pad,
    "bos_token_id": special_ids.cls,
    "eos_token_id": special_ids.sep,
    "dtype": "float32",
  }
  if "classifier" in model.heads:
    config |= _label_settings(model.run, len(model.weights["output_weights"]))
  return config


def _problem_type(run: Mapping[str, Any]) -> str:
  """Returns what the outputs of a classifier mean, in transformers' terms; "" if this is not known."""
  settings = run.get("data", {})
  if run.get("task") != "classifier" or "labels" not in settings:
    return ""
  if settings.get("multi_label"):
    return "multi_label_classification"
  return "single_label_classification" if settings["labels"] else "regression"


def _label_settings(run: Mapping[str, Any], num_outputs: int) -> dict[str, Any]:
  """Returns the keys of config.json about the outputs of a classifier: their names, and what they mean."""
  names: Sequence[str] = ()
  problem_type = _problem_type(run)
  settings = run.get("data", {})
  if problem_type:
    names = parse_labels(settings["labels"])
  elif run.get("task") == "tagging" and settings.get("scheme") in SCHEMES:
    names = SCHEMES[settings["scheme"]].tags(parse_labels(settings.get("labels", ""), minimum=1))
  if len(names) != num_outputs:  # a regression, a ranking (one output for two labels), or an unknown task
    names = [f"LABEL_{index}" for index in range(num_outputs)]
    problem_type = problem_type if problem_type == "regression" else ""
  return {
    "id2label": {str(index): name for index, name in enumerate(names)},
    "label2id": {name: index for index, name in enumerate(names)},
    **({"problem_type": problem_type} if problem_type else {}),
  }
