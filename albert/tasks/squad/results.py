"""Scores, baselines, the files of answers and about an evaluation, and averages of several runs. Needs no TensorFlow.

The answers are in predictions_SPLIT.json, nbest_predictions_SPLIT.json and null_odds_SPLIT.json; the first and the last
have the format that SQuAD's official evaluation script reads.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from albert.data.examples import TokenizedExamples
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.progress import log
from albert.metrics import squad
from albert.tasks.predictions import MAX_MISTAKES, companion_path, splits_of_all_runs, write_table
from albert.tasks.splits import DEV, TEST
from albert.tasks.squad.features import gold_texts
from albert.tasks.squad.files import SquadQuestion
from albert.tasks.squad.nbest import PROBABILITY, TEXT, NbestEntry, SquadPredictions

# Maximum number of unaligned answers that the warning names. A file lists all of them.
_MAX_NAMED_ANSWERS = 3
_MAX_RANDOM_WORDS = 5
_SENTENCE_PATTERN = re.compile(r".*?[.!?](?=\s|$)", re.DOTALL)
_WORD_PATTERN = re.compile(r"\S+")

# Question id -> the texts of its correct answers; [] for an unanswerable question.
GoldAnswers = dict[str, list[str]]


def collect_gold_answers(questions: Sequence[SquadQuestion], predictions: SquadPredictions) -> GoldAnswers:
  """Returns the correct answers of those questions that have predictions.

  Args:
    questions: all questions of the split.
    predictions: predictions for all questions or for some.
  """
  return {
    question.id: [answer.text for answer in question.answers]
    for question in questions
    if question.id in predictions.nbest
  }


def compute_scores(answers: GoldAnswers, predictions: SquadPredictions, null_threshold: float) -> dict[str, float]:
  """Computes the scores of the official script, in percent.

  Args:
    answers: the correct answers.
    predictions: predictions for the same questions. If they have null odds, the script of SQuAD v2.0 is used.
    null_threshold: the answer is empty if the log odds that the question is unanswerable are above it. It has no
      effect for v1.1.
  Returns: exact and f1; for v2.0 also the scores of answerable and unanswerable questions and the best thresholds.
  """
  if predictions.null_odds is None:
    return squad.evaluate_v1(answers, predictions.best_texts())
  return squad.evaluate_v2(answers, predictions.best_texts(), predictions.null_odds, null_threshold)


def baselines(questions: Sequence[SquadQuestion], *, version_2: bool) -> dict[str, float]:
  """Computes the scores of simple baselines, to compare a model with.

  Args:
    questions: the questions.
    version_2: whether they are of SQuAD v2.0.
  Returns: exact and f1 in percent. For v1.1 there are two baselines: the first sentence of the paragraph
    (first_sentence_exact, first_sentence_f1), and a random span of up to five words (random_span_exact,
    random_span_f1). For v2.0 the baseline is to answer no question (no_answers_exact, no_answers_f1).
  """
  answers = {question.id: [answer.text for answer in question.answers] for question in questions}
  if version_2:
    scores = squad.evaluate_v2(answers, dict.fromkeys(answers, ""))
    return {f"no_answers_{name}": scores[name] for name in ("exact", "f1")}
  metrics: dict[str, float] = {}
  for baseline, make_answer in (("random_span", _random_span), ("first_sentence", _first_sentence_of)):
    scores = squad.evaluate_v1(answers, {question.id: make_answer(question) for question in questions})
    metrics |= {f"{baseline}_{name}": scores[name] for name in ("exact", "f1")}
  return metrics


def _first_sentence_of(question: SquadQuestion) -> str:
  match = _SENTENCE_PATTERN.match(question.paragraph.context)
  return match.group() if match else question.paragraph.context


def _random_span(question: SquadQuestion) -> str:
  """One to five consecutive words, drawn with the question's id as the seed."""
  context = question.paragraph.context
  words = list(_WORD_PATTERN.finditer(context))
  if not words:
    return ""
  rng = random.Random(question.id)
  first_index = rng.randrange(len(words))
  last_index = min(first_index + rng.randrange(_MAX_RANDOM_WORDS), len(words) - 1)
  return context[words[first_index].start() : words[last_index].end()]


