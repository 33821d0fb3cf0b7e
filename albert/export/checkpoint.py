"""Opens the checkpoint to export, and selects the form in which it is served with the settings of its run and flags."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from albert.config.base import Config, from_dict
from albert.config.model import ModelConfig, load_model_config
from albert.errors import UserError
from albert.export.registry import FORMS, check_form
from albert.io import files
from albert.runs import output_files
from albert.tasks import registry as task_registry
from albert.tokenization.recorded_settings import SETTINGS, tokenizer_config
from albert.tokenization.vocabulary import NAMES, TokenizerConfig, vocabulary_sha256
from albert.weights.files import WeightFile, WeightLocation, find_weights, open_location, selected_checkpoint
from albert.weights.names import POOLER, encoder_shapes, heads, huggingface_groups_agree

if TYPE_CHECKING:
  from albert.export.served_model import ServedModel

FLAG = "--checkpoint"
_STEP_DIRECTORY = re.compile(r"(?:^|/)step-(\d+)$")


@dataclasses.dataclass(frozen=True)
class ExportCheckpoint:
  """A checkpoint to export.

  Attributes:
    file: the weights.
    config: the model's config.
    vocabulary: path of the SentencePiece model.
    step: training step; None if it is not known.
    run: the values of the run's config.json, which names the task; {} if the weights do not come from a run.
    metrics: results of the evaluation at this step, by name; {} if there are none.
  """

  file: WeightFile
  config: ModelConfig
  vocabulary: str
  step: int | None
  run: Mapping[str, Any]
  metrics: Mapping[str, float]

  @property
  def run_dir(self) -> str:
    """The output_dir of the run; "" if the weights do not come from a run."""
    return "" if self.step is None else _run_dir(self.file.directory)

  @property
  def task(self) -> str | None:
    """Name of the run's task in `albert.tasks.registry.TASKS`; None if it is not known."""
    return self.run.get("task")

  @property
  def heads(self) -> list[str]:
    """The heads that the checkpoint holds, by their names in `albert.weights.names.heads`."""
    return [name for name, head in heads(self.config).items() if set(head.shapes) <= set(self.file.entries)]

  def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads weights.

    Args:
      names: the weights, by their names in the original ALBERT code.
    Returns: float32 arrays by name.
    Raises:
      UserError: a weight is missing, or its shape does not fit the config.
    """
    # None stands for a dimension that the config does not determine, such as the number of classes.
    expected_shapes: dict[str, tuple[int | None, ...]] = {**encoder_shapes(self.config)}
    for head in heads(self.config).values():
      expected_shapes |= head.shapes
    weights = {}
    for name in names:
      if name not in self.file.entries:
        raise UserError(f"{FLAG}={self.file.path}: has no {name}; give a checkpoint of this model and task")
      weights[name] = self.file.read(name)
      shape = weights[name].shape
      expected_shape = expected_shapes.get(name, shape)
      fits = all(expected in (None, size) for expected, size in zip(expected_shape, shape, strict=False))
      if not fits or len(shape) != len(expected_shape):
        raise UserError(
          f"{FLAG}={self.file.path}: {name} has shape {list(shape)}, its config gives {list(expected_shape)}"
        )
    return weights

  def encoder_weights(self) -> dict[str, np.ndarray]:
    """All weights of the encoder by name, and the pooler's weights if the checkpoint has them. See read."""
    names = [name for name in encoder_shapes(self.config) if name not in POOLER or self.file.has_pooler]
    return self.read(names)

  def head_weights(self, head: str) -> dict[str, np.ndarray]:
    """All weights of a head by name. See read."""
    return self.read(heads(self.config)[head].shapes)


@dataclasses.dataclass(frozen=True)
class FoundCheckpoint:
  """A checkpoint to export that is not opened yet.

  Attributes:
    weights: where the weights are.
    config: the model's config.
    vocabulary: path of the SentencePiece model.
  """

  weights: WeightLocation
  config: ModelConfig
  vocabulary: str


