"""Asks a pretrained model for the hidden words of ten sentences: python examples/hidden_words.py RUN [TRAINING_TEXT]

RUN is the output_dir of run_pretraining.py. The sentences are in the style of the documentation of Python packages,
which the demo trains on. A sentence that the training text contains is left out, since the model may have learned it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import albert

SENTENCES = (
  ("Return [MASK] if the two arrays are equal, otherwise False.", "true"),
  ("The name of the [MASK] to open.", "file"),
  ("If the value [MASK] None, the default is used.", "is"),
  ("Arguments that are passed [MASK] the function.", "to"),
  ("The size [MASK] each block in the output file.", "of"),
  ("Whether or [MASK] to sort the result.", "not"),
  ("This method must be [MASK] by subclasses.", "implemented"),
  ("Compute the mean and the standard [MASK] of the samples.", "deviation"),
  ("The default [MASK] is zero.", "value"),
  ("Convert a string to an integer or a floating [MASK] number.", "point"),
)
_WORD_START = "▁"


def main() -> None:
  """Prints the five best guesses for each hidden word, and how often the word is among them."""
  run, training_text = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
  known_text = _normalize(Path(training_text).read_text(encoding="utf-8")) if training_text else ""
  sentences = [
    (sentence, word) for sentence, word in SENTENCES if _normalize(sentence.replace("[MASK]", word)) not in known_text
  ]
  estimator = albert.Estimator.from_run(run)
  answers = estimator.predict([sentence for sentence, _ in sentences])
  num_found = 0
  for (sentence, word), (answer,) in zip(sentences, answers, strict=True):
    guesses = [piece.removeprefix(_WORD_START) for piece in answer]  # the most probable piece comes first
    num_found += word in guesses
    print(f"{'found' if word in guesses else '     '}  {sentence}  {word}: {', '.join(guesses)}")
  print(f"The hidden word is among the five best guesses in {num_found} of {len(sentences)} sentences.")


def _normalize(text: str) -> str:
  return re.sub(r"\W+", " ", text.lower())


if __name__ == "__main__":
  main()
