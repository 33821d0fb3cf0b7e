"""Multiple-choice questions -> TokenizedExamples: `[CLS] article [SEP] question with option [SEP]` for each option.

Needs no TensorFlow: many processes run it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.race.data import ChoiceQuestion
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.tokenizer import CLS_ID, SEP_ID, load_tokenizer

LABEL_IDS = "label_ids"
_CLS, _SEP = np.array([CLS_ID], np.int32), np.array([SEP_ID], np.int32)
_find_blanks = re.compile("_+")


def with_option(question: str, option: str) -> str:
  """The option in each blank ("_", or several) of the question; behind it if it has none."""
  if "_" not in question:
    return f"{question} {option}"
  return _find_blanks.sub(lambda _: option, question)


@dataclasses.dataclass(frozen=True)
class RaceFeaturizer:
  """Makes Examples of a chunk of questions, a sequence an option; picklable.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: longest sequence; what does not fit is the end of the article.
    max_qa_length: the last tokens that are kept of question and option (ALBERT's original: 128).
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int
  max_qa_length: int

  def __call__(self, questions: Sequence[ChoiceQuestion]) -> TokenizedExamples:
    """The label is label_ids int32 [N], the place of the right option (0 where it is not known)."""
    tokenizer = load_tokenizer(self.tokenizer_config)
    places: dict[str, int] = {}
    for question in questions:
      places.setdefault(question.article, len(places))
    articles, article_offsets = tokenizer.encode_batch_flat(places)
    asked = [with_option(question.text, option) for question in questions for option in question.options]
    pairs, pair_offsets = tokenizer.encode_batch_flat(asked)
    blocks: list[np.ndarray] = []
    lengths: list[int] = []
    number = 0
    for question in questions:
      start, end = article_offsets[places[question.article] :][:2]
      article = articles[start:end]
      for _ in question.options:
        pair = pairs[pair_offsets[number] : pair_offsets[number + 1]]
        number += 1
        pair = pair[-min(self.max_qa_length, self.max_seq_length - 3) :]
        part = article[: self.max_seq_length - 3 - len(pair)]
        blocks += (_CLS, part, _SEP, pair, _SEP)
        lengths.append(len(part) + len(pair) + 3)
    labels = [max(question.answer, 0) for question in questions]
    return TokenizedExamples(
      np.concatenate(blocks),
      np.array(lengths, np.int32),
      np.array([len(question.options) for question in questions], np.int32),
      {LABEL_IDS: np.array(labels, np.int32)},
    )
