"""Converts scores of tokens to answers, averages the answers of several models, and writes files of answers.

The files are predictions_SPLIT.json, nbest_predictions_SPLIT.json and null_odds_SPLIT.json; the first and the last have
the format that SQuAD's official evaluation script reads. An answer is always an exact substring of the paragraph. This
module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from albert.data.examples import EXAMPLE_INDEX, TokenizedExamples
from albert.errors import UserError
from albert.io import files, json_values
from albert.tasks.predictions import companion_path, softmax
from albert.tasks.squad.data import SquadQuestion
from albert.tasks.squad.features import CHAR_ENDS, CHAR_STARTS, IS_MAX_CONTEXT, P_MASK, QUESTION_INDEX

# N windows, S tokens of the longest window, T tokens of a window, K starts of the beam search, M ends of each start.

# Output name -> [N, ...]: the model's outputs for all windows, in order.
WindowOutputs = Mapping[str, np.ndarray]
# Index of a question -> the spans that may be its answer.
CandidateLists = dict[int, list["CandidateSpan"]]
# An answer in nbest_predictions.json: its text, its probability, and the scores of its start and end.
NbestEntry = dict[str, Any]

# To find n answers with different texts, _SPANS_PER_TEXT * n spans are kept for each window, because several spans may
# have the same text. That almost always suffices.
_SPANS_PER_TEXT = 4
TEXT, PROBABILITY = "text", "probability"


class CandidateSpan(NamedTuple):
  """A span of a paragraph that may be the answer.

  Attributes:
    char_start: offset of its first character in the paragraph.
    char_end: offset of the character after its last one.
    start_score: score of its first token as the start.
    end_score: score of its last token as the end.
  """

  char_start: int
  char_end: int
  start_score: float
  end_score: float


class _CheckedEntry(msgspec.Struct):
  """The keys of an NbestEntry that are checked when a file is read."""

  text: str
  probability: float


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


def candidates_v1(
  outputs: WindowOutputs, examples: TokenizedExamples, *, num_spans: int, max_answer_length: int
) -> CandidateLists:
  """Finds the best spans of each question (SQuAD v1.1).

  A token may be in several windows. A span may start at it only in the window that has the most context around it.

  Args:
    outputs: start_logits and end_logits, [N, S].
    examples: the windows.
    num_spans: spans to keep for each window.
    max_answer_length: maximum tokens of a span.
  Returns: index of the question -> spans, in no particular order.
  """
  candidates: CandidateLists = {}
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
    best_spans = _largest(span_scores.ravel(), num_spans)
    for start, distance in zip(*np.unravel_index(best_spans, span_scores.shape), strict=True):
      if not np.isfinite(span_scores[start, distance]):
        continue
      end = start + distance
      start_in_window, end_in_window = paragraph_start + start, paragraph_start + end
      spans.append(_make_candidate(window, start_in_window, end_in_window, start_scores[start], end_scores[end]))
  return candidates


def candidates_v2(outputs: WindowOutputs, examples: TokenizedExamples, *, max_answer_length: int) -> CandidateLists:
  """Collects the spans that the beam search found for each question (SQuAD v2.0).

  Args:
    outputs: start_log_probs and start_positions, [N, K]; end_log_probs and end_positions, [N, K, M].
    examples: the windows.
    max_answer_length: maximum tokens of a span.
  Returns: index of the question -> spans, in no particular order.
  """
  candidates: CandidateLists = {}
  for window in _windows(outputs, examples):
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
  return candidates


def _make_candidate(window: _Window, start: int, end: int, start_score: float, end_score: float) -> CandidateSpan:
  return CandidateSpan(int(window.char_starts[start]), int(window.char_ends[end]), float(start_score), float(end_score))


def _largest(values: np.ndarray, count: int) -> np.ndarray:
  """Indices of the `count` largest values, in no particular order."""
  return np.argpartition(-values, count - 1)[:count] if len(values) > count else np.arange(len(values))


def lowest_null_logits(outputs: WindowOutputs, examples: TokenizedExamples) -> dict[int, float]:
  """Finds the lowest null logit among the windows of each question.

  The null logit of a window is high if the model finds no answer in it. The lowest null logit is used, because a
  question is answerable if any of its windows holds an answer.

  Args:
    outputs: null_logits, [N].
    examples: the windows.
  Returns: index of the question -> null logit.
  """
  lowest: dict[int, float] = {}
  for example_index, null_logit in zip(outputs[EXAMPLE_INDEX], outputs["null_logits"], strict=True):
    question_index = int(examples.labels[QUESTION_INDEX][example_index])
    lowest[question_index] = min(lowest.get(question_index, np.inf), float(null_logit))
  return lowest


def predictions_v1(
  questions: Sequence[SquadQuestion],
  outputs: WindowOutputs,
  examples: TokenizedExamples,
  *,
  n_best_size: int,
  max_answer_length: int,
) -> SquadPredictions:
  """Finds the answers of SQuAD v1.1.

  Args:
    questions: all questions of the split.
    outputs, examples, max_answer_length: see candidates_v1.
    n_best_size: maximum answers of a question.
  Returns: answers to the questions that have windows in `outputs`. The scores of an answer are start_logit and
    end_logit.
  """
  num_spans = _SPANS_PER_TEXT * n_best_size
  candidates = candidates_v1(outputs, examples, num_spans=num_spans, max_answer_length=max_answer_length)
  return SquadPredictions(_rank_answers(questions, candidates, n_best_size, "logit"))


def predictions_v2(
  questions: Sequence[SquadQuestion],
  outputs: WindowOutputs,
  examples: TokenizedExamples,
  *,
  n_best_size: int,
  max_answer_length: int,
) -> SquadPredictions:
  """Finds the answers of SQuAD v2.0.

  Args:
    questions: all questions of the split.
    outputs, examples, max_answer_length: see candidates_v2.
    n_best_size: maximum answers of a question.
  Returns: answers to the questions that have windows in `outputs`. The scores of an answer are start_log_prob and
    end_log_prob.
  """
  candidates = candidates_v2(outputs, examples, max_answer_length=max_answer_length)
  null_logits = lowest_null_logits(outputs, examples)
  null_odds = {questions[index].id: null_logits[index] for index in sorted(null_logits)}
  return SquadPredictions(_rank_answers(questions, candidates, n_best_size, "log_prob"), null_odds)


def _rank_answers(
  questions: Sequence[SquadQuestion], candidates: CandidateLists, n_best_size: int, score_name: str
) -> dict[str, list[NbestEntry]]:
  """Makes the n-best lists of the questions that have candidates: the best spans with different texts, best first.

  Args:
    questions: all questions of the split.
    candidates: the spans.
    n_best_size: maximum answers of a question.
    score_name: the scores of an answer are called start_NAME and end_NAME.
  Returns: question id -> its answers.
  """
  nbest = {}
  for index in sorted(candidates):
    question = questions[index]
    best_spans: dict[str, CandidateSpan] = {}  # text -> its best span
    for span in sorted(candidates[index], key=lambda span: -(span.start_score + span.end_score)):
      text = question.paragraph.context[span.char_start : span.char_end]
      if text and text not in best_spans:
        best_spans[text] = span
      if len(best_spans) == n_best_size:
        break
    nbest[question.id] = _make_entries(best_spans, score_name)
  return nbest


def _make_entries(spans: Mapping[str, CandidateSpan], score_name: str) -> list[NbestEntry]:
  """Makes the entries of a question from text -> span. The probabilities are the softmax over the spans' scores."""
  if not spans:
    return []
  probabilities = softmax(np.array([span.start_score + span.end_score for span in spans.values()])).tolist()
  entries: list[NbestEntry] = []
  for (text, span), probability in zip(spans.items(), probabilities, strict=True):
    scores = {f"start_{score_name}": span.start_score, f"end_{score_name}": span.end_score}
    entries.append({TEXT: text, PROBABILITY: probability, **scores})
  return entries


