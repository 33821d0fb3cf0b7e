"""Tests of run_squad.py from its flags: both versions, prediction, averages of runs, and bad input."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from albert.ensemble import ensemble_runs
from albert.errors import UserError
from albert.export.checkpoint import open_checkpoint, select_form
from albert.metrics import squad
from tests.convert.files_of_weights import huggingface_tensors, without_pooler, write_huggingface
from tests.golden.make_tiny_albert import random_weights
from tests.run_outputs import read_checkpoint, read_json, read_json_lines
from tests.script_flags import from_scratch_flags, run_script, script_flags
from tests.synthetic import TINY_MODEL
from tests.tasks.squad.question_files import write_made_up_squad, write_squad

STEPS = 4
V2 = "--version_2_with_negative"
ONE_STEP = ["--num_train_steps=1", "--num_warmup_steps=0"]


@pytest.fixture(scope="module", autouse=True)
def _defined_flags(all_steps_eager: None) -> Iterator[None]:
  with script_flags("squad"):
    yield


@pytest.fixture(scope="module")
def question_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  """Paths of five files. train1 and train2 have 20 questions of v1.1 and v2.0, dev1 and dev2 have 9 others.

  new has the questions of dev1 under other ids and without their answers.
  """
  directory = tmp_path_factory.mktemp("squad")
  paths = {}
  for version in (1, 2):
    for name, num_questions in (("train", 20), ("dev", 9)):
      path, seed = directory / f"{name}-v{version}.json", num_questions + version
      paths[f"{name}{version}"] = write_made_up_squad(path, num_questions, version_2=version == 2, seed=seed)
  content = read_json(Path(paths["dev1"]))
  for article in content["data"]:
    for paragraph in article["paragraphs"]:
      paragraph["qas"] = [{"id": f"new-{qa['id']}", "question": qa["question"]} for qa in paragraph["qas"]]
  (directory / "new.json").write_text(json.dumps(content))
  return paths | {"new": str(directory / "new.json")}


@pytest.fixture(scope="module")
def training_flags(spm_model: str) -> list[str]:
  """The flags of a short run of a small model from random weights."""
  return [
    *from_scratch_flags(spm_model),
    "--max_position_embeddings=64",
    "--max_seq_length=48",
    "--max_query_length=12",
    "--doc_stride=16",
    "--train_batch_size=8",
    "--eval_batch_size=16",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=1",
    "--log_every_steps=2",
    "--learning_rate=0.002",
  ]


def run(*argv: str) -> None:
  run_script("squad", *argv)


class FileContent(NamedTuple):
  """The answers and the paragraph of each question of a file, by the id of the question."""

  answers: dict[str, list[str]]
  contexts: dict[str, str]


def read_squad(path: str) -> FileContent:
  content = FileContent({}, {})
  for article in read_json(Path(path))["data"]:
    for paragraph in article["paragraphs"]:
      for qa in paragraph["qas"]:
        content.contexts[qa["id"]] = paragraph["context"]
        content.answers[qa["id"]] = [answer["text"] for answer in qa.get("answers", [])]
  return content


def assert_written_predictions_of_v1(output_dir: Path, predict_file: str) -> None:
  """Checks that predictions_new.json has the best of nbest_predictions_new.json, which has scores and probabilities."""
  predictions = read_json(output_dir / "predictions_new.json")
  assert list(predictions) == list(read_squad(predict_file).answers)
  for question, entries in read_json(output_dir / "nbest_predictions_new.json").items():
    assert entries[0]["text"] == predictions[question]
    assert set(entries[0]) == {"text", "probability", "start_logit", "end_logit"}
    assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
    scores = [entry["start_logit"] + entry["end_logit"] for entry in entries]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.thorough
def test_v1_training_evaluation_and_prediction(
  question_files: dict[str, str], training_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  output_dir, predict_flag = tmp_path / "run", f"--predict_file={question_files['new']}"
  files = [f"--train_file={question_files['train1']}", f"--eval_file={question_files['dev1']}", predict_flag]
  run(f"--output_dir={output_dir}", *files, *training_flags, "--do_eval", "--do_predict")
  assert {path.name for path in output_dir.iterdir()} > {
    "answers_dev.json",
    "config.json",
    "eval_results.json",
    "features",
    "mistakes_dev.tsv",
    "nbest_predictions_new.json",
    "nbest_predictions_dev.json",
    "predictions_new.json",
    "predictions_dev.json",
    "spiece.model",
  }
  assert not (output_dir / "null_odds_new.json").exists()
  config = read_json(output_dir / "config.json")
  assert (config["optimizer"]["optimizer"], config["optimizer"]["weight_decay"]) == ("adamw", 0.01)  # of the recipe
  num_examples_in_log = re.search(r"([\d,]+) examples of squad \(train\)", capsys.readouterr().err)
  assert num_examples_in_log
  assert int(num_examples_in_log[1]) > 100  # the windows, not the 20 questions

  dev_set = read_squad(question_files["dev1"])
  dev_predictions = read_json(output_dir / "predictions_dev.json")
  results = read_json(output_dir / "eval_results.json")
  expected_scores = squad.evaluate_v1(dev_set.answers, dev_predictions)
  assert {name: results[name] for name in ("exact", "f1", "total")} == expected_scores
  assert results["loss"] > 0
  assert 0 <= results["random_span_f1"] <= results["first_sentence_f1"] < 100
  for question, text in dev_predictions.items():
    assert text
    assert text in dev_set.contexts[question]

  # The questions of `new` are those of the dev set, so they get the same answers.
  predictions = read_json(output_dir / "predictions_new.json")
  assert predictions == {f"new-{question}": text for question, text in dev_predictions.items()}
  assert_written_predictions_of_v1(output_dir, question_files["new"])

  # Prediction needs only the run and the file.
  shutil.rmtree(output_dir / "features")
  (output_dir / "predictions_new.json").unlink()
  run("--do_predict", f"--output_dir={output_dir}", predict_flag)
  assert read_json(output_dir / "predictions_new.json") == predictions


@pytest.mark.thorough
@pytest.mark.parametrize("version", [1, 2])
def test_weights_without_a_pooler_are_fine_tuned_and_served(
  question_files: dict[str, str], training_flags: list[str], spm_model: str, tmp_path: Path, version: int
) -> None:
  """SQuAD v1 starts from weights with a head of SQuAD v1, which is reused, and v2 from weights of a classifier."""
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  model = dataclasses.replace(TINY_MODEL, vocab_size=vocab_size, max_position_embeddings=64)
  initial = without_pooler(random_weights(model, 1, with_heads=("squad" if version == 1 else "classifier",)))
  init_checkpoint = write_huggingface(tmp_path / "hf", model, huggingface_tensors(initial))
  flags = [flag for flag in training_flags if flag != "--from_scratch"]
  flags += [f"--init_checkpoint={init_checkpoint}", "--num_train_steps=2"]
  flags += [f"--train_file={question_files[f'train{version}']}", *([V2] if version == 2 else [])]
  run(f"--output_dir={tmp_path / 'run'}", *flags)

  trained = read_checkpoint(tmp_path / "run")
  assert not trained["bert/pooler/dense/kernel"].any()
  assert not trained["bert/pooler/dense/bias"].any()
  trained_names = ["bert/embeddings/word_embeddings", *(["cls/squad/output_weights"] if version == 1 else [])]
  for name in trained_names:
    assert 0 < np.abs(trained[name] - initial[name]).max() < 0.01

  checkpoint = open_checkpoint(str(tmp_path / "run"))
  form = select_form(checkpoint, "", {})
  assert form.name == f"squad_v{version}"
  serving_model = form.model_class(checkpoint, form.settings)
  context = "Nobody sold the letter."
  answers = serving_model.answer_texts(question=tf.constant(["who?"]), context=tf.constant([context]))
  assert answers["best_text"][0].numpy().decode() in context


def read_best_texts(path: Path) -> dict[str, str]:
  """Returns the best text of each question of a file of n best answers; "" if there is none."""
  return {question: entries[0]["text"] if entries else "" for question, entries in read_json(path).items()}


def apply_threshold(best_texts: dict[str, str], null_odds: dict[str, float], threshold: float) -> dict[str, str]:
  """Returns the answers. A question is unanswerable if its odds are above the threshold."""
  return {question: "" if null_odds[question] > threshold else text for question, text in best_texts.items()}


def test_v2_training_evaluation_and_prediction(
  question_files: dict[str, str], training_flags: list[str], tmp_path: Path
) -> None:
  output_dir, predict_flag = tmp_path / "run", f"--predict_file={question_files['dev2']}"
  flags = [V2, f"--train_file={question_files['train2']}", predict_flag, "--do_eval", "--do_predict"]
  evaluation = ["--eval_every_steps=2", "--eval_batch_size=64"]
  run(f"--output_dir={output_dir}", *training_flags, *flags, *evaluation)

  dev_set = read_squad(question_files["dev2"])
  null_odds = read_json(output_dir / "null_odds_dev.json")
  best_texts = read_best_texts(output_dir / "nbest_predictions_dev.json")
  predictions = read_json(output_dir / "predictions_dev.json")
  assert list(predictions) == list(dev_set.answers)
  assert predictions == apply_threshold(best_texts, null_odds, 0.0)
  for question, entries in read_json(output_dir / "nbest_predictions_dev.json").items():
    for entry in entries:
      assert set(entry) == {"text", "probability", "start_log_prob", "end_log_prob"}
      assert entry["text"] in dev_set.contexts[question]

  expected = squad.evaluate_v2(dev_set.answers, best_texts, null_odds, 0.0)
  results = read_json(output_dir / "eval_results.json")
  assert {name: results[name] for name in expected} == expected
  assert expected["NoAns_total"] == 3
  assert results["loss"] == pytest.approx(results["span_loss"] + results["answerability_loss"] / 2)
  # The baseline without answers is right for the 3 unanswerable ones of 9 questions.
  assert results["no_answers_f1"] == results["no_answers_exact"] == pytest.approx(100 / 3)
  assert [line["step"] for line in read_json_lines(output_dir / "eval_metrics.jsonl")] == [2, 4]

  # Another threshold gives other predictions from the same odds.
  assert read_json(output_dir / "predictions_dev-v2.json") == predictions
  median_odds = sorted(null_odds.values())[4]  # of 9 questions
  run("--do_predict", f"--output_dir={output_dir}", predict_flag, f"--null_score_diff_threshold={median_odds}")
  assert read_json(output_dir / "predictions_dev-v2.json") == apply_threshold(best_texts, null_odds, median_odds)


@pytest.mark.slow
@pytest.mark.parametrize(
  "further_flags",
  [
    ["--pad_to_max_length"],
    ["--gradient_accumulation_steps=2", "--optimizer=lamb"],
    [V2, "--precision=bfloat16", "--hidden_dropout_prob=0.1", "--gradient_accumulation_steps=4"],
    [V2, "--start_n_top=60", "--end_n_top=60", "--pad_to_max_length"],
  ],
)
def test_every_kind_of_run_trains_and_evaluates(
  question_files: dict[str, str], training_flags: list[str], tmp_path: Path, further_flags: list[str]
) -> None:
  version = 2 if V2 in further_flags else 1
  files = [f"--train_file={question_files[f'train{version}']}", f"--eval_file={question_files[f'dev{version}']}"]
  short = ["--num_train_steps=2", "--max_eval_steps=1"]
  run(f"--output_dir={tmp_path}", *training_flags, *files, "--do_eval", *short, *further_flags)
  results = read_json(tmp_path / "eval_results.json")
  assert all(math.isfinite(number) for number in results.values())
  assert 0 < results["total"] <= 9


@pytest.mark.slow
def test_two_runs_are_averaged(question_files: dict[str, str], training_flags: list[str], tmp_path: Path) -> None:
  run_dirs = [tmp_path / "run-1", tmp_path / "run-2"]
  flags = [V2, f"--train_file={question_files['train2']}", f"--eval_file={question_files['dev2']}"]
  flags += [f"--predict_file={question_files['new']}", *training_flags, "--do_eval", "--do_predict"]
  for seed, output_dir in enumerate(run_dirs):
    run(f"--output_dir={output_dir}", f"--seed={seed}", *flags)
  shutil.rmtree(run_dirs[1] / "checkpoints")  # only the predictions are needed
  average_dir = tmp_path / "average"
  metrics = ensemble_runs([str(output_dir) for output_dir in run_dirs], str(average_dir))

  odds_1, odds_2 = (read_json(output_dir / "null_odds_dev.json") for output_dir in run_dirs)
  mean_odds = {question: (odds_1[question] + odds_2[question]) / 2 for question in odds_1}
  assert read_json(average_dir / "null_odds_dev.json") == pytest.approx(mean_odds)
  best_texts = read_best_texts(average_dir / "nbest_predictions_dev.json")
  answers = read_squad(question_files["dev2"]).answers
  assert metrics == squad.evaluate_v2(answers, best_texts, mean_odds, 0.0)
  assert read_json(average_dir / "eval_results.json") == {"runs": 2, **metrics}
  assert len(read_json(average_dir / "predictions_new.json")) == 9

  (run_dirs[1] / "nbest_predictions_dev.json").unlink()
  with pytest.raises(UserError, match=r"run-2 has no nbest_predictions_dev\.json, which .*run-1 has: its checkpoints"):
    ensemble_runs([str(output_dir) for output_dir in run_dirs], str(average_dir))


def test_answers_that_do_not_match_their_labels_are_counted_and_listed(
  training_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  context = "The captain remembered the garden behind the house in the year 1906, although it was raining."
  qas = [
    {"id": "cut", "question": "who?", "answers": [{"text": "captai", "answer_start": 4}]},
    {"id": "long", "question": "what?", "answers": [{"text": context, "answer_start": 0}]},
    *({"id": f"whole{i}", "question": "when?", "answers": [{"text": "1906", "answer_start": 63}]} for i in range(9)),
  ]
  path = write_squad(tmp_path / "train.json", [(context, qas)])
  flags = [f"--train_file={path}", f"--output_dir={tmp_path / 'run'}", *ONE_STEP]
  run(*training_flags, *flags, "--max_seq_length=32")
  list_file = tmp_path / "run" / "features" / "unaligned_train.tsv"
  assert (
    "warning: 2 of 11 answers (train) are not whole tokens of a window: 1 are learned as the tokens they touch, 1 are "
    f"longer than a window and not learned: cut 'captai' as 'captain', long {context!r}; all of them are in {list_file}"
  ) in capsys.readouterr().err
  rows = [line.split("\t") for line in list_file.read_text().splitlines()]
  assert rows == [
    ["id", "answer_start", "answer", "labelled", "question"],
    ["cut", "4", "captai", "captain", "who?"],
    ["long", "0", context, "", "what?"],
  ]


# Name of the case -> flags, and a part of the error. {train1} in the flags stands for the path of this question file.
BAD_INPUT = {
  "no answers": (["--train_file={new}"], r"new\.json: .*question new-q0 lacks 'answers'"),
  "no room": (["--train_file={train1}", "--max_query_length=45"], "max_seq_length=48 leaves no room for a paragraph"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_an_error_of_one_line(
  question_files: dict[str, str], training_flags: list[str], tmp_path: Path, case: str
) -> None:
  flags, message = BAD_INPUT[case]
  flags_with_paths = [flag.format(**question_files) for flag in flags]
  with pytest.raises(UserError, match=message) as caught:
    run(*training_flags, *ONE_STEP, f"--output_dir={tmp_path / 'run'}", *flags_with_paths)
  assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_checkpoint_of_the_other_version_is_refused(
  question_files: dict[str, str], training_flags: list[str], tmp_path: Path
) -> None:
  run(*training_flags, *ONE_STEP, f"--output_dir={tmp_path}", f"--train_file={question_files['train1']}")
  with pytest.raises(UserError, match=r"--version_2_with_negative: .* has version_2_with_negative = False"):
    run("--do_predict", V2, f"--output_dir={tmp_path}", f"--predict_file={question_files['new']}")
