"""Writes the directory that transformers' ALBERT or BERT classes load: model.safetensors and config.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from albert.config.huggingface import ACTIVATION_NAMES, to_bert_config
from albert.convert.formats import CLASSES_WITH_POOLER
from albert.convert.model import ConvertedModel, ReportLine, expand_sharing, report_line
from albert.errors import UserError
from albert.io import files
from albert.tokenization.pieces import SENTENCE_PIECE_IDS, SpecialIds
from albert.tokenization.recorded_settings import FILE_NAME, huggingface_tokenizer_config
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary_files import is_byte_level_bpe, is_wordpiece
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
  """Writes model.safetensors and config.json, and for a vocabulary tokenizer_config.json.

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
  config = _transformers_config(model, architecture)
  files.write_json(files.join(directory, "config.json"), to_bert_config(config) if is_bert else config)
  if model.tokenizer_config:
    tokenizer_config = huggingface_tokenizer_config(model.tokenizer_config)
    if is_byte_level_bpe(model.tokenizer_config.model_file):
      tokenizer_config |= _roberta_tokens(load_tokenizer(model.tokenizer_config))
    files.write_json(files.join(directory, FILE_NAME), tokenizer_config)
  return report


def _roberta_tokens(tokenizer: Tokenizer) -> dict[str, str]:
  """Returns the names of the special pieces of a byte-level BPE vocabulary in tokenizer_config.json."""
  special_ids = tokenizer.special_ids
  roles = {"pad": special_ids.pad, "unk": special_ids.unk, "mask": special_ids.mask}
  roles |= dict.fromkeys(("cls", "bos"), special_ids.cls) | dict.fromkeys(("sep", "eos"), special_ids.sep)
  return {f"{role}_token": tokenizer.piece(piece_id) for role, piece_id in roles.items()}


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
  if model.heads == ("classifier",) and not has_pooler:
    return "AlbertForTokenClassification"
  if "masked_lm" in model.heads:
    return "AlbertForPreTraining" if "sentence" in model.heads and has_pooler else "AlbertForMaskedLM"
  if model.heads == ("classifier",) and len(model.weights["output_weights"]) == 1:
    raise UserError(
      "the classifier head has one output: say with --architecture whether it is AlbertForMultipleChoice or "
      "AlbertForSequenceClassification (a regression)"
    )
  return heads(model.config)[model.heads[0]].huggingface_class if model.heads else "AlbertModel"


def _special_ids(vocabulary: str | None) -> SpecialIds:
  """Returns the ids of special pieces; without a vocabulary, those of ALBERT's SentencePiece models."""
  if vocabulary and (is_wordpiece(vocabulary) or is_byte_level_bpe(vocabulary)):
    return Tokenizer(vocabulary).special_ids
  return SENTENCE_PIECE_IDS


def _transformers_config(model: ConvertedModel, architecture: str) -> dict[str, Any]:
  """Returns the content of config.json."""
  values = model.config.to_dict()
  config: dict[str, Any] = {"architectures": [architecture], "model_type": "albert"}
  config |= {name: values[name] for name in _COMMON_FIELDS}
  config |= {
    "hidden_act": ACTIVATION_NAMES[model.config.hidden_act],
    "layer_norm_eps": 1e-12,
    "tie_word_embeddings": True,
  }
  special_ids = _special_ids(model.vocabulary)
  config |= {
    "pad_token_id": special_ids.pad,
    "bos_token_id": special_ids.cls,
    "eos_token_id": special_ids.sep,
    "dtype": "float32",
  }
  if "classifier" in model.heads:
    num_classes = len(model.weights["output_weights"])
    config["id2label"] = {str(index): f"LABEL_{index}" for index in range(num_classes)}
    config["label2id"] = {f"LABEL_{index}": index for index in range(num_classes)}
  return config
