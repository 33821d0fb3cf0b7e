"""Overfitting check of the heads of SQuAD and RACE: after training on 32 questions, all answers are exact."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from tests.run_outputs import read_json
from tests.script_flags import run_script, script_flags
from tests.tasks.race.folders import write_made_up_race
from tests.tasks.squad.question_files import write_made_up_squad

pytestmark = pytest.mark.slow
V2 = "--version_2_with_negative"


def train_and_evaluate(task: str, spm_model: str, output_dir: Path, *further_flags: str) -> dict[str, float]:
  """Trains a small model from random weights, and returns its results on the training questions."""
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  commands = ["--do_train", "--do_eval", "--from_scratch"]
  files = [f"--output_dir={output_dir}", f"--spm_model_file={spm_model}"]
  model = [f"--vocab_size={vocab_size}", "--embedding_size=32", "--hidden_size=96", "--num_hidden_layers=2"]
  model += ["--num_attention_heads=4", "--intermediate_size=192", "--max_position_embeddings=160"]
  regularization = ["--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--classifier_dropout_prob=0"]
  regularization += ["--weight_decay=0"]
  training = ["--max_seq_length=160", "--train_batch_size=16", "--num_warmup_steps=30", "--learning_rate=0.002"]
  training += ["--eval_every_steps=0", "--log_every_steps=50"]
  with script_flags(task):
    run_script(task, *commands, *files, *model, *regularization, *training, *further_flags)
  return read_json(output_dir / "eval_results.json")


def test_all_answers_to_32_questions_of_v1_are_learned(spm_model: str, tmp_path: Path) -> None:
  path = write_made_up_squad(tmp_path / "squad.json", 32, max_sentences=3)
  files = [f"--train_file={path}", f"--eval_file={path}"]
  results = train_and_evaluate("squad", spm_model, tmp_path / "run", *files, "--num_train_steps=800")
  assert (results["exact"], results["f1"], results["total"]) == (100.0, 100.0, 32)


def test_all_answers_to_32_questions_of_v2_10_of_them_unanswerable_are_learned(spm_model: str, tmp_path: Path) -> None:
  path = write_made_up_squad(tmp_path / "squad.json", 32, version_2=True, max_sentences=3)
  files = [V2, f"--train_file={path}", f"--eval_file={path}"]
  results = train_and_evaluate("squad", spm_model, tmp_path / "run", *files, "--num_train_steps=800")
  assert (results["exact"], results["HasAns_exact"], results["NoAns_exact"]) == (100.0, 100.0, 100.0)
  assert (results["HasAns_total"], results["NoAns_total"]) == (22, 10)


def test_all_answers_to_32_questions_of_race_are_learned(spm_model: str, tmp_path: Path) -> None:
  folder = write_made_up_race(tmp_path, 8, splits=("train",))  # 8 passages of each of 2 levels, with 2 questions each
  files = [f"--train_file={folder}/train", f"--eval_file={folder}/train", "--max_qa_length=40", "--max_seq_length=80"]
  results = train_and_evaluate("race", spm_model, tmp_path / "run", *files, "--num_train_steps=200")
  assert (results["accuracy"], results["middle_accuracy"], results["high_accuracy"]) == (1.0, 1.0, 1.0)
