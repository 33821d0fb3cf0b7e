"""Apache Beam's DirectRunner writes the same shards as the local runner. Needs the beam extra."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert.data.manifest import ShardInfo
from albert.errors import RunError, UserError
from albert.io import local_files
from data_prep import blocks, shards
from data_prep.create_pretraining_data import prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.job import OpenPool
from tests.data_prep.runners.engine_contract import (
  EngineContract,
  make_job,
  run_command,
  write_corpus,
)
from tests.data_prep.runners.jobs import contents, make_units_small

try:
  from data_prep.runners import beam as beam_runner
except ImportError:
  beam_runner = None  # type: ignore[assignment]

needs_beam = pytest.mark.skipif(beam_runner is None, reason="needs Apache Beam: the beam extra")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
  return write_corpus(tmp_path / "corpus")


@needs_beam
class TestBeam(EngineContract):
  @pytest.fixture
  def runner(self) -> OpenPool:
    return beam_runner.make_runner()


@needs_beam
def test_the_step_can_be_pickled_after_setup(spm_model):
  """Beam pickles a step to copy it. It holds the vocabulary's contents, since its file may not be on all machines."""
  vocabulary = {"spiece.model": Path(spm_model).read_bytes()}
  step = beam_runner._Call(len, blocks.start_worker, PreparationSettings(), vocabulary)
  pickle_before_setup = pickle.dumps(step)
  step.setup()
  assert blocks._maker is not None
  assert blocks._maker.tokenizer.vocab_size > 100
  assert pickle.dumps(step) == pickle_before_setup
  assert list(pickle.loads(pickle_before_setup).process((3, "word"))) == [(3, 4)]


@needs_beam
def test_commands_do_not_share_their_results(tmp_path, spm_model):
  """The name of a pool's file says which process wrote it, so that the file is removed if the process was killed."""
  job = make_job(tmp_path, "beam", [], spm_model)
  paths = {beam_runner.BeamPool(job, blocks.start_worker, (job.settings, spm_model))._result_file for _ in range(2)}
  assert len(paths) == 2
  assert all(local_files.STAGING_NAME.match(Path(path).name) for path in paths)


def fail(task: shards.ShardsTask) -> list[ShardInfo]:
  raise RunError("the disk failed")


@needs_beam
def test_an_error_of_the_system_in_a_worker_is_that_of_the_command(tmp_path, corpus, spm_model, monkeypatch):
  monkeypatch.setattr(shards, "write_shards", fail)
  with pytest.raises(RunError, match=r"^the disk failed$"):
    prepare(make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model), beam_runner.make_runner())


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
    "error: '--project=p': words after -- are flags of Apache Beam or Ray: give --runner=beam or ray, or "
    "leave them out\n"
  )


@pytest.mark.skipif(beam_runner is not None, reason="Apache Beam is installed")
def test_without_beam_one_line_says_what_to_install(tmp_path, corpus, spm_model):
  completed = run_command(corpus, tmp_path / "out", spm_model, "--runner=beam")
  assert completed.returncode == 2
  assert completed.stderr.startswith("error: --runner=beam needs Apache Beam (No module named 'apache_beam')")


# ---- a faulty runner -----------------------------------------------------------------------------------


def lose_result(results: list[Any]) -> list[Any]:
  return results[:1] + results[2:]


def repeat_result(results: list[Any]) -> list[Any]:
  return [*results, results[1]]


def lose_all_results(results: list[Any]) -> list[Any]:
  return []


@needs_beam
@pytest.mark.parametrize("change", [lose_result, repeat_result, lose_all_results])
@pytest.mark.parametrize("module_and_function", ["blocks.make_block", "shards.write_shards"])
def test_lost_and_repeated_work_is_detected(tmp_path, corpus, spm_model, monkeypatch, module_and_function, change):
  """The pipeline of a step loses or repeats a result, as a faulty runner does that loses or repeats a bundle."""
  make_units_small(monkeypatch)
  monkeypatch.setattr(shards, "_MIN_STEP_BYTES", 1)  # so that each shard is a task
  module_name, function_name = module_and_function.split(".")
  function = getattr({"blocks": blocks, "shards": shards}[module_name], function_name)
  pool_map, run_pipeline = beam_runner.BeamPool.map, beam_runner._run_pipeline

  def map_with_fault(pool: Any, called: Callable[..., Any], items: Any) -> Any:
    def run_with_fault(*arguments: Any) -> Any:
      return change(run_pipeline(*arguments))

    with monkeypatch.context() as patch:
      if called is function:
        patch.setattr(beam_runner, "_run_pipeline", run_with_fault)
      yield from pool_map(pool, called, items)

  monkeypatch.setattr(beam_runner.BeamPool, "map", map_with_fault)
  with pytest.raises(RunError, match=r"lost or repeated work: \d+ results of \d+ calls"):
    prepare(make_job(tmp_path, "beam", list(corpus.iterdir()), spm_model), beam_runner.make_runner())
  assert not (tmp_path / "beam" / "manifest.json").exists()


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