def find_checkpoint(
  path: str, *, select: str = "", albert_config_file: str = "", spm_model_file: str = ""
) -> FoundCheckpoint:
  """Finds the checkpoint to export, its config and its vocabulary. Imports no TensorFlow.

  Args:
    path: anything that `albert.weights.files.open_weights` opens.
    select: "newest" or "best" checkpoint of a run; "" for the run's own --select_checkpoint.
    albert_config_file: path of the model's config; "" for the config file beside the weights.
    spm_model_file: path of the vocabulary; "" for the one beside the weights.
  Raises:
    UserError: there is no checkpoint, it is damaged, or it has no config or vocabulary.
  """
  path = selected_checkpoint(path, select, flag=FLAG)
  weights = find_weights(path, flag=FLAG)
  config_file = albert_config_file or weights.config_file
  if not config_file:
    raise UserError(
      f"{FLAG}={path}: has no albert_config.json beside it; give the model's config with --albert_config_file"
    )
  config = load_model_config(config_file)
  vocabulary = spm_model_file or weights.vocabulary
  if not vocabulary:
    raise UserError(f"{FLAG}={path}: has no {' or '.join(NAMES)} beside it; give the vocabulary with --spm_model_file")
  if not files.exists(vocabulary):
    raise UserError(f"--spm_model_file={vocabulary}: no such file")
  if spm_model_file:
    weights.check_vocabulary(vocabulary_sha256(spm_model_file), f"--spm_model_file={spm_model_file}", flag=FLAG)
  return FoundCheckpoint(weights, config, vocabulary)


def open_checkpoint(
  checkpoint: str | FoundCheckpoint, *, select: str = "", albert_config_file: str = "", spm_model_file: str = ""
) -> ExportCheckpoint:
  """Opens the checkpoint to export.

  Args:
    checkpoint: the path of the checkpoint, or the result of find_checkpoint. The other arguments apply only to a path.
    select, albert_config_file, spm_model_file: see find_checkpoint.
  Raises:
    UserError: see find_checkpoint; or the weights are damaged.
  """
  if isinstance(checkpoint, str):
    checkpoint = find_checkpoint(
      checkpoint, select=select, albert_config_file=albert_config_file, spm_model_file=spm_model_file
    )
  config, vocabulary = checkpoint.config, checkpoint.vocabulary
  file = open_location(checkpoint.weights, flag=FLAG)
  if file.is_huggingface and not huggingface_groups_agree(config):
    raise UserError(
      f"{FLAG}={file.path}: transformers assigns its {config.num_hidden_layers} layers to "
      f"{config.num_hidden_groups} groups in another way than this project; convert it first: "
      "python -m albert.convert --format=albert"
    )
  step_match = _STEP_DIRECTORY.search(file.directory)
  if not step_match:  # only a run names its directories step-N
    return ExportCheckpoint(file, config, vocabulary, step=None, run={}, metrics={})
  step = int(step_match[1])
  run, metrics = _run_settings_and_metrics(file.directory, step)
  return ExportCheckpoint(file, config, vocabulary, step, run, metrics)


def _run_settings_and_metrics(step_directory: str, step: int) -> tuple[dict[str, Any], dict[str, float]]:
  """The config.json of the run of a checkpoint and the metrics at its step; each is {} if there are none."""
  config_file = files.join(_run_dir(step_directory), output_files.CONFIG)
  results_file = files.join(_run_dir(step_directory), output_files.EVAL_RESULTS)
  run = output_files.read_config(config_file) if files.exists(config_file) else {}
  results = output_files.read_results(results_file) if files.exists(results_file) else {}
  is_same_step = results.pop("step", None) == step
  return run, results if is_same_step else {}


def _run_dir(step_directory: str) -> str:
  """OUTPUT_DIR of OUTPUT_DIR/checkpoints/step-N."""
  checkpoints_directory = step_directory.rpartition("/")[0] or "."
  return checkpoints_directory.rpartition("/")[0] or "."


@dataclasses.dataclass(frozen=True)
class ExportSettings:
  """Settings that a served model is built with.

  Attributes:
    config: config of the form's task.
    max_seq_length: maximum number of tokens in a sequence that is made from text.
    tokenizer_config: the vocabulary and how text is normalized.
    precision: dtype in which the encoder's matrices are stored and multiplied, float32 or bfloat16.
    top_k: number of candidates for each mask. Only fill_mask uses it.
  """

  config: Config
  max_seq_length: int
  tokenizer_config: TokenizerConfig
  precision: str = "float32"
  top_k: int = 5


