"""The names and shapes of all weights, in the original and in Hugging Face's transformers. Imports no TensorFlow.

Weights have the names of the original everywhere in this project. The names of transformers' BERT are translated to
those of transformers' ALBERT, since a BERT is an ALBERT whose embeddings have the size of the hidden states, and whose
layers share nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from albert.config.model import ModelConfig

_TRANSFORMER_PREFIX = "bert/encoder/transformer"
# The part of a weight's name that says to which group of layers it belongs.
GROUP_PATTERN = re.compile(r"/group_(\d+)/")
# The name of a parameter of LayerNorm as Keras gives it: its scope, the number of the layer, and the rest.
_KERAS_NORM = re.compile(r"(.*/)layer_normalization(?:_(\d+))?(/\w+)")
POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
# The end of error messages that begin with "--init_checkpoint=PATH: has ", for weights without a pooler.
NO_POOLER = (
  "no pooler (as transformers' AlbertForMaskedLM, AlbertForQuestionAnswering and AlbertForTokenClassification), which "
  "this needs: give weights with one, such as AlbertModel's, AlbertForPreTraining's or the original's"
)
PROJECTION = ("bert/encoder/embedding_hidden_mapping_in/kernel", "bert/encoder/embedding_hidden_mapping_in/bias")
WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
# In checkpoints of regressions: the deviation and the mean of the training labels, by which the output is scaled.
OUTPUT_SCALE = "output_scale"


def _dense_shapes(name: str, size_in: int, size_out: int) -> dict[str, tuple[int, ...]]:
  return {f"{name}/kernel": (size_in, size_out), f"{name}/bias": (size_out,)}


def _layer_norm_shapes(name: str, size: int) -> dict[str, tuple[int, ...]]:
  return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}


def encoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """Name in the original -> shape of every weight of the embeddings, the layers and the pooler."""
  embedding, hidden, intermediate = config.embedding_size, config.hidden_size, config.intermediate_size
  shapes: dict[str, tuple[int, ...]] = {
    WORD_EMBEDDINGS: (config.vocab_size, embedding),
    "bert/embeddings/token_type_embeddings": (config.type_vocab_size, embedding),
    "bert/embeddings/position_embeddings": (config.max_position_embeddings, embedding),
    **_layer_norm_shapes("bert/embeddings/LayerNorm", embedding),
  }
  if embedding != hidden:
    shapes |= _dense_shapes("bert/encoder/embedding_hidden_mapping_in", embedding, hidden)
  for inner_group in range(config.inner_group_num):
    for group in range(config.num_attention_groups):
      block = f"{_TRANSFORMER_PREFIX}/group_{group}/inner_group_{inner_group}"
      for part in ("self/query", "self/key", "self/value", "output/dense"):
        shapes |= _dense_shapes(f"{block}/attention_1/{part}", hidden, hidden)
      shapes |= _layer_norm_shapes(f"{block}/LayerNorm", hidden)
    for group in range(config.num_ffn_groups):
      block = f"{_TRANSFORMER_PREFIX}/group_{group}/inner_group_{inner_group}"
      shapes |= _dense_shapes(f"{block}/ffn_1/intermediate/dense", hidden, intermediate)
      shapes |= _dense_shapes(f"{block}/ffn_1/intermediate/output/dense", intermediate, hidden)
      shapes |= _layer_norm_shapes(f"{block}/LayerNorm_1", hidden)
  return shapes | _dense_shapes("bert/pooler/dense", hidden, hidden)


def original_norms(names: Iterable[str]) -> dict[str, str]:
  """Returns name -> name in the original, which differs where LayerNorm comes from Keras.

  Keras numbers all of a model's layers. Within a scope, layer_normalization_8 and layer_normalization_9 are LayerNorm
  and LayerNorm_1.
  """
  matches = {name: _KERAS_NORM.fullmatch(name) for name in names}
  numbers: dict[str, set[int]] = {}  # scope -> the numbers in it
  for match in matches.values():
    if match:
      numbers.setdefault(match[1], set()).add(int(match[2] or 0))
  original = {}
  for name, match in matches.items():
    index = sorted(numbers[match[1]]).index(int(match[2] or 0)) if match else 0
    original[name] = f"{match[1]}LayerNorm{f'_{index}' if index else ''}{match[3]}" if match else name
  return original


def huggingface_groups_agree(config: ModelConfig) -> bool:
  """Whether transformers assigns all layers to the same groups as the original.

  In the original, layer i of L belongs to group floor(i * G / L) of G. transformers computes this with floats, and
  their rounding gives another group for a few L and G, such as 18 and 14.
  """
  layers, groups = config.num_hidden_layers, config.num_hidden_groups
  return all(int(layer / (layers / groups)) == layer * groups // layers for layer in range(layers))


def num_parameters(shapes: dict[str, tuple[int, ...]]) -> int:
  """The number of parameters in weights of these shapes."""
  return sum(map(math.prod, shapes.values()))


class Head(NamedTuple):
  """The weights of a task head.

  Attributes:
    shapes: name in the original -> shape. None as a length stands for any number of classes.
    huggingface_class: the transformers class that has this head.
  """

  shapes: dict[str, tuple[int | None, ...]]
  huggingface_class: str


def heads(config: ModelConfig) -> dict[str, Head]:
  """Name of a head in this project -> its weights, for all heads of the original."""
  vocab, embedding, hidden = config.vocab_size, config.embedding_size, config.hidden_size
  masked_lm_shapes: dict[str, tuple[int | None, ...]] = {
    "cls/predictions/output_bias": (vocab,),
    **_dense_shapes("cls/predictions/transform/dense", hidden, embedding),
    **_layer_norm_shapes("cls/predictions/transform/LayerNorm", embedding),
  }
  squad_v2_shapes: dict[str, tuple[int | None, ...]] = {
    **_dense_shapes("start_logits/dense", hidden, 1),
    **_dense_shapes("end_logits/dense_0", 2 * hidden, hidden),
    **_layer_norm_shapes("end_logits/LayerNorm", hidden),
    **_dense_shapes("end_logits/dense_1", hidden, 1),
    **_dense_shapes("answer_class/dense_0", 2 * hidden, hidden),
    "answer_class/dense_1/kernel": (hidden, 1),
  }
  return {
    "masked_lm": Head(masked_lm_shapes, "AlbertForMaskedLM"),
    "sentence": Head(_linear_head_shapes("cls/seq_relationship/", 2, hidden), "AlbertForPreTraining"),
    "classifier": Head(_linear_head_shapes("", None, hidden), "AlbertForSequenceClassification"),
    "squad": Head(_linear_head_shapes("cls/squad/", 2, hidden), "AlbertForQuestionAnswering"),
    # In transformers, no ALBERT class has this head. XLNet has it, with these names of modules.
    "squad_v2": Head(squad_v2_shapes, "AlbertModel"),
  }


def _linear_head_shapes(prefix: str, classes: int | None, hidden: int) -> dict[str, tuple[int | None, ...]]:
  return {f"{prefix}output_weights": (classes, hidden), f"{prefix}output_bias": (classes,)}


# Parameter of a dense layer or of LayerNorm in the original -> in transformers.
_PARAMETERS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
# Module in the original -> module in transformers.
_MODULES = {
  "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
  "bert/encoder/embedding_hidden_mapping_in": "albert.encoder.embedding_hidden_mapping_in",
  "bert/pooler/dense": "albert.pooler",
  "cls/predictions/transform/dense": "predictions.dense",
  "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
  "start_logits/dense": "start_logits.dense",
  "end_logits/dense_0": "end_logits.dense_0",
  "end_logits/LayerNorm": "end_logits.LayerNorm",
  "end_logits/dense_1": "end_logits.dense_1",
  "answer_class/dense_0": "answer_class.dense_0",
  "answer_class/dense_1": "answer_class.dense_1",
}
# The same for the modules of a transformer block.
_BLOCK_MODULES = {
  "attention_1/self/query": "attention.query",
  "attention_1/self/key": "attention.key",
  "attention_1/self/value": "attention.value",
  "attention_1/output/dense": "attention.dense",
  "LayerNorm": "attention.LayerNorm",
  "ffn_1/intermediate/dense": "ffn",
  "ffn_1/intermediate/output/dense": "ffn_output",
  "LayerNorm_1": "full_layer_layer_norm",
}
# Array in the original -> array in transformers, for arrays that are not transposed: embedding tables, and the
# [classes, H] weights of linear heads.
_ARRAYS = {
  "bert/embeddings/word_embeddings": "albert.embeddings.word_embeddings.weight",
  "bert/embeddings/token_type_embeddings": "albert.embeddings.token_type_embeddings.weight",
  "bert/embeddings/position_embeddings": "albert.embeddings.position_embeddings.weight",
  "cls/predictions/output_bias": "predictions.bias",
  "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
  "cls/seq_relationship/output_bias": "sop_classifier.classifier.bias",
  "output_weights": "classifier.weight",
  "output_bias": "classifier.bias",
  "cls/squad/output_weights": "qa_outputs.weight",
  "cls/squad/output_bias": "qa_outputs.bias",
}
# The name of a module in a transformer block: its group, its inner group, and the module.
_BLOCK = re.compile(rf"^{_TRANSFORMER_PREFIX}/group_(\d+)/inner_group_(\d+)/(.+)$")
_HUGGINGFACE_BLOCK = re.compile(r"^albert\.encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.(.+)$")


def _inverted(table: Mapping[str, str]) -> dict[str, str]:
  return {value: key for key, value in table.items()}


_ORIGINAL_ARRAYS, _ORIGINAL_MODULES, _ORIGINAL_BLOCK_MODULES = map(_inverted, (_ARRAYS, _MODULES, _BLOCK_MODULES))


class TranslatedName(NamedTuple):
  """A weight's name in the other library, and whether the other library has the transposed matrix."""

  name: str
  is_transposed: bool


