"""run_squad.py end to end: both versions, prediction, averages of runs, and bad input."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from albert.ensemble import ensemble_runs
from albert.errors import UserError
from albert.export.checkpoint import open_checkpoint
from albert.export.selection import select_form
from albert.metrics import squad
from albert.weights.checkpoints import CheckpointManager
from tests.convert.files_of_weights import huggingface_tensors, without_pooler, write_huggingface
from tests.golden.make_tiny_albert import random_weights
from tests.script_flags import run_script, script_flags
from tests.synthetic import TINY_MODEL, TINY_MODEL_FLAGS
from tests.tasks.squad.question_files import made_up_squad, squad_file

ROOT = Path(__file__).parents[2]
STEPS = 4
V2 = "--version_2_with_negative"


@pytest.fixture(scope="module", autouse=True)
def _flags(all_steps_eager: None) -> Iterator[None]:
  with script_flags("squad"):
    yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  """Files of 20 questions to train on and 9 others, of both versions, and one without answers."""
  directory = tmp_path_factory.mktemp("squad")
  made = {}
  for version in (1, 2):
    for name, size in (("train", 20), ("dev", 9)):
      path = directory / f"{name}-v{version}.json"
      made[f"{name}{version}"] = made_up_squad(path, size, version_2=version == 2, seed=size + version)
  values = json.loads(Path(made["dev1"]).read_text())
  for article in values["data"]:
    for paragraph in article["paragraphs"]:
      paragraph["qas"] = [{"id": f"new-{qa['id']}", "question": qa["question"]} for qa in paragraph["qas"]]
  (directory / "new.json").write_text(json.dumps(values))
  return made | {"new": str(directory / "new.json")}


@pytest.fixture(scope="module")
def common(spm_model: str) -> list[str]:
  """The flags of a short run of a small model from random weights."""
  size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  return [
    "--do_train",
    "--from_scratch",
    f"--spm_model_file={spm_model}",
    *TINY_MODEL_FLAGS,
    f"--vocab_size={size}",
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


def read(path: Path) -> dict[str, Any]:
  values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
  return values


def gold(path: str) -> tuple[dict[str, list[str]], dict[str, str]]:
  """Returns question id -> answers, and question id -> paragraph."""
  answers, contexts = {}, {}
  for article in read(Path(path))["data"]:
    for paragraph in article["paragraphs"]:
      for qa in paragraph["qas"]:
        contexts[qa["id"]] = paragraph["context"]
        answers[qa["id"]] = [answer["text"] for answer in qa.get("answers", [])]
  return answers, contexts


def weights(output_dir: Path) -> dict[str, np.ndarray]:
  newest, _ = CheckpointManager(str(output_dir / "checkpoints"), keep=1, model_config=TINY_MODEL).latest()
  assert newest is not None
  reader = tf.train.load_checkpoint(newest.prefix)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.thorough
def test_v1_training_evaluation_and_prediction(
  data: dict[str, str], common: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  output = tmp_path / "run"
  files = [f"--train_file={data['train1']}", f"--eval_file={data['dev1']}", f"--predict_file={data['new']}"]
  run(f"--output_dir={output}", *files, *common, "--do_eval", "--do_predict")
  assert {path.name for path in output.iterdir()} > {
    "answers_dev.json",
    "config.json",
    "eval_results.json",
    "features",
    "mistakes_dev.tsv",
    "nbest_predictions.json",
    "nbest_predictions_dev.json",
    "predictions.json",
    "predictions_dev.json",
    "spiece.model",
  }
  assert not (output / "null_odds.json").exists()
  config = read(output / "config.json")
  assert (config["optimizer"]["optimizer"], config["optimizer"]["weight_decay"]) == ("adamw", 0.01)  # of the recipe
  printed = re.search(r"([\d,]+) examples of squad \(train\)", capsys.readouterr().err)
  assert printed
  assert int(printed[1]) > 100  # steps count windows, not the 20 questions
  answers, contexts = gold(data["dev1"])
  predictions = read(output / "predictions_dev.json")
  results = read(output / "eval_results.json")
  assert {name: results[name] for name in ("exact", "f1", "total")} == squad.evaluate_v1(answers, predictions)
  assert results["loss"] > 0
  assert 0 <= results["random_span_f1"] <= results["first_sentence_f1"] < 100
  for question, text in predictions.items():
    assert text
    assert text in contexts[question]
  new = read(output / "predictions.json")
  assert list(new) == list(gold(data["new"])[0])
  # The same paragraphs and questions without answers give the same predictions.
  assert new == {f"new-{question}": text for question, text in predictions.items()}
  for question, entries in read(output / "nbest_predictions.json").items():
    assert entries[0]["text"] == new[question]
    assert set(entries[0]) == {"text", "probability", "start_logit", "end_logit"}
    assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
    totals = [entry["start_logit"] + entry["end_logit"] for entry in entries]
    assert totals == sorted(totals, reverse=True)
  # Prediction needs only the run and the file.
  shutil.rmtree(output / "features")
  (output / "predictions.json").unlink()
  run("--do_predict", f"--output_dir={output}", f"--predict_file={data['new']}")
  assert read(output / "predictions.json") == new


@pytest.mark.thorough
@pytest.mark.parametrize("version", [1, 2])
def test_weights_without_a_pooler_are_fine_tuned_and_served(
  data: dict[str, str], common: list[str], spm_model: str, tmp_path: Path, version: int
) -> None:
  """Weights of transformers' AlbertForQuestionAnswering, whose head v1 reuses, and AlbertForTokenClassification."""
  size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  model = dataclasses.replace(TINY_MODEL, vocab_size=size, max_position_embeddings=64)
  initial = without_pooler(random_weights(model, 1, with_heads=("squad" if version == 1 else "classifier",)))
  start = write_huggingface(tmp_path / "hf", model, huggingface_tensors(initial))
  flags = [flag for flag in common if flag != "--from_scratch"]
  flags += [f"--init_checkpoint={start}", "--num_train_steps=2", f"--train_file={data[f'train{version}']}"]
  run(f"--output_dir={tmp_path / 'run'}", *flags, *([V2] if version == 2 else []))
  trained = weights(tmp_path / "run")
  assert all(not trained[f"bert/pooler/dense/{part}"].any() for part in ("kernel", "bias"))
  moved = np.abs(trained["bert/embeddings/word_embeddings"] - initial["bert/embeddings/word_embeddings"]).max()
  assert 0 < moved < 0.01
  if version == 1:
    assert 0 < np.abs(trained["cls/squad/output_weights"] - initial["cls/squad/output_weights"]).max() < 0.01
  checkpoint = open_checkpoint(str(tmp_path / "run"))
  form = select_form(checkpoint, "", {})
  assert form.name == f"squad_v{version}"
  served = form.model_class(checkpoint, form.settings)
  answers = served.answer_texts(question=tf.constant(["who?"]), context=tf.constant(["Nobody sold the letter."]))
  assert answers["best_text"][0].numpy().decode() in "Nobody sold the letter."


