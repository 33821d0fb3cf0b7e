"""Finds the n best answers of each question in the outputs of a model. Needs no TensorFlow.

An answer is always an exact substring of the paragraph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.tasks.predictions import softmax
from albert.tasks.squad.features import CHAR_ENDS, CHAR_STARTS, IS_MAX_CONTEXT, P_MASK, QUESTION_INDEX
from albert.tasks.squad.files import SquadQuestion

# N windows, S tokens of the longest window, K starts of the beam search, M ends of each start.

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
    texts, odds = self.best_texts(), self.null_odds
    if odds is None:
      return texts
    return {question: "" if odds[question] > null_threshold else text for question, text in texts.items()}

  def probability(self, question_id: str, answer: str) -> float:
    """Returns the probability of the best text; if `answer` is "", the probability that there is no answer."""
    if not answer and self.null_odds:
      return float(0.5 + 0.5 * np.tanh(self.null_odds[question_id] / 2))  # the logistic function
    return next((float(entry[PROBABILITY]) for entry in self.nbest[question_id]), 0.0)


# The positions of the first and the last token of a span in its window, and their scores.
_TokenSpan = tuple[int, int, float, float]


def find_answers(
  questions: Sequence[SquadQuestion],
  outputs: WindowOutputs,
  examples: TokenizedExamples,
  *,
  n_best_size: int,
  max_answer_length: int,
) -> SquadPredictions:
  """Finds the best answers among the spans of all windows.

  A token may be in several windows. A span may start at it only in the window that has the most context around it.

  Args:
    questions: all questions of the split.
    outputs: for SQuAD v1.1 start_logits and end_logits, [N, S]. For v2.0 the spans that the beam search found:
      start_log_probs and start_positions, [N, K]; end_log_probs and end_positions, [N, K, M]; and null_logits, [N].
    examples: all windows of the split.
    n_best_size: maximum answers of a question.
    max_answer_length: maximum tokens of an answer.
  Returns: answers to the questions that have windows in `outputs`. The scores of an answer are start_logit and
    end_logit, or for v2.0 start_log_prob and end_log_prob. The null odds are the lowest of the question's windows: one
    window with an answer makes it answerable.
  """
  # Index of a question -> text -> the score of its best span, and the scores of its start and end.
  candidates: dict[int, dict[str, tuple[float, float, float]]] = {}
  null_odds: dict[int, float] = {}
  has_null_odds = "null_logits" in outputs
  for row, example in enumerate(outputs[EXAMPLE_INDEX]):
    of_window = {name: values[row] for name, values in outputs.items()}
    tokens = slice(examples.token_offsets[example], examples.token_offsets[example + 1])
    features = {name: values[tokens] for name, values in examples.token_features.items()}
    is_paragraph = features[P_MASK] == 0
    # [CLS] is not in the paragraph. Its p_mask is 0 because the labels of windows without an answer point to it.
    is_paragraph[0] = False
    may_start = is_paragraph & (features[IS_MAX_CONTEXT] == 1)
    question = int(examples.labels[QUESTION_INDEX][example])
    if has_null_odds:
      null_odds[question] = min(null_odds.get(question, np.inf), float(of_window["null_logits"]))
      spans = _beam_spans(of_window, is_paragraph, may_start, max_answer_length)
    else:
      spans = _best_spans(of_window, is_paragraph, may_start, max_answer_length, _SPANS_PER_TEXT * n_best_size)
    of_texts, context = candidates.setdefault(question, {}), questions[question].paragraph.context
    for start, end, start_score, end_score in spans:
      text = context[features[CHAR_STARTS][start] : features[CHAR_ENDS][end]]
      score = float(start_score) + float(end_score)
      if text and (text not in of_texts or score > of_texts[text][0]):
        of_texts.pop(text, None)  # of equal scores, the span that was found first comes first
        of_texts[text] = score, float(start_score), float(end_score)
  score_name = "log_prob" if has_null_odds else "logit"
  nbest: dict[str, list[NbestEntry]] = {}
  for index in sorted(candidates):
    best = sorted(candidates[index].items(), key=lambda item: -item[1][0])[:n_best_size]
    probabilities = softmax(np.array([score for _, (score, _, _) in best])).tolist() if best else []
    nbest[questions[index].id] = [
      {TEXT: text, PROBABILITY: probability, f"start_{score_name}": start_score, f"end_{score_name}": end_score}
      for (text, (_, start_score, end_score)), probability in zip(best, probabilities, strict=True)
    ]
  odds_of_ids = {questions[index].id: null_odds[index] for index in sorted(null_odds)}
  return SquadPredictions(nbest, odds_of_ids if has_null_odds else None)


def _best_spans(
  outputs: WindowOutputs, is_paragraph: np.ndarray, may_start: np.ndarray, max_answer_length: int, count: int
) -> Iterator[_TokenSpan]:
  """Yields the `count` spans of a window of v1.1 with the largest sums of logits, in no particular order."""
  positions = np.flatnonzero(is_paragraph)
  if not len(positions):
    return
  # The tokens of the paragraph are contiguous. Below, starts and ends are counted from the paragraph's first token.
  tokens = slice(positions[0], positions[-1] + 1)
  start_scores = np.where(may_start[tokens], outputs["start_logits"][tokens], -np.inf)
  end_scores = np.append(outputs["end_logits"][tokens], np.full(max_answer_length - 1, -np.inf))
  # end_scores_by_start[s] has the scores of the ends s, s + 1, ..., s + max_answer_length - 1.
  end_scores_by_start = np.lib.stride_tricks.sliding_window_view(end_scores, max_answer_length)
  span_scores = start_scores[:, None] + end_scores_by_start  # [tokens, max_answer_length]
  all_scores = span_scores.ravel()
  best = np.argpartition(-all_scores, count - 1)[:count] if len(all_scores) > count else np.arange(len(all_scores))
  for start, distance in zip(*np.unravel_index(best, span_scores.shape), strict=True):
    if np.isfinite(span_scores[start, distance]):
      end = start + distance
      yield positions[start], positions[end], start_scores[start], end_scores[end]


def _beam_spans(
  outputs: WindowOutputs, is_paragraph: np.ndarray, may_start: np.ndarray, max_answer_length: int
) -> Iterator[_TokenSpan]:
  """Yields the allowed spans of the beam search of a window of v2.0."""
  starts, ends = outputs["start_positions"], outputs["end_positions"]  # [K], [K, M]
  # A position may be greater than the last one of the window, because outputs of short windows are padded.
  last = len(is_paragraph) - 1
  is_valid_start = (starts <= last) & may_start[np.minimum(starts, last)]
  is_valid_end = (ends <= last) & is_paragraph[np.minimum(ends, last)]
  lengths = ends - starts[:, None] + 1
  is_valid_length = (lengths >= 1) & (lengths <= max_answer_length)
  for k, m in np.argwhere(is_valid_start[:, None] & is_valid_end & is_valid_length):
    yield starts[k], ends[k, m], outputs["start_log_probs"][k], outputs["end_log_probs"][k, m]
