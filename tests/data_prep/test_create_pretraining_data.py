"""Preparation: equal shards for any number of processes, stopping and going on, settings that differ."""

from __future__ import annotations

import builtins
import errno
import gzip
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from albert import directory_lock, files
from albert.data import records, schema
from albert.data.manifest import Manifest, file_sha256
from albert.directory_lock import DirectoryLock
from albert.errors import RunError, UserError
from albert.tokenization import normalize_text
from data_prep import corpus, create_pretraining_data, inputs, merging, preparation, shards
from data_prep.create_pretraining_data import Job, prepare
from data_prep.preparation import Settings
from tests.conftest import english_like_documents

SETTINGS = Settings(max_seq_length=32, dupe_factor=3)


def make_job(text: str | list[str], spm_model: str, output_dir: Path, **changes: object) -> Job:
  inputs = tuple([text] if isinstance(text, str) else text)
  values = {"settings": SETTINGS, "num_shards": 3, **changes}
  return Job(inputs=inputs, output_dir=str(output_dir), spm_model_file=spm_model, **values)  # type: ignore[arg-type]


def contents(directory: Path) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
  """Eight short files, so that there is work for several processes when units are small."""
  directory = tmp_path_factory.mktemp("texts")
  paths = []
  for number in range(8):
    documents = english_like_documents(12, seed=number)
    path = directory / f"{number}.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents))
    paths.append(str(path))
  return paths


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
  _make_units_small(monkeypatch)


def _make_units_small(monkeypatch: pytest.MonkeyPatch) -> None:
  """Units of half a short file each, in this process. (Processes of a pool take the units they are given.)"""
  plan = corpus.plan_units

  def plan_small(paths: list[str], *, with_donors: bool) -> object:
    return plan(paths, with_donors=with_donors, unit_bytes=4096)

  monkeypatch.setattr("data_prep.local_runner.plan_units", plan_small)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, small_files: list[str], spm_model: str) -> dict[str, bytes]:
  """What a run without interruption makes of the files."""
  directory = tmp_path_factory.mktemp("whole")
  with pytest.MonkeyPatch.context() as patch:
    _make_units_small(patch)
    prepare(make_job(small_files, spm_model, directory))
  return contents(directory)


@pytest.mark.parametrize(
  ("prediction", "input_format"),
  [
    ("sop", "segments"),
    ("nsp", "segments"),
    ("none", "segments"),
    ("nsp", "sentence_pair"),
    ("none", "full_sentences"),
  ],
)
def test_output_does_not_depend_on_processes(
  tmp_path: Path, small_files: list[str], spm_model: str, prediction: str, input_format: str
) -> None:
  settings = Settings(max_seq_length=32, dupe_factor=2, sentence_prediction=prediction, input_format=input_format)
  outputs = []
  for num_processes in (1, 2, 7):
    directory = tmp_path / str(num_processes)
    prepare(make_job(small_files, spm_model, directory, settings=settings, num_processes=num_processes))
    outputs.append(contents(directory))
  assert outputs[0] == outputs[1] == outputs[2]
  assert sorted(outputs[0]) == ["manifest.json", *(f"pretraining-0000{i}-of-00003.tfrecord" for i in range(3))]


def test_packed_text_and_packed_shards_hold_the_same_examples(
  tmp_path: Path, small_files: list[str], spm_model: str
) -> None:
  packed = []
  for path in small_files:
    packed.append(str(tmp_path / (Path(path).name + ".gz")))
    Path(packed[-1]).write_bytes(gzip.compress(Path(path).read_bytes()))
  plain = prepare(make_job(small_files, spm_model, tmp_path / "plain"))
  zipped = prepare(make_job(packed, spm_model, tmp_path / "zipped", compress=True, num_processes=2))
  for one, other in zip(plain.shards, zipped.shards, strict=True):
    assert other.file == one.file + ".gz"
    examples = [
      list(records.read_records(str(tmp_path / name / shard.file)))
      for name, shard in (("plain", one), ("zipped", other))
    ]
    assert examples[0] == examples[1]


