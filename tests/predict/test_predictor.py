"""albert.Predictor answers texts from a run, an export and a directory from Hugging Face."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import albert
from albert.errors import UserError
from albert.export.export_model import export_model
from tests.convert.files_of_weights import huggingface_tensors, write_huggingface
from tests.export.pipelines import FORMS, LABELS, Run, write_run
from tests.export.requests import english_like_texts, make_requests
from tests.export.served_runs import assert_same_plain_answers
from tests.thorough import thorough_except


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> Run:
  return write_run(tmp_path_factory.mktemp("classifier") / "run", FORMS["classifier"], spm_model)


@pytest.fixture(scope="module")
def predictor(classifier: Run) -> albert.Predictor:
  return albert.Predictor(classifier.directory)


def test_all_forms_of_data_give_the_same_records_and_frames(predictor: albert.Predictor) -> None:
  texts = english_like_texts(3)
  records = predictor(texts)
  assert [set(record) for record in records] == [{"label", "probabilities"}] * 3
  frame = pandas.DataFrame({"text": texts, "other": 1}, index=[7, 8, 9])
  for data in ({"text": texts}, [{"text": text} for text in texts], np.array(texts), frame, frame["text"]):
    assert predictor(data) == records
  assert predictor(texts[0]) == predictor({"text": texts[0]}) == records[:1]
  assert predictor([]) == []
  answers = predictor(frame, as_frame=True)
  assert list(answers) == ["label", *(f"probabilities_{label}" for label in LABELS)]
  assert list(answers.index) == [7, 8, 9]
  assert answers["probabilities_good"].tolist() == [record["probabilities"]["good"] for record in records]


@pytest.mark.parametrize(
  ("data", "message"),
  [
    (["a", None], "^data: row 1: 'text' must be a text, it is null"),
    ([5], "^data: row 0: 'text' must be a text, it is 5"),
    (None, "^data: the data must be a list"),
    ({"comment": ["a"]}, "^data: no column 'text'; there are: 'comment'"),
  ],
)
def test_data_that_cannot_be_answered_is_refused(predictor: albert.Predictor, data: Any, message: str) -> None:
  with pytest.raises(UserError, match=message):
    predictor(data)


@pytest.mark.parametrize(
  ("model", "batch_size", "message"), [("", 1, "^model is missing"), ("x", 0, "^batch_size is 0")]
)
def test_arguments_of_no_use_are_refused(model: str, batch_size: int, message: str) -> None:
  with pytest.raises(UserError, match=message):
    albert.Predictor(model, batch_size=batch_size)


def test_an_export_gives_the_answers_of_its_run(classifier: Run, predictor: albert.Predictor, tmp_path: Path) -> None:
  texts = english_like_texts(3)
  directory = export_model(classifier.directory, str(tmp_path), name="export")
  for path in (directory, tmp_path / "export"):
    assert albert.Predictor(path)(texts) == predictor(texts)
  message = r"^model=.*/export: an export keeps its task .*: leave out task, max_seq_length$"
  with pytest.raises(UserError, match=message):
    albert.Predictor(tmp_path / "export", task="embeddings", max_seq_length=9)


def write_hub(run: Run, path: Path, vocabulary: str, config: dict[str, Any]) -> Path:
  """Writes the weights of a run as Hugging Face has them."""
  write_huggingface(path, run.config, huggingface_tensors(run.weights), **config)
  shutil.copyfile(vocabulary, path / "spiece.model")
  return path


@pytest.mark.parametrize("name", thorough_except(["fill_mask"], FORMS))
def test_a_run_and_a_directory_from_hugging_face_answer_as_the_python_pipeline(
  name: str, tmp_path: Path, spm_model: str
) -> None:
  run = write_run(tmp_path / "run", FORMS[name], spm_model)
  task = name if name in ("sentence_order", "embeddings") else ""  # else a pretrained model fills masks
  requests = make_requests(name, english_like_texts(6))
  answers = albert.Predictor(run.directory, task=task, batch_size=4)(requests)
  assert_same_plain_answers(answers, run.expected_answers(requests))
  if name == "fill_mask":  # tests/parity has the others
    path = write_hub(run, tmp_path / "hub", spm_model, {"architectures": ["AlbertForMaskedLM"]})
    assert albert.Predictor(path, batch_size=4)(requests) == answers


# Settings -> the start of the error, or None.
_SETTINGS_OF_TAGS: list[tuple[dict[str, Any], str | None]] = [
  (
    {},
    r".*config\.json: the labels of id2label \(B-PER, I-LOC, O\) are not all tags of a scheme .*such as O, B-PER, I-P",
  ),
  ({"task": "tagging", "labels": "PER"}, None),
  ({"task": "embeddings"}, None),
  ({"task": "classifier", "task_name": "mnli"}, None),
  (
    {"task": "embeddings", "max_length": 9},
    "^max_length: not a setting of embeddings; its settings are max_seq_length",
  ),
  ({"task": "embeddings", "max_seq_length": "long"}, ".*: max_seq_length must be of type int, got 'long'"),
  ({"task": "sentiment"}, "^task=sentiment: must be one of fill_mask, "),
]


@pytest.mark.parametrize(("settings", "message"), _SETTINGS_OF_TAGS)
def test_a_given_task_replaces_the_class_of_config_json(
  classifier: Run, tmp_path: Path, spm_model: str, settings: dict[str, Any], message: str | None
) -> None:
  tags = {"architectures": ["AlbertForTokenClassification"], "id2label": {"0": "B-PER", "1": "I-LOC", "2": "O"}}
  path = write_hub(classifier, tmp_path / "tags", spm_model, tags)
  with nullcontext() if message is None else pytest.raises(UserError, match=message):
    albert.Predictor(path, **settings)


def test_weights_of_no_class_and_names_on_the_hub_are_refused(classifier: Run, tmp_path: Path, spm_model: str) -> None:
  path = write_hub(classifier, tmp_path / "no_class", spm_model, {})
  with pytest.raises(UserError, match=r"^model=.*/no_class belongs to no run, .*: give task to .* one of fill_mask"):
    albert.Predictor(path)
  message = r"^model=albert/albert-base-v2: no such directory: .*nothing is downloaded: fetch config.json"
  with pytest.raises(UserError, match=message):
    albert.Predictor("albert/albert-base-v2")
  (path / "spiece.model").unlink()
  with pytest.raises(UserError, match=r"beside it: put the vocabulary there$"):
    albert.Predictor(path)
  (path / "config.json").unlink()
  with pytest.raises(UserError, match=r"has no albert_config.json or config.json beside it: put it there$"):
    albert.Predictor(path, task="fill_mask")
