"""Apache Beam's DirectRunner writes the same shards as the local runner. Needs the beam extra."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert.data.manifest import ShardInfo
from albert.errors import RunError, UserError
from albert.io import files
from data_prep.create_pretraining_data import Job, prepare
from data_prep.runners.base import check_shards
from data_prep.settings import PreparationSettings
from tests.conftest import english_like_documents
from tests.data_prep.readers.forms import DOCUMENTS, FORMS

try:
  from data_prep.runners import beam as beam_runner
  from data_prep.runners import beam_steps
except ImportError:
  beam_runner = None  # type: ignore[assignment]

needs_beam = pytest.mark.skipif(beam_runner is None, reason="needs Apache Beam: the beam extra")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
  """Three files of documents. The last file has only five documents."""
  documents = english_like_documents(420, seed=8)
  directory = tmp_path / "corpus"
  directory.mkdir()
  for index, (first, last) in enumerate([(0, 200), (200, 415), (415, 420)]):
    text = "".join("\n".join(document) + "\n\n" for document in documents[first:last])
    (directory / f"{index}.txt").write_text(text, encoding="utf-8")
  return directory


def make_job(
  tmp_path: Path, name: str, inputs: list[Path], spm_model: str, num_shards: int = 5, **settings: Any
) -> Job:
  return Job(
    inputs=tuple(map(str, sorted(inputs))),
    output_dir=str(tmp_path / name),
    spm_model_file=spm_model,
    settings=PreparationSettings(**{"max_seq_length": 48, "dupe_factor": 2, **settings}),
    num_shards=num_shards,
  )


def contents(directory: Path) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in directory.iterdir()}


def assert_same_files(tmp_path: Path, inputs: list[Path], spm_model: str, **settings: Any) -> None:
  prepare(make_job(tmp_path, "local", inputs, spm_model, **settings))
  prepare(make_job(tmp_path, "beam", inputs, spm_model, **settings), beam_runner.make_runner())
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
  # With many small key ranges and bundles, the instances arrive in another order.
  monkeypatch.setattr(beam_runner, "num_key_ranges", lambda job: 13)
  monkeypatch.setattr(beam_steps, "_GATHERED_BYTES", 1000)
  assert_same_files(tmp_path, list(corpus.iterdir()), spm_model, **settings)


@needs_beam
def test_gzip_files_are_read_as_a_whole(tmp_path, corpus, spm_model):
  path = corpus / "1.txt"
  with gzip.open(corpus / "1.txt.gz", "wb") as file:
    file.write(path.read_bytes())
  path.unlink()
  assert_same_files(tmp_path, list(corpus.iterdir()), spm_model)


@needs_beam
def test_a_finished_job_is_kept_and_a_damaged_one_is_repaired(tmp_path, corpus, spm_model, capsys):
  job = make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model)
  prepare(job, beam_runner.make_runner())
  before = contents(tmp_path / "beam")
  prepare(job)  # the shards do not depend on the runner
  assert "complete; the checksums of all 5 shards are correct" in capsys.readouterr().out
  (tmp_path / "beam" / "pretraining-00002-of-00005.tfrecord").write_bytes(b"damaged")
  prepare(job, beam_runner.make_runner())
  assert contents(tmp_path / "beam") == before


@needs_beam
@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_files(tmp_path, spm_model, monkeypatch, name):
  form = FORMS[name]
  if form.module:
    pytest.importorskip(form.module)
  monkeypatch.setattr("data_prep.conversion.convert.PART_BYTES", 9000)
  (tmp_path / "input").mkdir()
  inputs = tuple(map(str, form.write([*DOCUMENTS, DOCUMENTS[3]], tmp_path / "input")))
  reading = dataclasses.replace(form.settings, drop_duplicates=True)
  for runner_name, options in (("local", {}), ("beam", {"runner": beam_runner.make_runner()})):
    made = dataclasses.replace(make_job(tmp_path, runner_name, [], spm_model), inputs=inputs, reading=reading)
    assert prepare(made, **options).reading["dropped"]["duplicate"]["documents"] == 1
  assert contents(tmp_path / "local") == contents(tmp_path / "beam")


@needs_beam
def test_a_bad_record_gives_the_error_of_the_local_runner(tmp_path, spm_model):
  path = tmp_path / "a.jsonl"
  path.write_text('{"text": "One. Two."}\n{"body": 1}\n')
  lines = []
  for name, options in (("local", {}), ("beam", {"runner": beam_runner.make_runner()})):
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: no field 'text'") as caught:
      prepare(make_job(tmp_path, name, [path], spm_model), **options)
    lines.append(str(caught.value))
  assert lines[0] == lines[1]


BAD_INPUT: dict[str, tuple[bytes, dict[str, Any], str]] = {
  "not UTF-8": (b"One sentence here.\nAnother \xff one.\n", {}, r"0\.txt, line 2: not UTF-8 text"),
  "too little": (
    b"A few words here.\nAnd some more.\n",
    {"num_shards": 50},
    r"--num_shards=50: the text gives only \d+ ex",
  ),
  "nothing": (b"word\n", {}, "no example in 1 documents of"),
  "one document": (b"A few words here.\nAnd some more.\n", {"sentence_prediction": "nsp"}, "needs at least two docum"),
}


@needs_beam
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gives_the_error_of_the_local_runner(tmp_path, spm_model, case):
  text, settings, message = BAD_INPUT[case]
  path = tmp_path / "0.txt"
  path.write_bytes(text)
  lines = []
  for name, options in (("local", {}), ("beam", {"runner": beam_runner.make_runner()})):
    with pytest.raises(UserError, match=message) as caught:
      prepare(make_job(tmp_path, name, [path], spm_model, **settings), **options)
    lines.append(str(caught.value))
    assert all(path.name.startswith(".preparation-") for path in (tmp_path / name).iterdir())
  assert lines[0] == lines[1]


@needs_beam
@pytest.mark.parametrize(
  "settings",
  [{"sentence_prediction": "nsp"}, {"sentence_prediction": "none", "input_format": "full_sentences"}],
  ids=lambda settings: "-".join(settings.values()),
)
def test_formats_that_need_neighbours_reject_gzip_files(tmp_path, spm_model, settings):
  path = tmp_path / "0.txt.gz"
  path.write_bytes(gzip.compress(b"A few words here.\n\nAnd some more.\n"))
  with pytest.raises(UserError, match=r"0\.txt\.gz is a GZIP file: with --runner=beam, nsp and full_sentences accept"):
    prepare(make_job(tmp_path, "beam", [path], spm_model, **settings), beam_runner.make_runner())


def run_script(corpus: Path, output: Path, spm_model: str, *flags: str) -> subprocess.CompletedProcess[str]:
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
  prepare(make_job(tmp_path, "local", list(corpus.iterdir()), spm_model))
  flags = ["--runner=DirectRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
  done = run_script(corpus, tmp_path / "beam", spm_model, "--runner=beam", "--", *flags)
  assert done.returncode == 0, done.stderr
  assert contents(tmp_path / "local") == contents(tmp_path / "beam")
  done = run_script(corpus, tmp_path / "other", spm_model, "--runner=beam", "--", "--runner=NoSuchRunner")
  assert done.returncode != 0
  assert "NoSuchRunner" in done.stderr


def test_beams_flags_without_beam_are_refused(tmp_path, corpus, spm_model):
  done = run_script(corpus, tmp_path / "out", spm_model, "--", "--project=p")
  assert done.returncode == 2
  assert done.stderr == (
    "error: '--project=p': words after -- are Beam's flags: give --runner=beam, or leave them out\n"
  )


@pytest.mark.skipif(beam_runner is not None, reason="Apache Beam is installed")
def test_without_beam_one_line_says_what_to_install(tmp_path, corpus, spm_model):
  done = run_script(corpus, tmp_path / "out", spm_model, "--runner=beam")
  assert done.returncode == 2
  assert done.stderr.startswith("error: --runner=beam needs Apache Beam (No module named 'apache_beam')")


# ---- checks of the starting machine --------------------------------------------------------------------


def make_result(tmp_path: Path, sizes: list[int]) -> tuple[Job, list[ShardInfo]]:
  """Writes the shards of a job as small files. Returns the job, and its shards with the given numbers of examples."""
  job = Job(inputs=(), output_dir=str(tmp_path), spm_model_file="", settings=PreparationSettings(), num_shards=3)
  infos = [ShardInfo(job.shard_name(index), size, 10, "") for index, size in enumerate(sizes)]
  for info in infos:
    (tmp_path / info.file).write_bytes(b"0123456789")
  return job, infos


def test_the_result_of_a_runner_is_checked(tmp_path: Path) -> None:
  job, infos = make_result(tmp_path, [3, 3, 4])
  check_shards(job, infos, 10)
  for wrong, num_examples, message in (
    (infos[:2], 10, r"2 shards instead of 3 \(pretraining-00002-of-00003.tfrecord and others are missing"),
    ([*infos, infos[2]], 10, "4 shards instead of 3"),
    ([infos[0], infos[0], infos[2]], 10, "3 shards instead of 3"),
    (infos, 20, "10 examples in the shards, but 20 were made from the text"),
    (
      [infos[0], *(dataclasses.replace(i, examples=n) for i, n in zip(infos[1:], (4, 3), strict=True))],
      10,
      "should ha",
    ),
    (
      [*infos[:2], dataclasses.replace(infos[2], bytes=11)],
      10,
      "00002-of-00003.tfrecord is missing or does not have its 11 byt",
    ),
  ):
    with pytest.raises(RunError, match=message) as caught:
      check_shards(job, wrong, num_examples)
    assert "no manifest was written" in str(caught.value)
  (tmp_path / infos[1].file).unlink()
  with pytest.raises(RunError, match=r"00001-of-00003\.tfrecord is missing or does not have its 10 bytes"):
    check_shards(job, infos, 10)


LOST: dict[str, str] = {
  "Units": r"0\.txt: the text from byte \d+ to \d+ is missing from the examples",
  "twice": "is twice in the examples",
  "Sort": "examples in the shards, but",
  "Write shards": "4 shards instead of 5",
  "Check input": "lost the work on 1 of 3 files",
  "List shards": "0 shards instead of 5|ended .* without a result",
}


@needs_beam
@pytest.mark.parametrize("step", LOST)
def test_lost_work_is_detected(tmp_path, corpus, spm_model, monkeypatch, step):
  """A step loses an element (or "twice": handles it twice), as with a faulty runner that loses a bundle."""
  monkeypatch.setattr(beam_runner, "num_key_ranges", lambda job: 13)
  map_of, flat_map = beam_runner.beam.Map, beam_runner.beam.FlatMap
  if step in ("Units", "twice"):
    pipeline_inputs = beam_runner._pipeline_inputs

    def changed(job):
      inputs = pipeline_inputs(job)
      return [*inputs[:1], *inputs[2:]] if step == "Units" else [*inputs, inputs[1]]

    plan = functools.partial(beam_runner.units.plan_units, unit_bytes=4096)
    monkeypatch.setattr(beam_runner.units, "plan_units", plan)
    monkeypatch.setattr(beam_runner, "_pipeline_inputs", changed)
  elif step == "Sort":
    sort = beam_runner.sort_key_range
    monkeypatch.setattr(beam_runner, "sort_key_range", lambda s, *rest: [] if s[0] == 4 else sort(s, *rest))
  else:
    name = {"Write shards": "write_shard", "Check input": "check_input", "List shards": "write_shard"}[step]
    function = getattr(beam_runner, name)
    is_lost = (lambda element: True) if step == "List shards" else (lambda element: element[0] == 1)

    def losing(transform, *arguments):
      if transform is function:
        return flat_map(lambda element, *rest: [] if is_lost(element) else [function(element, *rest)], *arguments)
      return map_of(transform, *arguments)

    monkeypatch.setattr(beam_runner.beam, "Map", losing)
  with pytest.raises(RunError, match=LOST[step]):
    prepare(make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model), beam_runner.make_runner())
  assert not (tmp_path / "beam" / "manifest.json").exists()


@needs_beam
@pytest.mark.parametrize("packed", [False, True])
def test_the_starting_machine_reads_no_text_and_changes_are_detected(tmp_path, corpus, spm_model, monkeypatch, packed):
  """The pipeline is built without opening an input file. A file that changes between two steps is detected."""
  path = corpus / "1.txt"
  if packed:
    data = path.read_bytes()
    path.unlink()
    path = corpus / "1.txt.gz"
    path.write_bytes(gzip.compress(data, 0))
  before = path.read_bytes()
  check = beam_runner.input_hashes.check_file

  def change_first(task):
    path.write_bytes(before.replace(b"The captain", b"The teacher", 1))
    return check(task)

  monkeypatch.setattr(beam_runner.input_hashes, "check_file", change_first)
  with pytest.raises(UserError, match=f"{path} changed while it was being read"):
    prepare(make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model), beam_runner.make_runner())
  assert not [name for name in (tmp_path / "beam").iterdir() if not name.name.startswith(".preparation-")]
  monkeypatch.undo()
  path.write_bytes(before)
  job = make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model)
  monkeypatch.setattr(files, "open_file", refuse_inputs(files.open_file, corpus))
  beam_runner.build(beam_runner.beam.Pipeline(), job, b"", str(tmp_path / "result.json"))
  monkeypatch.undo()
  manifest = prepare(job, beam_runner.make_runner())
  path.write_bytes(before.replace(b"The captain", b"The teacher", 1))
  with pytest.raises(UserError, match=r"holds a finished run with other settings \(other input files"):
    prepare(job, beam_runner.make_runner())
  assert sorted(p.name for p in (tmp_path / "beam").iterdir()) == ["manifest.json", *(s.file for s in manifest.shards)]


def refuse_inputs(open_file: Callable[..., Any], corpus: Path) -> Callable[..., Any]:
  """Returns a function like `open_file` that fails for the files of the corpus."""

  def opening(path: str, mode: str = "rb") -> Any:
    assert Path(path).parent != corpus
    return open_file(path, mode)

  return opening


@needs_beam
@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--runner=Nope"], "Beam's flags after --: Unexpected pipeline runner: Nope. Valid values are"),
    (["--runner=no.such.Runner"], "Beam's flags after --: "),
    (["--runer=DirectRunner"], "there is no flag '--runer=DirectRunner': did you mean --runner?"),
    (["--runner=FlinkRunner", "--flink_mastr=h:1"], "did you mean --flink_master?"),
    (["--direct_num_workers=many"], "argument --direct_num_workers: invalid int value: 'many'"),
    (["--runner=DataflowRunner"], "Missing required option: project."),
    (["stray"], "there is no flag 'stray'"),
  ],
)
def test_wrong_flags_of_beam_are_one_line(flags: list[str], message: str) -> None:
  with pytest.raises(UserError) as caught:
    beam_runner.make_runner(tuple(flags))
  assert message in str(caught.value)


@needs_beam
def test_right_flags_of_beam_are_taken() -> None:
  beam_runner.make_runner(("--direct_num_workers=2", "--runner=DirectRunner"))
  # Unknown flags are passed on to a Flink server.
  beam_runner.make_runner(
    ("--runner=FlinkRunner", "--flink_master=host:1", "--object_reuse", "--an_option_of_the_server=1")
  )
