"""The forms in which models can be served, such as fill_mask. Importing this module does not import TensorFlow.

To add a form, write a subclass of `albert.export.served_model.ServedModel` in `albert/export/forms/` and add one entry
to FORMS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from albert.export.served_model import ServedModel


@dataclasses.dataclass(frozen=True)
class ServingForm:
  """One way to serve the models of a task.

  Attributes:
    task: name of the task in `albert.tasks.registry.TASKS`. A run of this task can be served in this form.
    load_class: imports the subclass of ServedModel (and with it TensorFlow) and returns it.
    settings: fields of the task's config that the form depends on. Each becomes a flag of `python -m albert.export`.
      The fields that all forms use (max_seq_length, do_lower_case, keep_accents, convert_quotes) are not listed.
  """

  task: str
  load_class: Callable[[], type[ServedModel]]
  settings: tuple[str, ...] = ()


def _load_fill_mask() -> type[ServedModel]:
  from albert.export.forms.pretraining import ServedFillMask

  return ServedFillMask


def _load_sentence_order() -> type[ServedModel]:
  from albert.export.forms.pretraining import ServedSentenceOrder

  return ServedSentenceOrder


def _load_embeddings() -> type[ServedModel]:
  from albert.export.forms.pretraining import ServedEmbeddings

  return ServedEmbeddings


def _load_classifier() -> type[ServedModel]:
  from albert.export.forms.classifier import ServedClassifier

  return ServedClassifier


def _load_regression() -> type[ServedModel]:
  from albert.export.forms.classifier import ServedRegression

  return ServedRegression


def _load_multi_label() -> type[ServedModel]:
  from albert.export.forms.classifier import ServedMultiLabel

  return ServedMultiLabel


def _load_squad_v1() -> type[ServedModel]:
  from albert.export.forms.squad import ServedSquadV1

  return ServedSquadV1


def _load_squad_v2() -> type[ServedModel]:
  from albert.export.forms.squad import ServedSquadV2

  return ServedSquadV2


def _load_race() -> type[ServedModel]:
  from albert.export.forms.multiple_choice import ServedMultipleChoice

  return ServedMultipleChoice


def _load_tagging() -> type[ServedModel]:
  from albert.export.forms.tagging import ServedTagger

  return ServedTagger


_CLASSIFIER_SETTINGS = ("task_name", "text_columns", "labels", "regression", "multi_label", "thresholds", "formulation")
_SQUAD_SETTINGS = (
  "max_query_length",
  "doc_stride",
  "max_answer_length",
  "start_n_top",
  "end_n_top",
  "null_score_diff_threshold",
)

# The name of a form is the value of --task of `python -m albert.export`.
FORMS: dict[str, ServingForm] = {
  "fill_mask": ServingForm("pretraining", _load_fill_mask),
  "sentence_order": ServingForm("pretraining", _load_sentence_order, ("sentence_prediction",)),
  "embeddings": ServingForm("pretraining", _load_embeddings),
  "classifier": ServingForm("classifier", _load_classifier, _CLASSIFIER_SETTINGS),
  "regression": ServingForm("classifier", _load_regression, _CLASSIFIER_SETTINGS),
  "multi_label": ServingForm("classifier", _load_multi_label, _CLASSIFIER_SETTINGS),
  "squad_v1": ServingForm("squad", _load_squad_v1, _SQUAD_SETTINGS),
  "squad_v2": ServingForm("squad", _load_squad_v2, _SQUAD_SETTINGS),
  "race": ServingForm("race", _load_race, ("max_qa_length",)),
  "tagging": ServingForm("tagging", _load_tagging, ("scheme", "labels", "word_rule", "doc_stride")),
}
