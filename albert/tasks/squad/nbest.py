"""Finds the n best answers of each question in the outputs of a model. Needs no TensorFlow.

An answer is always an exact substring of the paragraph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.tasks.predictions import softmax
from albert.tasks.squad.features import CHAR_ENDS, CHAR_STARTS, IS_MAX_CONTEXT, P_MASK, QUESTION_INDEX
from albert.tasks.squad.files import SquadQuestion

# N windows, S tokens of the longest window, T tokens of a window, K starts of the beam search, M ends of each start.

# Output name -> [N, ...]: the model's outputs for all windows, in order.
WindowOutputs = Mapping[str, np.ndarray]
# An answer in nbest_predictions.json: its text, its probability, and the scores of its start and end.
NbestEntry = dict[str, Any]

# To find n answers with different texts, _SPANS_PER_TEXT * n spans are kept for each window, because several spans may
# have the same text. That almost always suffices.
_SPANS_PER_TEXT = 4
TEXT, PROBABILITY = "text", "probability"


@dataclasses.dataclass(frozen=True)
class SquadPredictions:
  """The answers of a model.

  Attributes:
    nbest: question id -> the best answers, best first. Their texts are different, and the probabilities of all answers
      to a question add up to 1. A question without candidates has no answers.
    null_odds: question id -> log odds that the question is unanswerable; None for SQuAD v1.1.
  """

  nbest: dict[str, list[NbestEntry]]
  null_odds: dict[str, float] | None = None

  def best_texts(self) -> dict[str, str]:
    """Returns question id -> the best text; "" if there is none."""
    return {question_id: entries[0][TEXT] if entries else "" for question_id, entries in self.nbest.items()}

  def answers(self, null_threshold: float = 0.0) -> dict[str, str]:
    """Returns question id -> the answer; "" if the null odds are above the threshold."""
    texts = self.best_texts()
    if self.null_odds is None:
      return texts
    return {
      question_id: "" if self.null_odds[question_id] > null_threshold else text for question_id, text in texts.items()
    }


class _Candidate(NamedTuple):
  """A span that may be the answer: its characters in the paragraph, and the scores of its first and last token."""

  char_start: int
  char_end: int
  start_score: float
  end_score: float


# Index of a question -> the spans that may be its answer.
_CandidateLists = dict[int, list[_Candidate]]


class _Window(NamedTuple):
  """One window: its row in the outputs, the index of its question, and arrays [T] of its tokens."""

  row: int
  question_index: int
  is_paragraph: np.ndarray  # bool: whether an answer may start or end at the token
  has_max_context: np.ndarray  # bool: whether no other window has more context around the token
  char_starts: np.ndarray
  char_ends: np.ndarray


def _windows(outputs: WindowOutputs, examples: TokenizedExamples) -> Iterator[_Window]:
  """Yields the windows that have outputs."""
  for row, example_index in enumerate(outputs[EXAMPLE_INDEX]):
    tokens = slice(examples.token_offsets[example_index], examples.token_offsets[example_index + 1])
    features = {name: values[tokens] for name, values in examples.token_features.items()}
    is_paragraph = features[P_MASK] == 0
    # [CLS] is not in the paragraph. Its p_mask is 0 because the labels of windows without an answer point to it.
    is_paragraph[0] = False
    yield _Window(
      row=row,
      question_index=int(examples.labels[QUESTION_INDEX][example_index]),
      is_paragraph=is_paragraph,
      has_max_context=features[IS_MAX_CONTEXT] == 1,
      char_starts=features[CHAR_STARTS],
      char_ends=features[CHAR_ENDS],
    )


def predictions_v1(
  questions: Sequence[SquadQuestion],
  outputs: WindowOutputs,
  examples: TokenizedExamples,
  *,
  n_best_size: int,
  max_answer_length: int,
) -> SquadPredictions:
  """Finds the answers of SQuAD v1.1.

  A token may be in several windows. A span may start at it only in the window that has the most context around it.

  Args:
    questions: all questions of the split.
    outputs: start_logits and end_logits, [N, S].
    examples: all windows of the split.
    n_best_size: maximum answers of a question.
    max_answer_length: maximum tokens of an answer.
  Returns: answers to the questions that have windows in `outputs`. The scores of an answer are start_logit and
    end_logit.
  """
  candidates: _CandidateLists = {}
  for window in _windows(outputs, examples):
    spans = candidates.setdefault(window.question_index, [])
    positions = np.flatnonzero(window.is_paragraph)
    if not len(positions):
      continue
    # The tokens of the paragraph are contiguous. Below, starts and ends are counted from the paragraph's first token.
    paragraph_start, num_tokens = positions[0], len(positions)
    tokens = slice(paragraph_start, paragraph_start + num_tokens)
    start_scores = np.where(window.has_max_context[tokens], outputs["start_logits"][window.row, tokens], -np.inf)
    end_scores = np.append(outputs["end_logits"][window.row, tokens], np.full(max_answer_length - 1, -np.inf))
    # end_scores_by_start[s] has the scores of the ends s, s + 1, ..., s + max_answer_length - 1.
    end_scores_by_start = np.lib.stride_tricks.sliding_window_view(end_scores, max_answer_length)
    span_scores = start_scores[:, None] + end_scores_by_start  # [num_tokens, max_answer_length]
    best_spans = _largest(span_scores.ravel(), _SPANS_PER_TEXT * n_best_size)
    for start, distance in zip(*np.unravel_index(best_spans, span_scores.shape), strict=True):
      if np.isfinite(span_scores[start, distance]):
        end = start + distance
        scores = start_scores[start], end_scores[end]
        spans.append(_make_candidate(window, paragraph_start + start, paragraph_start + end, *scores))
  return SquadPredictions(_rank_answers(questions, candidates, n_best_size, "logit"))


def predictions_v2(
  questions: Sequence[SquadQuestion],
  outputs: WindowOutputs,
  examples: TokenizedExamples,
  *,
  n_best_size: int,
  max_answer_length: int,
) -> SquadPredictions:
  """Finds the answers of SQuAD v2.0 among the spans that the beam search found.

  Args:
    questions, examples, n_best_size, max_answer_length: see predictions_v1.
    outputs: start_log_probs and start_positions, [N, K]; end_log_probs and end_positions, [N, K, M]; null_logits, [N].
  Returns: answers to the questions that have windows in `outputs`. The scores of an answer are start_log_prob and
    end_log_prob. The null odds are the lowest of the question's windows: one window with an answer makes it answerable.
  """
  candidates: _CandidateLists = {}
  null_odds: dict[int, float] = {}
  for window in _windows(outputs, examples):
    null_logit = float(outputs["null_logits"][window.row])
    null_odds[window.question_index] = min(null_odds.get(window.question_index, np.inf), null_logit)
    spans = candidates.setdefault(window.question_index, [])
    starts = outputs["start_positions"][window.row]  # [K]
    ends = outputs["end_positions"][window.row]  # [K, M]
    # A position may be greater than the last one of the window, because outputs of short windows are padded.
    last = len(window.is_paragraph) - 1
    may_start = window.is_paragraph & window.has_max_context
    is_valid_start = (starts <= last) & may_start[np.minimum(starts, last)]
    is_valid_end = (ends <= last) & window.is_paragraph[np.minimum(ends, last)]
    lengths = ends - starts[:, None] + 1
    is_valid_length = (lengths >= 1) & (lengths <= max_answer_length)
    for k, m in np.argwhere(is_valid_start[:, None] & is_valid_end & is_valid_length):
      scores = outputs["start_log_probs"][window.row, k], outputs["end_log_probs"][window.row, k, m]
      spans.append(_make_candidate(window, starts[k], ends[k, m], *scores))
  nbest = _rank_answers(questions, candidates, n_best_size, "log_prob")
  return SquadPredictions(nbest, {questions[index].id: null_odds[index] for index in sorted(null_odds)})


def _make_candidate(window: _Window, start: int, end: int, start_score: float, end_score: float) -> _Candidate:
  return _Candidate(int(window.char_starts[start]), int(window.char_ends[end]), float(start_score), float(end_score))


def _largest(values: np.ndarray, count: int) -> np.ndarray:
  """Indices of the `count` largest values, in no particular order."""
  return np.argpartition(-values, count - 1)[:count] if len(values) > count else np.arange(len(values))


def _rank_answers(
  questions: Sequence[SquadQuestion], candidates: _CandidateLists, n_best_size: int, score_name: str
) -> dict[str, list[NbestEntry]]:
  """Returns id -> n best answers of the questions that have candidates: the best spans with different texts."""
  nbest: dict[str, list[NbestEntry]] = {}
  for index in sorted(candidates):
    question = questions[index]
    best_spans: dict[str, _Candidate] = {}  # text -> its best span
    for span in sorted(candidates[index], key=lambda span: -(span.start_score + span.end_score)):
      text = question.paragraph.context[span.char_start : span.char_end]
      if text and text not in best_spans:
        best_spans[text] = span
      if len(best_spans) == n_best_size:
        break
    scores = np.array([span.start_score + span.end_score for span in best_spans.values()])
    probabilities = softmax(scores).tolist() if best_spans else []
    nbest[question.id] = [
      {
        TEXT: text,
        PROBABILITY: probability,
        f"start_{score_name}": span.start_score,
        f"end_{score_name}": span.end_score,
      }
      for (text, span), probability in zip(best_spans.items(), probabilities, strict=True)
    ]
  return nbest
