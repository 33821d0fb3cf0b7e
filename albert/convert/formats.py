"""The formats that weights can be converted to. Imports no TensorFlow, so that --help answers at once."""

from __future__ import annotations

from albert.runs.output_files import CONVERSION

FORMATS = ("albert", "tf1", "huggingface")
# The classes of transformers that config.json may name.
ARCHITECTURES = (
  "AlbertModel",
  "AlbertForPreTraining",
  "AlbertForMaskedLM",
  "AlbertForSequenceClassification",
  "AlbertForMultipleChoice",
  "AlbertForQuestionAnswering",
  "AlbertForTokenClassification",
)
# The classes that need a pooler.
CLASSES_WITH_POOLER = ("AlbertForPreTraining", "AlbertForSequenceClassification", "AlbertForMultipleChoice")
# The name of the report in the output directory.
REPORT_FILE = CONVERSION