def warn_of_unaligned_answers(
  split: str, questions: Sequence[SquadQuestion], examples: TokenizedExamples, cache_dir: str
) -> None:
  """Prints a warning if the first answers of questions differ from what their labels mark, and lists these answers.

  An answer may begin or end inside a token ("six" in "sixth"). Then the labels mark the whole token. An answer that
  no window contains whole has no labels, so it is not learned. Differences that the scores ignore, such as case and
  punctuation, do not count. The columns of unaligned_SPLIT.tsv are id, answer_start, answer, labelled (the text of the
  labels; empty if there are none) and question.

  Args:
    split: the name of the split.
    questions: all questions of the split.
    examples: their windows.
    cache_dir: where to write the file; "" for no file.
  """
  label_texts = gold_texts(questions, examples)
  rows = [
    [question.id, str(answer.start), answer.text, label_texts.get(question.index, ""), question.text]
    for question in questions
    for answer in question.answers[:1]
    if question.index not in label_texts or not squad.exact_match(answer.text, label_texts[question.index])
  ]
  if not rows:
    return
  note = ""
  if cache_dir:
    path = files.join(cache_dir, f"unaligned_{split}.tsv")
    try:
      files.makedirs(cache_dir)
      write_table(path, ["id", "answer_start", "answer", "labelled", "question"], rows)
      note = f"; all of them are in {path}"
    except (OSError, UserError) as error:
      note = f"; the list of them could not be written ({error})"
  first = ", ".join(f"{row[0]} {row[2]!r}" + (f" as {row[3]!r}" if row[3] else "") for row in rows[:_MAX_NAMED_ANSWERS])
  num_answers = sum(bool(question.answers) for question in questions)
  num_too_long = num_answers - len(label_texts)
  log(
    f"warning: {len(rows)} of {num_answers} answers ({split}) are not whole tokens of a window: "
    f"{len(rows) - num_too_long} are learned as the tokens they touch, {num_too_long} fit into no window and are "
    f"not learned: {first}{', ...' if len(rows) > _MAX_NAMED_ANSWERS else ''}{note}"
  )


def prediction_paths(directory: str, split: str, predictions_file: str = "") -> list[str]:
  """Returns the paths of the files of a split: predictions, nbest_predictions and null_odds.

  Args:
    directory: the directory of the files.
    split: the split or the name of the predicted file, which becomes a suffix of the file names.
    predictions_file: path of the predictions file, if it is not in `directory`. The other files are beside it, and
      their names are its name with the prefix nbest_ or null_odds_.
  """
  if predictions_file:
    return [predictions_file, *(companion_path(predictions_file, prefix) for prefix in ("nbest", "null_odds"))]
  return [files.join(directory, f"{name}_{split}.json") for name in ("predictions", "nbest_predictions", "null_odds")]


def write_predictions(paths: Sequence[str], predictions: SquadPredictions, null_threshold: float) -> None:
  """Writes the files of a split. null_odds.json is written for SQuAD v2.0 only.

  Args:
    paths: see prediction_paths.
    predictions: the answers.
    null_threshold: log odds of being unanswerable above which the answer is empty. Has no effect for v1.1.
  """
  contents = (predictions.answers(null_threshold), predictions.nbest, predictions.null_odds)
  for path, content in zip(paths, contents, strict=False):
    if content is not None:
      files.write_json(path, content)


class _CheckedEntry(msgspec.Struct):
  text: str
  probability: float


def read_predictions(directory: str, split: str) -> SquadPredictions:
  """Reads the files that write_predictions wrote.

  Args:
    directory: the directory of the files.
    split: see prediction_paths.
  Raises:
    UserError: a file does not exist or is damaged.
  """
  _, nbest_path, odds_path = prediction_paths(directory, split)
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
  """Returns a null threshold with which write_predictions writes the answers that the files of a split hold.

  Args:
    directory, split: see read_predictions.
    predictions: what read_predictions returned.
    recorded: the threshold of the run. A later command may have written the answers with another one.
  Returns: the recorded threshold if it gives the answers, else the highest null odds of a question with an answer.
  """
  if predictions.null_odds is None:
    return recorded
  answers = files.read_json(prediction_paths(directory, split)[0], dict[str, str], "predict again")
  if predictions.answers(recorded) == answers:
    return recorded
  answered_odds = [odds for question, odds in predictions.null_odds.items() if answers.get(question)]
  return max(answered_odds, default=min(predictions.null_odds.values(), default=recorded) - 1.0)


