"""Opens the checkpoint to export, and selects the form in which it is served with the settings of its run and flags."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from albert import startup
from albert.config.base import check_types, from_dict, option_fields
from albert.config.model import ModelConfig
from albert.config.run import FinetuningConfig
from albert.embed.sentence_vectors import read_sentence_vectors
from albert.errors import UserError
from albert.export.registry import FORMS, check_form
from albert.io import files
from albert.runs import output_files
from albert.tasks import registry as task_registry
from albert.tasks.published_models import settings_of_weights
from albert.tokenization.recorded_settings import SETTINGS, tokenizer_config
from albert.tokenization.vocabulary import NO_VOCABULARY, TokenizerConfig, run_directories
from albert.weights.files import WeightFile, WeightLocation, find_weights, open_location
from albert.weights.names import NO_POOLER, POOLER, encoder_shapes, heads

if TYPE_CHECKING:
  from albert.export.served_model import ServedModel

FLAG = "--checkpoint"
# End of the name of a class of transformers -> the form that serves it.
_FORMS_OF_CLASSES = {
  "ForPreTraining": "fill_mask",
  "ForMaskedLM": "fill_mask",
  "ForSequenceClassification": "classifier",
  "ForMultipleChoice": "race",
  "ForQuestionAnswering": "squad_v1",
  "ForTokenClassification": "tagging",
  "Model": "embeddings",
}


@dataclasses.dataclass(frozen=True)
class ExportCheckpoint:
  """A checkpoint to export.

  Attributes:
    file: the weights.
    config: the model's config.
    vocabulary: path of the SentencePiece model.
    step: training step; None if it is not known.
    run: the values of the run's config.json, which names the task; {} if the weights do not come from a run.
    run_dir: the output_dir of the run; "" if the weights do not come from a run.
    metrics: results of the evaluation at this step, by name; {} if there are none.
  """

  file: WeightFile
  config: ModelConfig
  vocabulary: str
  step: int | None
  run: Mapping[str, Any]
  run_dir: str
  metrics: Mapping[str, float]

  @property
  def task(self) -> str | None:
    """Name of the run's task in `albert.tasks.registry.TASKS`; None if it is not known."""
    return self.run.get("task")

  @property
  def heads(self) -> list[str]:
    """The heads that the checkpoint holds, by their names in `albert.weights.names.heads`."""
    return [name for name, head in heads(self.config).items() if set(head.shapes) <= set(self.file.entries)]

  def encoder_weights(self) -> dict[str, np.ndarray]:
    """Reads all weights of the encoder, and the pooler's if the checkpoint has them: float32 arrays by name.

    Raises:
      UserError: a weight is missing, or its shape does not fit the config.
    """
    shapes = encoder_shapes(self.config)
    return _read(self.file, {name: shapes[name] for name in shapes if name not in POOLER or self.file.has_pooler})

  def head_weights(self, head: str, labels: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Reads all weights of a head, see encoder_weights. `labels`: those of the task, see WeightFile.with_labels."""
    return _read(self.file.with_labels(labels), heads(self.config)[head].shapes)


def _read(file: WeightFile, shapes: Mapping[str, tuple[int | None, ...]]) -> dict[str, np.ndarray]:
  missing, misshapen = file.compare(shapes)
  file.refuse("lacks", missing, "give a checkpoint of this model and task")
  file.refuse("has another shape for", misshapen, "give the config of these weights")
  return {name: file.read(name) for name in shapes}


class FoundCheckpoint(NamedTuple):
  """A checkpoint to export that is not opened yet: where the weights are, the config, and the vocabulary's path."""

  weights: WeightLocation
  config: ModelConfig
  vocabulary: str


def find_checkpoint(
  path: str, *, select: str = "", albert_config_file: str | None = None, spm_model_file: str = "", flag: str = FLAG
) -> FoundCheckpoint:
  """Finds the checkpoint to export, its config and its vocabulary. Imports no TensorFlow.

  Args:
    path: anything that `albert.weights.files.open_weights` opens.
    select: "newest" or "best" checkpoint of a run; "" for the run's own --select_checkpoint.
    albert_config_file: path of the model's config; "" for the config file beside the weights; None for that one, too,
      if the command has no such flag.
    spm_model_file: path of the vocabulary; "" for the one beside the weights.
    flag: the flag with which the user gave the path, for errors.
  Raises:
    UserError: there is no checkpoint, it is damaged, or it has no config or vocabulary.
  """
  weights = find_weights(path, flag=flag, select=select)
  config = weights.require_config(albert_config_file)
  vocabulary = weights.choose_vocabulary(spm_model_file)
  if not vocabulary:
    remedy = f"{NO_VOCABULARY}, or give it with --spm_model_file" if flag == FLAG else NO_VOCABULARY
    raise UserError(f"{flag}={weights.path}: {remedy}")
  return FoundCheckpoint(weights, config, vocabulary)


def open_checkpoint(checkpoint: str | FoundCheckpoint) -> ExportCheckpoint:
  """Opens the checkpoint to export.

  Args:
    checkpoint: the result of find_checkpoint, or its argument `path`.
  Raises:
    UserError: see find_checkpoint; or the weights are damaged.
  """
  if isinstance(checkpoint, str):
    checkpoint = find_checkpoint(checkpoint)
  file = open_location(checkpoint.weights)
  run_dir = next(reversed(run_directories(file.directory)), "")
  results_file = files.join(run_dir, output_files.EVAL_RESULTS)
  metrics = output_files.read_results(results_file) if run_dir and files.exists(results_file) else {}
  if metrics.pop("step", None) != file.step:
    metrics = {}
  return ExportCheckpoint(file, checkpoint.config, checkpoint.vocabulary, file.step, file.run, run_dir, metrics)


@dataclasses.dataclass(frozen=True)
class SelectedForm:
  """The form in which a checkpoint will be served, and the settings that the model is built with.

  Attributes:
    name: its name in `albert.export.registry.FORMS`.
    model_class: the class that serves it.
    config: config of the form's task.
    max_seq_length: maximum number of tokens in a sequence that is made from text.
    tokenizer_config: the vocabulary and how text is normalized.
    precision: dtype in which the encoder's matrices are stored and multiplied, float32 or bfloat16.
    top_k: number of candidates for each mask. Only fill_mask uses it.
  """

  name: str
  model_class: type[ServedModel]
  config: Any
  max_seq_length: int
  tokenizer_config: TokenizerConfig
  precision: str = "float32"
  top_k: int = 5


def _form_of_class(file: WeightFile, name: str, overrides: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
  """Returns the form of the class that transformers' config.json names, and its settings; else `name` without any."""
  form = next((form for ending, form in _FORMS_OF_CLASSES.items() if file.architecture.endswith(ending)), "")
  if overrides.get("task_name") or (form == "tagging" and name not in ("", form)):
    return name, {}
  settings = {} if form == "tagging" and overrides.get("labels") else settings_of_weights(file)
  if form == "classifier":
    form = "regression" if "regression" in settings else "multi_label" if settings["multi_label"] else form
    settings["text_columns"] = "text"
  return (form, settings) if name in ("", form) else (name, {})


def select_form(checkpoint: ExportCheckpoint, name: str, overrides: Mapping[str, Any]) -> SelectedForm:
  """Selects the form called `name`, or without a name the only form that fits the checkpoint.

  Args:
    checkpoint: the checkpoint to export.
    name: a name of FORMS, or "" for the one that fits the task of the checkpoint's run or, without a run, the class in
      transformers' config.json.
    overrides: values by name for fields of the task's config and for the text settings. They replace the run's
      values; None keeps the run's value.
  Returns: the form with its settings.
  Raises:
    UserError: the form is unknown or does not fit the checkpoint, no form fits, several fit, or a value is out of
      range.
  """
  check_form(name)
  origin = f"{checkpoint.file.flag}={checkpoint.file.path}"
  if checkpoint.task is None:
    name, class_settings = _form_of_class(checkpoint.file, name, overrides)
    overrides = {**class_settings, **overrides}
  if not name and checkpoint.task is None:
    raise UserError(
      f"{origin} belongs to no run, and no config.json beside it names its class: give --task to albert.export or "
      f"albert.Predictor, one of {', '.join(FORMS)}"
    )
  names = [name] if name else [name for name, form in FORMS.items() if form.task == checkpoint.task]
  tried = {name: _try_form(checkpoint, name, overrides) for name in names}
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


def _try_form(checkpoint: ExportCheckpoint, name: str, overrides: Mapping[str, Any]) -> SelectedForm | str:
  """Returns the form `name` of the checkpoint, or the reason why the checkpoint cannot be served in this form."""
  with startup.quick_imports():
    model_class: type[ServedModel] = pkgutil.resolve_name(FORMS[name].class_path)  # imports TensorFlow
  if model_class.head and model_class.head not in checkpoint.heads:
    held_heads = f"its heads: {', '.join(checkpoint.heads)}" if checkpoint.heads else "it has none"
    return f"the checkpoint has no {model_class.head} head ({held_heads}): fine-tune it first"
  if model_class.head == "classifier" and checkpoint.task not in (None, FORMS[name].task):  # heads with the same name
    return f"its head is that of the task {checkpoint.task}: leave --task out"
  if model_class.uses_pooler and not checkpoint.file.has_pooler:
    return f"the checkpoint has {NO_POOLER}"
  values = dict(checkpoint.run.get("data", {})) | {key: value for key, value in overrides.items() if value is not None}
  num_positions = checkpoint.config.max_position_embeddings
  vectors = read_sentence_vectors(checkpoint.file.directory, checkpoint.file.flag) if name == "embeddings" else None
  limit = vectors.max_seq_length if vectors else None
  values["max_seq_length"] = values.get("max_seq_length") or min(limit or num_positions, num_positions)
  max_seq_length = check_types(FinetuningConfig, values, source=checkpoint.file.path, strict=False)["max_seq_length"]
  if max_seq_length > num_positions:
    raise UserError(
      f"--max_seq_length={max_seq_length}: the model has {num_positions} positions: give {num_positions} or less"
    )
  config_class = task_registry.TASKS[FORMS[name].task].config_class
  # The run may belong to another task, for example if the embeddings of a fine-tuned classifier are served. Then only
  # the fields that both configs have are used.
  known_values = {key: value for key, value in values.items() if key in option_fields(config_class)}
  config = from_dict(config_class, known_values, source=checkpoint.file.path)
  given = {name: overrides.get(name) for name in SETTINGS}
  tokenizer = tokenizer_config(checkpoint.vocabulary, checkpoint.file.directory, **given)
  incompatibility = model_class.incompatibility(checkpoint, config)
  return incompatibility or SelectedForm(name, model_class, config, max_seq_length, tokenizer)
