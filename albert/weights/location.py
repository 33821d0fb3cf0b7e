"""Finds weights, and the config, the vocabulary and the run that belong to them. Imports no TensorFlow."""

from __future__ import annotations

import re

from albert.config.model import ModelConfig, load_model_config
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.runs.metrics_log import log
from albert.tokenization.vocabulary_files import find_vocabulary, run_directories, vocabulary_sha256
from albert.weights import checkpoint_damage
from albert.weights.arrays import SAFETENSORS_FILE, SAFETENSORS_INDEX_FILE, check_is_file

FLAG = "--init_checkpoint"
CONFIG_NAMES = ("albert_config.json", "config.json")
# The directory of one checkpoint, or of all checkpoints of a run.
_CHECKPOINT_DIRECTORY = re.compile(r"^(step-\d+|checkpoints)$")
_PICKLE_EXTENSIONS = (".bin", ".pt", ".pth", ".pkl", ".pickle")


class WeightLocation:
  """The path of weights, and the config, the vocabulary and the run that belong to them. The weights are not read.

  Args:
    path: the path as the user gave it, for errors.
    directory: the directory of the weights, which may also hold a config and a vocabulary.
    prefix: the prefix of the files, if the weights are a TensorFlow checkpoint; "" for other formats.
  """

  def __init__(self, path: str, directory: str, prefix: str = ""):
    self.path = path
    self.directory = directory
    self.prefix = prefix

  @property
  def config_file(self) -> str | None:
    """The path of the model's config beside the weights; None if there is none."""
    candidates = [files.join(self.directory, name) for name in CONFIG_NAMES]
    return next((path for path in candidates if files.exists(path)), None)

  def config(self) -> ModelConfig | None:
    """The model's config beside the weights; None if there is none."""
    return load_model_config(self.config_file) if self.config_file else None

  @property
  def vocabulary(self) -> str | None:
    """The path of the vocabulary beside the weights or in the output_dir of their run, if there is one."""
    return find_vocabulary(self.directory)

  def check_vocabulary(self, sha256: str, vocabulary_name: str, *, flag: str = FLAG) -> None:
    """Refuses a vocabulary that differs from that of the weights.

    The vocabulary of the weights is known if it is in their directory, or if their run recorded its hash. Otherwise
    nothing is checked. Comparing sizes is not enough: another vocabulary of the same size has other pieces.

    Args:
      sha256: SHA-256 of the vocabulary that is to be used.
      vocabulary_name: the name of that vocabulary in errors, such as "--spm_model_file=PATH".
      flag: the flag with which the user gave the weights, for errors.
    Raises:
      UserError: the vocabularies differ.
    """
    run_config = output_files.read_config(self.run_file) if self.run_file else {}
    source = self.vocabulary or self.run_file
    expected_sha256 = run_config.get("data", {}).get("vocab_sha256")
    if not expected_sha256 and self.vocabulary:
      expected_sha256 = vocabulary_sha256(self.vocabulary)
    if expected_sha256 and expected_sha256 != sha256:
      raise UserError(
        f"{flag}={self.path}: its vocabulary is {source} (SHA-256 {expected_sha256[:12]}...), but {vocabulary_name} is "
        f"a different one ({sha256[:12]}...), so its embeddings belong to other pieces; give the vocabulary of the "
        "weights, or weights that were trained with this vocabulary"
      )

  @property
  def run_file(self) -> str | None:
    """The path of config.json of the run that the weights come from; None if they are not a checkpoint of a run."""
    candidates = [files.join(directory, output_files.CONFIG) for directory in run_directories(self.directory)]
    return next((path for path in candidates if files.exists(path)), None)


