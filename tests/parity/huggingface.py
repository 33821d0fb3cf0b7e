"""Compares our models with those of Hugging Face's transformers, on weights that either library has saved.

Its functions need torch and transformers (the extra `parity`).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig, load_model_config
from albert.convert.convert_checkpoint import convert
from albert.models.heads import LinearHead
from albert.models.squad_heads import P_MASK, SquadV2Model
from albert.weights.files import open_weights
from albert.weights.names import POOLER, encoder_shapes
from tests.convert.files_of_weights import write_tf1
from tests.golden.make_tiny_albert import random_weights
from tests.models.build_models import assign_weights, build_encoder, build_pretraining_model
from tests.parity.rows import Row, Unavailable, largest_difference

CONFIG = ModelConfig(
  vocab_size=61,
  embedding_size=12,
  hidden_size=32,
  num_hidden_layers=6,
  num_attention_heads=4,
  intermediate_size=48,
  max_position_embeddings=24,
)
# Name -> changes of CONFIG for an exported model.
VARIANTS: dict[str, dict[str, Any]] = {
  "GELU, tanh": {"hidden_act": "gelu"},
  "GELU, exact": {"hidden_act": "gelu_erf"},
  "ReLU": {"hidden_act": "relu"},
  "SiLU": {"hidden_act": "silu"},
  "another epsilon of LayerNorm": {"layer_norm_eps": 1e-3},
  "4 groups for 6 layers": {"num_hidden_groups": 4},
  # In transformers 4, a group cannot have more inner blocks than layers.
  "3 groups of 2 inner blocks": {"num_hidden_groups": 3, "inner_group_num": 2},
  "nothing shared": {"sharing": "none"},
  "attention shared in 2 groups": {"sharing": "attention", "num_hidden_groups": 2},
  "feed-forward shared": {"sharing": "ffn"},
  "E = H": {"embedding_size": 32},
}
# (head, number of outputs, class of transformers, prefix of the weights' names).
LINEAR_HEADS = [
  ("classifier", 3, "AlbertForSequenceClassification", ""),
  ("classifier", 1, "AlbertForSequenceClassification", ""),
  ("squad", 2, "AlbertForQuestionAnswering", "cls/squad/"),
  ("classifier", 1, "AlbertForMultipleChoice", ""),
]
# Activations: the name in transformers, and our name.
ACTIVATIONS = [("gelu", "gelu_erf"), ("gelu_new", "gelu"), ("relu", "relu"), ("silu", "silu")]
TOLERANCE = 1e-5
LOGITS_TOLERANCE = 2e-5  # sums over the vocabulary's embeddings
TRAINED_TOLERANCE = 1e-4  # for 12 layers of width 768 with hidden states of up to 11.6


def import_libraries() -> tuple[Any, Any]:
  """Imports torch and transformers, and returns them.

  Raises:
    Unavailable: they are not installed.
  """
  try:
    import torch
    import transformers
  except ImportError as error:
    raise Unavailable(f"{error.name} is not installed (the extra `parity`)") from error
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  return torch, transformers


def random_inputs(config: ModelConfig, batch: int = 4, length: int = 17) -> dict[str, np.ndarray]:
  """Returns padded sequences of different lengths. One has no padding, another one has only two tokens."""
  rng = np.random.default_rng(2)
  lengths = np.array([length, 2, length - 5, length // 2])[:batch]
  mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
  ids = rng.integers(5, config.vocab_size, (batch, length)) * mask
  segments = (np.arange(length) >= lengths[:, None] // 2) * mask
  return {"input_ids": ids.astype(np.int32), "input_mask": mask, "segment_ids": segments.astype(np.int32)}


def run_theirs(
  directory: str | Path, class_name: str, inputs: dict[str, np.ndarray], unused: Sequence[str] = (), **options: Any
) -> Any:
  """Loads a model with transformers, and returns its outputs.

  The file must have every weight of the model, and no others except those whose names begin with one of `unused`.

  Args:
    directory: the directory of the model.
    class_name: a class of transformers.
    inputs: the inputs, by our names.
    unused: prefixes of weights that the class does not use.
    **options: further arguments of from_pretrained.
  """
  torch, transformers = import_libraries()
  model, info = getattr(transformers, class_name).from_pretrained(directory, output_loading_info=True, **options)
  assert not info["missing_keys"], info["missing_keys"]
  assert not info["mismatched_keys"], info["mismatched_keys"]
  unexpected = {key for key in info["unexpected_keys"] if not key.startswith(tuple(unused))}
  assert not unexpected, unexpected
  names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
  with torch.no_grad():
    return model.eval()(**{names[name]: torch.tensor(values.astype(np.int64)) for name, values in inputs.items()})


def to_tensors(inputs: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
  return {name: tf.constant(value.astype(np.int32)) for name, value in inputs.items()}


def encode(config: ModelConfig, weights: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> Any:
  """Returns the outputs of our encoder. The weights of heads are ignored."""
  encoder_weights = {name: value for name, value in weights.items() if name.startswith("bert/")}
  return build_encoder(config, encoder_weights)(to_tensors(inputs))


def export(directory: Path, config: ModelConfig, weights: dict[str, np.ndarray], architecture: str = "") -> Path:
  """Writes a TF1 checkpoint, converts it to a directory for transformers, and returns the directory."""
  source = write_tf1(directory / "tf1", config, weights)
  convert(source, str(directory / "hf"), "huggingface", architecture=architecture)
  return directory / "hf"


def transformers_version() -> str:
  """Returns the name and version of transformers, for the second column of the table."""
  _, transformers = import_libraries()
  return f"transformers {transformers.__version__}"


def pretraining_model_rows(directory: Path, name: str) -> Iterator[Row]:
  """Compares both heads of AlbertForPreTraining, for the exported model VARIANTS[name]."""
  compared_with = transformers_version()
  config = dataclasses.replace(CONFIG, **VARIANTS[name])
  weights, inputs = random_weights(config, 3), random_inputs(config)
  theirs = run_theirs(export(directory, config, weights), "AlbertForPreTraining", inputs)
  all_positions = np.tile(np.arange(inputs["input_ids"].shape[1]), (len(inputs["input_ids"]), 1))
  ours = build_pretraining_model(config, weights)(to_tensors(inputs | {"masked_lm_positions": all_positions}))
  difference = largest_difference(ours.masked_lm_logits, theirs.prediction_logits)
  yield Row(f"masked LM logits ({name})", compared_with, difference, LOGITS_TOLERANCE)
  difference = largest_difference(ours.sentence_logits, theirs.sop_logits)
  yield Row(f"sentence order logits ({name})", compared_with, difference, TOLERANCE)


def hidden_state_rows(directory: Path, attention: str) -> Iterator[Row]:
  """Compares every hidden state and the pooled output of AlbertModel, with one of its implementations of attention."""
  compared_with = transformers_version()
  weights, inputs = random_weights(CONFIG, 3, with_heads=()), random_inputs(CONFIG)
  theirs = run_theirs(
    export(directory, CONFIG, weights), "AlbertModel", inputs, attn_implementation=attention, output_hidden_states=True
  )
  ours = encode(CONFIG, weights, inputs)
  difference = _largest_state_difference(ours.hidden_states, theirs.hidden_states)
  yield Row(f"{len(ours.hidden_states)} hidden states (attention: {attention})", compared_with, difference, TOLERANCE)
  difference = largest_difference(ours.pooled_output, theirs.pooler_output)
  yield Row(f"pooled output (attention: {attention})", compared_with, difference, TOLERANCE)


def _largest_state_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
  assert len(ours) == len(theirs)
  return max(largest_difference(state, expected) for state, expected in zip(ours, theirs, strict=True))


def linear_head_rows(
  directory: Path, head: str, classes: int, architecture: str, prefix: str, config: ModelConfig = CONFIG
) -> Iterator[Row]:
  compared_with = transformers_version()
  weights, inputs = random_weights(config, 3, with_heads=(head,), num_classes=classes), random_inputs(config)
  exported = export(directory, config, weights, architecture)
  encoded = encode(config, weights, inputs)
  head_input = encoded.sequence_output if head == "squad" else encoded.pooled_output
  linear = LinearHead(classes, 0.02, name="head", prefix=prefix)
  linear(head_input)
  head_weights = linear.named_weights()
  assign_weights(head_weights, {name: weights[name] for name in head_weights})
  ours = linear(head_input).numpy()
  if architecture.endswith("ForMultipleChoice"):  # two questions of two options
    inputs = {name: value.reshape(2, 2, -1) for name, value in inputs.items()}
    ours = ours.reshape(2, 2)
  theirs = run_theirs(
    exported, architecture, inputs, unused=["albert.pooler", "bert.pooler"] if head == "squad" else ()
  )
  logits = np.stack([theirs.start_logits, theirs.end_logits], axis=-1) if head == "squad" else theirs.logits
  yield Row(f"{architecture}, {classes} outputs", compared_with, largest_difference(ours, logits), TOLERANCE)


def _xlnet_module(class_name: str, exported: Path, prefix: str) -> Any:
  """Returns a module of XLNet's head for SQuAD 2.0, with the exported weights whose names begin with a prefix."""
  from safetensors.numpy import load_file

  torch, transformers = import_libraries()
  xlnet = importlib.import_module("transformers.models.xlnet.modeling_xlnet")
  settings = transformers.XLNetConfig(d_model=CONFIG.hidden_size, n_head=4, layer_norm_eps=1e-12)
  module = getattr(xlnet, class_name)(settings).eval()
  arrays = load_file(exported / "model.safetensors")
  state = {name.removeprefix(prefix): torch.tensor(value) for name, value in arrays.items() if name.startswith(prefix)}
  module.load_state_dict(state, strict=True)
  return module