@pytest.mark.parametrize("prediction", ["sop", "nsp", "none"])
def test_manifest_agrees_with_the_shards(tmp_path: Path, corpus_file: str, spm_model: str, prediction: str) -> None:
  settings = Settings(max_seq_length=40, max_predictions_per_seq=5, sentence_prediction=prediction)
  manifest = prepare(make_job(corpus_file, spm_model, tmp_path / "out", settings=settings))
  assert Manifest.load(str(tmp_path / "out")) == manifest
  labels = {"0": 0, "1": 0}
  for shard in manifest.shards:
    path = tmp_path / "out" / shard.file
    assert (shard.bytes, shard.sha256) == (path.stat().st_size, file_sha256(str(path)))
    examples = [records.decode_example(record) for record in records.read_records(str(path))]
    assert len(examples) == shard.examples
    for example in examples:
      labels[str(example["next_sentence_labels"][0])] += 1
      for feature in schema.pretraining_features(40, 5):
        assert example[feature.name].dtype == feature.dtype
        assert example[feature.name].shape == (feature.length,)
      length, count = int(example["input_mask"].sum()), int(example["masked_lm_weights"].sum())
      assert count <= min(5, max(1, round(0.15 * length)))
      ids = example["input_ids"]
      positions = example["masked_lm_positions"][:count]
      ids[positions] = example["masked_lm_ids"][:count]
      (separators,) = np.nonzero(ids == 3)
      assert ids[0] == 2
      assert separators.size == (1 if prediction == "none" else 2)
      assert separators[-1] == length - 1
      assert not np.isin(positions, [0, *separators]).any()
      expected_segments = (np.arange(40) > separators[0]) & (np.arange(40) < length)
      np.testing.assert_array_equal(example["segment_ids"], expected_segments)
  assert manifest.label_counts == labels
  assert manifest.num_examples == sum(labels.values())
  assert (manifest.num_documents, manifest.num_dropped_documents) == (300, 0)
  if prediction == "none":
    assert labels["1"] == 0
  else:
    share = labels["1"] / manifest.num_examples
    assert share == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(manifest.num_examples))


@pytest.mark.parametrize("documents_with_unknown", [3, 0])
def test_unknown_tokens_are_counted_reported_and_warned_of(
  tmp_path: Path, spm_model: str, capsys: pytest.CaptureFixture[str], documents_with_unknown: int
) -> None:
  documents = english_like_documents(30, seed=2)
  for document in documents[:documents_with_unknown]:
    document.extend(["the prize is 漢字 and ж, or §5", "漢"] * 10)
  text = tmp_path / "text.txt"
  text.write_text("\n\n".join("\n".join(document) for document in documents))
  manifest = prepare(make_job(str(text), spm_model, tmp_path / "out"))
  # By a second route: SentencePiece alone, on every line once, however often it is duplicated.
  processor = sentencepiece.SentencePieceProcessor(model_file=spm_model)
  lines = [processor.encode(normalize_text(line)) for document in documents for line in document]
  num_unknown = sum(ids.count(1) for ids in lines)
  assert (num_unknown > 0) == bool(documents_with_unknown)
  assert manifest.num_unknown_tokens == num_unknown
  assert Manifest.load(str(tmp_path / "out")) == manifest
  capsys.readouterr()
  create_pretraining_data._report(manifest, "shards")
  out, err = capsys.readouterr()
  share = num_unknown / manifest.num_tokens
  assert f"<unk>: {num_unknown} of the tokens ({share:.3%})" in out
  if documents_with_unknown:
    assert err.startswith(f"warning: shards: {share:.1%} of the tokens are <unk>")
    assert "train a vocabulary" in err
    assert err.count("\n") == 1
  else:
    assert err == ""


def test_examples_are_shuffled_across_the_corpus(tmp_path: Path, spm_model: str) -> None:
  """Short documents in front, long ones behind: every part of every shard has its share of both."""
  documents = ["nobody watched the river"] * 300 + ["the captain sold the key to the library before breakfast"] * 300
  text = tmp_path / "text.txt"
  text.write_text("\n\n".join(documents))
  hashes = []
  for seed in (1, 2):
    settings = Settings(max_seq_length=32, random_seed=seed, dupe_factor=2)
    manifest = prepare(make_job(str(text), spm_model, tmp_path / str(seed), settings=settings))
    hashes.append([shard.sha256 for shard in manifest.shards])
    assert [shard.examples for shard in manifest.shards] == [400, 400, 400]
    for shard in manifest.shards:
      path = str(tmp_path / str(seed) / shard.file)
      lengths = np.array([records.decode_example(r)["input_mask"].sum() for r in records.read_records(path)])
      is_long = lengths > (lengths.min() + lengths.max()) / 2
      for quarter in np.split(is_long, 4):
        assert quarter.mean() == pytest.approx(0.5, abs=0.2)  # 4 standard deviations
  assert not set(hashes[0]) & set(hashes[1])


