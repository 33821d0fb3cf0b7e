"""The command: equal shards for any number of processes, stopping and going on, bad input."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from albert import files
from albert.data import records, schema
from albert.data.manifest import Manifest, file_sha256
from albert.errors import UserError
from data_prep import corpus, preparation, shards
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


def command(**flags: object) -> list[str]:
  module = "data_prep.create_pretraining_data"
  return [sys.executable, "-m", module, *(f"--{name}={value}" for name, value in flags.items())]


def run(**flags: object) -> subprocess.CompletedProcess[str]:
  return subprocess.run(command(**flags), capture_output=True, text=True, timeout=120, check=False)


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
  """Units of one short file each, in this process. (Processes of a pool take the units they are given.)"""
  plan = corpus.plan_units

  def plan_small(paths: list[str], *, with_donors: bool) -> object:
    return plan(paths, with_donors=with_donors, unit_bytes=4096)

  monkeypatch.setattr("data_prep.create_pretraining_data.plan_units", plan_small)


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


@pytest.fixture(scope="module")
def longer_text(tmp_path_factory: pytest.TempPathFactory) -> str:
  """5 MB: three units as the command makes them."""
  rng = random.Random(0)
  documents = english_like_documents(400, seed=1)
  path = tmp_path_factory.mktemp("longer") / "text.txt"
  chosen = (documents[rng.randrange(400)] for _ in range(10_000))
  path.write_text("\n\n".join("\n".join(document) for document in chosen))
  return str(path)


def _killed_flags(longer_text: str, spm_model: str) -> dict[str, object]:
  return {
    "input_file": longer_text,
    "spm_model_file": spm_model,
    "max_seq_length": 128,
    "dupe_factor": 1,
    "num_processes": 2,
    "num_shards": 4,
  }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, longer_text: str, spm_model: str) -> dict[str, bytes]:
  directory = tmp_path_factory.mktemp("uninterrupted")
  result = run(output_dir=directory, **_killed_flags(longer_text, spm_model) | {"num_processes": 1})
  assert result.returncode == 0, result.stderr
  return contents(directory)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_command_goes_on(
  tmp_path: Path, longer_text: str, spm_model: str, uninterrupted: dict[str, bytes], number: signal.Signals
) -> None:
  flags = _killed_flags(longer_text, spm_model)
  process = subprocess.Popen(
    command(output_dir=tmp_path / "out", **flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  deadline = time.monotonic() + 60
  while not list(tmp_path.glob("out/.*/*.spill")) and time.monotonic() < deadline:
    time.sleep(0.01)
  process.send_signal(number)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
  if number != signal.SIGKILL:
    assert errors.strip().splitlines()[-1] == "stopped: the same command goes on from here"
    assert "Traceback" not in errors
  assert not [name for name in os.listdir(tmp_path / "out") if not name.startswith(".")]
  again = run(output_dir=tmp_path / "out", **flags)
  assert again.returncode == 0, again.stderr
  assert "units of an earlier run" in again.stdout
  assert contents(tmp_path / "out") == uninterrupted


# ---- the command line ----------------------------------------------------------------------------------


def test_help_is_quick_and_lists_the_flags() -> None:
  start = time.monotonic()
  result = subprocess.run([*command(), "--help"], capture_output=True, text=True, timeout=60, check=False)
  assert time.monotonic() - start < 5
  assert result.returncode == 0
  for name in ("--input_file", "--sentence_prediction", "--num_processes", "--masked_lm_prob"):
    assert name in result.stdout


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"input_file": "absent-*.txt"}, "--input_file: 'absent-*.txt' matches no file"),
    ({"input_file": "{dir}/empty.txt"}, "empty.txt is empty"),
    ({"input_file": "{dir}/blank.txt"}, "--input_file: no example in 0 documents"),
    ({"input_file": "{dir}/latin.txt"}, "latin.txt, line 3: not UTF-8 text"),
    ({"input_file": "{dir}/latin.txt", "num_processes": 2}, "latin.txt, line 3: not UTF-8 text"),
    ({"input_file": "{dir}/torn.txt.gz"}, "torn.txt.gz: not a whole GZIP file"),
    ({"spm_model_file": "{dir}/absent.model"}, "absent.model"),
    ({"spm_model_file": "{dir}/good.txt"}, "good.txt"),
    ({"output_dir": "{dir}/good.txt"}, "good.txt: cannot make this directory"),
    ({"sentence_prediction": "both"}, "--sentence_prediction=both"),
    ({"sentence_prediction": "nsp"}, "--sentence_prediction=nsp needs at least two documents"),
    ({"input_format": "full_sentences"}, "--input_format=full_sentences with --sentence_prediction=sop: these inputs"),
    ({"input_format": "sentence_pair", "sentence_prediction": "none"}, "a pair is for sop or nsp"),
    ({"masked_lm_prob": 2}, "--masked_lm_prob=2.0: must be above 0 and at most 1"),
    ({"max_seq_length": "long"}, "max_seq_length"),
    ({"dupe_factor": 0}, "--dupe_factor=0: must be at least 1"),
    ({"num_processes": 0}, "--num_processes=0: must be at least 1"),
    ({"num_shards": 1000}, "--num_shards=1000: the text gives"),
    ({"num_sharts": 1}, "num_sharts"),
  ],
)
def test_bad_input_is_one_line(tmp_path: Path, spm_model: str, changes: dict[str, object], message: str) -> None:
  (tmp_path / "good.txt").write_text("the captain sold the river\nnobody watched the teacher\n")
  (tmp_path / "empty.txt").write_bytes(b"")
  (tmp_path / "blank.txt").write_text("\n \n\n")
  (tmp_path / "latin.txt").write_bytes(b"good line\n\ncaf\xe9\n")
  (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"text " * 1000)[:-9])
  flags: dict[str, object] = {
    "input_file": "{dir}/good.txt",
    "output_dir": "{dir}/out",
    "spm_model_file": spm_model,
    "num_processes": 1,
    "num_shards": 1,
    **changes,
  }
  result = run(**{name: str(value).replace("{dir}", str(tmp_path)) for name, value in flags.items()})
  assert result.returncode == 2, result.stderr
  (line,) = [line for line in result.stderr.splitlines() if not line.startswith(("reading text", "writing shards"))]
  assert line.startswith("error: ")
  assert message in line
  assert not list(tmp_path.glob("out/*")) + list(tmp_path.glob("out/.*"))


def test_workers_import_no_tensorflow() -> None:
  code = "import sys, data_prep.create_pretraining_data; sys.exit('tensorflow' in sys.modules)"
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_another_process_in_the_same_directory(
  tmp_path: Path, small_files: list[str], spm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  job = make_job(small_files, spm_model, tmp_path)
  original = preparation.make_spill

  def also_start_another(task: preparation.UnitTask) -> None:
    with pytest.raises(UserError, match="another process is preparing data there"):
      prepare(job)
    original(task)

  monkeypatch.setattr(preparation, "make_spill", also_start_another)
  assert prepare(job).num_examples > 0
  assert json.loads((tmp_path / "manifest.json").read_text())["kind"] == "pretraining"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, longer_text: str, spm_model: str) -> None:
  """150 MB of text in one file take no more memory than 5 MB, and far less than 600 MB."""
  peaks = []
  for copies in (1, 30):
    path = tmp_path / f"{copies}.txt"
    path.write_text((Path(longer_text).read_text() + "\n\n") * copies)
    process = subprocess.Popen(
      command(
        input_file=path,
        output_dir=tmp_path / str(copies),
        spm_model_file=spm_model,
        max_seq_length=512,
        dupe_factor=2,
        num_processes=2,
        num_shards=2,
      ),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)
  assert peaks[1] < 300
  assert peaks[1] < 1.5 * peaks[0]


def test_remote_directories(tmp_path: Path, small_files: list[str], spm_model: str) -> None:
  """Reading from and writing to a file system that is not the machine's own."""
  root = f"ram://{tmp_path.name}"
  inputs = [files.join(root, Path(path).name) for path in small_files]
  files.makedirs(root)
  for source, target in zip(small_files, inputs, strict=True):
    files.write_atomically(target, Path(source).read_bytes())
  local = prepare(make_job(small_files, spm_model, tmp_path / "out"))
  output_dir = files.join(root, "out")
  job = Job(inputs=tuple(inputs), output_dir=output_dir, spm_model_file=spm_model, settings=SETTINGS, num_shards=3)
  assert prepare(job) == local
  assert files.listdir(output_dir) == sorted(contents(tmp_path / "out"))
  assert prepare(job) == local