class SelectedForm(NamedTuple):
  """The form in which a checkpoint will be served.

  Attributes:
    name: its name in `albert.export.registry.FORMS`.
    model_class: the class that serves it.
    settings: how the model is built.
  """

  name: str
  model_class: type[ServedModel]
  settings: ExportSettings


def select_form(
  checkpoint: ExportCheckpoint,
  name: str,
  overrides: Mapping[str, Any],
  *,
  precision: str = "float32",
  top_k: int = 5,
) -> SelectedForm:
  """Selects the form called `name`, or without a name the only form that fits the checkpoint.

  Args:
    checkpoint: the checkpoint to export.
    name: a name of FORMS, or "" for the one that fits the task of the checkpoint's run.
    overrides: values by name for fields of the task's config and for the text settings. They replace the run's
      values; None keeps the run's value.
    precision: float32 or bfloat16.
    top_k: number of candidates for each mask.
  Returns: the form with its settings.
  Raises:
    UserError: the form is unknown or does not fit the checkpoint, no form fits, several fit, or a value is out of
      range.
  """
  check_form(name)
  origin = f"{FLAG}={checkpoint.file.path}"
  if not name and checkpoint.task is None:
    raise UserError(f"--task is missing, and {origin} belongs to no run: give one of {', '.join(FORMS)}")
  names = [name] if name else [name for name, form in FORMS.items() if form.task == checkpoint.task]
  tried = {name: _try_form(checkpoint, name, overrides, precision, top_k) for name in names}
  fitting = [form for form in tried.values() if isinstance(form, SelectedForm)]
  if len(fitting) == 1:
    return fitting[0]
  if name:
    raise UserError(f"--task={name}: {origin}: {tried[name]}")
  if fitting:
    fitting_names = ", ".join(form.name for form in fitting)
    raise UserError(f"--task is missing: {origin} can be served as {fitting_names}; give one")
  reasons = "; ".join(f"{name}: {reason}" for name, reason in tried.items())
  raise UserError(f"{origin} cannot be served: {reasons or f'no form serves the task {checkpoint.task}'}")


def _try_form(
  checkpoint: ExportCheckpoint, name: str, overrides: Mapping[str, Any], precision: str, top_k: int
) -> SelectedForm | str:
  """Returns the form `name` of the checkpoint, or the reason why the checkpoint cannot be served in this form."""
  model_class = FORMS[name].load_class()
  reason = model_class.missing_weights(checkpoint)
  if reason:
    return reason
  settings = _make_settings(checkpoint, name, overrides, precision, top_k)
  incompatibility = model_class.incompatibility(checkpoint, settings.config)
  return incompatibility or SelectedForm(name, model_class, settings)


def _make_settings(
  checkpoint: ExportCheckpoint, name: str, overrides: Mapping[str, Any], precision: str, top_k: int
) -> ExportSettings:
  values = dict(checkpoint.run.get("data", {})) | {key: value for key, value in overrides.items() if value is not None}
  num_positions = checkpoint.config.max_position_embeddings
  max_seq_length = int(values.get("max_seq_length") or num_positions)
  if max_seq_length > num_positions:
    raise UserError(
      f"--max_seq_length={max_seq_length}: the model has {num_positions} positions: give {num_positions} or less"
    )
  values["max_seq_length"] = max_seq_length
  config_class = task_registry.TASKS[FORMS[name].task].config_class
  # The run may belong to another task, for example if the embeddings of a fine-tuned classifier are served. Then only
  # the fields that both configs have are used.
  field_names = {field.name for field in dataclasses.fields(config_class)}
  known_values = {key: value for key, value in values.items() if key in field_names}
  return ExportSettings(
    config=from_dict(config_class, known_values, source=checkpoint.file.path),
    max_seq_length=max_seq_length,
    tokenizer_config=tokenizer_config(
      checkpoint.vocabulary, checkpoint.file.directory, **{name: overrides.get(name) for name in SETTINGS}
    ),
    precision=precision,
    top_k=top_k,
  )