# ---- stopping and going on -----------------------------------------------------------------------------


class _StopError(Exception):
  pass


@pytest.mark.parametrize("stop_after", [("spill", 3), ("shard", 0), ("shard", 2)])
def test_stopped_run_goes_on_and_keeps_what_is_finished(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  stop_after: tuple[str, int],
) -> None:
  job = make_job(small_files, spm_model, tmp_path / "out")
  prepare(make_job(small_files, spm_model, tmp_path / "whole"))
  kind, count = stop_after
  module, name = (preparation, "make_spill") if kind == "spill" else (shards, "write_shard")
  original = getattr(module, name)
  calls = 0

  def counted(task: object) -> object:
    nonlocal calls
    calls += 1
    if calls > count:
      raise _StopError
    return original(task)

  with monkeypatch.context() as patch:
    patch.setattr(module, name, counted)
    with pytest.raises(_StopError):
      prepare(job)
  assert not (tmp_path / "out" / "manifest.json").exists()
  before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tfrecord")}
  assert len(before) == (count if kind == "shard" else 0)
  capsys.readouterr()
  prepare(job)
  printed = capsys.readouterr().out
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")
  assert ("kept 3 of 17 units" if kind == "spill" else "kept 17 of 17 units") in printed
  assert {path: path.stat().st_mtime_ns for path in before} == before
  assert ("kept 2 of 3 shards" in printed) == (stop_after == ("shard", 2))


