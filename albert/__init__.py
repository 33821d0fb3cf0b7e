"""ALBERT (Lan et al., ICLR 2020): pretraining, fine-tuning and serving in TensorFlow 2.

The names below are the public Python API. Importing this package is fast: TensorFlow is imported when the first name
that needs it is used.

Example:
  >>> import albert
  >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
  >>> encoder = albert.Encoder.from_pretrained("downloads/albert_base")
  >>> output = encoder(tokenizer(["They drank the pub dry."]))
  >>> output.sequence_output.shape[0]
  1
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from albert.startup import quick_imports
from albert.version import VERSION as __version__

# Enables the oneDNN kernels, which make a training step 1.1 to 1.4 times as fast; TensorFlow enables them by default on
# some processors only. TensorFlow reads the variable when it is first imported: import albert before TensorFlow, or set
# the variable yourself.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# TensorFlow prints no start-up messages; its errors become exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# MiB that TensorFlow reads ahead, and holds in memory, for each open file on gs://. Its default is 64, and 512 in
# tensorflow-tpu: 8 GiB for the 16 shards that are open in each part of the input.
os.environ.setdefault("GCS_READ_CACHE_BLOCK_SIZE_MB", "16")

if TYPE_CHECKING:
  from albert import optimizers as optimizers
  from albert import tasks as tasks
  from albert.config.model import MODELS as MODELS
  from albert.config.model import ModelConfig as ModelConfig
  from albert.config.model import named_model as named_model
  from albert.data.pretraining_examples import MaskedSequence as MaskedSequence
  from albert.data.pretraining_examples import SentencePair as SentencePair
  from albert.data.pretraining_examples import mask_tokens as mask_tokens
  from albert.data.pretraining_examples import sentence_order_pair as sentence_order_pair
  from albert.embed.text_encoder import encode as encode
  from albert.errors import UserError as UserError
  from albert.estimator import Estimator as Estimator
  from albert.metrics.squad import evaluate_v1 as evaluate_squad_v1  # noqa: F401 - a public name
  from albert.metrics.squad import evaluate_v2 as evaluate_squad_v2  # noqa: F401 - a public name
  from albert.models.classifier import ClassifierModel as ClassifierModel
  from albert.models.encoder import Encoder as Encoder
  from albert.models.encoder import EncoderOutput as EncoderOutput
  from albert.models.heads import PretrainingModel as PretrainingModel
  from albert.models.heads import PretrainingOutput as PretrainingOutput
  from albert.models.multiple_choice import MultipleChoiceModel as MultipleChoiceModel
  from albert.models.squad_heads import SpanLogits as SpanLogits
  from albert.models.squad_heads import SquadV1Model as SquadV1Model
  from albert.models.squad_heads import SquadV2Model as SquadV2Model
  from albert.models.squad_heads import SquadV2Output as SquadV2Output
  from albert.models.tagger import TaggingModel as TaggingModel
  from albert.predict.predictor import Predictor as Predictor
  from albert.startup import set_verbosity as set_verbosity
  from albert.tokenization.packing import QuestionWindows as QuestionWindows
  from albert.tokenization.packing import question_windows as question_windows
  from albert.tokenization.tokenizer import Tokenizer as Tokenizer
  from albert.tokenization.tokenizer import masked_batch as masked_batch

# Module -> its public names; "name as public_name" if they differ.
_NAMES = {
  "albert.config.model": ["MODELS", "ModelConfig", "named_model"],
  "albert.data.pretraining_examples": ["MaskedSequence", "SentencePair", "mask_tokens", "sentence_order_pair"],
  "albert.embed.text_encoder": ["encode"],
  "albert.errors": ["UserError"],
  "albert.estimator": ["Estimator"],
  "albert.metrics.squad": ["evaluate_v1 as evaluate_squad_v1", "evaluate_v2 as evaluate_squad_v2"],
  "albert.models.classifier": ["ClassifierModel"],
  "albert.models.encoder": ["Encoder", "EncoderOutput"],
  "albert.models.heads": ["PretrainingModel", "PretrainingOutput"],
  "albert.models.multiple_choice": ["MultipleChoiceModel"],
  "albert.models.squad_heads": ["SpanLogits", "SquadV1Model", "SquadV2Model", "SquadV2Output"],
  "albert.models.tagger": ["TaggingModel"],
  "albert.predict.predictor": ["Predictor"],
  "albert.startup": ["set_verbosity"],
  "albert.tokenization.packing": ["QuestionWindows", "question_windows"],
  "albert.tokenization.tokenizer": ["Tokenizer", "masked_batch"],
}
# Public name -> its module, and its name there ("" for the module itself). It is imported when it is first used.
_PUBLIC = {"optimizers": ("albert.optimizers", ""), "tasks": ("albert.tasks", "")}
for _module, _entries in _NAMES.items():
  for _entry in _entries:
    _PUBLIC[_entry.rpartition(" ")[2]] = (_module, _entry.partition(" ")[0])

__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604 - texts, which the linter cannot see

if not TYPE_CHECKING:  # a type checker reports names that do not exist

  def __getattr__(name):
    if name not in _PUBLIC:
      raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, name_there = _PUBLIC[name]
    with quick_imports():
      module = importlib.import_module(module_name)
    value = getattr(module, name_there) if name_there else module
    globals()[name] = value
    return value

  def __dir__():
    return sorted({*globals(), *_PUBLIC})
