"""Every form gives the same shards as the same text with a sentence on each line, for any number of processes."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from albert.errors import RunError
from albert.io import files, records
from albert.tokenization.tokenizer import MASK_ID
from data_prep.conversion import convert, parts
from data_prep.create_pretraining_data import prepare
from data_prep.settings import PreparationSettings
from data_prep.split_text import split_files
from tests.data_prep.readers.forms import DOCUMENTS, FORMS, Form, as_text
from tests.data_prep.runners.jobs import contents, make_job
from tests.remote_files import RemoteFiles, gfile_replacement
from tests.thorough import thorough_except


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
  form = FORMS[request.param]
  if form.module:
    pytest.importorskip(form.module)
  return form


@pytest.fixture
def inputs(form: Form, tmp_path: Path) -> list[str]:
  folder = tmp_path / "input"
  folder.mkdir()
  return list(map(str, form.write(DOCUMENTS, folder)))


def shards(directory: Path) -> dict[str, bytes]:
  return {name: data for name, data in contents(directory).items() if name != "manifest.json"}


@pytest.fixture
def parts_of(monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes parts of the text small, so that there are several."""
  monkeypatch.setattr(convert, "PART_BYTES", 2000)


def test_the_shards_are_those_of_the_text(form: Form, inputs: list[str], tmp_path: Path, spm_model: str) -> None:
  text = tmp_path / "text.txt"
  text.write_text(as_text(DOCUMENTS), encoding="utf-8")
  expected = prepare(make_job(str(text), spm_model, tmp_path / "expected"))
  found = prepare(make_job(inputs, spm_model, tmp_path / "found", reading=form.settings))
  assert shards(tmp_path / "found") == shards(tmp_path / "expected")
  assert (found.num_documents, found.num_tokens) == (expected.num_documents, expected.num_tokens)
  assert found.reading is not None
  assert found.reading["documents"] == len(DOCUMENTS)
  assert found.reading["sentences"] == sum(map(len, DOCUMENTS))
  assert expected.reading is None
  assert [entry["file"] for entry in found.settings["input_files"]] == [Path(path).name for path in inputs]
  assert sorted(contents(tmp_path / "found")) == sorted(contents(tmp_path / "expected"))  # nothing else remains


@pytest.mark.usefixtures("parts_of")
def test_small_parts_lose_and_repeat_nothing(form: Form, inputs: list[str], tmp_path: Path) -> None:
  converted = split_files(inputs, form.settings, str(tmp_path / "out"))
  if inputs[0].endswith((".txt", ".jsonl", ".parquet", ".arrow", ".xml", ".xml.bz2")):  # the forms that are cut
    assert len(converted.paths) > 3
  text = b"".join(Path(path).read_bytes() for path in converted.paths)
  assert text.decode() == as_text(DOCUMENTS)


@pytest.mark.parametrize("form", thorough_except(["paragraphs", "JSON lines"], FORMS), indirect=True)
def test_masks_and_pairs(form: Form, inputs: list[str], tmp_path: Path, spm_model: str) -> None:
  """The paper's shares hold: 15% of the tokens are masked, 80% of these as [MASK]; half of the pairs are swapped."""
  settings = PreparationSettings(max_seq_length=48, dupe_factor=8)
  manifest = prepare(make_job(inputs, spm_model, tmp_path / "out", settings=settings, reading=form.settings))
  num_tokens = num_masked = num_mask_tokens = num_swapped = num_same = 0
  for shard in manifest.shards:
    for record in records.read_records(str(tmp_path / "out" / shard.file)):
      example = records.decode_example(record)
      count = int(example["masked_lm_weights"].sum())
      positions = example["masked_lm_positions"][:count]
      num_tokens += int(example["input_mask"].sum())
      num_masked += count
      num_mask_tokens += int((example["input_ids"][positions] == MASK_ID).sum())
      num_same += int((example["input_ids"][positions] == example["masked_lm_ids"][:count]).sum())
      num_swapped += int(example["next_sentence_labels"][0])
  deviation = 0.5 / np.sqrt(manifest.num_examples)
  assert num_swapped / manifest.num_examples == pytest.approx(0.5, abs=4 * deviation)
  assert num_masked / num_tokens == pytest.approx(0.15, abs=0.01)
  deviation = np.sqrt(0.8 * 0.2 / num_masked)
  assert num_mask_tokens / num_masked == pytest.approx(0.8, abs=8 * deviation)  # words of n-grams are drawn together
  assert num_same / num_masked == pytest.approx(0.1, abs=8 * deviation)


