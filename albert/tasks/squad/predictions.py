"""Converts scores of tokens to answers, averages the answers of several models, and writes files of answers.

The files are predictions.json, nbest_predictions.json and null_odds.json. predictions.json and null_odds.json have the
format that SQuAD's official evaluation script reads. An answer is always an exact substring of the paragraph. This
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
# Index of a question -> its candidate answers.
CandidateLists = dict[int, list["CandidateSpan"]]
NbestEntry = dict[str, Any]

# Several spans may have the same text. For n answers with different texts, this number times n spans are kept per
# window, which almost always suffices.
_SPANS_PER_TEXT = 4
TEXT, PROBABILITY = "text", "probability"


class CandidateSpan(NamedTuple):
  """A span of a paragraph that may be the answer.

  Attributes:
    char_start: offset of its first character in the paragraph.
    char_end: offset after its last character.
    start_score: score of its first token as the start.
    end_score: score of its last token as the end.
  """

  char_start: int
  char_end: int
  start_score: float
  end_score: float


class _NbestEntry(msgspec.Struct):
  """The fields that are checked when an n-best file is read."""

  text: str
  probability: float


@dataclasses.dataclass(frozen=True)
class SquadPredictions:
  """The answers of a model.

  Attributes:
    nbest: question id -> the best answers, best first. An entry has text, probability (the softmax over the entries)
      and the scores of start and end. All texts of a question differ. A question without any candidate has no entries.
    null_odds: question id -> log odds that the question is unanswerable; None for SQuAD v1.1.
  """

  nbest: dict[str, list[NbestEntry]]
  null_odds: dict[str, float] | None = None

  def best_texts(self) -> dict[str, str]:
    """Returns question id -> the best text; "" if there is none."""
    return {question: entries[0][TEXT] if entries else "" for question, entries in self.nbest.items()}

  def answers(self, null_threshold: float = 0.0) -> dict[str, str]:
    """Returns question id -> the answer; "" if the null odds are above the threshold."""
    texts = self.best_texts()
    if self.null_odds is None:
      return texts
    return {question: "" if self.null_odds[question] > null_threshold else text for question, text in texts.items()}


class _Window(NamedTuple):
  """One window: its row in the outputs, the index of its question, and arrays [T] of its tokens."""

  row: int
  question: int
  is_paragraph: np.ndarray  # bool: whether an answer may start or end at the token
  has_max_context: np.ndarray  # bool: whether no other window has more context around the token
  char_starts: np.ndarray
  char_ends: np.ndarray


def _windows(outputs: WindowOutputs, examples: TokenizedExamples) -> Iterator[_Window]:
  for row, window in enumerate(outputs[EXAMPLE_INDEX]):
    tokens = slice(examples.token_offsets[window], examples.token_offsets[window + 1])
    features = {name: values[tokens] for name, values in examples.token_features.items()}
    is_paragraph = features[P_MASK] == 0
    # [CLS] is not in the paragraph. Its p_mask is 0 because the labels of windows without an answer point to it.
    is_paragraph[0] = False
    question = int(examples.labels[QUESTION_INDEX][window])
    yield _Window(
      row, question, is_paragraph, features[IS_MAX_CONTEXT] == 1, features[CHAR_STARTS], features[CHAR_ENDS]
    )


def candidates_v1(
  outputs: WindowOutputs, examples: TokenizedExamples, *, num_spans: int, max_answer_length: int
) -> CandidateLists:
  """Finds the best spans of each question (SQuAD v1.1).

  A span may start only at a token that has the most context in this window.

  Args:
    outputs: start_logits and end_logits, [N, S].
    examples: the windows.
    num_spans: spans to keep for each window.
    max_answer_length: maximum tokens of a span.
  Returns: index of the question -> spans, in no particular order.
  """
  candidates: CandidateLists = {}
  for window in _windows(outputs, examples):
    spans = candidates.setdefault(window.question, [])
    positions = np.flatnonzero(window.is_paragraph)
    if not len(positions):
      continue
    first, size = positions[0], len(positions)  # the tokens of the paragraph are contiguous
    tokens = slice(first, first + size)
    start_scores = np.where(window.has_max_context[tokens], outputs["start_logits"][window.row, tokens], -np.inf)
    end_scores = np.append(outputs["end_logits"][window.row, tokens], np.full(max_answer_length - 1, -np.inf))
    # Row s has the scores of the ends s, s + 1, ..., s + max_answer_length - 1.
    end_scores_by_start = np.lib.stride_tricks.sliding_window_view(end_scores, max_answer_length)
    span_scores = (start_scores[:, None] + end_scores_by_start).ravel()
    for span in _largest(span_scores, num_spans):
      if np.isfinite(span_scores[span]):
        start, distance = divmod(int(span), max_answer_length)
        end = start + distance
        spans.append(_make_candidate(window, first + start, first + end, start_scores[start], end_scores[end]))
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
    spans = candidates.setdefault(window.question, [])
    starts = outputs["start_positions"][window.row]
    ends = outputs["end_positions"][window.row]
    last = len(window.is_paragraph) - 1  # outputs of short windows are padded
    is_start = (starts <= last) & (window.is_paragraph & window.has_max_context)[np.minimum(starts, last)]
    is_end = (ends <= last) & window.is_paragraph[np.minimum(ends, last)]
    lengths = ends - starts[:, None] + 1
    for k, m in np.argwhere(is_start[:, None] & is_end & (lengths >= 1) & (lengths <= max_answer_length)):
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

  The null logit of a window is low if the window seems to hold an answer. A question counts as answerable if any one of
  its windows seems to hold an answer.

  Args:
    outputs: null_logits, [N].
    examples: the windows.
  Returns: index of the question -> null logit.
  """
  lowest: dict[int, float] = {}
  for window, value in zip(outputs[EXAMPLE_INDEX], outputs["null_logits"], strict=True):
    question = int(examples.labels[QUESTION_INDEX][window])
    lowest[question] = min(lowest.get(question, np.inf), float(value))
  return lowest


