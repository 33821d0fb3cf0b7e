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

from albert.data.shard_files.manifest import ShardInfo
from albert.errors import RunError, UserError
from albert.io import files
from data_prep.create_pretraining_data import Job, prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.runners.base import Runner, check_shards
from data_prep.units import plan_units
from tests.data_prep.runners.engine_contract import EngineContract, compress_file, make_job, run_command, write_corpus
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
  """Beam pickles a step to copy it. The copy must give the same outputs."""
  settings = PreparationSettings(max_seq_length=48, dupe_factor=2)
  step = beam_steps.MakeInstances(settings, {"spiece.model": Path(spm_model).read_bytes()}, 3)
  pickle_before_setup = pickle.dumps(step)
  step.setup()
  step.start_bundle()
  (unit,) = plan_units([str(corpus / "2.txt")], with_donors=False)
  outputs = _outputs([*step.process(unit), *step.finish_bundle()])
  assert pickle.dumps(step) == pickle_before_setup
  copy = pickle.loads(pickle.dumps(step))
  copy.setup()
  copy.start_bundle()
  assert len(outputs) > 3
  assert _outputs([*copy.process(unit), *copy.finish_bundle()]) == outputs


def _outputs(elements: list[Any]) -> list[tuple[Any, Any]]:
  """Returns the outputs of MakeInstances without Beam's wrappers and NumPy's arrays: (tag or key range, value)."""
  outputs = []
  for element in elements:
    is_tagged = isinstance(element, beam_steps.beam.pvalue.TaggedOutput)
    key, value = (element.tag, element.value) if is_tagged else element.value
    is_block = isinstance(key, int)  # of the key range `key`
    outputs.append((key, [column.tolist() for column in value] if is_block else value))
  return outputs


@needs_beam
def test_a_large_text_gives_large_blocks(tmp_path, monkeypatch):
  """With 160 GB of text, a process that has gathered 64 MiB of instances emits about 100 of them in each block."""
  monkeypatch.setattr(files, "size", lambda path: 160 * 10**9)
  job = make_job(tmp_path, "beam", [tmp_path / "0.txt"], "", max_seq_length=512, dupe_factor=10)
  block_bytes = beam_steps._GATHERED_BYTES / beam_runner.num_key_ranges(job)
  assert block_bytes > 90 * 1360  # an instance of 512 tokens has about 1360 bytes


