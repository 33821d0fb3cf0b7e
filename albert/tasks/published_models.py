"""Reads and writes the keys of transformers' config.json that say what the outputs of a classifier or tagger mean.

So a model that was trained elsewhere can be used as it is: the settings of its task come from these keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from albert.errors import UserError
from albert.tasks.glue.flags import format_labels, parse_labels
from albert.tasks.glue.specs import CUSTOM
from albert.tasks.tagging.schemes import OUTSIDE, SCHEMES
from albert.weights.files import WeightLocation, label_keys


def settings_of_weights(weights: WeightLocation) -> dict[str, Any]:
  """Returns the settings of the task of weights whose config.json names a class of transformers, and its labels.

  Returns: fields of ClassifierConfig or of TaggingConfig by name; {} for a class without labels.
  Raises:
    UserError: the labels of a tagger are not the tags of a scheme.
  """
  keys = weights.class_keys
  labels, problem = weights.labels, keys.get("problem_type")
  if weights.architecture.endswith("ForTokenClassification"):
    types = list(labels)  # plain tags, such as parts of speech
    if OUTSIDE in labels:
      types = list(dict.fromkeys(label.partition("-")[2] for label in labels if label != OUTSIDE))
    scheme = next((name for name, scheme in SCHEMES.items() if {*scheme.tags(types)} == {*labels}), "")
    if not scheme:
      raise UserError(
        f"{weights.config_file}: the labels of id2label ({', '.join(labels)}) are not all tags of a scheme "
        f"({', '.join(SCHEMES)}), such as {', '.join(SCHEMES['BIO'].tags(types[:2]))}: give them such names"
      )
    return {"scheme": scheme, "labels": format_labels(types)}
  if not labels:
    return {}
  if problem == "regression" or (not problem and len(labels) == 1):
    return {"task_name": CUSTOM, "regression": True}
  is_multi_label = problem == "multi_label_classification"
  settings = {"task_name": CUSTOM, "labels": format_labels(labels), "multi_label": is_multi_label}
  if is_multi_label and "," in (text := "".join(labels)):
    # The first of ; | ## ### ... that no label contains. The last one is longer than all labels together.
    candidates = (";", "|", *("#" * length for length in range(2, len(text) + 2)))
    settings["label_separator"] = next(candidate for candidate in candidates if candidate not in text)
  return settings


def problem_type(run: Mapping[str, Any]) -> str:
  """Returns what the outputs of a run's classifier mean, in transformers' terms; "" if this is not known."""
  settings = run.get("data", {})
  if run.get("task") != "classifier" or "labels" not in settings:
    return ""
  if settings.get("multi_label"):
    return "multi_label_classification"
  return "single_label_classification" if settings["labels"] else "regression"


def label_keys_of_run(run: Mapping[str, Any], num_outputs: int) -> dict[str, Any]:
  """Returns the keys of config.json about the outputs of a run's classifier: their names, and what they mean."""
  names: Sequence[str] = ()
  problem, settings = problem_type(run), run.get("data", {})
  if problem:
    names = parse_labels(settings["labels"])
  elif run.get("task") == "tagging" and settings.get("scheme") in SCHEMES:
    names = SCHEMES[settings["scheme"]].tags(parse_labels(settings.get("labels", ""), minimum=1))
  if len(names) != num_outputs:  # a regression, a ranking (one output for two labels), or an unknown task
    names = [f"LABEL_{index}" for index in range(num_outputs)]
    problem = problem if problem == "regression" else ""
  return label_keys(names, problem)