def predictions_v1(
  questions: Sequence[SquadQuestion],
  outputs: WindowOutputs,
  examples: TokenizedExamples,
  *,
  n_best_size: int,
  max_answer_length: int,
) -> SquadPredictions:
  """Finds the answers of SQuAD v1.1 (see candidates_v1 for the arguments).

  Args:
    questions: all questions of the split.
    n_best_size: maximum answers of a question.
  Returns: answers for the questions that have windows in `outputs`. Entries have start_logit and end_logit.
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
  """Finds the answers of SQuAD v2.0 (see candidates_v2 for the arguments).

  Args:
    questions: all questions of the split.
    n_best_size: maximum answers of a question.
  Returns: answers for the questions that have windows in `outputs`. Entries have start_log_prob and end_log_prob.
  """
  candidates = candidates_v2(outputs, examples, max_answer_length=max_answer_length)
  lowest = lowest_null_logits(outputs, examples)
  null_odds = {questions[index].id: lowest[index] for index in sorted(lowest)}
  return SquadPredictions(_rank_answers(questions, candidates, n_best_size, "log_prob"), null_odds)


def _rank_answers(
  questions: Sequence[SquadQuestion], candidates: CandidateLists, n_best_size: int, score_kind: str
) -> dict[str, list[NbestEntry]]:
  """Question id -> its best answers with different texts, best first. `score_kind` becomes part of the scores' keys."""
  nbest = {}
  for index in sorted(candidates):
    question = questions[index]
    entries: list[NbestEntry] = []
    texts: set[str] = set()
    for candidate in sorted(candidates[index], key=lambda span: -(span.start_score + span.end_score)):
      text = question.paragraph.context[candidate.char_start : candidate.char_end]
      if text and text not in texts:
        texts.add(text)
        scores = {f"start_{score_kind}": candidate.start_score, f"end_{score_kind}": candidate.end_score}
        entries.append({TEXT: text, PROBABILITY: candidate.start_score + candidate.end_score} | scores)
      if len(entries) == n_best_size:
        break
    if entries:
      probabilities = softmax(np.array([entry[PROBABILITY] for entry in entries])).tolist()
      for entry, probability in zip(entries, probabilities, strict=True):
        entry[PROBABILITY] = probability
    nbest[question.id] = entries
  return nbest