def find_weights(path: str, *, flag: str = FLAG) -> WeightLocation:
  """Finds the weights at a path without opening them. Imports no TensorFlow.

  Args:
    path, flag: see `albert.weights.files.open_weights`.
  Raises:
    UserError: there are no weights, they are a pickle, or a checkpoint with a manifest is damaged.
  """
  if path.endswith(_PICKLE_EXTENSIONS):
    raise _pickle_error(path, flag)
  if path.endswith(".safetensors") and not files.is_dir(path):
    check_is_file(path, flag)
    return WeightLocation(path, path.rpartition("/")[0] or ".")
  if files.is_dir(path):
    names = files.listdir(path)
    if SAFETENSORS_FILE in names:
      return WeightLocation(path, path)
    has_checkpoint = checkpoint_damage.WEIGHTS_PREFIX + ".index" in names or any(
      map(_CHECKPOINT_DIRECTORY.match, names)
    )
    if SAFETENSORS_INDEX_FILE in names and not has_checkpoint:
      raise UserError(
        f"{flag}={path}: its weights are in several files; save them as one, in transformers: "
        'save_pretrained(NEW_DIRECTORY, max_shard_size="100GB")'
      )
    pickles = [name for name in names if name.endswith(_PICKLE_EXTENSIONS)]
    if pickles and not has_checkpoint:
      raise _pickle_error(files.join(path, pickles[0]), flag)
  prefix = find_prefix(path, flag=flag)
  return WeightLocation(path, prefix.rpartition("/")[0] or ".", prefix)


def _pickle_error(path: str, flag: str) -> UserError:
  return UserError(
    f"{flag}={path}: is a PyTorch pickle, which can run any code when it is read, so it is not read; give the "
    "model.safetensors of the same model, or make it where that code may run: "
    "AlbertModel.from_pretrained(DIRECTORY).save_pretrained(NEW_DIRECTORY) in transformers"
  )


def _refuse_damaged(directory: str, flag_and_path: str) -> None:
  """Raises UserError if a checkpoint directory is damaged."""
  damage = checkpoint_damage.find_damage(directory)
  if damage:
    raise UserError(f"{flag_and_path}: {damage}; give another checkpoint")


def _find_newest_undamaged(directory: str, flag_and_path: str) -> str | None:
  """Finds the newest undamaged step-N directory in a directory; None if there is none. Warns of damaged ones."""
  names = files.listdir(directory) if files.is_dir(directory) else []
  matches = [match for match in map(output_files.STEP_DIRECTORY.match, names) if match]
  for match in sorted(matches, key=lambda match: int(match[1]), reverse=True):
    checkpoint = files.join(directory, match.string)
    damage = checkpoint_damage.find_damage(checkpoint)
    if damage is None:
      return checkpoint
    log(f"warning: {flag_and_path}: skipped {checkpoint}: {damage}")
  return None


def find_prefix(path: str, *, flag: str = FLAG) -> str:
  """Finds a TensorFlow checkpoint.

  Args:
    path: a checkpoint prefix, a step-N directory, a directory of step-N directories, the output_dir of a run, or a
      directory with a single checkpoint of the original, such as Google's archives. For a run or a directory of step-N
      directories the newest undamaged checkpoint is found, and a warning names the damaged ones.
    flag: the flag with which the user gave the path, for errors.
  Returns:
    The prefix that tf.train.load_checkpoint takes.
  Raises:
    UserError: there is no checkpoint, or it is damaged.
  """
  path = path.removesuffix(".index")
  if files.exists(path + ".index"):  # a prefix
    directory, _, name = path.rpartition("/")
    if name == checkpoint_damage.WEIGHTS_PREFIX and files.exists(
      files.join(directory or ".", checkpoint_damage.MANIFEST_FILE)
    ):
      _refuse_damaged(directory or ".", f"{flag}={path}")
    return path
  if files.exists(files.join(path, checkpoint_damage.WEIGHTS_PREFIX + ".index")):  # a step-N directory
    _refuse_damaged(path, f"{flag}={path}")
    return files.join(path, checkpoint_damage.WEIGHTS_PREFIX)
  # A directory of step-N directories, or the output_dir of a run.
  for directory in (path, files.join(path, output_files.CHECKPOINTS)):
    newest = _find_newest_undamaged(directory, f"{flag}={path}")
    if newest is not None:
      return files.join(newest, checkpoint_damage.WEIGHTS_PREFIX)
  # A directory with another checkpoint.
  names = files.listdir(path) if files.is_dir(path) else []
  index_files = sorted(name for name in names if name.endswith(".index"))
  if len(index_files) == 1:
    return files.join(path, index_files[0].removesuffix(".index"))
  if index_files:
    raise UserError(
      f"{flag}={path}: has several checkpoints ({', '.join(index_files)}): give the path of one, without .index"
    )
  raise UserError(
    f"{flag}={path}: no checkpoint there; give a checkpoint prefix (the part before .index), a step-N directory, "
    "the output_dir of a run, a directory of one checkpoint, a Hugging Face directory with model.safetensors, or a "
    ".safetensors file"
  )
