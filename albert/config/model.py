"""The config of an encoder (ALBERT or BERT), the named models of the papers, and the configs of transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from albert.config.base import MODEL, Config, from_dict, option
from albert.errors import UserError
from albert.io import files
from albert.io.text import format_value

LAYER_NORM_EPSILON = 1e-12  # of the original
# Other names of the tanh approximation of GELU. ALBERT's authors use only this approximation and call it gelu.
_ACTIVATION_ALIASES = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
  """The config of an ALBERT (or BERT) encoder. Field names are those of the original albert_config.json.

  The fields are the arguments of the constructor; their help texts are those of the flags of the same names.

  Raises:
    UserError: a value is out of range, or values do not fit together.

  Example:
    >>> import dataclasses
    >>> import albert
    >>> dataclasses.replace(albert.MODELS["albert_base"], hidden_dropout_prob=0.1).hidden_size
    768
  """

  help_group: ClassVar[str] = MODEL

  vocab_size: int = option(
    30000,
    "number of pieces in the vocabulary. By default, a model with random weights has the number of pieces of "
    "--spm_model_file or, in pretraining, the number in the manifest of the TFRecord files",
    minimum=1,
  )
  embedding_size: int = option(128, "size E of the embeddings, which are projected to hidden_size", minimum=1)
  hidden_size: int = option(768, "size H of the hidden states", minimum=1)
  num_hidden_layers: int = option(12, "number of encoder layers", minimum=1)
  num_hidden_groups: int = option(1, "number of groups of layers; the layers of a group share their weights", minimum=1)
  inner_group_num: int = option(1, "number of transformer blocks in each layer", minimum=1)
  num_attention_heads: int = option(12, "number of attention heads", minimum=1)
  intermediate_size: int = option(3072, "size of the feed-forward network's hidden layer", minimum=1)
  hidden_act: str = option(
    "gelu",
    "activation of the feed-forward network; gelu: the tanh approximation, as the original; gelu_erf: the exact GELU",
    choices=("gelu", "gelu_erf", "relu", "silu"),
  )
  hidden_dropout_prob: float = option(
    0.0, "dropout rate of the embeddings and of the block outputs", minimum=0, below=1
  )
  attention_probs_dropout_prob: float = option(0.0, "dropout rate of the attention probabilities", minimum=0, below=1)
  classifier_dropout_prob: float = option(0.1, "dropout rate of the input of the task head", minimum=0, below=1)
  max_position_embeddings: int = option(
    512, "number of position embeddings, which is the longest possible sequence", minimum=1
  )
  type_vocab_size: int = option(2, "number of segment types", minimum=1)
  initializer_range: float = option(
    0.02, "standard deviation of the truncated normal distribution that initializes weights", above=0
  )
  layer_norm_eps: float = option(LAYER_NORM_EPSILON, "epsilon of layer normalization", above=0)
  sharing: str = option(
    "all",
    "weights that the layers of a group share: all, those of attention, those of the feed-forward network (ffn), or "
    "none (ALBERT, section 4.5)",
    choices=("all", "attention", "ffn", "none"),
  )

  def __post_init__(self) -> None:
    object.__setattr__(self, "hidden_act", _ACTIVATION_ALIASES.get(self.hidden_act, self.hidden_act))
    super().__post_init__()
    if self.hidden_size % self.num_attention_heads:
      raise UserError(
        f"hidden_size must be a multiple of num_attention_heads ({self.num_attention_heads}), got {self.hidden_size}"
      )
    if self.num_hidden_groups > self.num_hidden_layers:
      raise UserError(
        f"num_hidden_groups must be at most num_hidden_layers ({self.num_hidden_layers}), got {self.num_hidden_groups}"
      )

  def to_dict(self) -> dict[str, Any]:
    """See Config. The original's albert_config.json has no layer_norm_eps, so it is written only if it differs."""
    values = super().to_dict()
    if self.layer_norm_eps == LAYER_NORM_EPSILON:
      del values["layer_norm_eps"]
    return values

  @property
  def num_attention_groups(self) -> int:
    """The number of distinct sets of attention weights."""
    return self.num_hidden_groups if self.sharing in ("all", "attention") else self.num_hidden_layers

  @property
  def num_ffn_groups(self) -> int:
    """The number of distinct sets of feed-forward weights."""
    return self.num_hidden_groups if self.sharing in ("all", "ffn") else self.num_hidden_layers


# Fields that affect only how the model is trained. Weights do not depend on them.
REGULARIZATION = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "initializer_range")


