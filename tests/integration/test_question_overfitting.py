"""Overfitting check of the heads of SQuAD and RACE: after training on 32 questions, all answers are exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece

from tests.script_flags import run_script, script_flags
from tests.tasks.race.folders import made_up_race
from tests.tasks.squad.question_files import made_up_squad

pytestmark = pytest.mark.slow
V2 = "--version_2_with_negative"


def learn(task: str, spm_model: str, output: Path, *argv: str) -> dict[str, float]:
  """Trains a small model from random weights, and returns its results on the training questions."""
  size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  model = {"vocab_size": size, "embedding_size": 32, "hidden_size": 96, "num_hidden_layers": 2}
  model |= {"num_attention_heads": 4, "intermediate_size": 192, "max_position_embeddings": 160}
  with script_flags(task):
    run_script(
      task,
      *("--do_train", "--do_eval", "--from_scratch", f"--output_dir={output}", f"--spm_model_file={spm_model}"),
      *(f"--{name}={value}" for name, value in model.items()),
      *("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--classifier_dropout_prob=0"),
      *("--max_seq_length=160", "--train_batch_size=16", "--num_warmup_steps=30", "--eval_every_steps=0"),
      *("--weight_decay=0", "--learning_rate=0.002", "--log_every_steps=50", *argv),
    )
  results: dict[str, float] = json.loads((output / "eval_results.json").read_text())
  return results


def test_32_questions_of_v1(spm_model: str, tmp_path: Path) -> None:
  path = made_up_squad(tmp_path / "squad.json", 32, max_sentences=3)
  files = [f"--train_file={path}", f"--eval_file={path}"]
  results = learn("squad", spm_model, tmp_path / "run", *files, "--num_train_steps=800")
  assert (results["exact"], results["f1"], results["total"]) == (100.0, 100.0, 32)


def test_32_questions_of_v2_some_of_them_unanswerable(spm_model: str, tmp_path: Path) -> None:
  path = made_up_squad(tmp_path / "squad.json", 32, version_2=True, max_sentences=3)
  files = [V2, f"--train_file={path}", f"--eval_file={path}"]
  results = learn("squad", spm_model, tmp_path / "run", *files, "--num_train_steps=800")
  assert (results["exact"], results["HasAns_exact"], results["NoAns_exact"]) == (100.0, 100.0, 100.0)
  assert (results["HasAns_total"], results["NoAns_total"]) == (22, 10)


def test_32_questions_of_race(spm_model: str, tmp_path: Path) -> None:
  folder = made_up_race(tmp_path, 8, sets=("train",))
  files = [f"--train_file={folder}/train", f"--eval_file={folder}/train", "--max_qa_length=40", "--max_seq_length=80"]
  results = learn("race", spm_model, tmp_path / "run", *files, "--num_train_steps=200")
  assert (results["accuracy"], results["middle_accuracy"], results["high_accuracy"]) == (1.0, 1.0, 1.0)
