"""Apache Beam's DirectRunner writes the same shards as the local runner. Needs the beam extra."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert.data.manifest import ShardInfo
from albert.errors import RunError, UserError
from albert.io import files
from data_prep.create_pretraining_data import Job, prepare
from data_prep.runners.base import Runner, check_shards
from data_prep.settings import PreparationSettings
from data_prep.units import plan_units
from tests.data_prep.runners.engine_contract import EngineContract, make_job, run_command, write_corpus
from tests.data_prep.runners.jobs import contents

try:
  from data_prep.runners import beam as beam_runner
  from data_prep.runners import beam_steps
except ImportError:
  beam_runner = None  # type: ignore[assignment]

needs_beam = pytest.mark.skipif(beam_runner is None, reason="needs Apache Beam: the beam extra")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
  return write_corpus(tmp_path / "corpus")


@needs_beam
class TestBeam(EngineContract):
  @pytest.fixture
  def runner(self, monkeypatch: pytest.MonkeyPatch) -> Runner:
    # With many small key ranges and bundles, the instances arrive in another order.
    monkeypatch.setattr(beam_runner, "num_key_ranges", lambda job: 13)
    monkeypatch.setattr(beam_steps, "_GATHERED_BYTES", 1000)
    monkeypatch.setattr(beam_steps.beam_blocks, "_MEMORY_BYTES", 10_000)
    return beam_runner.make_runner()


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


@needs_beam
def test_the_step_can_be_pickled_after_setup(corpus, spm_model):
  settings = PreparationSettings(max_seq_length=48, dupe_factor=2)
  step = beam_steps.MakeInstances(settings, Path(spm_model).read_bytes(), 3)
  before = pickle.dumps(step)
  step.setup()
  step.start_bundle()
  (unit,) = plan_units([str(corpus / "2.txt")], with_donors=False)
  made = _outputs([*step.process(unit), *step.finish_bundle()])
  assert pickle.dumps(step) == before
  copy = pickle.loads(pickle.dumps(step))
  copy.setup()
  copy.start_bundle()
  assert len(made) > 3
  assert _outputs([*copy.process(unit), *copy.finish_bundle()]) == made


def _outputs(elements: list[Any]) -> list[tuple[Any, Any]]:
  """Returns the outputs of MakeInstances without Beam's wrappers and NumPy's arrays: (tag or key range, value)."""
  values = [(e.tag, e.value) if isinstance(e, beam_steps.beam.pvalue.TaggedOutput) else e.value for e in elements]
  return [(key, [column.tolist() for column in value] if isinstance(key, int) else value) for key, value in values]


@needs_beam
def test_a_large_text_gives_large_blocks(tmp_path, monkeypatch):
  """With 160 GB of text, a process that has gathered 64 MiB of instances emits about 100 of them in each block."""
  monkeypatch.setattr(files, "size", lambda path: 160 * 10**9)
  job = make_job(tmp_path, "beam", [tmp_path / "0.txt"], "", max_seq_length=512, dupe_factor=10)
  block_bytes = beam_steps._GATHERED_BYTES / beam_runner.num_key_ranges(job)
  assert block_bytes > 90 * 1360


@needs_beam
@pytest.mark.slow
def test_beams_own_flags_pass_through(tmp_path, corpus, spm_model):
  prepare(make_job(tmp_path, "local", list(corpus.iterdir()), spm_model))
  flags = ["--runner=DirectRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
  done = run_command(corpus, tmp_path / "beam", spm_model, "--runner=beam", "--", *flags)
  assert done.returncode == 0, done.stderr
  assert contents(tmp_path / "local") == contents(tmp_path / "beam")
  done = run_command(corpus, tmp_path / "other", spm_model, "--runner=beam", "--", "--runner=NoSuchRunner")
  assert done.returncode != 0
  assert "NoSuchRunner" in done.stderr


def test_beams_flags_without_beam_are_refused(tmp_path, corpus, spm_model):
  done = run_command(corpus, tmp_path / "out", spm_model, "--", "--project=p")
  assert done.returncode == 2
  assert done.stderr == (
    "error: '--project=p': words after -- are flags of Apache Beam or Ray: give --runner=beam or --runner=ray, or "
    "leave them out\n"
  )


@pytest.mark.skipif(beam_runner is not None, reason="Apache Beam is installed")
def test_without_beam_one_line_says_what_to_install(tmp_path, corpus, spm_model):
  done = run_command(corpus, tmp_path / "out", spm_model, "--runner=beam")
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
