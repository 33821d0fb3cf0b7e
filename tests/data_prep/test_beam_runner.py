"""Apache Beam's DirectRunner makes the very shards that one machine makes. Needs the beam extra."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from data_prep.create_pretraining_data import Job, prepare
from data_prep.preparation import Settings
from tests.conftest import english_like_documents

try:
  from data_prep import beam_runner
except ImportError:
  beam_runner = None  # type: ignore[assignment]

needs_beam = pytest.mark.skipif(beam_runner is None, reason="needs Apache Beam: the beam extra")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
  """Three files of documents, the last one of very few."""
  documents = english_like_documents(420, seed=8)
  directory = tmp_path / "corpus"
  directory.mkdir()
  for index, (first, last) in enumerate([(0, 200), (200, 415), (415, 420)]):
    text = "".join("\n".join(document) + "\n\n" for document in documents[first:last])
    (directory / f"{index}.txt").write_text(text, encoding="utf-8")
  return directory


def job(tmp_path: Path, name: str, inputs: list[Path], spm_model: str, num_shards: int = 5, **settings: Any) -> Job:
  return Job(
    inputs=tuple(map(str, sorted(inputs))),
    output_dir=str(tmp_path / name),
    spm_model_file=spm_model,
    settings=Settings(**{"max_seq_length": 48, "dupe_factor": 2, **settings}),
    num_shards=num_shards,
  )


def contents(directory: Path) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in directory.iterdir()}


def assert_same_files(tmp_path: Path, inputs: list[Path], spm_model: str, **settings: Any) -> None:
  prepare(job(tmp_path, "local", inputs, spm_model, **settings))
  prepare(job(tmp_path, "beam", inputs, spm_model, **settings), beam_runner.run)
  local, beam = contents(tmp_path / "local"), contents(tmp_path / "beam")
  assert len(local) == 6
  assert local == beam


@needs_beam
@pytest.mark.parametrize(
  "settings",
  [
    {"sentence_prediction": "sop"},
    {"sentence_prediction": "nsp"},
    {"sentence_prediction": "none"},
    {"sentence_prediction": "none", "input_format": "full_sentences"},
  ],
  ids=lambda settings: "-".join(settings.values()),
)
def test_every_file_is_the_same(tmp_path, corpus, spm_model, monkeypatch, settings):
  # Many small stretches and bundles, so that nothing arrives in the order it was made.
  monkeypatch.setattr(beam_runner, "num_stretches", lambda job: 13)
  monkeypatch.setattr(beam_runner, "_GATHERED_BYTES", 1000)
  assert_same_files(tmp_path, list(corpus.iterdir()), spm_model, **settings)


@needs_beam
def test_packed_files_are_read_by_whole_files(tmp_path, corpus, spm_model):
  path = corpus / "1.txt"
  with gzip.open(corpus / "1.txt.gz", "wb") as file:
    file.write(path.read_bytes())
  path.unlink()
  assert_same_files(tmp_path, list(corpus.iterdir()), spm_model)


@needs_beam
def test_a_finished_run_is_not_done_again_and_a_damaged_one_is_mended(tmp_path, corpus, spm_model, capsys):
  made = job(tmp_path, "beam", list(corpus.iterdir()), spm_model)
  prepare(made, beam_runner.run)
  before = contents(tmp_path / "beam")
  prepare(made)  # the runner is no part of what the shards depend on
  assert "complete; all 5 shards verify" in capsys.readouterr().out
  (tmp_path / "beam" / "pretraining-00002-of-00005.tfrecord").write_bytes(b"damaged")
  prepare(made, beam_runner.run)
  assert contents(tmp_path / "beam") == before


BAD_INPUT: dict[str, tuple[bytes, dict[str, Any], str]] = {
  "not UTF-8": (b"One sentence here.\nAnother \xff one.\n", {}, r"0\.txt, line 2: not UTF-8 text"),
  "too little": (b"A few words here.\nAnd some more.\n", {"num_shards": 50}, r"--num_shards=50: the text gives \d+ ex"),
  "nothing": (b"word\n", {}, "no example in 1 documents of"),
  "one document": (b"A few words here.\nAnd some more.\n", {"sentence_prediction": "nsp"}, "needs at least two docum"),
}


@needs_beam
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_the_line_of_the_local_run(tmp_path, spm_model, case):
  text, settings, message = BAD_INPUT[case]
  path = tmp_path / "0.txt"
  path.write_bytes(text)
  lines = []
  for name, options in (("local", {}), ("beam", {"run": beam_runner.run})):
    with pytest.raises(UserError, match=message) as caught:
      prepare(job(tmp_path, name, [path], spm_model, **settings), **options)
    lines.append(str(caught.value))
    assert not list((tmp_path / name).iterdir())
  assert lines[0] == lines[1]


@needs_beam
@pytest.mark.parametrize(
  "settings",
  [{"sentence_prediction": "nsp"}, {"sentence_prediction": "none", "input_format": "full_sentences"}],
  ids=lambda settings: "-".join(settings.values()),
)
def test_neighbours_do_not_come_from_packed_files(tmp_path, spm_model, settings):
  path = tmp_path / "0.txt.gz"
  path.write_bytes(gzip.compress(b"A few words here.\n\nAnd some more.\n"))
  with pytest.raises(UserError, match=r"0\.txt\.gz is packed: with --runner=beam, nsp and full_sentences take"):
    prepare(job(tmp_path, "beam", [path], spm_model, **settings), beam_runner.run)


def script(corpus: Path, output: Path, spm_model: str, *flags: str) -> subprocess.CompletedProcess[str]:
  command = [
    sys.executable,
    "-m",
    "data_prep.create_pretraining_data",
    f"--input_file={corpus}/*",
    f"--output_dir={output}",
    f"--spm_model_file={spm_model}",
    "--max_seq_length=48",
    "--dupe_factor=2",
    "--num_shards=5",
    "--num_processes=1",
    *flags,
  ]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@needs_beam
@pytest.mark.slow
def test_beams_own_flags_pass_through(tmp_path, corpus, spm_model):
  prepare(job(tmp_path, "local", list(corpus.iterdir()), spm_model))
  flags = ["--runner=DirectRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
  done = script(corpus, tmp_path / "beam", spm_model, "--runner=beam", "--", *flags)
  assert done.returncode == 0, done.stderr
  assert contents(tmp_path / "local") == contents(tmp_path / "beam")
  done = script(corpus, tmp_path / "other", spm_model, "--runner=beam", "--", "--runner=NoSuchRunner")
  assert done.returncode != 0
  assert "NoSuchRunner" in done.stderr


def test_beams_flags_without_beam_are_refused(tmp_path, corpus, spm_model):
  done = script(corpus, tmp_path / "out", spm_model, "--", "--project=p")
  assert done.returncode == 2
  assert done.stderr == "error: '--project=p' follows after --, which is for --runner=beam alone\n"


@pytest.mark.skipif(beam_runner is not None, reason="Apache Beam is installed")
def test_without_beam_one_line_says_what_to_install(tmp_path, corpus, spm_model):
  done = script(corpus, tmp_path / "out", spm_model, "--runner=beam")
  assert done.returncode == 2
  assert done.stderr.startswith("error: --runner=beam needs Apache Beam (No module named 'apache_beam')")