@pytest.mark.parametrize(
  "form", thorough_except(["JSON lines", "Parquet", "Wikipedia, multistream"], FORMS), indirect=True
)
def test_a_stopped_command_keeps_its_parts(
  form: Form,
  inputs: list[str],
  tmp_path: Path,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  parts_of: None,
) -> None:
  write_part, num_written = parts.write_part, 0

  def fail_later(task: parts.PartTask) -> parts.PartRecord:
    nonlocal num_written
    num_written += 1
    if num_written == 3:
      raise RunError("disk full")
    return write_part(task)

  complete = split_files(inputs, form.settings, str(tmp_path / "complete"))
  monkeypatch.setattr(parts, "write_part", fail_later)
  if len(complete.paths) > 3:
    with pytest.raises(RunError, match="disk full"):
      split_files(inputs, form.settings, str(tmp_path / "out"))
    capsys.readouterr()
  again = split_files(inputs, form.settings, str(tmp_path / "out"))
  if len(complete.paths) > 3:
    assert capsys.readouterr().out.startswith("kept 2 of ")
  assert again.report == complete.report
  texts = [b"".join(Path(path).read_bytes() for path in result.paths) for result in (complete, again)]
  assert texts[0] == texts[1]


@pytest.mark.parametrize("form", thorough_except(["text.bz2", "JSON lines", "Wikipedia"], FORMS), indirect=True)
@pytest.mark.usefixtures("parts_of")
def test_remote_files_give_the_same_text(
  form: Form, inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  remote = RemoteFiles({f"mem://bucket/{Path(path).name}": Path(path).read_bytes() for path in inputs})
  monkeypatch.setattr(files, "_gfile", gfile_replacement(remote))
  converted = split_files(sorted(remote.contents), form.settings, str(tmp_path / "out"))
  assert b"".join(Path(path).read_bytes() for path in converted.paths).decode() == as_text(DOCUMENTS)


@pytest.mark.usefixtures("parts_of")
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
  if not pid:
    written: list[str] = []

    def die_in_the_third_part(source: str, target: str) -> None:
      written.append(target)
      if len(written) == 8:  # each part is a text file, its hashes and its record
        os.kill(os.getpid(), signal.SIGKILL)
      os.replace(source, target)

    monkeypatch.setattr(files, "replace", die_in_the_third_part)
    try:
      split_files(inputs, settings, str(out))
    finally:
      os._exit(1)
  assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
  assert any(files.is_staging_name(path.name) for path in out.iterdir())
  capsys.readouterr()
  again = split_files(inputs, settings, str(out))
  assert capsys.readouterr().out.startswith("kept 2 of ")
  assert again.report == complete.report
  assert contents(out) == contents(tmp_path / "complete")


@pytest.mark.parametrize("form", thorough_except(["JSON lines"], FORMS), indirect=True)
@pytest.mark.usefixtures("parts_of")
def test_the_shards_do_not_depend_on_processes(form: Form, inputs: list[str], tmp_path: Path, spm_model: str) -> None:
  outputs = []
  for number in (1, 2):
    prepare(make_job(inputs, spm_model, tmp_path / str(number), reading=form.settings, num_processes=number))
    outputs.append(contents(tmp_path / str(number)))
  assert outputs[0] == outputs[1]
  # Converting first, and then preparing the text files, gives the same.
  converted = split_files(inputs, form.settings, str(tmp_path / "text"))
  prepare(make_job(converted.paths, spm_model, tmp_path / "from_text"))
  assert shards(tmp_path / "from_text") == {name: data for name, data in outputs[0].items() if name != "manifest.json"}