def _named_models() -> dict[str, ModelConfig]:
  def make_config(hidden_size: int, num_layers: int, num_heads: int, **fields: Any) -> ModelConfig:
    sizes: dict[str, Any] = {"hidden_size": hidden_size, "num_hidden_layers": num_layers}
    # As in both papers, the intermediate size is 4 times the hidden size.
    return ModelConfig(num_attention_heads=num_heads, intermediate_size=4 * hidden_size, **sizes, **fields)

  # (hidden_size, num_hidden_layers, num_attention_heads) of ALBERT, table 1. albert_tiny is not in the paper; it is
  # small enough to be pretrained on a laptop in minutes.
  sizes = {
    "tiny": (256, 4, 4),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "xlarge": (2048, 24, 16),
    "xxlarge": (4096, 12, 64),
  }
  dropout: dict[str, Any] = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
  models = {}
  for name, size in sizes.items():
    models[f"albert_{name}"] = models[f"albert_{name}_v2"] = make_config(*size)  # v2 trains without dropout
    v1_dropout = {} if name == "xxlarge" else dropout  # the published albert_xxlarge v1 has no dropout
    models[f"albert_{name}_v1"] = make_config(*size, **v1_dropout)
  bert_sizes = {"base": (768, 12, 12), "large": (1024, 24, 16), "xlarge": (2048, 24, 32)}
  for name, size in bert_sizes.items():
    models[f"bert_{name}"] = make_config(*size, embedding_size=size[0], sharing="none", **dropout)
  return models


MODELS: dict[str, ModelConfig] = _named_models()


def named_model(name: str, source: str = "--model") -> ModelConfig:
  """The config of a named model.

  Args:
    name: a key of MODELS, such as "albert_base".
    source: what gives the name, for the error.

  Returns:
    The config.

  Raises:
    UserError: an unknown name; the message lists the known ones.

  Example:
    >>> import albert
    >>> albert.named_model("albert_xxlarge").hidden_size
    4096
  """
  if name not in MODELS:
    remedy = files.hub_remedy(name)
    note = f"; {remedy} as --init_checkpoint or, in Python, to from_pretrained" if remedy else ""
    raise UserError(f"{source}={name}: unknown model; known: {', '.join(MODELS)}{note}")
  return MODELS[name]


def load_model_config(path: str) -> ModelConfig:
  """Reads the config of a model from a JSON file.

  Args:
    path: an albert_config.json, as the original code has it, or a config.json of Hugging Face's transformers.
  Raises:
    UserError: the file cannot be read, has a value of a wrong type or out of range, or describes another kind of model.
  """
  values = files.read_json(path)
  values = values["model"] if isinstance(values.get("model"), dict) else values  # the config.json of a run
  if "model_type" in values:  # only the configs of transformers have it
    values = _from_huggingface_config(values, source=path)
  if "hidden_size" not in values:
    raise UserError(f"{path}: has no hidden_size: give the config of a model, such as albert_config.json")
  return from_dict(ModelConfig, values, source=path, strict=False)


# model_type -> the defaults of transformers' config that differ from those of ModelConfig.
_HUGGINGFACE_DEFAULTS: dict[str, dict[str, Any]] = {
  "albert": {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
  "bert": {
    "vocab_size": 30522,
    "hidden_size": 768,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
  },
}
# hidden_act of ModelConfig -> the name in transformers. Both use the name "gelu", for different functions: in the
# original it is the tanh approximation, in transformers the exact GELU.
ACTIVATION_NAMES = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu", "silu": "silu"}
# More names of these functions in transformers -> hidden_act of ModelConfig.
_ACTIVATION_SYNONYMS = {"gelu_python": "gelu_erf", "gelu_fast": "gelu", "swish": "silu"}
_OUR_ACTIVATION_NAMES = {theirs: ours for ours, theirs in ACTIVATION_NAMES.items()} | _ACTIVATION_SYNONYMS
# Settings of transformers that have only one possible value here.
_REQUIRED_VALUES = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}


def _from_huggingface_config(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
  """Translates a transformers config to the keys and values of albert_config.json. Raises UserError if it cannot."""
  model_type = str(values["model_type"])
  if model_type not in _HUGGINGFACE_DEFAULTS:
    raise UserError(
      f"{source}: model_type is {format_value(values['model_type'])}, not 'albert' or 'bert': give one of these"
    )
  for key, value in _REQUIRED_VALUES.items():
    if values.get(key, value) != value:
      raise UserError(
        f"{source}: {key} is {format_value(values[key])}, but ALBERT's is {value!r}: this model cannot be built"
      )
  config = {"hidden_act": "gelu_new", **_HUGGINGFACE_DEFAULTS[model_type], **values}
  config["hidden_act"] = _OUR_ACTIVATION_NAMES.get(str(config["hidden_act"]), config["hidden_act"])
  if model_type == "albert":
    return config
  # An ALBERT whose layers share nothing.
  if config.get("classifier_dropout") is None:
    config["classifier_dropout"] = config["hidden_dropout_prob"]
  return config | {
    "embedding_size": config["hidden_size"],
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "sharing": "none",
    "classifier_dropout_prob": config["classifier_dropout"],
  }


def to_bert_config(values: Mapping[str, Any]) -> dict[str, Any]:
  """Translates the values of a transformers config of an ALBERT to one of a BERT without shared layers."""
  left_out = ("embedding_size", "num_hidden_groups", "inner_group_num", "bos_token_id", "eos_token_id")
  config = {name: value for name, value in values.items() if name not in left_out}
  config["classifier_dropout"] = config.pop("classifier_dropout_prob")
  return config | {"model_type": "bert"}