def test_v2_training_evaluation_and_prediction(data: dict[str, str], common: list[str], tmp_path: Path) -> None:
  output = tmp_path / "run"
  files = [V2, f"--train_file={data['train2']}", f"--predict_file={data['dev2']}"]
  files += ["--eval_every_steps=2", "--eval_batch_size=64"]
  run(f"--output_dir={output}", *common, *files, "--do_eval", "--do_predict")
  answers, contexts = gold(data["dev2"])
  odds = read(output / "null_odds_dev.json")
  predictions = read(output / "predictions_dev.json")
  nbest = read(output / "nbest_predictions_dev.json")
  best = {question: entries[0]["text"] if entries else "" for question, entries in nbest.items()}
  assert predictions == {question: "" if odds[question] > 0 else best[question] for question in answers}
  expected = squad.evaluate_v2(answers, best, odds, 0.0)
  results = read(output / "eval_results.json")
  assert {name: results[name] for name in expected} == expected
  assert expected["NoAns_total"] == 3
  assert results["loss"] == pytest.approx(results["span_loss"] + results["answerability_loss"] / 2)
  assert results["no_answers_f1"] == results["no_answers_exact"] == pytest.approx(100 / 3)
  for question, entries in nbest.items():
    for entry in entries:
      assert set(entry) == {"text", "probability", "start_log_prob", "end_log_prob"}
      assert entry["text"] in contexts[question]
  assert read(output / "predictions.json") == predictions
  lines = (output / "eval_metrics.jsonl").read_text().splitlines()
  assert [json.loads(line)["step"] for line in lines] == [2, 4]
  # The threshold affects only the predictions.
  middle = sorted(odds.values())[4]
  threshold = f"--null_score_diff_threshold={middle}"
  run("--do_predict", f"--output_dir={output}", f"--predict_file={data['dev2']}", threshold)
  written = read(output / "predictions.json")
  assert written == {question: "" if odds[question] > middle else best[question] for question in answers}


@pytest.mark.slow
@pytest.mark.parametrize(
  "argv",
  [
    ["--pad_to_max_length"],
    ["--gradient_accumulation_steps=2", "--optimizer=lamb"],
    [V2, "--precision=bfloat16", "--hidden_dropout_prob=0.1", "--gradient_accumulation_steps=4"],
    [V2, "--start_n_top=60", "--end_n_top=60", "--pad_to_max_length"],
  ],
)
def test_every_kind_of_run(data: dict[str, str], common: list[str], tmp_path: Path, argv: list[str]) -> None:
  version = 2 if V2 in argv else 1
  files = [f"--train_file={data[f'train{version}']}", f"--eval_file={data[f'dev{version}']}"]
  run(f"--output_dir={tmp_path}", *common, *files, "--do_eval", "--num_train_steps=2", "--max_eval_steps=1", *argv)
  results = read(tmp_path / "eval_results.json")
  assert all(math.isfinite(value) for value in results.values())
  assert 0 < results["total"] <= 9