def average_predictions(members: Sequence[SquadPredictions]) -> SquadPredictions:
  """Averages the answers of several models (ALBERT, section 4.9).

  Args:
    members: the answers of two or more models to the same questions.
  Returns: the answers of all models with the mean of their probabilities, and the mean null odds. An answer that is not
    among the n best of a model counts with probability 0 there. Answers have no scores.
  Raises:
    UserError: the members answer different questions, or different versions of SQuAD.
  """
  _check_same_questions(members)
  nbest: dict[str, list[NbestEntry]] = {}
  for question_id in members[0].nbest:
    sums: dict[str, float] = {}  # text -> sum of its probabilities
    for member in members:
      for entry in member.nbest[question_id]:
        sums[entry[TEXT]] = sums.get(entry[TEXT], 0.0) + entry[PROBABILITY]
    best_first = sorted(sums.items(), key=lambda item: -item[1])
    nbest[question_id] = [{TEXT: text, PROBABILITY: total / len(members)} for text, total in best_first]
  all_odds = [member.null_odds for member in members if member.null_odds is not None]
  if not all_odds:
    return SquadPredictions(nbest)
  mean_odds = {question: sum(odds[question] for odds in all_odds) / len(all_odds) for question in all_odds[0]}
  return SquadPredictions(nbest, mean_odds)


