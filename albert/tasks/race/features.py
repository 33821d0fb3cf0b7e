"""Tokenizes multiple-choice questions: `[CLS] article [SEP] question with option [SEP]` for each option.

Worker processes import this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

import numpy as np

from albert.data.examples import TokenizedExamples
from albert.tasks.race.files import ChoiceQuestion
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig

LABEL_IDS = "label_ids"
_BLANK = re.compile("_+")


def with_option(question: str, option: str) -> str:
  """Inserts an option into a question.

  Args:
    question: a question with blanks ("_" or several of them in a row) or without.
    option: the option.
  Returns: the question with the option in place of each blank, or after the question if it has no blank.
  """
  if "_" not in question:
    return f"{question} {option}"
  return _BLANK.sub(lambda _: option, question)


@dataclasses.dataclass(frozen=True)
class RaceFeaturizer:
  """Tokenizes a chunk of questions, one sequence for each option. It can be pickled.

  Attributes:
    tokenizer_config: settings of the tokenizer.
    max_seq_length: maximum tokens of a sequence. An article that is too long loses its last tokens.
    max_qa_length: maximum tokens of a question with its option. A longer one loses its first tokens. The original code
      has 128.
  """

  tokenizer_config: TokenizerConfig
  max_seq_length: int
  max_qa_length: int

  def __call__(self, questions: Sequence[ChoiceQuestion]) -> TokenizedExamples:
    """Makes one sequence for each option of each question.

    Returns: N examples. Their label is "label_ids", int32 [N]: the index of the correct option; 0 if it is unknown.
    """
    tokenizer = load_tokenizer(self.tokenizer_config)
    # Each article is tokenized once, even if several questions share it.
    articles = list(dict.fromkeys(question.article for question in questions))
    article_ids = dict(zip(articles, _encode(tokenizer, articles), strict=True))
    texts = [with_option(question.text, option) for question in questions for option in question.options]
    remaining_text_ids = iter(_encode(tokenizer, texts))
    cls, sep = [tokenizer.special_ids.cls], [tokenizer.special_ids.sep]
    max_tokens = self.max_seq_length - 3  # [CLS] and two [SEP]
    sequences: list[np.ndarray] = []
    cut_tokens = np.zeros(len(questions), np.int32)  # of the option that loses the most
    for index, question in enumerate(questions):
      article_length = len(article_ids[question.article])
      for _ in question.options:
        all_text = next(remaining_text_ids)
        text = all_text[-min(self.max_qa_length, max_tokens) :]
        article = article_ids[question.article][: max_tokens - len(text)]
        num_cut = len(all_text) - len(text) + article_length - len(article)
        cut_tokens[index] = max(cut_tokens[index], num_cut)
        sequences.append(np.concatenate([cls, article, sep, text, sep], dtype=np.int32))
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    counts = np.array([len(question.options) for question in questions], np.int32)
    labels = np.array([max(question.answer, 0) for question in questions], np.int32)
    ids = np.concatenate(sequences)
    return TokenizedExamples(ids, lengths, counts, {LABEL_IDS: labels}, cut_tokens=cut_tokens)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
  """Returns the ids of each text, int32 [tokens]."""
  ids, offsets = tokenizer.encode_batch_flat(texts)
  return [ids[start:end] for start, end in itertools.pairwise(offsets)]
