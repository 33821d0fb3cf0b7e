"""The Estimator on questions, on words and in pretraining: metrics, predictions of every form of data, and errors.

tests/tasks/test_definitions.py shows that data in memory give the examples of the same data in files.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

import albert
from albert import tasks
from albert.errors import UserError
from albert.estimator import Estimator
from tests.synthetic import TINY_MODEL, write_manifest, write_shards
from tests.tasks.race.folders import write_made_up_race
from tests.tasks.squad.question_files import write_made_up_squad
from tests.tasks.tagging.word_files import write_json_lines

pytestmark = pytest.mark.usefixtures("all_steps_eager")


@pytest.fixture(scope="module")
def settings(spm_model: str) -> dict[str, Any]:
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  return {
    "model": dataclasses.replace(
      TINY_MODEL, vocab_size=vocab_size, max_position_embeddings=64, hidden_dropout_prob=0.1
    ),
    "spm_model_file": spm_model,
    "from_scratch": True,
    "num_train_steps": 2,
    "num_warmup_steps": 1,
    "train_batch_size": 4,
    "log_every_steps": 1,
    "precision": "float32",
  }


def squad_rows(path: str) -> list[dict[str, Any]]:
  """The questions of a SQuAD file, as rows in the order of the file."""
  return [
    {"id": qa["id"], "question": qa["question"], "context": paragraph["context"], "answers": qa["answers"]}
    for article in json.loads(Path(path).read_text())["data"]
    for paragraph in article["paragraphs"]
    for qa in paragraph["qas"]
  ]


@pytest.mark.thorough
@pytest.mark.parametrize("version", [1, 2])
def test_question_answering_in_every_form(version: int, settings: dict[str, Any], tmp_path: Path) -> None:
  is_v2 = version == 2
  files = {
    split: write_made_up_squad(tmp_path / f"{split}.json", size, version_2=is_v2, seed=size, max_sentences=3)
    for split, size in (("train", 8), ("eval", 6))
  }

  lengths: dict[str, Any] = {"max_seq_length": 48, "max_query_length": 12, "doc_stride": 16}
  rows: dict[str, Any] = {split: squad_rows(path) for split, path in files.items()}
  task = tasks.QuestionAnswering(**rows, test=files["eval"], version_2_with_negative=is_v2)
  estimator = Estimator(task, output_dir=tmp_path / "run", **settings, **lengths)
  estimator.train()
  results = estimator.evaluate()
  assert 0 <= results["exact"] <= results["f1"] <= 100
  assert ("HasAns_f1" in results) == is_v2

  # The answers are those in the predictions file, and are texts of the contexts.
  answers = estimator.predict(rows["eval"])
  answers_in_file = json.loads((tmp_path / "run" / "predictions_dev.json").read_text())
  assert {row["id"]: answer.text for row, answer in zip(rows["eval"], answers, strict=True)} == answers_in_file
  for row, answer in zip(rows["eval"], answers, strict=True):
    assert answer.text in row["context"]
    assert 0 < answer.probability <= 1
    assert (answer.candidates[0]["probability"] == answer.probability) == bool(answer.text)
    assert (answer.null_odds is not None) == is_v2

  # Every form of the questions gives the same answers, and so does the reopened run.
  columns = {name: [row[name] for row in rows["eval"]] for name in ("question", "context")}
  pairs = list(zip(columns["question"], columns["context"], strict=True))
  for other_form in (columns, pairs, files["eval"], json.loads(Path(files["eval"]).read_text())):
    assert [answer.text for answer in estimator.predict(other_form)] == [answer.text for answer in answers]
  assert estimator.predict() == answers
  assert json.loads((tmp_path / "run" / "predictions_eval.json").read_text()) == answers_in_file
  (alone,) = Estimator.from_run(tmp_path / "run").predict(rows["eval"][:1])
  # A batch of another size is rounded in another way.
  assert (alone.text, alone.probability) == (answers[0].text, pytest.approx(answers[0].probability, rel=1e-5))


def test_the_model_takes_its_vocab_size_from_the_vocabulary_or_the_shards(
  settings: dict[str, Any], tmp_path: Path
) -> None:
  """The vocabulary's size is used where there is a vocabulary file, else the size in the shards' manifest."""
  fields_without_vocab_size = {name: value for name, value in TINY_MODEL.to_dict().items() if name != "vocab_size"}
  (tmp_path / "model.json").write_text(json.dumps(fields_without_vocab_size))
  rows = [("it is good", "yes"), ("it is bad", "no")]
  estimator = Estimator(
    tasks.Classification(rows, eval=rows), **settings | {"model": tmp_path / "model.json", "num_warmup_steps": None}
  )
  assert estimator.task.model_config == dataclasses.replace(
    TINY_MODEL, vocab_size=settings["model"].vocab_size, classifier_dropout_prob=0.1
  )
  assert estimator.task.config.max_seq_length == TINY_MODEL.max_position_embeddings  # type: ignore[attr-defined]
  assert estimator.train().step == 2
  write_manifest(tmp_path, write_shards(tmp_path, [9]), [9], vocab_size=77)
  one_step: dict[str, Any] = {"model": tmp_path / "model.json", "num_train_steps": 1, "train_batch_size": 4}
  estimator = Estimator(tasks.Pretraining(tmp_path / "*.tfrecord"), **one_step)
  assert estimator.task.model_config.vocab_size == 77
  assert estimator.train().step == 1


def test_all_questions_on_a_context_are_held_out_together(settings: dict[str, Any]) -> None:
  rows = [
    {"question": f"{number} ?", "context": f"the letter {number // 2} from paris", "answers": "from paris"}
    for number in range(8)  # four contexts, each with two questions
  ]
  task = tasks.QuestionAnswering(rows, eval_share=0.25)
  held_out = set(task.rows["dev"].columns["context"])
  assert len(task.rows["dev"]) == 2
  assert len(held_out) == 1
  assert not held_out & set(task.rows["train"].columns["context"])
  estimator = Estimator(task, **settings | {"num_train_steps": 1}, max_seq_length=32, max_query_length=8, doc_stride=8)
  estimator.train()
  assert estimator.evaluate()["f1"] >= 0
  with pytest.raises(UserError, match=r"^the data to predict: row 0 has no 'context'; it has: 'question'"):
    estimator.predict([{"question": "who ?"}])


def race_rows(folder: Path) -> list[dict[str, Any]]:
  """The questions of a RACE folder, as rows in the order in which the folder is read."""
  rows = []
  for path in sorted(map(str, folder.glob("*/*.txt"))):
    passage = json.loads(Path(path).read_text())
    for question, options, answer in zip(passage["questions"], passage["options"], passage["answers"], strict=True):
      rows.append({"article": passage["article"], "question": question, "options": options, "answer": answer})
  return rows


@pytest.mark.thorough
def test_multiple_choice_on_rows_and_folders(settings: dict[str, Any], tmp_path: Path) -> None:
  folder = Path(write_made_up_race(tmp_path, 2))
  rows = race_rows(folder / "dev")
  task = tasks.MultipleChoice(race_rows(folder / "train"), eval=folder / "dev")
  estimator = Estimator(task, output_dir=tmp_path / "run", max_seq_length=64, max_qa_length=24, **settings)
  estimator.train()
  results = estimator.evaluate()
  assert results["accuracy"] == pytest.approx((results["middle_accuracy"] + results["high_accuracy"]) / 2)

  # The accuracy of the predictions is that of the evaluation.
  questions = [{key: row[key] for key in ("article", "question", "options")} for row in rows]
  answers = estimator.predict(questions)
  num_right = sum("ABCD"[answer.index] == row["answer"] for row, answer in zip(rows, answers, strict=True))
  assert num_right == pytest.approx(results["accuracy"] * len(answers))
  for question, answer in zip(questions, answers, strict=True):
    assert answer.option == question["options"][answer.index]
    assert math.fsum(answer.probabilities) == pytest.approx(1, abs=1e-6)
  assert estimator.predict(folder / "dev") == answers

  # A question may have any number of options.
  (answer,) = estimator.predict([questions[0] | {"options": questions[0]["options"][:2]}])
  assert len(answer.probabilities) == 2
  with pytest.raises(UserError, match=r"^the data to predict: row 0.*options"):
    estimator.predict([questions[0] | {"options": "wet"}])


@pytest.mark.thorough
def test_tagging_in_every_form(settings: dict[str, Any], tmp_path: Path) -> None:
  files = {
    split: write_json_lines(tmp_path / f"{split}.jsonl", size, seed=size) for split, size in (("train", 9), ("eval", 5))
  }
  rows: dict[str, Any] = {
    split: [json.loads(line) for line in Path(path).read_text().splitlines()] for split, path in files.items()
  }

  task = tasks.Tagging(**rows, test=files["eval"], scheme="BILOU")
  estimator = Estimator(task, output_dir=tmp_path / "run", max_seq_length=24, doc_stride=8, **settings)
  estimator.train()
  results = estimator.evaluate()
  assert 0 <= results["f1"] <= 1
  predicted = [json.loads(line) for line in (tmp_path / "run" / "predictions_dev.jsonl").read_text().splitlines()]
  answers = estimator.predict(rows["eval"])
  assert [answer.tags for answer in answers] == [line["predicted_tags"] for line in predicted]
  assert [[dataclasses.asdict(span) for span in answer.spans] for answer in answers] == [
    line["predicted_spans"] for line in predicted
  ]
  words = [row["tokens"] for row in rows["eval"]]
  for other_form in ({"tokens": words}, words, files["eval"]):
    assert estimator.predict(other_form) == answers
  assert estimator.predict() == answers
  # A text of the same words has the same tags. Its offsets are those of characters.
  of_texts = estimator.predict([" ".join(text) for text in words])
  assert [answer.tags for answer in of_texts] == [answer.tags for answer in answers]
  for text, answer in zip(words, of_texts, strict=True):
    assert all(" ".join(text)[span.start : span.end] == span.text for span in answer.spans)
  with pytest.raises(UserError, match=r"^the data to predict: row 1 has no 'tokens'; it has: 'id'"):
    estimator.predict([{"tokens": ["Rome"]}, {"id": 7}])


def test_rows_of_words_are_checked_and_held_out() -> None:
  rows = [{"tokens": ["Rome", "is", f"w{i}"], "tags": ["B-LOC", "O", "O"]} for i in range(10)]
  task = tasks.Tagging(rows, eval_share=0.2)
  assert (len(task.rows["train"]), len(task.rows["dev"]), task.settings["labels"]) == (8, 2, "LOC")
  texts = [("Rome is old", [{"start": 0, "end": 4, "label": "LOC"}])]
  assert tasks.Tagging(texts, eval_share=0).settings["labels"] == "LOC"
  assert tasks.Tagging([(["Rome"], ["U-LOC"])], scheme="BILOU", eval_share=0).settings["labels"] == "LOC"
  renamed = {"words": [["Rome"]], "ner": [["B-LOC"]]}
  assert (
    tasks.Tagging(renamed, words="words", tags="ner", labels=["LOC", "PER"], eval_share=0).settings["labels"]
    == "LOC,PER"
  )
  for bad_rows, message in (
    ([{"tokens": ["Rome"]}], r"^train: row 0 has no 'tags'; it has: 'tokens'"),
    ([{"text": "Rome"}], r"^train: row 0 has no 'spans'; it has: 'text'"),
  ):
    with pytest.raises(UserError, match=message):
      tasks.Tagging(bad_rows, eval_share=0)


def test_pretraining_gives_weights_for_fine_tuning_and_embeddings(
  settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  write_shards(tmp_path / "train", [9, 6])
  write_shards(tmp_path / "eval", [5], seed=4)
  (tmp_path / "lines.txt").write_text("the [MASK] and the river [MASK]\nnobody sold the [MASK].\n")
  task = tasks.Pretraining(tmp_path / "train" / "*", eval=tmp_path / "eval" / "*", test=tmp_path / "lines.txt")
  settings = {name: value for name, value in settings.items() if name != "from_scratch"}
  run = tmp_path / "run"
  estimator = Estimator(task, output_dir=run, **settings)
  result = estimator.train()  # pretraining starts from random weights by default
  assert [line["step"] for line in result.history] == [1, 2]
  assert result.metrics["masked_lm_loss"] > 0
  results = estimator.evaluate()
  assert 0 <= results["masked_lm_accuracy"] <= 1
  assert results["masked_lm_baseline_accuracy"] > 0

  lines = (tmp_path / "lines.txt").read_text().splitlines()
  # One entry for each mask: its five most probable pieces, with their probabilities.
  first_line, second_line = estimator.predict(lines)
  assert (len(first_line), len(second_line)) == (2, 1)
  assert all(len(candidates) == 5 for candidates in (*first_line, *second_line))
  assert list(second_line[0].values()) == sorted(second_line[0].values(), reverse=True)
  capsys.readouterr()
  assert estimator.predict() == [first_line, second_line]
  assert len((run / "predictions_lines.tsv").read_text().splitlines()) == 4
  assert list(map(len, estimator.predict(["a [MASK]", "none"]))) == [1, 0]

  # The run's weights are a start for fine-tuning, and give embeddings.
  classification = tasks.Classification([("good", 1), ("bad", 0), ("fine", 1), ("poor", 0)], eval_share=0)
  fine_tuned = Estimator(classification, init_checkpoint=run, num_train_steps=1, train_batch_size=2, max_seq_length=16)
  assert fine_tuned.train().step == 1
  assert f"examples (0.5 epochs) from {run}; " in capsys.readouterr().err
  assert np.isfinite(albert.encode(["one", "two words"], str(run))).all()