@pytest.mark.slow
def test_two_runs_are_averaged(data: dict[str, str], common: list[str], tmp_path: Path) -> None:
  outputs = [tmp_path / f"run-{seed}" for seed in (1, 2)]
  files = [V2, f"--train_file={data['train2']}", f"--eval_file={data['dev2']}", f"--predict_file={data['new']}"]
  for seed, output in enumerate(outputs):
    run(f"--output_dir={output}", f"--seed={seed}", *files, *common, "--do_eval", "--do_predict")
  both = tmp_path / "both"
  metrics = ensemble_runs([str(output) for output in outputs], str(both))
  odds = [read(output / "null_odds_dev.json") for output in outputs]
  mean = {question: (odds[0][question] + odds[1][question]) / 2 for question in odds[0]}
  assert read(both / "null_odds_dev.json") == pytest.approx(mean)
  nbest = read(both / "nbest_predictions_dev.json")
  best = {question: entries[0]["text"] if entries else "" for question, entries in nbest.items()}
  assert metrics == squad.evaluate_v2(gold(data["dev2"])[0], best, mean, 0.0)
  assert read(both / "eval_results.json") == {"runs": 2, **metrics}
  assert len(read(both / "predictions.json")) == 9
  shutil.rmtree(outputs[1] / "checkpoints")  # the average needs only the predictions
  (outputs[1] / "nbest_predictions_dev.json").unlink()
  with pytest.raises(UserError, match=r"run-2 has no nbest_predictions_dev\.json, which .*run-1 has: its checkpoints"):
    ensemble_runs([str(output) for output in outputs], str(both))


def test_answers_that_do_not_match_their_labels_are_counted_and_listed(
  common: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  context = "The captain remembered the garden behind the house in the year 1906, although it was raining."
  qas = [
    {"id": "cut", "question": "who?", "answers": [{"text": "captai", "answer_start": 4}]},
    {"id": "long", "question": "what?", "answers": [{"text": context, "answer_start": 0}]},
    *({"id": f"whole{i}", "question": "when?", "answers": [{"text": "1906", "answer_start": 63}]} for i in range(9)),
  ]
  path = squad_file(tmp_path / "train.json", [(context, qas)])
  flags = [f"--train_file={path}", f"--output_dir={tmp_path / 'run'}", "--num_train_steps=1", "--num_warmup_steps=0"]
  run(*common, *flags, "--max_seq_length=32")
  listed = tmp_path / "run" / "features" / "unaligned_train.tsv"
  assert (
    "warning: 2 of 11 answers (train) are not whole tokens of a window: 1 are learned as the tokens they touch, 1 are "
    f"longer than a window and not learned: cut 'captai' as 'captain', long {context!r}; all of them are in {listed}"
  ) in capsys.readouterr().err
  rows = [line.split("\t") for line in listed.read_text().splitlines()]
  assert rows == [
    ["id", "answer_start", "answer", "labelled", "question"],
    ["cut", "4", "captai", "captain", "who?"],
    ["long", "0", context, "", "what?"],
  ]


BAD_INPUT = {
  "v2 file": (["--train_file={train2}"], r"train-v2\.json: question q2 is unanswerable, so this is a SQuAD v2\.0 file"),
  "v1 file": ([V2, "--train_file={train1}"], r"train-v1\.json: no question says is_impossible, so this is a SQuAD v1"),
  "no file": ([], r"--train_file is missing: the train set, JSON in the form of SQuAD"),
  "missing": (["--train_file=absent.json"], "--train_file: 'absent.json' matches no file"),
  "no answers": (["--train_file={new}"], r"new\.json: .*question new-q0 lacks 'answers'"),
  "no room": (["--train_file={train1}", "--max_query_length=45"], "max_seq_length=48 leaves no room for a paragraph"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gives_an_error_of_one_line(
  data: dict[str, str], common: list[str], tmp_path: Path, case: str
) -> None:
  argv, message = BAD_INPUT[case]
  quick = [f"--output_dir={tmp_path / 'run'}", "--num_train_steps=1", "--num_warmup_steps=0"]
  with pytest.raises(UserError, match=message) as caught:
    run(*common, *quick, *(word.format(**data) for word in argv))
  assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_checkpoint_of_the_other_version_is_refused(data: dict[str, str], common: list[str], tmp_path: Path) -> None:
  run(
    f"--output_dir={tmp_path}", f"--train_file={data['train1']}", *common, "--num_train_steps=1", "--num_warmup_steps=0"
  )
  with pytest.raises(UserError, match=r"--version_2_with_negative: .* has version_2_with_negative = False"):
    run("--do_predict", V2, f"--output_dir={tmp_path}", f"--predict_file={data['new']}")


def test_the_script_itself_exits_with_2(tmp_path: Path) -> None:
  path = tmp_path / "train.json"
  path.write_text('{"data": [')
  flags = [f"--output_dir={tmp_path / 'run'}", "--do_train", "--from_scratch", f"--train_file={path}"]
  command = [sys.executable, "run_squad.py", *flags]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
  assert result.returncode == 2
  assert result.stderr.startswith("error: --spm_model_file is missing")
  assert result.stderr.count("\n") == 1
  command = [sys.executable, "run_squad.py", "--help"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
  assert result.returncode == 0
  assert "--doc_stride" in result.stdout
