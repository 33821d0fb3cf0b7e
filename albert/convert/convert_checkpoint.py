"""Converts weights: reads and checks them, writes them to a staging directory, and renames it."""

from __future__ import annotations

import dataclasses
import os

from albert.config.model import LAYER_NORM_EPSILON
from albert.convert import larger_model
from albert.convert.huggingface import write_huggingface
from albert.convert.model import ConvertedModel, expand_sharing, read_model, report_row
from albert.embed.sentence_vectors import Part, SentenceVectors, read_sentence_vectors, write_sentence_vectors
from albert.errors import UserError
from albert.io import files, local_files
from albert.io.progress import log
from albert.runs.output_files import CONVERSION
from albert.tokenization.recorded_settings import huggingface_tokenizer_config
from albert.tokenization.tokenizer import load_tokenizer
from albert.tokenization.vocabulary import SETTINGS_FILE, read_vocabulary_files
from albert.weights.checkpoints import CheckpointManager, write_bundle
from albert.weights.files import FLAG

FORMATS = ("albert", "tf1", "huggingface", "sentence_transformers")
# The prefix of the files of the format tf1, as in the archives of the original.
_TF1_PREFIX = "model.ckpt"


def convert(
  path: str,
  output_dir: str,
  target_format: str,
  *,
  albert_config_file: str = "",
  spm_model_file: str = "",
  architecture: str = "",
  add_tokens: str = "",
  max_position_embeddings: int | None = None,
) -> str:
  """Converts weights to another format. The output directory appears only when it is complete.

  Args:
    path, albert_config_file, spm_model_file: see albert.convert.model.read_model.
    output_dir: a directory that does not exist or is empty.
    target_format: one of FORMATS.
    architecture: the transformers class that config.json names, one of ARCHITECTURES; empty for the class with the
      model's head. Only for the format huggingface.
    add_tokens: path of a file of tokens that the vocabulary gets, see albert.convert.larger_model.add_tokens; "" for
      none.
    max_position_embeddings: the number of positions, see albert.convert.larger_model.add_positions; None for those of
      the model.
  Returns: The report: a header and a line per weight, with source, target, shape and SHA-256, separated by tabs.
  Raises:
    UserError: bad input, output_dir is not empty, or the format cannot express the model.
  """
  if architecture and target_format != "huggingface":
    raise UserError(f"--architecture={architecture}: is for --format=huggingface")
  output_dir = output_dir.rstrip("/")
  if files.exists(output_dir) and (not files.is_dir(output_dir) or files.listdir(output_dir)):
    raise UserError(f"--output_dir={output_dir}: exists and is not empty; give another one")
  model = read_model(path, albert_config_file=albert_config_file, spm_model_file=spm_model_file)
  if model.tokenizer_config:
    load_tokenizer(model.tokenizer_config)  # refuses a damaged one; logs a warning
  files.remove_leftovers(os.path.dirname(output_dir) or ".")
  staging = files.staging_path(output_dir)
  try:
    files.makedirs(staging)
    if add_tokens:
      model = larger_model.add_tokens(model, add_tokens, staging)
    if max_position_embeddings:
      model = larger_model.add_positions(model, max_position_embeddings)
    if target_format == "sentence_transformers":
      model, architecture = _write_sentence_parts(model, staging), "AlbertModel"
    with files.convert_errors(output_dir):  # errors of TensorFlow, which writes here, name output_dir
      report = "source\ttarget\tshape\tsha256\n" + "".join(_write(model, staging, target_format, architecture))
    files.write_atomically(files.join(staging, CONVERSION), report)
    if model.tokenizer_config:
      settings_file = files.join(staging, SETTINGS_FILE)
      if not files.exists(settings_file):  # the format huggingface has its own
        files.write_json(settings_file, huggingface_tokenizer_config(model.tokenizer_config))
      for name, content in read_vocabulary_files(model.tokenizer_config.model_file).items():
        files.write_atomically(files.join(staging, name), content)
    local_files.sync_tree(staging)
    files.replace(staging, output_dir)
  except BaseException:
    files.discard(staging)
    raise
  return report


def _write_sentence_parts(model: ConvertedModel, directory: str) -> ConvertedModel:
  """Writes the pooling and the parts after it (see `write_sentence_vectors`). Returns the model without its heads."""
  if model.tokenizer_config is None:
    raise UserError("--format=sentence_transformers: the weights have no vocabulary beside them: give --spm_model_file")
  vectors = read_sentence_vectors(model.directory, FLAG)
  if vectors is None:
    pooling = Part("Pooling", {"word_embedding_dimension": model.config.hidden_size, "pooling_mode_mean_tokens": True})
    vectors = SentenceVectors((pooling,), model.config.max_position_embeddings)
  write_sentence_vectors(directory, vectors)
  encoder = {name: value for name, value in model.weights.items() if name.startswith("bert/")}
  return dataclasses.replace(model, weights=encoder, heads=())


def _write(model: ConvertedModel, directory: str, target_format: str, architecture: str) -> list[str]:
  """Writes the weights and their config, and returns the rows of the report."""
  if target_format in ("huggingface", "sentence_transformers"):
    return write_huggingface(model, directory, architecture)
  if target_format == "tf1":
    model = _write_tf1(model, directory)
  else:
    manager = CheckpointManager(directory, keep=1, model_config=model.config, class_keys=model.class_keys)
    manager.save(0, model.weights)
  return [report_row(model.sources[name], name, value) for name, value in model.weights.items()]


def _write_tf1(model: ConvertedModel, directory: str) -> ConvertedModel:
  """Writes model.ckpt.* and albert_config.json for the original's code, and returns the model that it can express."""
  model = expand_sharing(model)
  for key, values in {"hidden_act": ("gelu", "relu"), "layer_norm_eps": (LAYER_NORM_EPSILON,)}.items():
    value = getattr(model.config, key)
    if value not in values:
      raise UserError(f"{key} {value}: the original has only {' and '.join(map(str, values))}: give another --format")
  settings = model.tokenizer_config
  if settings and not settings.do_lower_case:
    log("format tf1: its scripts need --do_lower_case=false: the format has no place for the case of the vocabulary")
  if settings and settings.keep_accents:
    log("warning: format tf1: its scripts always drop accents, so they give other ids than this model was trained on")
  write_bundle(files.join(directory, _TF1_PREFIX), model.weights)
  config = {**model.config.to_dict(), **model.class_keys}
  del config["sharing"]  # the original has no such key
  files.write_json(files.join(directory, "albert_config.json"), config)
  return model
