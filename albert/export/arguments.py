"""Checks the arguments of an export without TensorFlow: the form, the formats and the directory of the version."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence

from albert.errors import UserError
from albert.export.formats import EXTRA_FORMATS, ONNX, ONNX_INT8
from albert.export.registry import FORMS
from albert.io import files


def check_form(name: str) -> None:
  """Raises UserError if there is no form of this name in FORMS."""
  if name and name not in FORMS:
    raise UserError(f"--task={name}: must be one of {', '.join(FORMS)}")


def check_formats(formats: Sequence[str], precision: str) -> None:
  """Checks that the formats can be written.

  Args:
    formats: names of formats.
    precision: float32 or bfloat16.
  Raises:
    UserError: a format is unknown, its converter is not installed, or the precision is not float32.
  """
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
  """Checks that the file to evaluate on may exist, and that a limit is given only together with it.

  Args:
    eval_file: a path, or globs separated by commas; "" for none.
    max_metric_drop: the largest accepted drop of the metric; None for the default.
  Raises:
    UserError: the limit has no effect, is negative or not finite, or there is no such file.
  """
  if max_metric_drop is not None and not 0 <= max_metric_drop < math.inf:
    raise UserError(f"--max_metric_drop={max_metric_drop}: must be 0 or a larger finite number")
  if max_metric_drop is not None and not eval_file:
    raise UserError(
      f"--max_metric_drop={max_metric_drop:g} has an effect only with --eval_file, the data to measure the metric on"
    )
  if eval_file and not files.is_remote(eval_file) and not _has_glob(eval_file) and not files.exists(eval_file):
    raise UserError(f"--eval_file={eval_file}: no such file")


def _has_glob(path: str) -> bool:
  return any(character in path for character in "*?[,")


def version_directory(output_dir: str, name: str, version: int) -> str:
  """The directory of a new version; `version` 0 stands for one more than the greatest existing number."""
  if "/" in name or name.startswith("."):
    raise UserError(f"--name={name}: must be a plain name, such as cola")
  directory = files.join(output_dir.rstrip("/"), name)
  if files.is_glob_for_tensorflow(directory):
    raise UserError(
      f"{directory}: TensorFlow cannot load a SavedModel from a path with [ or a backslash: give another --output_dir "
      "or --name"
    )
  if files.exists(directory) and not files.is_dir(directory):
    raise UserError(f"{directory}: is a file; give another --output_dir or --name")
  entries = files.listdir(directory) if files.exists(directory) else []
  versions = [int(entry) for entry in entries if entry.isdecimal()]
  if version in versions:
    raise UserError(
      f"--version={version}: {files.join(directory, str(version))} exists; give another version, or leave it out"
    )
  return files.join(directory, str(version or max(versions, default=0) + 1))