@needs_beam
@pytest.mark.slow
def test_beams_own_flags_pass_through(tmp_path, corpus, spm_model):
  prepare(make_job(tmp_path, "local", list(corpus.iterdir()), spm_model))
  flags = ["--runner=DirectRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
  completed = run_command(corpus, tmp_path / "beam", spm_model, "--runner=beam", "--", *flags)
  assert completed.returncode == 0, completed.stderr
  assert contents(tmp_path / "local") == contents(tmp_path / "beam")
  completed = run_command(corpus, tmp_path / "other", spm_model, "--runner=beam", "--", "--runner=NoSuchRunner")
  assert completed.returncode != 0
  assert "NoSuchRunner" in completed.stderr


def test_beams_flags_without_beam_are_refused(tmp_path, corpus, spm_model):
  completed = run_command(corpus, tmp_path / "out", spm_model, "--", "--project=p")
  assert completed.returncode == 2
  assert completed.stderr == (
    "error: '--project=p': words after -- are flags of Apache Beam or Ray: give --runner=beam or --runner=ray, or "
    "leave them out\n"
  )


@pytest.mark.skipif(beam_runner is not None, reason="Apache Beam is installed")
def test_without_beam_one_line_says_what_to_install(tmp_path, corpus, spm_model):
  completed = run_command(corpus, tmp_path / "out", spm_model, "--runner=beam")
  assert completed.returncode == 2
  assert completed.stderr.startswith("error: --runner=beam needs Apache Beam (No module named 'apache_beam')")


# ---- checks of the machine that starts the pipeline ----------------------------------------------------


def write_shard_files(tmp_path: Path, num_examples: list[int]) -> tuple[Job, list[ShardInfo]]:
  """Writes a file of ten bytes for each shard. Returns the job, and its shards with these numbers of examples."""
  job = Job(inputs=(), output_dir=str(tmp_path), spm_model_file="", settings=PreparationSettings(), num_shards=3)
  shard_infos = [ShardInfo(job.shard_name(index), number, 10, "") for index, number in enumerate(num_examples)]
  for info in shard_infos:
    (tmp_path / info.file).write_bytes(b"0123456789")
  return job, shard_infos


def test_the_result_of_a_runner_is_checked(tmp_path: Path) -> None:
  job, shard_infos = write_shard_files(tmp_path, [3, 3, 4])
  check_shards(job, shard_infos, 10)
  info_0, info_1, info_2 = shard_infos
  sizes_swapped = [info_0, dataclasses.replace(info_1, examples=4), dataclasses.replace(info_2, examples=3)]
  wrong_file_size = [info_0, info_1, dataclasses.replace(info_2, bytes=11)]
  # The shards that a runner returns, the number of examples that were made from the text, the error.
  for wrong_shard_infos, num_examples, message in (
    ([info_0, info_1], 10, r"2 shards instead of 3 \(pretraining-00002-of-00003.tfrecord and others are missing"),
    ([info_0, info_1, info_2, info_2], 10, "4 shards instead of 3"),
    ([info_0, info_0, info_2], 10, "3 shards instead of 3"),
    (shard_infos, 20, "10 examples in the shards, but 20 were made from the text"),
    (sizes_swapped, 10, "should have"),
    (wrong_file_size, 10, "00002-of-00003.tfrecord is missing or does not have its 11 bytes"),
  ):
    with pytest.raises(RunError, match=message) as caught:
      check_shards(job, wrong_shard_infos, num_examples)
    assert "no manifest was written" in str(caught.value)
  (tmp_path / info_1.file).unlink()
  with pytest.raises(RunError, match=r"00001-of-00003\.tfrecord is missing or does not have its 10 bytes"):
    check_shards(job, shard_infos, 10)


# ---- a faulty runner -----------------------------------------------------------------------------------


def lose_unit(monkeypatch: pytest.MonkeyPatch) -> None:
  """Removes the second unit of the text from the inputs of the pipeline."""
  make_units_of_4_kib(monkeypatch)
  pipeline_inputs = beam_runner._pipeline_inputs

  def all_but_the_second(job: Job) -> list[Any]:
    inputs = pipeline_inputs(job)
    return [*inputs[:1], *inputs[2:]]

  monkeypatch.setattr(beam_runner, "_pipeline_inputs", all_but_the_second)


def repeat_unit(monkeypatch: pytest.MonkeyPatch) -> None:
  """Puts the second unit of the text twice into the inputs of the pipeline."""
  make_units_of_4_kib(monkeypatch)
  pipeline_inputs = beam_runner._pipeline_inputs

  def with_second_twice(job: Job) -> list[Any]:
    inputs = pipeline_inputs(job)
    return [*inputs, inputs[1]]

  monkeypatch.setattr(beam_runner, "_pipeline_inputs", with_second_twice)


def make_units_of_4_kib(monkeypatch: pytest.MonkeyPatch) -> None:
  plan = functools.partial(beam_runner.units.plan_units, unit_bytes=4096)
  monkeypatch.setattr(beam_runner.units, "plan_units", plan)


def lose_key_range(monkeypatch: pytest.MonkeyPatch) -> None:
  """Drops the instances of key range 4 when they are sorted."""
  sort_key_range = beam_runner.sort_key_range

  def sort_all_but_one(key_range: Any, *arguments: Any) -> Any:
    return [] if key_range[0] == 4 else sort_key_range(key_range, *arguments)

  monkeypatch.setattr(beam_runner, "sort_key_range", sort_all_but_one)


def lose_elements(monkeypatch: pytest.MonkeyPatch, function_name: str, is_lost: Callable[[Any], bool]) -> None:
  """Drops elements of the step that maps this function of the runner's module over its input."""
  beam = beam_runner.beam
  function, beam_map = getattr(beam_runner, function_name), beam.Map

  def map_or_lose(transform: Callable[..., Any], *arguments: Any) -> Any:
    if transform is not function:
      return beam_map(transform, *arguments)

    def call_or_lose(element: Any, *side_inputs: Any) -> list[Any]:
      return [] if is_lost(element) else [function(element, *side_inputs)]

    return beam.FlatMap(call_or_lose, *arguments)

  monkeypatch.setattr(beam, "Map", map_or_lose)


def lose_shard(monkeypatch: pytest.MonkeyPatch) -> None:
  lose_elements(monkeypatch, "write_shard", lambda element: element[0] == 1)


def lose_checked_file(monkeypatch: pytest.MonkeyPatch) -> None:
  lose_elements(monkeypatch, "check_input", lambda element: element[0] == 1)


def lose_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
  lose_elements(monkeypatch, "write_shard", lambda element: True)


# Step of the pipeline -> (function that installs the fault, the error).
LOST_WORK: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
  "Units": (lose_unit, r"0\.txt: the text from byte \d+ to \d+ is missing from the examples"),
  "twice": (repeat_unit, "is twice in the examples"),
  "Sort": (lose_key_range, "examples in the shards, but"),
  "Write shards": (lose_shard, "4 shards instead of 5"),
  "Check input": (lose_checked_file, "lost the work on 1 of 3 files"),
  "List shards": (lose_all_shards, "0 shards instead of 5|ended .* without a result"),
}


