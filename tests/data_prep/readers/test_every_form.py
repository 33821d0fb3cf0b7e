"""Shards do not depend on the form of the input: all are equal to those of plain text with a sentence on each line."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from albert.io import files, local_files
from data_prep.conversion import convert
from data_prep.create_pretraining_data import prepare
from data_prep.split_text import split_files
from tests.data_prep.readers.forms import DOCUMENTS, FORMS, Form, as_text
from tests.data_prep.runners.jobs import SETTINGS, contents, make_job
from tests.remote_files import RemoteFiles, gfile_replacement
from tests.thorough import thorough_except


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
  """Each form of input whose library is installed."""
  form = FORMS[request.param]
  if form.module:
    pytest.importorskip(form.module)
  return form


@pytest.fixture
def inputs(form: Form, tmp_path: Path) -> list[str]:
  folder = tmp_path / "input"
  folder.mkdir()
  return list(map(str, form.write(DOCUMENTS, folder)))


def read_shards(directory: Path) -> dict[str, bytes]:
  """Reads the shards of a directory: {name: content}."""
  return {name: content for name, content in contents(directory).items() if name.endswith(".tfrecord")}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes the parts in which text is converted small, so that there are several."""
  monkeypatch.setattr(convert, "PART_BYTES", 2000)


def test_the_shards_equal_those_of_the_plain_text(
  form: Form, inputs: list[str], tmp_path: Path, spm_model: str
) -> None:
  text_file = tmp_path / "text.txt"
  text_file.write_text(as_text(DOCUMENTS), encoding="utf-8")
  settings = dataclasses.replace(SETTINGS, eval_share=0.2)
  expected = prepare(make_job(str(text_file), spm_model, tmp_path / "expected", settings=settings))
  manifest = prepare(make_job(inputs, spm_model, tmp_path / "out", reading=form.settings, settings=settings))
  assert read_shards(tmp_path / "out") == read_shards(tmp_path / "expected")
  assert (manifest.num_documents, manifest.num_tokens) == (expected.num_documents, expected.num_tokens)
  assert manifest.reading is not None
  assert manifest.reading["documents"] == len(DOCUMENTS)
  assert manifest.reading["sentences"] == sum(map(len, DOCUMENTS))
  assert expected.reading is None
  assert [entry["file"] for entry in manifest.settings["input_files"]] == [Path(path).name for path in inputs]
  assert contents(tmp_path / "out").keys() == contents(tmp_path / "expected").keys()  # no temporary file is left


@pytest.mark.parametrize(
  "form", thorough_except(["JSON lines", "Parquet", "wikiextractor", "Wikipedia, multistream"], FORMS), indirect=True
)
@pytest.mark.usefixtures("small_parts")
def test_small_parts_lose_and_repeat_nothing(form: Form, inputs: list[str], tmp_path: Path) -> None:
  converted = split_files(inputs, form.settings, str(tmp_path / "out"))
  # Files of other formats are not cut into parts.
  if inputs[0].endswith((".txt", ".jsonl", ".parquet", ".arrow", ".xml", ".xml.bz2")):
    assert len(converted.paths) > 3
  text = b"".join(Path(path).read_bytes() for path in converted.paths)
  assert text.decode() == as_text(DOCUMENTS)


@pytest.mark.parametrize("form", thorough_except(["text.bz2", "JSON lines", "Wikipedia"], FORMS), indirect=True)
@pytest.mark.usefixtures("small_parts")
def test_remote_files_give_the_same_text(
  form: Form, inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  remote_files = RemoteFiles({f"mem://bucket/{Path(path).name}": Path(path).read_bytes() for path in inputs})
  monkeypatch.setattr(files, "_gfile", gfile_replacement(remote_files))
  converted = split_files(sorted(remote_files.contents), form.settings, str(tmp_path / "out"))
  assert b"".join(Path(path).read_bytes() for path in converted.paths).decode() == as_text(DOCUMENTS)


@pytest.mark.usefixtures("small_parts")
def test_a_killed_process_keeps_its_parts(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  """The process is killed while it writes the third part."""
  form = FORMS["JSON lines of paragraphs"]
  inputs = list(map(str, form.write(DOCUMENTS, tmp_path)))
  settings = dataclasses.replace(form.settings, drop_duplicates=True)
  complete = split_files(inputs, settings, str(tmp_path / "complete"))
  out = tmp_path / "out"
  pid = os.fork()
  if pid == 0:  # the child process
    num_written = 0

    def replace_or_die(source: str, target: str) -> None:
      nonlocal num_written
      num_written += 1
      if num_written == 8:  # the second file of part 3: a part has a text, hashes and a record
        os.kill(os.getpid(), signal.SIGKILL)
      os.replace(source, target)

    monkeypatch.setattr(files, "replace", replace_or_die)
    try:
      split_files(inputs, settings, str(out))
    finally:
      os._exit(1)
  _, status = os.waitpid(pid, 0)
  assert os.WTERMSIG(status) == signal.SIGKILL
  assert any(local_files.STAGING_NAME.match(path.name) for path in out.iterdir())
  capsys.readouterr()
  resumed = split_files(inputs, settings, str(out))
  assert capsys.readouterr().out.startswith("kept 2 of ")
  assert resumed.report == complete.report
  assert contents(out) == contents(tmp_path / "complete")


@pytest.mark.parametrize("form", thorough_except(["JSON lines"], FORMS), indirect=True)
@pytest.mark.usefixtures("small_parts")
def test_the_shards_do_not_depend_on_processes(form: Form, inputs: list[str], tmp_path: Path, spm_model: str) -> None:
  for num_processes in (1, 2):
    output_dir = tmp_path / str(num_processes)
    prepare(make_job(inputs, spm_model, output_dir, reading=form.settings, num_processes=num_processes))
  assert contents(tmp_path / "1") == contents(tmp_path / "2")
  # The shards are also the same if the input is first converted to text files.
  converted = split_files(inputs, form.settings, str(tmp_path / "text"))
  prepare(make_job(converted.paths, spm_model, tmp_path / "from_text"))
  assert read_shards(tmp_path / "from_text") == read_shards(tmp_path / "1")
