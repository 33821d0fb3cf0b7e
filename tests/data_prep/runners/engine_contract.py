"""The contract of every engine (Beam, Ray): the files and errors are those of the local runner, and jobs are repaired.

The tests of each engine inherit `EngineContract`.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from albert.errors import RunError, UserError
from data_prep import shards
from data_prep.create_pretraining_data import Job, prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.job import OpenPool
from data_prep.prepare import open_workers
from tests.conftest import english_like_documents
from tests.data_prep.readers.forms import DOCUMENTS, FORMS
from tests.data_prep.runners import jobs
from tests.data_prep.runners.jobs import contents

# Pattern of the line that a command prints if it finds all units of an earlier command.
ALL_UNITS_KEPT = r"kept (\d+) of \1 units of an earlier run"
ROOT = Path(__file__).resolve().parents[3]
# Text that gives an error: its bytes, settings, and a part of the message. It is plain text, or JSON lines.
BAD_INPUT: dict[str, tuple[bytes, dict[str, Any], str]] = {
  "a bad record": (b'{"text": "One. Two."}\n{"body": 1}\n', {}, r"0\.jsonl, line 2: no field 'text'"),
  "not UTF-8": (b"One sentence here.\nAnother \xff one.\n", {}, r"0\.txt, line 2: not UTF-8 text"),
  "too little": (
    b"A few words here.\nAnd some more.\n",
    {"num_shards": 50},
    r"--num_shards=50: the text gives only \d+ examples",
  ),
  "nothing": (b"word\n", {}, "no example in 1 document of"),
  "one document": (b"A few words here.\nAnd some more.\n", {"sentence_prediction": "nsp"}, "needs at least two docum"),
}


def write_corpus(directory: Path) -> Path:
  """Writes three files of documents. The last file has only five documents."""
  documents = english_like_documents(420, seed=8)
  directory.mkdir()
  for index, (start, end) in enumerate([(0, 200), (200, 415), (415, 420)]):
    text = "".join("\n".join(document) + "\n\n" for document in documents[start:end])
    (directory / f"{index}.txt").write_text(text, encoding="utf-8")
  return directory


def compress_file(path: Path) -> Path:
  """Replaces a file by a GZIP file, and returns its path."""
  gzip_path = path.with_name(f"{path.name}.gz")
  gzip_path.write_bytes(gzip.compress(path.read_bytes()))
  path.unlink()
  return gzip_path


def make_job(
  tmp_path: Path,
  name: str,
  inputs: list[Path],
  spm_model: str,
  num_shards: int = 5,
  compress: bool = False,
  **settings: Any,
) -> Job:
  preparation = PreparationSettings(**{"max_seq_length": 48, "dupe_factor": 2, **settings})
  fields = {"settings": preparation, "num_shards": num_shards, "compress": compress}
  return jobs.make_job(list(map(str, sorted(inputs))), spm_model, tmp_path / name, **fields)


def assert_same_files(tmp_path: Path, inputs: list[Path], spm_model: str, runner: OpenPool, **settings: Any) -> None:
  """Runs a job locally and with another runner, and compares all files."""
  prepare(make_job(tmp_path, "local", inputs, spm_model, **settings))
  prepare(make_job(tmp_path, "other", inputs, spm_model, **settings), runner)
  local, other = contents(tmp_path / "local"), contents(tmp_path / "other")
  assert len(local) == (8 if "eval_share" in settings else 6)  # five shards, or six, with their manifests
  assert local == other


def command(corpus: Path, output: Path, spm_model: str, *flags: str, num_processes: int = 1) -> list[str]:
  """Returns the command of the job of `make_job`."""
  return [
    sys.executable,
    "-m",
    "data_prep.create_pretraining_data",
    f"--input_file={corpus}/*",
    f"--output_dir={output}",
    f"--spm_model_file={spm_model}",
    "--max_seq_length=48",
    "--dupe_factor=2",
    "--num_shards=5",
    f"--num_processes={num_processes}",
    *flags,
  ]


def run_command(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
  """Runs the command that `command` returns for these arguments."""
  argv = command(*arguments, **options)
  return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)


class EngineContract:
  """Tests that the test class of an engine inherits. It needs the fixtures `runner` and `corpus`."""

  @pytest.fixture(autouse=True)
  def _small_units(self, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.make_units_small(monkeypatch)

  @pytest.mark.parametrize(
    "settings",
    [
      {"sentence_prediction": "sop"},
      {"sentence_prediction": "nsp"},
      {"sentence_prediction": "none"},
      {"sentence_prediction": "none", "input_format": "full_sentences"},
      {"sentence_prediction": "sop", "input_format": "sentence_pair"},
      {"sentence_prediction": "nsp", "eval_share": 0.3},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
  )
  def test_every_file_is_the_same(self, tmp_path, corpus, spm_model, runner, settings):
    assert_same_files(tmp_path, list(corpus.iterdir()), spm_model, runner, **settings)

  @pytest.mark.parametrize("prediction", ["sop", "nsp"])
  def test_gzip_files_and_gzip_shards(self, tmp_path, corpus, spm_model, runner, prediction):
    compress_file(corpus / "1.txt")
    settings = {"compress": True, "masking": "none", "sentence_prediction": prediction}
    assert_same_files(tmp_path, list(corpus.iterdir()), spm_model, runner, **settings)

  def test_a_finished_job_is_kept_and_a_damaged_one_is_repaired(self, tmp_path, corpus, spm_model, runner, capsys):
    compress_file(corpus / "1.txt")
    job = make_job(tmp_path, "other", list(corpus.iterdir()), spm_model)
    prepare(job, runner)
    complete = contents(tmp_path / "other")
    prepare(job)  # the shards do not depend on the runner
    assert "complete; 5 shards with correct checksums" in capsys.readouterr().out
    (tmp_path / "other" / "pretraining-00002-of-00005.tfrecord").write_bytes(b"damaged")
    prepare(job, runner)
    assert contents(tmp_path / "other") == complete

  @pytest.mark.parametrize("first_runner", ["local", "other"])
  def test_the_other_runner_continues_a_job(
    self, tmp_path, corpus, spm_model, monkeypatch, capsys, runner, first_runner
  ):
    def stop(*arguments: Any) -> None:
      raise RunError("stopped here")

    inputs = list(corpus.iterdir())
    prepare(make_job(tmp_path, "local", inputs, spm_model))
    job = make_job(tmp_path, "other", inputs, spm_model)
    runners = [open_workers, runner] if first_runner == "local" else [runner, open_workers]
    with monkeypatch.context() as patch:
      patch.setattr(shards, "ShardPlan", stop)
      with pytest.raises(RunError, match="stopped here"):
        prepare(job, runners[0])
    capsys.readouterr()
    prepare(job, runners[1])
    assert re.search(ALL_UNITS_KEPT, capsys.readouterr().out)
    assert contents(tmp_path / "other") == contents(tmp_path / "local")

  @pytest.mark.parametrize("name", FORMS)
  def test_every_form_gives_the_same_files(self, tmp_path, spm_model, monkeypatch, runner, name):
    form = FORMS[name]
    if form.module:
      pytest.importorskip(form.module)
    monkeypatch.setattr("data_prep.conversion.convert.PART_BYTES", 9000)
    (tmp_path / "input").mkdir()
    documents_with_a_copy = [*DOCUMENTS, DOCUMENTS[3]]
    inputs = tuple(map(str, form.write(documents_with_a_copy, tmp_path / "input")))
    reading = dataclasses.replace(form.settings, drop_duplicates=True)
    for runner_name, options in (("local", {}), ("other", {"open_pool": runner})):
      job = dataclasses.replace(make_job(tmp_path, runner_name, [], spm_model), inputs=inputs, reading=reading)
      manifest = prepare(job, **options)
      assert manifest.reading is not None
      assert manifest.reading["dropped"]["duplicate"]["documents"] == 1
    assert contents(tmp_path / "local") == contents(tmp_path / "other")

  @pytest.mark.parametrize("case", BAD_INPUT)
  def test_bad_input_gives_the_error_of_the_local_runner(self, tmp_path, spm_model, runner, case):
    text, settings, message = BAD_INPUT[case]
    path = tmp_path / ("0.jsonl" if text.startswith(b"{") else "0.txt")
    path.write_bytes(text)
    messages = []
    for name, options in (("local", {}), ("other", {"open_pool": runner})):
      with pytest.raises(UserError, match=message) as caught:
        prepare(make_job(tmp_path, name, [path], spm_model, **settings), **options)
      messages.append(str(caught.value))
      assert all(path.name.startswith(".preparation-") for path in (tmp_path / name).iterdir())
    assert messages[0] == messages[1]