def write_evaluation(
  directory: str, questions: Sequence[SquadQuestion], predictions: SquadPredictions, null_threshold: float
) -> None:
  """Writes answers_dev.json, mistakes_dev.tsv and the files that the official scorer reads, for the development set.

  mistakes_dev.tsv has at most 1000 questions without an exact match, the most probable answers first.

  Args:
    directory: where to write.
    questions: the questions of the development set.
    predictions: the predicted answers.
    null_threshold: see write_predictions.
  """
  write_predictions(prediction_paths(directory, DEV), predictions, null_threshold)
  answers = collect_gold_answers(questions, predictions)
  files.write_json(files.join(directory, "answers_dev.json"), answers)
  if predictions.null_odds is not None:
    scores = compute_scores(answers, predictions, null_threshold)
    enough, best = scores["f1"] + squad.THRESHOLD_GAIN, scores["best_f1_thresh"]
    # If it is best to answer nothing, best_f1_thresh is 0, whose F1 may be lower than best_f1.
    if scores["best_f1"] > enough and (f1 := compute_scores(answers, predictions, best)["f1"]) > enough:
      better = f"{f1:.4g} with --null_score_diff_threshold={best}"
      log(f"warning: f1 is {scores['f1']:.4g}, and {better}: give that threshold")
  predicted_texts = predictions.answers(null_threshold)
  mistakes: list[tuple[float, list[str]]] = []  # the probability of the answer, and the row
  for question in questions:
    if question.id not in predicted_texts:
      continue
    predicted_text, correct_texts = predicted_texts[question.id], list(dict.fromkeys(answers[question.id])) or [""]
    if any(squad.exact_match(text, predicted_text) for text in correct_texts):
      continue
    probability = predictions.probability(question.id, predicted_text)
    f1 = max(squad.f1_v2(text, predicted_text) for text in correct_texts)
    row = [question.id, " | ".join(correct_texts), predicted_text, f"{f1:.4f}", f"{probability:.4f}", question.text]
    mistakes.append((probability, row))
  mistakes.sort(key=lambda mistake: -mistake[0])
  header = ["id", "answers", "prediction", "f1", "probability", "question"]
  rows = [row for _, row in mistakes[:MAX_MISTAKES]]
  write_table(files.join(directory, "mistakes_dev.tsv"), header, rows)


def average_predictions(members: Sequence[SquadPredictions]) -> SquadPredictions:
  """Averages the answers of several models (ALBERT, section 4.9).

  Args:
    members: the answers of two or more models to the same questions.
  Returns: the answers of all models with the mean of their probabilities, and the mean null odds. An answer that is not
    among the n best of a model counts with probability 0 there. Answers have no scores.
  Raises:
    UserError: the members answer different questions, or different versions of SQuAD.
  """
  first = members[0]
  for number, member in enumerate(members[1:], start=2):
    differing_ids = sorted(first.nbest.keys() ^ member.nbest.keys())
    if differing_ids or (first.null_odds is None) != (member.null_odds is None):
      difference = f"questions (for example {differing_ids[0]})" if differing_ids else "versions of SQuAD"
      raise UserError(f"members 1 and {number} of the ensemble answer different {difference}: predict the same file")
  nbest: dict[str, list[NbestEntry]] = {}
  for question_id in first.nbest:
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


def average_runs(
  run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
) -> dict[str, float]:
  """Averages the predictions of several runs of one version of SQuAD, and writes the averages as official files.

  With SQuAD v2.0, an answer is empty if the averaged null odds are above the mean of the runs' thresholds.

  Args, Returns, Raises: see albert.tasks.registry.RunAverager.
  """
  recorded = [settings.get("null_score_diff_threshold", 0.0) for settings in settings_of_runs]
  flag_of_split = {DEV: "--do_eval", TEST: "--do_predict"}
  averages: dict[str, tuple[SquadPredictions, float]] = {}  # split -> the average and its null threshold
  for split in splits_of_all_runs(run_dirs, "nbest_predictions_", ".json", flag_of_split):
    members = [read_predictions(directory, split) for directory in run_dirs]
    thresholds = map(read_threshold, run_dirs, itertools.repeat(split), members, recorded)
    averages[split] = average_predictions(members), sum(thresholds) / len(members)
  metrics: dict[str, float] = {}
  for split, (average, null_threshold) in averages.items():
    write_predictions(prediction_paths(output_dir, split), average, null_threshold)
    if split == DEV:
      gold_answers = files.read_json(files.join(run_dirs[0], "answers_dev.json"), GoldAnswers)
      metrics = compute_scores(gold_answers, average, null_threshold)
  return metrics