@needs_beam
@pytest.mark.parametrize("step", LOST_WORK)
def test_lost_work_is_detected(tmp_path, corpus, spm_model, monkeypatch, step):
  """A step loses or repeats an element, as a faulty runner does that loses or repeats a bundle."""
  install_fault, message = LOST_WORK[step]
  monkeypatch.setattr(beam_runner, "num_key_ranges", lambda job: 13)
  install_fault(monkeypatch)
  with pytest.raises(RunError, match=message):
    prepare(make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model), beam_runner.make_runner())
  assert not (tmp_path / "beam" / "manifest.json").exists()


@needs_beam
@pytest.mark.parametrize("is_gzip", [False, True])
def test_a_file_that_changes_is_detected(tmp_path, corpus, spm_model, monkeypatch, is_gzip):
  """A file changes between two steps of a job, and again after the job has finished."""
  path = corpus / "1.txt"
  if is_gzip:
    text = path.read_bytes()
    path.unlink()
    path = corpus / "1.txt.gz"
    path.write_bytes(gzip.compress(text, compresslevel=0))  # uncompressed, so that its words can be replaced
  original = path.read_bytes()
  changed = original.replace(b"The captain", b"The teacher", 1)
  job = make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model)
  check_file = beam_runner.input_hashes.check_file

  def change_and_check(task):
    path.write_bytes(changed)
    return check_file(task)

  with monkeypatch.context() as patch:
    patch.setattr(beam_runner.input_hashes, "check_file", change_and_check)
    with pytest.raises(UserError, match=f"{path} changed while it was being read"):
      prepare(job, beam_runner.make_runner())
  assert all(entry.name.startswith(".preparation-") for entry in (tmp_path / "beam").iterdir())  # no shard
  path.write_bytes(original)
  manifest = prepare(job, beam_runner.make_runner())
  path.write_bytes(changed)
  with pytest.raises(UserError, match=r"holds a finished run with other settings \(other input files"):
    prepare(job, beam_runner.make_runner())
  names = {entry.name for entry in (tmp_path / "beam").iterdir()}
  assert names == {"manifest.json", *(shard.file for shard in manifest.shards)}


@needs_beam
@pytest.mark.parametrize("is_gzip", [False, True])
def test_the_starting_machine_reads_no_text(tmp_path, corpus, spm_model, monkeypatch, is_gzip):
  """The pipeline is built without opening an input file."""
  if is_gzip:
    compress_file(corpus / "1.txt")
  job = make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model)
  monkeypatch.setattr(files, "open_file", refuse_inputs(files.open_file, corpus))
  beam_runner.build(beam_runner.beam.Pipeline(), job, {}, str(tmp_path / "result.json"))


def refuse_inputs(open_file: Callable[..., Any], corpus: Path) -> Callable[..., Any]:
  """Returns a function like `open_file` that fails for the files of the corpus."""

  def open_other_file(path: str, mode: str = "rb") -> Any:
    assert Path(path).parent != corpus
    return open_file(path, mode)

  return open_other_file


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
def test_right_flags_of_beam_are_accepted() -> None:
  beam_runner.make_runner(("--direct_num_workers=2", "--runner=DirectRunner"))
  # Unknown flags are passed on to a Flink server.
  beam_runner.make_runner(
    ("--runner=FlinkRunner", "--flink_master=host:1", "--object_reuse", "--an_option_of_the_server=1")
  )