def _xlnet_squad_v2_logits(
  exported: Path, inputs: dict[str, np.ndarray], p_mask: np.ndarray, start_positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the logits of starts, of ends for the given starts, and of unanswerable questions."""
  torch, _ = import_libraries()
  start_module = _xlnet_module("XLNetPoolerStartLogits", exported, "start_logits.")
  end_module = _xlnet_module("XLNetPoolerEndLogits", exported, "end_logits.")
  answer_module = _xlnet_module("XLNetPoolerAnswerClass", exported, "answer_class.")
  unused = ["start_logits", "end_logits", "answer_class"]
  with torch.no_grad():
    hidden = run_theirs(exported, "AlbertModel", inputs, unused=unused).last_hidden_state
    mask = torch.tensor(p_mask.astype(np.float32))
    start_logits = start_module(hidden, p_mask=mask)
    end_logits = end_module(hidden, start_positions=torch.tensor(start_positions), p_mask=mask)
    mean_start = torch.einsum("blh,bl->bh", hidden, torch.softmax(start_logits, dim=-1))
    cls_index = torch.zeros(len(start_positions), dtype=torch.long)
    null_logits = answer_module(hidden, start_states=mean_start, cls_index=cls_index)
  return start_logits.numpy(), end_logits.numpy(), null_logits.numpy()


def squad_v2_rows(directory: Path) -> Iterator[Row]:
  """Compares the head of SQuAD 2.0.

  transformers has this head only for XLNet. Its modules get our exported weights and the hidden states of AlbertModel.
  """
  weights, inputs = random_weights(CONFIG, 3, with_heads=("squad_v2",)), random_inputs(CONFIG)
  p_mask = 1 - inputs["input_mask"] * inputs["segment_ids"]  # answers are in the second segment
  start_positions = np.array([10, 1, 8, 5])
  start_logits, end_logits, null_logits = _xlnet_squad_v2_logits(
    export(directory, CONFIG, weights), inputs, p_mask, start_positions
  )
  model = SquadV2Model(CONFIG)
  batch, starts = to_tensors(inputs | {P_MASK: p_mask}), tf.constant(start_positions, tf.int32)
  model(batch, start_positions=starts)  # creates the variables
  assign_weights(model.named_weights(), weights)
  ours = model(batch, start_positions=starts)
  is_allowed = p_mask == 0
  pairs = {
    "start": (ours.start_logits.numpy()[is_allowed], start_logits[is_allowed]),
    "end, given the start": (ours.end_logits.numpy()[is_allowed], end_logits[is_allowed]),
    "answerability": (ours.null_logits, null_logits),
  }
  for output, (values, expected) in pairs.items():
    difference = largest_difference(values, expected)
    yield Row(f"SQuAD 2.0 head: {output}", f"{transformers_version()} (XLNet's head)", difference, TOLERANCE)


def masked_lm_rows(directory: Path) -> Iterator[Row]:
  """Compares AlbertForMaskedLM, for a checkpoint without the sentence head."""
  compared_with = transformers_version()
  weights, inputs = random_weights(CONFIG, 3, with_heads=("masked_lm",)), random_inputs(CONFIG)
  theirs = run_theirs(export(directory, CONFIG, weights), "AlbertForMaskedLM", inputs, unused=["albert.pooler"])
  sentence = {
    "cls/seq_relationship/output_weights": np.ones((2, CONFIG.hidden_size), np.float32),
    "cls/seq_relationship/output_bias": np.zeros(2, np.float32),
  }
  all_positions = np.tile(np.arange(inputs["input_ids"].shape[1]), (len(inputs["input_ids"]), 1))
  model = build_pretraining_model(CONFIG, weights | sentence)
  ours = model(to_tensors(inputs | {"masked_lm_positions": all_positions}))
  yield Row(
    "AlbertForMaskedLM", compared_with, largest_difference(ours.masked_lm_logits, theirs.logits), LOGITS_TOLERANCE
  )


def saved_model_rows(directory: Path, activation: str, *, with_prefix: bool) -> Iterator[Row]:
  """Compares a model that transformers has initialized and saved. `activation` is its name in transformers."""
  torch, transformers = import_libraries()
  torch.manual_seed(0)
  fields = {name: value for name, value in CONFIG.to_dict().items() if name != "sharing"}
  settings = transformers.AlbertConfig(**(fields | {"initializer_range": 0.1, "hidden_act": activation}))
  class_name = "AlbertForPreTraining" if with_prefix else "AlbertModel"
  getattr(transformers, class_name)(settings).eval().save_pretrained(directory / "hf")
  file = open_weights(str(directory / "hf"))
  config = file.config()
  expected = dict(ACTIVATIONS)[activation]
  assert config == dataclasses.replace(CONFIG, initializer_range=0.1, hidden_act=expected), config
  inputs = random_inputs(CONFIG)
  ours = encode(config, {name: file.read(name) for name in file.entries}, inputs)
  theirs = run_theirs(directory / "hf", class_name, inputs, output_hidden_states=True)
  quantity = f"{class_name} that transformers saved ({activation})"
  yield Row(
    quantity, transformers_version(), _largest_state_difference(ours.hidden_states, theirs.hidden_states), TOLERANCE
  )


def trained_rows(directory: Path, weights_path: str, recorded_path: str) -> Iterator[Row]:
  """Compares every hidden state of a trained encoder with recorded ones, and with those of transformers.

  Args:
    directory: the directory for the exported model.
    weights_path: weights as for --init_checkpoint, with their config beside them.
    recorded_path: an .npz file of input_ids, attention_mask, token_type_ids [B, S], and h0, h1, ... [B, S, H]; "" if
      there is none.
  """
  file = open_weights(weights_path)
  assert file.config_file, weights_path
  config = load_model_config(file.config_file)
  weights = {name: file.read(name) for name in file.entries}
  has_pooler = POOLER[0] in weights
  shapes = encoder_shapes(config)
  if not has_pooler:  # the model needs one, but its output is not compared
    weights |= {name: np.zeros(shapes[name], np.float32) for name in POOLER}
  inputs, recorded = random_inputs(config), {}
  if recorded_path:
    with np.load(recorded_path) as arrays:
      recorded = dict(arrays)
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    inputs = {our_name: recorded[their_name] for our_name, their_name in names.items()}
  ours = encode(config, weights, inputs).hidden_states
  quantity = f"{len(ours)} hidden states of a trained encoder"
  if recorded:
    states = [recorded[f"h{index}"] for index in range(len(ours))]
    yield Row(quantity, "recorded with transformers", _largest_state_difference(ours, states), TRAINED_TOLERANCE)
  compared_with = transformers_version()
  convert(weights_path, str(directory / "hf"), "huggingface", architecture="AlbertModel")
  options = {} if has_pooler else {"add_pooling_layer": False}
  has_heads = any(not name.startswith("bert/") for name in weights)
  heads = ["predictions", "sop_classifier", "classifier"] if has_heads else []
  theirs = run_theirs(directory / "hf", "AlbertModel", inputs, unused=heads, output_hidden_states=True, **options)
  yield Row(
    f"{quantity}, our export", compared_with, _largest_state_difference(ours, theirs.hidden_states), TRAINED_TOLERANCE
  )
