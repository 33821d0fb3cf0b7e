"""What runs on SQuAD leave beside the official files, and ensembles of them. No TensorFlow."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from albert.data.examples import TokenizedExamples
from albert.errors import UserError
from albert.io import files
from albert.metrics import squad
from albert.tasks.predictions import check_predictions_exist, write_table
from albert.tasks.squad import predictions as squad_predictions
from albert.tasks.squad.data import Question
from albert.tasks.squad.features import gold_texts
from albert.tasks.squad.predictions import PROBABILITY, SquadPredictions

_DEV = "dev"
_MOST_MISTAKES = 1000
_LONGEST_RANDOM_SPAN = 5
_first_sentence = re.compile(r".*?[.!?](?=\s|$)", re.DOTALL).match
_words = re.compile(r"\S+").finditer

GoldAnswers = dict[str, list[str]]


def gold_answers_of(questions: Sequence[Question], predictions: SquadPredictions) -> GoldAnswers:
  """Question id -> its right answers, for those that are predicted."""
  return {q.id: [answer.text for answer in q.answers] for q in questions if q.id in predictions.nbest}


def compute_scores(answers: GoldAnswers, predictions: SquadPredictions, null_threshold: float) -> dict[str, float]:
  """The official scores, of v2.0 where there are null odds."""
  if predictions.null_odds is None:
    return squad.evaluate_v1(answers, predictions.best_texts())
  return squad.evaluate_v2(answers, predictions.best_texts(), predictions.null_odds, null_threshold)


def baselines(questions: Sequence[Question], *, version_2: bool) -> dict[str, float]:
  """Scores without a model: of v1.1 the first sentence and a random span, of v2.0 answering nothing."""
  answers = {question.id: [answer.text for answer in question.answers] for question in questions}
  guesses = {"random_span": _random_span, "first_sentence": _first_sentence_of}
  results: dict[str, float] = {}
  if version_2:
    nothing = squad.evaluate_v2(answers, dict.fromkeys(answers, ""))
    return {f"no_answers_{name}": nothing[name] for name in ("exact", "f1")}
  for guess, function in guesses.items():
    found = squad.evaluate_v1(answers, {question.id: function(question) for question in questions})
    results |= {f"{guess}_{name}": found[name] for name in ("exact", "f1")}
  return results


def _first_sentence_of(question: Question) -> str:
  found = _first_sentence(question.paragraph.context)
  return found.group() if found else question.paragraph.context


def _random_span(question: Question) -> str:
  """One to five words, the same for the same question."""
  context = question.paragraph.context
  words = [word.span() for word in _words(context)]
  if not words:
    return ""
  rng = random.Random(question.id)
  first = rng.randrange(len(words))
  last = min(first + rng.randrange(_LONGEST_RANDOM_SPAN), len(words) - 1)
  return context[words[first][0] : words[last][1]]


def unaligned(questions: Sequence[Question], examples: TokenizedExamples) -> list[tuple[Question, str | None]]:
  """Questions whose answer the labels miss, with the text that they stand for, or None: no window has it whole.

  Such an answer begins or ends inside a token ("six" of "sixth"), and the labels take the whole token; or it is
  longer than a window, and is not learned. What the scores hold for the same is not listed.
  """
  golds = gold_texts(questions, examples)
  found: list[tuple[Question, str | None]] = []
  for question in questions:
    text = golds.get(question.index)
    if question.answers and (text is None or not squad.exact_match(question.answers[0].text, text)):
      found.append((question, text))
  return found


def write_unaligned(path: str, found: Sequence[tuple[Question, str | None]]) -> None:
  """Writes a tab-separated file: id, answer_start, answer, labelled (empty: longer than a window), question."""
  rows = [[q.id, str(q.answers[0].start), q.answers[0].text, text or "", q.text] for q, text in found]
  write_table(path, ["id", "answer_start", "answer", "labelled", "question"], rows)


def write_evaluation(
  directory: str,
  questions: Sequence[Question],
  predictions: SquadPredictions,
  null_threshold: float,
) -> list[str]:
  """Writes the official files of the development set, its right answers, and mistakes_dev.tsv. Returns their paths.

  The mistakes are at most 1000 questions without an exact match, the most confident first.
  """
  paths = squad_predictions.write(directory, _DEV, predictions, null_threshold)
  answers = gold_answers_of(questions, predictions)
  answers_path = files.join(directory, "answers_dev.json")
  files.write_json(answers_path, answers)
  rows = []
  final = predictions.answers(null_threshold)
  for question in questions:
    if question.id not in final:
      continue
    text, right = final[question.id], answers[question.id] or [""]
    if not max(squad.exact_match(answer, text) for answer in right):
      entries = predictions.nbest[question.id]
      probability = entries[0][PROBABILITY] if entries else 0.0
      f1 = max(squad.f1_v2(answer, text) for answer in right)
      rows.append(
        (probability, [question.id, " | ".join(right), text, f"{f1:.4f}", f"{probability:.4f}", question.text])
      )
  rows.sort(key=lambda row: -row[0])
  mistakes = files.join(directory, "mistakes_dev.tsv")
  header = ["id", "answers", "prediction", "f1", "probability", "question"]
  write_table(mistakes, header, [row for _, row in rows[:_MOST_MISTAKES]])
  return [*paths, answers_path, mistakes]


def average_runs(run_dirs: Sequence[str], task_settings: Mapping[str, Any], output_dir: str) -> dict[str, float]:
  """Averages the predictions of several runs of one version of SQuAD (see albert.tasks.registry.RunAverager).

  Writes the official files. With SQuAD v2.0, an answer is empty where the averaged null odds are above 0.
  """
  del task_settings
  for split, flag in ((_DEV, "--do_eval"), ("", "--do_predict")):
    name = os.path.basename(squad_predictions.paths("", split)["nbest_predictions"])
    check_predictions_exist(run_dirs, name, flag)
  splits = [split for split in (_DEV, "") if _has_predictions(run_dirs[0], split)]
  if not splits:
    raise UserError(f"--inputs: {run_dirs[0]} has no predictions: run it with --do_eval or --do_predict")
  averages = {
    split: squad_predictions.average_predictions([squad_predictions.read(directory, split) for directory in run_dirs])
    for split in splits
  }
  metrics: dict[str, float] = {}
  for split, average in averages.items():
    squad_predictions.write(output_dir, split, average, null_threshold=0.0)
    if split == _DEV:
      gold_answers = files.read_json(files.join(run_dirs[0], "answers_dev.json"), GoldAnswers)
      metrics = compute_scores(gold_answers, average, null_threshold=0.0)
  return metrics


def _has_predictions(run_dir: str, split: str) -> bool:
  return files.exists(squad_predictions.paths(run_dir, split)["nbest_predictions"])