def test_finished_run_verifies_and_is_repaired(
  tmp_path: Path, small_files: list[str], spm_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
  job = make_job(small_files, spm_model, tmp_path)
  manifest = prepare(job)
  whole = contents(tmp_path)
  times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
  assert prepare(job) == manifest
  assert "all 3 shards verify, nothing to do" in capsys.readouterr().out
  assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
  damaged = tmp_path / manifest.shards[1].file
  data = bytearray(damaged.read_bytes())
  data[100] ^= 1
  damaged.write_bytes(bytes(data))
  prepare(job)
  printed = capsys.readouterr().out
  assert "1 of 3 shards are missing or damaged" in printed
  assert "kept 2 of 3 shards" in printed
  assert contents(tmp_path) == whole


@pytest.mark.parametrize("is_finished", [True, False])
def test_other_settings_are_refused(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
  if is_finished:
    prepare(make_job(small_files, spm_model, tmp_path))
  else:
    with monkeypatch.context() as patch:
      patch.setattr(shards, "write_shard", None)
      with pytest.raises(TypeError):
        prepare(make_job(small_files, spm_model, tmp_path))
  before = contents(tmp_path) if is_finished else None
  what = "a finished run" if is_finished else "an unfinished run"
  other = Settings(max_seq_length=32, dupe_factor=4)
  with pytest.raises(UserError, match=rf"holds {what} with other settings \(dupe_factor 3, not 4\): choose"):
    prepare(make_job(small_files, spm_model, tmp_path, settings=other))
  with pytest.raises(UserError, match="other input files"):
    prepare(make_job(small_files[:-1], spm_model, tmp_path))
  if is_finished:
    assert contents(tmp_path) == before
  prepare(make_job(small_files, spm_model, tmp_path))


def test_unknown_shards_are_not_overwritten(tmp_path: Path, small_files: list[str], spm_model: str) -> None:
  unknown = tmp_path / "pretraining-00001-of-00003.tfrecord"
  unknown.write_bytes(b"somebody's")
  with pytest.raises(UserError, match="which no manifest describes"):
    prepare(make_job(small_files, spm_model, tmp_path))
  assert contents(tmp_path) == {unknown.name: b"somebody's"}


def test_another_process_in_the_same_directory(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  job = make_job(small_files, spm_model, tmp_path)
  original = preparation.make_spill

  def also_start_another(task: preparation.UnitTask) -> None:
    with pytest.raises(UserError, match=rf"process {os.getpid()} on host .* is preparing data there"):
      prepare(job)
    original(task)

  monkeypatch.setattr(preparation, "make_spill", also_start_another)
  assert prepare(job).num_examples > 0
  assert json.loads((tmp_path / "manifest.json").read_text())["kind"] == "pretraining"


def test_remote_directories(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Reading from and writing to a file system that is not the machine's own; it is locked, too."""
  monkeypatch.setattr(directory_lock, "SETTLE_SECONDS", 0.01)
  root = f"ram://{tmp_path.name}"
  inputs = [files.join(root, Path(path).name) for path in small_files]
  files.makedirs(root)
  for source, target in zip(small_files, inputs, strict=True):
    files.write_atomically(target, Path(source).read_bytes())
  local = prepare(make_job(small_files, spm_model, tmp_path / "out"))
  output_dir = files.join(root, "out")
  job = Job(inputs=tuple(inputs), output_dir=output_dir, spm_model_file=spm_model, settings=SETTINGS, num_shards=3)
  with monkeypatch.context() as patch:
    patch.setattr(directory_lock, "RENEWAL_SECONDS", 0.01)
    patch.setattr(directory_lock, "_POLL_SECONDS", 0.05)
    with (
      DirectoryLock(output_dir, "preparing data"),
      pytest.raises(UserError, match=rf"process {os.getpid()} on host .* is preparing data there"),
    ):
      prepare(job)
  assert prepare(job) == local
  assert files.listdir(output_dir) == sorted(contents(tmp_path / "out"))
  assert prepare(job) == local


# ---- faults, and input that changes --------------------------------------------------------------------


def _raising(number: int) -> Callable[..., None]:
  def fail(*arguments: object, **named: object) -> None:
    raise OSError(number, os.strerror(number))

  return fail


@pytest.mark.parametrize(
  ("place", "number"),
  [
    ("open a spill", errno.EMFILE),
    ("sync a spill", errno.EDQUOT),
    ("read the text", errno.EIO),
    ("merge", errno.ENOSPC),
    ("shard", errno.ENOSPC),
  ],
)
def test_a_passing_error_of_the_system_loses_nothing(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  whole: dict[str, bytes],
  number: int,
  place: str,
) -> None:
  job = make_job(small_files, spm_model, tmp_path / "out")
  monkeypatch.setattr(merging, "max_open", lambda: 4)
  wanted = {"open a spill": "unit-", "sync a spill": "unit-", "merge": "merged-", "shard": "pretraining-"}.get(
    place, ""
  )
  calls = itertools.count()
  with monkeypatch.context() as patch:
    if place == "read the text":
      read_range = corpus.read_range
      patch.setattr(inputs, "read_range", lambda part: read_range(part) if next(calls) < 5 else _raising(number)())
    else:
      module: Any = builtins if place == "open a spill" else os
      name = "open" if place == "open a spill" else "fsync"
      original = getattr(module, name)

      def failing(file: Any, *arguments: Any, **named: Any) -> Any:
        # /proc/self/fd names the file that a descriptor stands for.
        path = file if isinstance(file, str) else os.readlink(f"/proc/self/fd/{file}")
        if f"/.{wanted}" in str(path) and next(calls) >= 2:
          _raising(number)()
        return original(file, *arguments, **named)

      patch.setattr(module, name, failing)
    with pytest.raises(RunError, match=re.escape(os.strerror(number))) as caught:
      prepare(job)
  assert wanted in str(caught.value)
  assert "\n" not in str(caught.value)
  assert "same command" in str(caught.value)
  (workspace,) = (tmp_path / "out").glob(".preparation-*")
  kept = list(workspace.glob("*.spill"))
  assert len(kept) >= 2
  assert not [path for path in workspace.iterdir() if files.is_staging_name(path.name)]
  shards_before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tfrecord")}
  assert len(shards_before) == (2 if place == "shard" else 0)
  capsys.readouterr()
  prepare(job)
  printed = capsys.readouterr().out
  expected = {"open a spill": 2, "sync a spill": 2, "read the text": 5}.get(place, 17)
  assert f"kept {expected} of 17 units" in printed
  assert {path: path.stat().st_mtime_ns for path in shards_before} == shards_before
  assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("replacement", [b"e", b"\xc3\xa9\xc3\xa9"], ids=["same size", "longer"])
def test_one_invalid_byte_in_the_last_file_costs_one_unit(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  capsys: pytest.CaptureFixture[str],
  num_processes: int,
  replacement: bytes,
) -> None:
  bad = tmp_path / "9.txt"
  text = Path(small_files[-1]).read_bytes()
  bad.write_bytes(text[:-8] + b"\xe9" + text[-8:])
  inputs = [*small_files, str(bad)]
  job = make_job(inputs, spm_model, tmp_path / "out", num_processes=num_processes)
  with pytest.raises(UserError, match=rf"{bad}, line \d+: not UTF-8 text \(byte 0xe9"):
    prepare(job)
  assert [path.name[:13] for path in (tmp_path / "out").iterdir()] == [".preparation-"]
  bad.write_bytes(text[:-8] + replacement + text[-8:])
  capsys.readouterr()
  prepare(job)
  kept = re.search(r"kept (\d+) of 19 units", capsys.readouterr().out)
  assert kept is not None
  assert int(kept[1]) >= (18 if num_processes == 1 else 14)  # what other processes were at is lost
  prepare(make_job(inputs, spm_model, tmp_path / "fresh"))
  assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("stop_at", ["merge", "shard"])
@pytest.mark.parametrize("prediction", ["sop", "nsp"])
def test_input_changed_after_a_stop_is_made_again_and_nothing_old_is_used(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, stop_at: str, prediction: str
) -> None:
  inputs = [str(shutil.copy(path, tmp_path)) for path in small_files]
  settings = Settings(max_seq_length=32, sentence_prediction=prediction, dupe_factor=2)
  job = make_job(inputs, spm_model, tmp_path / "out", settings=settings)
  monkeypatch.setattr(merging, "max_open", lambda: 4)
  module, name = (merging, "merge_spills") if stop_at == "merge" else (shards, "write_shard")
  original, calls = getattr(module, name), itertools.count()

  def stopping(task: object) -> object:
    if next(calls) == 2:
      raise _StopError
    return original(task)

  with monkeypatch.context() as patch:
    patch.setattr(module, name, stopping)
    with pytest.raises(_StopError):
      prepare(job)
  changed = Path(inputs[3])
  changed.write_text(changed.read_text()[::-1])
  prepare(job)
  prepare(make_job(inputs, spm_model, tmp_path / "fresh", settings=settings))
  assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_merge_that_was_stopped_goes_on(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
  whole: dict[str, bytes],
) -> None:
  """Whole merged files are kept and what they were merged from is not made again, also right before its removal."""
  monkeypatch.setattr(merging, "max_open", lambda: 3)
  job = make_job(small_files, spm_model, tmp_path / "out")
  remove, calls = files.remove, itertools.count()
  for stop_at in (0, 5, 9):

    def stopping(path: str, stop_at: int = stop_at) -> None:
      if "unit-" in path and next(calls) == stop_at:
        raise _StopError
      remove(path)

    with monkeypatch.context() as patch:
      patch.setattr(files, "remove", stopping)
      with pytest.raises(_StopError):
        prepare(job)
  capsys.readouterr()
  prepare(job)
  assert "kept 17 of 17 units" in capsys.readouterr().out
  assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("keeps_size", [True, False])
@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_a_file_that_changes_while_it_is_read_is_refused(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch, ending: str, keeps_size: bool
) -> None:
  inputs = []
  for path in small_files:
    data = Path(path).read_bytes()
    inputs.append(str(tmp_path / (Path(path).stem + ending)))
    Path(inputs[-1]).write_bytes(gzip.compress(data, 0) if ending.endswith("gz") else data)
  changed = Path(inputs[2])
  before, times = changed.read_bytes(), os.stat(changed)
  # The bytes of a packed file stand in it as they are (no compression); the checksum at its end is of the old text.
  after = before.replace(b"The captain", b"The teacher", 1) if keeps_size else before + before
  assert after != before
  original, calls = preparation.make_spill, itertools.count()

  def then_change(task: preparation.UnitTask) -> object:
    outcome = original(task)
    if next(calls) == 12:
      changed.write_bytes(after)
      os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    return outcome

  job = make_job(inputs, spm_model, tmp_path / "out")
  with monkeypatch.context() as patch:
    patch.setattr(preparation, "make_spill", then_change)
    with pytest.raises(UserError, match=f"{changed} changed while it was being read"):
      prepare(job)
  assert [path.name[:13] for path in (tmp_path / "out").iterdir()] == [".preparation-"]
  changed.write_bytes(before)
  manifest = prepare(job)
  assert manifest.settings["input_files"][2]["sha256"] == hashlib.sha256(before).hexdigest()


def test_fewer_shards_keep_the_units(
  tmp_path: Path, small_files: list[str], spm_model: str, capsys: pytest.CaptureFixture[str], whole: dict[str, bytes]
) -> None:
  with pytest.raises(UserError, match="--num_shards=100000: the text gives"):
    prepare(make_job(small_files, spm_model, tmp_path / "out", num_shards=100_000))
  prepare(make_job(small_files, spm_model, tmp_path / "out"))
  assert "kept 17 of 17 units" in capsys.readouterr().out
  assert contents(tmp_path / "out") == whole