def to_huggingface(name: str) -> TranslatedName | None:
  """Translates a name of the original to transformers; None if transformers has no such weight."""
  if name in _ARRAYS:
    return TranslatedName(_ARRAYS[name], False)
  module, _, parameter = name.rpartition("/")
  translated = _MODULES.get(module)
  if (block := _BLOCK.match(module)) and block[3] in _BLOCK_MODULES:
    translated = f"albert.encoder.albert_layer_groups.{block[1]}.albert_layers.{block[2]}.{_BLOCK_MODULES[block[3]]}"
  if translated is None or parameter not in _PARAMETERS:
    return None
  return TranslatedName(f"{translated}.{_PARAMETERS[parameter]}", parameter == "kernel")


def from_huggingface(name: str) -> TranslatedName | None:
  """Translates a name of transformers (for encoder weights with the prefix `albert.`); None for an unknown name."""
  if name in _ORIGINAL_ARRAYS:
    return TranslatedName(_ORIGINAL_ARRAYS[name], False)
  module, _, parameter = name.rpartition(".")
  translated = _ORIGINAL_MODULES.get(module)
  if (block := _HUGGINGFACE_BLOCK.match(module)) and block[3] in _ORIGINAL_BLOCK_MODULES:
    translated = f"{_TRANSFORMER_PREFIX}/group_{block[1]}/inner_group_{block[2]}/{_ORIGINAL_BLOCK_MODULES[block[3]]}"
  if translated is None or parameter not in ("weight", "bias"):
    return None
  is_norm = "LayerNorm" in translated.rpartition("/")[2]
  if parameter == "weight":
    return TranslatedName(f"{translated}/{'gamma' if is_norm else 'kernel'}", not is_norm)
  return TranslatedName(f"{translated}/{'beta' if is_norm else 'bias'}", False)


