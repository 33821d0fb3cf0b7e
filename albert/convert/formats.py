"""What can be converted to. No TensorFlow, so that `--help` is quick."""

from __future__ import annotations

from albert.runs.output_files import CONVERSION

FORMATS = ("albert", "tf1", "huggingface")
# Classes of transformers that config.json may name.
ARCHITECTURES = (
  "AlbertModel",
  "AlbertForPreTraining",
  "AlbertForMaskedLM",
  "AlbertForSequenceClassification",
  "AlbertForMultipleChoice",
  "AlbertForQuestionAnswering",
  "AlbertForTokenClassification",
)
# Those of them that have a pooler.
POOLED = ("AlbertForPreTraining", "AlbertForSequenceClassification", "AlbertForMultipleChoice")
REPORT = CONVERSION
