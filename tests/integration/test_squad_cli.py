"""Tests of run_squad.py from its flags: training, prediction, and unaligned answers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from albert.export.checkpoint import open_checkpoint, select_form
from albert.metrics import squad
from tests.convert.files_of_weights import huggingface_tensors, without_pooler, write_huggingface
from tests.golden.make_tiny_albert import random_weights
from tests.integration.conftest import script_fixture
from tests.run_outputs import read_checkpoint, read_json, read_json_lines
from tests.script_flags import from_scratch_flags, run_script
from tests.synthetic import TINY_MODEL
from tests.tasks.squad.question_files import write_made_up_squad, write_squad

_defined_flags = script_fixture("squad")

STEPS = 4
V2 = "--version_2_with_negative"
ONE_STEP = ["--num_train_steps=1", "--num_warmup_steps=0"]


@pytest.fixture(scope="module")
def question_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  """Paths of three files: train1 and train2 have 20 questions of v1.1 and v2.0, dev2 has 9 others of v2.0."""
  directory = tmp_path_factory.mktemp("squad")
  return {
    f"{name}{version}": write_made_up_squad(
      directory / f"{name}-v{version}.json", number, version_2=version == 2, seed=number + version
    )
    for name, version, number in (("train", 1, 20), ("train", 2, 20), ("dev", 2, 9))
  }


@pytest.fixture(scope="module")
def training_flags(spm_model: str) -> list[str]:
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
  serving_model = form.model_class(checkpoint, form)
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
  question_files: dict[str, str], training_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  output_dir, predict_flag = tmp_path / "run", f"--predict_file={question_files['dev2']}"
  flags = [V2, f"--train_file={question_files['train2']}", predict_flag, "--do_eval", "--do_predict"]
  evaluation = ["--eval_every_steps=2", "--eval_batch_size=64"]
  run(f"--output_dir={output_dir}", *training_flags, *flags, *evaluation)
  num_examples_in_log = re.search(r"([\d,]+) examples of squad \(train\)", capsys.readouterr().err)
  assert num_examples_in_log
  assert int(num_examples_in_log[1]) > 100  # the windows, not the 20 questions

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
    "warning: 2 of 11 answers (train) are not whole tokens of a window: 1 are learned as the tokens they touch, 1 fit "
    f"into no window and are not learned: cut 'captai' as 'captain', long {context!r}; all of them are in {list_file}"
  ) in capsys.readouterr().err
  assert [line.partition("\t")[0] for line in list_file.read_text().splitlines()] == ["id", "cut", "long"]