# Module of transformers' BERT -> module of transformers' ALBERT.
_BERT_MODULES = {
  "bert.pooler.dense": "albert.pooler",
  "cls.predictions.transform.dense": "predictions.dense",
  "cls.predictions.transform.LayerNorm": "predictions.LayerNorm",
  "cls.predictions.decoder": "predictions.decoder",
  "cls.predictions": "predictions",
  "cls.seq_relationship": "sop_classifier.classifier",
  **{
    f"bert.embeddings.{name}": f"albert.embeddings.{name}"
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
  },
}
# The same for the modules of a layer.
_BERT_LAYER_MODULES = {
  "attention.self.query": "attention.query",
  "attention.self.key": "attention.key",
  "attention.self.value": "attention.value",
  "attention.output.dense": "attention.dense",
  "attention.output.LayerNorm": "attention.LayerNorm",
  "intermediate.dense": "ffn",
  "output.dense": "ffn_output",
  "output.LayerNorm": "full_layer_layer_norm",
}
_MODULES_TO_BERT, _LAYER_MODULES_TO_BERT = _inverted(_BERT_MODULES), _inverted(_BERT_LAYER_MODULES)
_BERT_LAYER = re.compile(r"^bert\.encoder\.layer\.(\d+)\.(.+)$")
_ALBERT_LAYER = re.compile(r"^albert\.encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\.(.+)$")
_IS_BERT = re.compile(r"^(bert\.|(bert\.)?encoder\.layer\.\d+\.)")
# The names of LayerNorm's parameters in old files, such as that of bert-base-uncased.
_OLD_PARAMETERS = {"gamma": "weight", "beta": "bias"}


def has_bert_names(names: Iterable[str]) -> bool:
  """Returns whether some of the names are those of a BERT."""
  return any(map(_IS_BERT.match, names))


def from_bert(name: str) -> str:
  """Translates a name of transformers' BERT, with or without the prefix `bert.`, to its name in transformers' ALBERT.

  Args:
    name: the name of a weight. If BERT has no such weight, it is returned as it is.
  """
  full_name = f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
  module, _, parameter = full_name.rpartition(".")
  parameter = _OLD_PARAMETERS.get(parameter, parameter)
  layer = _BERT_LAYER.match(module)
  if layer and layer[2] in _BERT_LAYER_MODULES:
    return f"albert.encoder.albert_layer_groups.{layer[1]}.albert_layers.0.{_BERT_LAYER_MODULES[layer[2]]}.{parameter}"
  return f"{_BERT_MODULES[module]}.{parameter}" if module in _BERT_MODULES else name


def to_bert(name: str) -> str:
  """Translates a name of transformers' ALBERT to its name in transformers' BERT.

  Args:
    name: the name of a weight of a model whose layers have one block each and share nothing. The names of heads that
      both classes have stay the same.
  """
  module, _, parameter = name.rpartition(".")
  layer = _ALBERT_LAYER.match(module)
  if layer:
    return f"bert.encoder.layer.{layer[1]}.{_LAYER_MODULES_TO_BERT[layer[2]]}.{parameter}"
  return f"{_MODULES_TO_BERT[module]}.{parameter}" if module in _MODULES_TO_BERT else name