def _check_same_questions(members: Sequence[SquadPredictions]) -> None:
  """Raises UserError if models answer different questions, or different versions of SQuAD."""
  first = members[0]
  for number, member in enumerate(members[1:], start=2):
    differing_ids = first.nbest.keys() ^ member.nbest.keys()
    if differing_ids:
      raise UserError(
        f"members 1 and {number} of the ensemble answer different questions (for example {min(differing_ids)}): all "
        "members must predict the same data file"
      )
    if (first.null_odds is None) != (member.null_odds is None):
      raise UserError(
        f"members 1 and {number} of the ensemble are for different SQuAD versions (v1.1 and v2.0): all members must be "
        "for the same version"
      )


def paths(directory: str, split: str, predictions_file: str = "") -> dict[str, str]:
  """Returns the paths of the files of a split.

  Args:
    directory: the directory of the files.
    split: the split or the name of the predicted file, which becomes a suffix of the file names.
    predictions_file: path of the predictions file, if it is not in `directory`. The other files are beside it, and
      their names are its name with the prefix nbest_ or null_odds_.
  Returns: "predictions", "nbest_predictions" and "null_odds" -> path.
  """
  if predictions_file:
    return {
      "predictions": predictions_file,
      "nbest_predictions": companion_path(predictions_file, "nbest"),
      "null_odds": companion_path(predictions_file, "null_odds"),
    }
  names = ("predictions", "nbest_predictions", "null_odds")
  return {name: files.join(directory, f"{name}_{split}.json") for name in names}


def write(
  directory: str, split: str, predictions: SquadPredictions, null_threshold: float, *, predictions_file: str = ""
) -> list[str]:
  """Writes the files of a split. null_odds.json is written for SQuAD v2.0 only.

  Args:
    directory: where to write.
    split: see `paths`.
    predictions: the answers.
    null_threshold: log odds of being unanswerable above which the answer is empty. Has no effect for v1.1.
    predictions_file: see `paths`.
  Returns: the paths of the files.
  """
  path_of = paths(directory, split, predictions_file)
  contents: dict[str, dict[str, Any]] = {
    path_of["predictions"]: predictions.answers(null_threshold),
    path_of["nbest_predictions"]: predictions.nbest,
  }
  if predictions.null_odds is not None:
    contents[path_of["null_odds"]] = predictions.null_odds
  for path, content in contents.items():
    files.write_json(path, content)
  return list(contents)


def read(directory: str, split: str) -> SquadPredictions:
  """Reads the files that `write` wrote.

  Args:
    directory: the directory of the files.
    split: see `paths`.
  Raises:
    UserError: a file does not exist or is damaged.
  """
  path_of = paths(directory, split)
  nbest_path, odds_path = path_of["nbest_predictions"], path_of["null_odds"]
  remedy = "predict again"
  nbest = files.read_json(nbest_path, remedy=remedy)
  json_values.convert(nbest_path, nbest, dict[str, list[_CheckedEntry]], remedy)
  null_odds = None
  if files.exists(odds_path):
    null_odds = files.read_json(odds_path, dict[str, float], remedy)
    if null_odds.keys() != nbest.keys():
      raise UserError(f"{odds_path}: does not hold the same questions as {nbest_path}: {remedy}")
  return SquadPredictions(nbest, null_odds)


def read_threshold(directory: str, split: str, predictions: SquadPredictions, recorded: float) -> float:
  """Returns the null threshold with which `write` wrote the answers of a split.

  Args:
    directory, split: see `read`.
    predictions: what `read` returned.
    recorded: the threshold of the run. A later command may have written the answers with another one.
  Returns: the recorded threshold if it gives the answers, else the middle between the highest null odds of a question
    with an answer and the lowest ones of a question without.
  """
  if predictions.null_odds is None:
    return recorded
  answers = files.read_json(paths(directory, split)["predictions"], dict[str, str], "predict again")
  if predictions.answers(recorded) == answers:
    return recorded
  kept: list[float] = []
  left_empty: list[float] = []
  for question, text in predictions.best_texts().items():
    if text:
      (kept if answers.get(question) else left_empty).append(predictions.null_odds[question])
  if not kept or not left_empty:  # the threshold is below or above all null odds
    return max(kept, default=min(left_empty, default=recorded) - 1.0)
  return (max(kept) + min(left_empty)) / 2
