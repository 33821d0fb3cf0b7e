"""The formats that weights can be converted to. Imports no TensorFlow, so that --help answers at once."""

from __future__ import annotations

from albert.runs.output_files import CONVERSION

FORMATS = ("albert", "tf1", "huggingface")
# The classes of transformers that config.json may name.
_CLASSES = (
  "Model",
  "ForPreTraining",
  "ForMaskedLM",
  "ForSequenceClassification",
  "ForMultipleChoice",
  "ForQuestionAnswering",
  "ForTokenClassification",
)
ARCHITECTURES = tuple(f"{family}{name}" for family in ("Albert", "Bert") for name in _CLASSES)
# The classes that need a pooler.
CLASSES_WITH_POOLER = tuple(
  f"{family}{name}"
  for family in ("Albert", "Bert")
  for name in ("ForPreTraining", "ForSequenceClassification", "ForMultipleChoice")
)
# The name of the report in the output directory.
REPORT_FILE = CONVERSION
