"""Tokenizes multiple-choice questions: `[CLS] article [SEP] question with option [SEP]` for each option.

Worker processes import this module, so it does not import TensorFlow.
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
_NUM_SPECIAL_TOKENS = 3  # [CLS] and two [SEP]
_CLS, _SEP = np.array([CLS_ID], np.int32), np.array([SEP_ID], np.int32)
_find_blanks = re.compile("_+")


def with_option(question: str, option: str) -> str:
  """Inserts an option into a question.

  Args:
    question: a question with blanks ("_" or several of them in a row) or without.
    option: the option.
  Returns: the question with the option in place of each blank, or after the question if it has no blank.
  """
  if "_" not in question:
    return f"{question} {option}"
  return _find_blanks.sub(lambda _: option, question)


@dataclasses.dataclass(frozen=True)
class RaceFeaturizer:
  """Tokenizes a chunk of questions, one sequence for each option. It can be pickled.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: maximum tokens of a sequence. The end of a longer article is dropped.
    max_qa_length: maximum tokens of a question with its option; the first ones are dropped (128 in the original code).
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int
  max_qa_length: int

  def __call__(self, questions: Sequence[ChoiceQuestion]) -> TokenizedExamples:
    """Returns N examples with the label label_ids, int32 [N]: the index of the correct option; 0 if it is unknown."""
    tokenizer = load_tokenizer(self.tokenizer_config)
    article_indices: dict[str, int] = {}
    for question in questions:
      article_indices.setdefault(question.article, len(article_indices))
    articles, article_offsets = tokenizer.encode_batch_flat(article_indices)
    question_texts = [with_option(question.text, option) for question in questions for option in question.options]
    question_ids, question_offsets = tokenizer.encode_batch_flat(question_texts)
    blocks: list[np.ndarray] = []
    lengths: list[int] = []
    sequence = 0
    for question in questions:
      start, end = article_offsets[article_indices[question.article] :][:2]
      article = articles[start:end]
      for _ in question.options:
        with_option_ids = question_ids[question_offsets[sequence] : question_offsets[sequence + 1]]
        sequence += 1
        with_option_ids = with_option_ids[-min(self.max_qa_length, self.max_seq_length - _NUM_SPECIAL_TOKENS) :]
        article_start = article[: self.max_seq_length - _NUM_SPECIAL_TOKENS - len(with_option_ids)]
        blocks += (_CLS, article_start, _SEP, with_option_ids, _SEP)
        lengths.append(len(article_start) + len(with_option_ids) + _NUM_SPECIAL_TOKENS)
    labels = [max(question.answer, 0) for question in questions]
    return TokenizedExamples(
      np.concatenate(blocks),
      np.array(lengths, np.int32),
      np.array([len(question.options) for question in questions], np.int32),
      {LABEL_IDS: np.array(labels, np.int32)},
    )
