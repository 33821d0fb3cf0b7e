"""SQuAD's baselines, mistakes, unaligned answers, files and averages, compared with values computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.metrics import squad
from albert.tasks.squad import results
from albert.tasks.squad.features import SquadFeaturizer
from albert.tasks.squad.files import SquadAnswer, SquadParagraph, SquadQuestion
from albert.tasks.squad.nbest import SquadPredictions
from albert.tokenization.vocabulary import TokenizerConfig

CONTEXT = "The captain sold St. Mary in 1906! Nobody remembered why."
PARAGRAPH = SquadParagraph("t", CONTEXT)


def make_questions(**texts: list[str]) -> list[SquadQuestion]:
  """Makes a question for each id, with these answers. Without an answer it is unanswerable."""
  return [
    SquadQuestion(name, index, f"{name}?", PARAGRAPH, tuple(SquadAnswer(text, CONTEXT.index(text)) for text in answers))
    for index, (name, answers) in enumerate(texts.items())
  ]


def test_the_baselines_of_v1_answer_with_the_first_sentence_or_a_random_span() -> None:
  questions = make_questions(a=["The captain sold St."], b=["1906"], c=["why"])
  scores = results.baselines(questions, version_2=False)
  # The first sentence ends at the first full stop before a space: "The captain sold St." It answers one of 3 questions.
  assert scores["first_sentence_exact"] == pytest.approx(100 / 3)
  assert scores["first_sentence_f1"] == pytest.approx(100 / 3)
  spans = [results._random_span(question) for question in questions]
  assert len(set(spans)) > 1  # the questions are about the same paragraph, but get different spans
  for span in spans:
    assert span in CONTEXT
    assert 1 <= len(span.split()) <= 5
  assert scores == results.baselines(questions, version_2=False)
  answers = {question.id: [question.answers[0].text] for question in questions}
  span_of_question = {question.id: span for question, span in zip(questions, spans, strict=True)}
  expected = squad.evaluate_v1(answers, span_of_question)
  assert (scores["random_span_exact"], scores["random_span_f1"]) == (expected["exact"], expected["f1"])


def test_baselines_of_an_empty_paragraph_are_zero() -> None:
  questions = [SquadQuestion("q", 0, "?", SquadParagraph("t", " "), (SquadAnswer("x", 0),))]
  assert set(results.baselines(questions, version_2=False).values()) == {0.0}


def test_the_baseline_of_v2_gives_no_answers() -> None:
  questions = make_questions(a=["1906"], b=[], c=[], d=["why"])
  # Two of the four questions are unanswerable.
  assert results.baselines(questions, version_2=True) == {"no_answers_exact": 50.0, "no_answers_f1": 50.0}


def test_answers_that_do_not_match_their_labels_are_listed(
  spm_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  questions = make_questions(whole=["in 1906"], punctuation=["1906!"], cut=["apta"], none=[], long=[CONTEXT])
  featurizer = SquadFeaturizer(TokenizerConfig(spm_model), max_seq_length=20, max_query_length=4, doc_stride=5)
  results.warn_of_unaligned_answers("dev", questions, featurizer(questions), str(tmp_path))
  # A label consists of whole tokens, so that of "apta" is "captain". The long answer fits into no window.
  header, *rows = [line.split("\t") for line in (tmp_path / "unaligned_dev.tsv").read_text().splitlines()]
  assert header == ["id", "answer_start", "answer", "labelled", "question"]
  assert rows == [["cut", "5", "apta", "captain", "cut?"], ["long", "0", CONTEXT, "", "long?"]]
  assert "2 of 4 answers (dev) are not whole tokens of a window: 1 are learned as" in capsys.readouterr().err


def test_official_files_and_mistakes_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  questions = make_questions(a=["1906", "in 1906"], b=[], c=["why", "why"], d=["sold"])
  nbest = {
    "a": [{"text": "in 1906!", "probability": 0.5}],
    "b": [{"text": "captain", "probability": 0.9}],
    "c": [{"text": "Nobody\tremembered\nwhy", "probability": 0.7}],
    "d": [],
  }
  null_odds = {"a": -1.0, "b": -3.0, "c": -0.5, "d": -2.0}
  predictions = SquadPredictions(nbest, null_odds)
  all_questions = [*questions, *make_questions(other=["why"])]  # the last one is not predicted
  results.write_evaluation(str(tmp_path), all_questions, predictions, 0.0)
  assert {path.name for path in tmp_path.iterdir()} == {
    "predictions_dev.json",
    "nbest_predictions_dev.json",
    "null_odds_dev.json",
    "answers_dev.json",
    "mistakes_dev.tsv",
  }
  answers = json.loads((tmp_path / "answers_dev.json").read_text())
  assert answers == {"a": ["1906", "in 1906"], "b": [], "c": ["why", "why"], "d": ["sold"]}
  assert results.compute_scores(answers, predictions, 0.0)["exact"] == 25.0  # of the four answers, a is right
  # Only the null odds of b are below -2.5. So only b gets an answer. All are wrong, since only b is unanswerable.
  assert results.compute_scores(answers, predictions, -2.5)["exact"] == 0.0
  of_v1, answers_of_v1 = SquadPredictions({name: nbest[name] for name in "ac"}), {name: answers[name] for name in "ac"}
  assert results.compute_scores(answers_of_v1, of_v1, 0.0) == squad.evaluate_v1(answers_of_v1, of_v1.answers())
  rows = [line.split("\t") for line in (tmp_path / "mistakes_dev.tsv").read_text().splitlines()]
  assert rows == [
    ["id", "answers", "prediction", "f1", "probability", "question"],
    ["b", "", "captain", "0.0000", "0.9000", "b?"],
    ["c", "why", "Nobody remembered why", "0.5000", "0.7000", "c?"],
    ["d", "sold", "", "0.0000", "0.1192", "d?"],  # 1 / (1 + e^2)
  ]
  results.write_evaluation(str(tmp_path), all_questions, predictions, -2.5)
  assert "f1 is 0, and 37.5 with --null_score_diff_threshold=-0.5: give that" in capsys.readouterr().err
  only_empty = SquadPredictions({"b": nbest["b"]}, {"b": -3.0})  # best is to answer nothing, for which 0 is too high
  results.write_evaluation(str(tmp_path), questions[1:2], only_empty, 0.0)
  assert not capsys.readouterr().err


@pytest.mark.parametrize(
  ("recorded", "written"), [(-2.5, -2.5), (0.0, -2.5), (0.0, -9.0), (-9.0, 0.0)], ids=lambda value: f"{value:g}"
)
def test_the_average_of_a_run_with_itself_is_that_run(tmp_path: Path, recorded: float, written: float) -> None:
  questions = make_questions(a=["1906"], b=[], c=["why"], d=[])
  nbest = {name: [{"text": "1906", "probability": 1.0}] for name in "abc"} | {"d": []}
  predictions = SquadPredictions(nbest, {"a": -3.0, "b": -2.0, "c": -1.0, "d": -4.0})
  run_dirs = [str(tmp_path / name) for name in ("one", "copy")]
  for directory in run_dirs:
    Path(directory).mkdir()
    results.write_evaluation(directory, questions, predictions, written)
  metrics = results.average_runs(run_dirs, [{"null_score_diff_threshold": recorded}] * 2, str(tmp_path))
  answers = json.loads((tmp_path / "one" / "answers_dev.json").read_text())
  assert metrics == results.compute_scores(answers, predictions, written)
  assert json.loads((tmp_path / "predictions_dev.json").read_text()) == predictions.answers(written)


def test_the_threshold_of_an_average_is_the_mean_of_the_thresholds_of_the_runs(tmp_path: Path) -> None:
  run_dirs, thresholds = [str(tmp_path / "one"), str(tmp_path / "two")], [-1.0, 3.0]
  for directory, odds, threshold in zip(run_dirs, (0.5, 1.2), thresholds, strict=True):
    predictions = SquadPredictions({"a": [{"text": "1906", "probability": 1.0}]}, {"a": odds})
    Path(directory).mkdir()
    results.write_evaluation(directory, make_questions(a=["1906"]), predictions, threshold)
  settings = [{"null_score_diff_threshold": threshold} for threshold in thresholds]
  assert results.average_runs(run_dirs, settings, str(tmp_path))["exact"] == 100.0  # 0.85 is below 1


def make_entry(text: str, probability: float) -> dict[str, object]:
  return {"text": text, "probability": probability}


def test_probabilities_and_null_odds_are_averaged() -> None:
  first_predictions = SquadPredictions(
    {"a": [make_entry("x", 0.6), make_entry("y", 0.4)], "b": []}, {"a": 1.0, "b": -2.0}
  )
  second_predictions = SquadPredictions(
    {"a": [make_entry("y", 0.7), make_entry("z", 0.3)], "b": [make_entry("w", 1.0)]}, {"a": -2.0, "b": 4.0}
  )
  average = results.average_predictions([first_predictions, second_predictions])
  assert [(entry["text"], entry["probability"]) for entry in average.nbest["a"]] == [
    ("y", 0.55),
    ("x", 0.3),
    ("z", 0.15),
  ]
  assert average.null_odds == {"a": -0.5, "b": 1.0}
  assert average.answers() == {"a": "y", "b": ""}
  assert average.answers(1.0) == {"a": "y", "b": "w"}
  assert results.average_predictions([first_predictions]).answers() == first_predictions.answers()


def test_different_questions_or_versions_are_not_averaged() -> None:
  predictions = SquadPredictions({"a": [], "b": []})
  with pytest.raises(UserError, match=r"members 1 and 2 of the ensemble answer different questions \(for example b\)"):
    results.average_predictions([predictions, SquadPredictions({"a": []})])
  message = "members 1 and 2 of the ensemble answer different versions of SQuAD: predict the same"
  with pytest.raises(UserError, match=message):
    results.average_predictions([predictions, SquadPredictions({"a": [], "b": []}, {"a": 0.0, "b": 0.0})])


def test_the_official_files_are_written_and_read(tmp_path: Path) -> None:
  predictions = SquadPredictions({"a": [make_entry("é", 1.0)], "b": [make_entry("w", 1.0)]}, {"a": -1.0, "b": 0.5})
  results.write_predictions(results.prediction_paths(str(tmp_path), "new"), predictions, 0.0)
  expected_contents = {
    "predictions_new.json": {"a": "é", "b": ""},
    "nbest_predictions_new.json": predictions.nbest,
    "null_odds_new.json": {"a": -1.0, "b": 0.5},
  }
  assert sorted(path.name for path in tmp_path.iterdir()) == sorted(expected_contents)
  for name, content in expected_contents.items():
    assert json.loads((tmp_path / name).read_text()) == content
  assert results.read_predictions(str(tmp_path), "new") == predictions
  # Predictions for v1.1 have no null odds.
  v1_predictions = SquadPredictions({"a": []})
  results.write_predictions(results.prediction_paths(str(tmp_path), "dev"), v1_predictions, 0.0)
  assert {path.name for path in tmp_path.glob("*_dev.json")} == {"predictions_dev.json", "nbest_predictions_dev.json"}
  assert results.read_predictions(str(tmp_path), "dev") == v1_predictions
  (tmp_path / "nbest_predictions_dev.json").write_text('{"a": [{"text": "x"}]}')
  with pytest.raises(UserError, match=r"nbest_predictions_dev\.json: .* lacks 'probability': predict again"):
    results.read_predictions(str(tmp_path), "dev")