def average_predictions(members: Sequence[SquadPredictions]) -> SquadPredictions:
  """Averages the answers of several models (ALBERT, section 4.9).

  Args:
    members: the answers of two or more models to the same questions.
  Returns: the mean of the probabilities of each answer, and of the null odds. An answer that is not among the n best of
    a model has probability 0 there. Entries have text and probability.
  Raises:
    UserError: the members answer different questions, or different versions of SQuAD.
  """
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
  nbest: dict[str, list[NbestEntry]] = {}
  for question in first.nbest:
    sums: dict[str, float] = {}
    for member in members:
      for entry in member.nbest[question]:
        sums[entry[TEXT]] = sums.get(entry[TEXT], 0.0) + entry[PROBABILITY]
    best = sorted(sums.items(), key=lambda item: -item[1])
    nbest[question] = [{TEXT: text, PROBABILITY: total / len(members)} for text, total in best]
  all_odds = [member.null_odds for member in members if member.null_odds is not None]
  if not all_odds:
    return SquadPredictions(nbest)
  mean_odds = {question: sum(odds[question] for odds in all_odds) / len(all_odds) for question in all_odds[0]}
  return SquadPredictions(nbest, mean_odds)


def paths(directory: str, split: str, predictions_file: str = "") -> dict[str, str]:
  """Returns the paths of the files of a split.

  Args:
    directory: the directory of the files.
    split: the split, which becomes a suffix of the file names; "" for no suffix.
    predictions_file: path of the predictions file; if it is given, directory and split are ignored, and the other files
      are nbest_NAME and null_odds_NAME in the same directory, where NAME is the name of the predictions file.
  Returns: "predictions", "nbest_predictions" and "null_odds" -> path.
  """
  if predictions_file:
    nbest, null_odds = (companion_path(predictions_file, kind) for kind in ("nbest", "null_odds"))
    return {"predictions": predictions_file, "nbest_predictions": nbest, "null_odds": null_odds}
  end = f"_{split}.json" if split else ".json"
  return {kind: files.join(directory, kind + end) for kind in ("predictions", "nbest_predictions", "null_odds")}


def write(
  directory: str, split: str, predictions: SquadPredictions, null_threshold: float, *, predictions_file: str = ""
) -> list[str]:
  """Writes the files of a split. null_odds.json is written for SQuAD v2.0 only.

  Args:
    directory: where to write.
    split: the split, which becomes a suffix of the file names; "" for no suffix.
    predictions: the answers.
    null_threshold: log odds of being unanswerable above which the answer is empty. Has no effect for v1.1.
    predictions_file: see `paths`.
  Returns: the paths of the files.
  """
  path = paths(directory, split, predictions_file)
  contents: list[tuple[str, dict[str, Any]]] = [
    (path["predictions"], predictions.answers(null_threshold)),
    (path["nbest_predictions"], predictions.nbest),
  ]
  if predictions.null_odds is not None:
    contents.append((path["null_odds"], predictions.null_odds))
  for name, content in contents:
    files.write_json(name, content)
  return [name for name, _ in contents]


def read(directory: str, split: str) -> SquadPredictions:
  """Reads the files that `write` wrote.

  Args:
    directory: the directory of the files.
    split: see `paths`.
  Raises:
    UserError: a file does not exist or is damaged.
  """
  path = paths(directory, split)
  remedy = "predict again"
  nbest = files.read_json(path["nbest_predictions"], remedy=remedy)
  json_values.convert(path["nbest_predictions"], nbest, dict[str, list[_NbestEntry]], remedy)
  null_odds = None
  if files.exists(path["null_odds"]):
    null_odds = files.read_json(path["null_odds"], dict[str, float], remedy)
    if null_odds.keys() != nbest.keys():
      raise UserError(f"{path['null_odds']}: does not hold the same questions as {path['nbest_predictions']}: {remedy}")
  return SquadPredictions(nbest, null_odds)
