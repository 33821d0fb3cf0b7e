"""Tests of run_tagging.py from its flags: training, predictions, resuming, long texts, and bad input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.tasks.tagging.files import read_texts
from albert.tasks.tagging.flags import TaggingConfig
from tests.integration.conftest import script_fixture
from tests.metrics.test_spans import count_scores
from tests.run_outputs import read_json, read_json_lines, read_tsv
from tests.script_flags import from_scratch_flags, run_script
from tests.tasks.tagging.word_files import write_columns

_defined_flags = script_fixture("tagging")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  directory = tmp_path_factory.mktemp("tagging")
  for seed, (split, size) in enumerate({"train": 24, "dev": 8, "test": 6}.items()):
    write_columns(directory / f"{split}.conll", size, seed=seed)
  return directory


@pytest.fixture(scope="module")
def training_flags(spm_model: str) -> list[str]:
  return [
    *from_scratch_flags(spm_model),
    "--hidden_size=48",
    "--num_hidden_layers=1",
    "--num_attention_heads=3",
    "--max_position_embeddings=64",
    "--hidden_dropout_prob=0",
    "--classifier_dropout_prob=0",
    "--initializer_range=0.2",
    "--precision=float32",
    "--max_seq_length=32",
    "--doc_stride=10",
    "--train_batch_size=8",
    "--num_train_epochs=0",
    "--num_train_steps=20",
    "--warmup_proportion=0",
    "--num_warmup_steps=4",
    "--eval_every_steps=10",
    "--learning_rate=0.003",
  ]


@pytest.fixture(scope="module")
def run(folder: Path, training_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
  output_dir = tmp_path_factory.mktemp("run") / "run"
  files = [f"--train_file={folder}/train.conll", f"--eval_file={folder}/dev.conll"]
  run_script("tagging", *training_flags, *files, "--do_eval", "--select_checkpoint=best", f"--output_dir={output_dir}")
  return output_dir


def test_spans_are_learned_and_the_scores_are_those_of_the_written_predictions(run: Path, folder: Path) -> None:
  results = read_json(run / "eval_results.json")
  assert results["f1"] > 0.5
  config = TaggingConfig()
  correct = read_texts(f"{folder}/dev.conll", config, with_tags=True)
  predicted = read_texts(f"{run}/predictions_dev.conll", config, with_tags=True)
  assert [text.words for text in predicted] == [text.words for text in correct]
  gold, found = ({(text.index, span) for text in texts for span in text.spans} for texts in (correct, predicted))
  scores = count_scores(gold, found)
  assert tuple(results[name] for name in ("precision", "recall", "f1")) == pytest.approx(scores)
  mistakes = read_tsv(run / "mistakes_dev.tsv")
  assert len({(mistake["location"], mistake["span"]) for mistake in mistakes}) == len(mistakes) <= len(gold ^ found)
  evaluations = read_json_lines(run / "eval_metrics.jsonl")
  assert max(line["f1"] for line in evaluations) == pytest.approx(results["f1"])


def test_a_finished_run_predicts_other_files(run: Path, folder: Path, tmp_path: Path) -> None:
  copied = tmp_path / "run"
  shutil.copytree(run, copied)
  run_script("tagging", f"--output_dir={copied}", f"--predict_file={folder}/test.conll", "--do_predict")
  lines = (copied / "predictions_test.conll").read_text().splitlines()
  inputs = (folder / "test.conll").read_text().splitlines()
  assert [line.rpartition(" ")[0] for line in lines] == [line if line.strip() else "" for line in inputs]

  texts = tmp_path / "texts.jsonl"
  texts.write_text('{"id": 3, "text": "Anna met John Smith, quickly."}\n{"id": 4, "text": ""}\n')
  predictions = tmp_path / "found.jsonl"
  run_script(
    "tagging", f"--output_dir={copied}", f"--predict_file={texts}", f"--predictions_file={predictions}", "--do_predict"
  )
  first, second = read_json_lines(predictions)
  assert [len(first["predicted_tags"]), second["predicted_tags"]] == [7, []]
  for span in first["predicted_spans"]:
    assert first["text"][span["start"] : span["end"]] == span["text"]
    assert 0 < span["probability"] <= 1
  for name, message in (("x.tsv", "give a name that ends in .jsonl"), (str(texts), "is a file that the command reads")):
    with pytest.raises(UserError, match=f"^--predictions_file={name}: {message}"):
      run_script(
        "tagging", f"--output_dir={copied}", f"--predict_file={texts}", f"--predictions_file={name}", "--do_predict"
      )
  assert [line["id"] for line in read_json_lines(texts)] == [3, 4]  # not overwritten


def test_a_run_is_not_continued_with_other_tags(run: Path, folder: Path, training_flags: list[str]) -> None:
  train = write_columns(folder / "short.conll", 2, seed=8)
  with pytest.raises(UserError, match=r"--scheme=BILOU: .* has scheme = 'BIO'"):
    run_script("tagging", f"--output_dir={run}", "--do_eval", "--scheme=BILOU")
  flags = [f"--train_file={train}", f"--eval_file={folder}/dev.conll"]
  with pytest.raises(UserError, match=r"training data .* changed|has .*labels|train"):
    run_script("tagging", *training_flags, *flags, f"--output_dir={run}")
