"""What can be exported: the forms in which models are served, such as fill_mask, and the formats besides SavedModels.

Importing this module does not import TensorFlow, so `--help` is quick and wrong arguments are refused at once. To add a
form, write a subclass of `albert.export.served_model.ServedModel` and add one entry to FORMS.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence

from albert.errors import UserError
from albert.io import files

TFLITE, TFLITE_FLOAT16, TFLITE_INT8 = "tflite", "tflite_float16", "tflite_int8"
ONNX, ONNX_INT8 = "onnx", "onnx_int8"
# The format -> its file beside the SavedModel.
FORMAT_FILES = {
  TFLITE: "model.tflite",
  TFLITE_FLOAT16: "model_float16.tflite",
  TFLITE_INT8: "model_int8.tflite",
  ONNX: "model.onnx",
  ONNX_INT8: "model_int8.onnx",
}
EXTRA_FORMATS = tuple(FORMAT_FILES)
PRECISIONS = ("float32", "bfloat16")
TEXT_SIGNATURE, TOKENS_SIGNATURE = "serving_default", "tokens"
# Number of examples of --eval_file that a model answers at once.
EVALUATION_BATCH_SIZE = 16


@dataclasses.dataclass(frozen=True)
class ServingForm:
  """One way to serve the models of a task.

  Attributes:
    task: name of the task in `albert.tasks.registry.TASKS`. A run of this task can be served in this form.
    class_path: the subclass of ServedModel, "module:name".
    settings: fields of the task's config that the form depends on. Each becomes a flag of `python -m albert.export`.
      The fields that all forms use (max_seq_length, do_lower_case, keep_accents, convert_quotes) are not listed.
  """

  task: str
  class_path: str
  settings: tuple[str, ...] = ()


_LABELS = ("labels", "regression", "multi_label", "thresholds")
_CLASSIFIER_SETTINGS = ("task_name", "text_columns", *_LABELS, "formulation", "long_texts", "max_windows")
_SQUAD_BEAM = ("start_n_top", "end_n_top", "null_score_diff_threshold")
_SQUAD_SETTINGS = ("max_query_length", "doc_stride", "max_answer_length", *_SQUAD_BEAM)

# The name of a form is the value of --task of `python -m albert.export`.
FORMS: dict[str, ServingForm] = {
  "fill_mask": ServingForm("pretraining", "albert.export.pretraining:ServedFillMask"),
  "sentence_order": ServingForm(
    "pretraining", "albert.export.pretraining:ServedSentenceOrder", ("sentence_prediction",)
  ),
  "embeddings": ServingForm("pretraining", "albert.export.pretraining:ServedEmbeddings"),
  "classifier": ServingForm("classifier", "albert.export.classifier:ServedClassifier", _CLASSIFIER_SETTINGS),
  "regression": ServingForm("classifier", "albert.export.classifier:ServedRegression", _CLASSIFIER_SETTINGS),
  "multi_label": ServingForm("classifier", "albert.export.classifier:ServedMultiLabel", _CLASSIFIER_SETTINGS),
  "squad_v1": ServingForm("squad", "albert.export.squad:ServedSquadV1", _SQUAD_SETTINGS),
  "squad_v2": ServingForm("squad", "albert.export.squad:ServedSquadV2", _SQUAD_SETTINGS),
  "race": ServingForm("race", "albert.export.classifier:ServedMultipleChoice", ("max_qa_length",)),
  "tagging": ServingForm(
    "tagging", "albert.export.tagging:ServedTagger", ("scheme", "labels", "word_rule", "doc_stride")
  ),
}


def check_form(name: str) -> None:
  """Raises UserError if there is no form of this name in FORMS."""
  if name and name not in FORMS:
    raise UserError(f"--task={name}: must be one of {', '.join(FORMS)}")


def check_formats(formats: Sequence[str], precision: str) -> None:
  """Raises UserError if a format is unknown, or cannot be written in this precision."""
  unknown = [name for name in formats if name not in EXTRA_FORMATS]
  if unknown:
    raise UserError(f"--formats={unknown[0]}: must be one of {', '.join(EXTRA_FORMATS)}")
  missing = [name for name in ("tf2onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
  onnx_formats = [name for name in formats if name in (ONNX, ONNX_INT8)]
  if onnx_formats and missing:
    raise UserError(
      f"--formats={onnx_formats[0]} needs {' and '.join(missing)}: pip install 'onnxruntime>=1.16' 'tf2onnx>=1.16'"
    )
  if formats and precision != "float32":
    raise UserError(f"--formats={','.join(formats)} with --precision={precision}: give --precision=float32")


def check_evaluation(eval_file: str, max_metric_drop: float | None) -> None:
  """Raises UserError if there is no such file, or if the limit is given without a file."""
  if max_metric_drop is not None and not eval_file:
    raise UserError(
      f"--max_metric_drop={max_metric_drop:g} has an effect only with --eval_file, the data to measure the metric on"
    )
  has_glob = any(character in eval_file for character in "*?[,")
  if eval_file and not files.is_remote(eval_file) and not has_glob and not files.exists(eval_file):
    raise UserError(f"--eval_file={eval_file}: no such file")


def version_directory(output_dir: str, name: str, version: int) -> str:
  """The directory of a new version; `version` 0 stands for one more than the greatest existing number."""
  if "/" in name or name.startswith("."):
    raise UserError(f"--name={name}: must be a plain name, such as cola")
  directory = files.join(output_dir.rstrip("/"), name)
  if files.is_glob_for_tensorflow(directory):
    raise UserError(
      f"{directory}: TensorFlow cannot load a SavedModel from a path with [ or a backslash: give another path"
    )
  if files.exists(directory) and not files.is_dir(directory):
    raise UserError(f"{directory}: is a file; give another --output_dir or --name")
  versions = list_versions(directory)
  if version in versions:
    raise UserError(
      f"--version={version}: {files.join(directory, str(version))} exists; give another version, or leave it out"
    )
  return files.join(directory, str(version or max(versions, default=0) + 1))


def list_versions(directory: str) -> list[int]:
  """The numbers of the versions in a directory of versions; none if it is not such a directory."""
  names = files.listdir(directory) if files.is_dir(directory) else []
  return [int(name) for name in names if name.isascii() and name.isdecimal()]
