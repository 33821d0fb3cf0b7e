"""A Ray cluster of two nodes writes the same shards as the local runner, also after kills. Needs the ray extra."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from albert.errors import RunError, UserError
from data_prep.create_pretraining_data import prepare
from data_prep.job import OpenPool
from tests.conftest import english_like_documents
from tests.data_prep.runners import faults
from tests.data_prep.runners.engine_contract import (
  ALL_UNITS_KEPT,
  BAD_INPUT,
  ROOT,
  EngineContract,
  command,
  compress_file,
  make_job,
  run_command,
  write_corpus,
)
from tests.data_prep.runners.jobs import contents, make_units_small

try:
  import ray
  from ray.cluster_utils import Cluster
except ImportError:
  ray = None
else:
  from data_prep.runners import ray as ray_runner
  from data_prep.runners.ray import RayOptions, parse_flags

needs_ray = pytest.mark.skipif(ray is None, reason="needs Ray: the ray extra")
NODE_RESOURCES = {"num_cpus": 1, "object_store_memory": 80 << 20}
# Upper limit of a worker's resident memory, for length 512. docs/scale.md says what was measured.
MAX_WORKER_BYTES = 500e6
# Upper limit of the additional memory for a text that is five times as long.
MAX_GROWTH_BYTES = 100e6


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
  return write_corpus(tmp_path / "corpus")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
  """A cluster of two nodes with one CPU each, to which this process is connected."""
  os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
  cluster = Cluster()
  _add_node(cluster, include_dashboard=False)
  _add_node(cluster)
  ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
  yield cluster
  ray.shutdown()
  cluster.shutdown()


def _add_node(cluster: Any, **arguments: Any) -> Any:
  """Adds a node with one CPU. On a busy machine it may start later than Ray waits for it, so there are three tries."""
  for _ in range(2):
    with contextlib.suppress(Exception):
      return cluster.add_node(**NODE_RESOURCES, **arguments)
  return cluster.add_node(**NODE_RESOURCES, **arguments)


@pytest.fixture
def runner(cluster: Any) -> OpenPool:
  return ray_runner.make_runner()


@needs_ray
class TestRay(EngineContract):
  def test_an_error_in_a_gzip_file_names_it(self, tmp_path, spm_model, runner):
    text, _, _ = BAD_INPUT["not UTF-8"]
    path = compress_file(_write_file(tmp_path / "0.txt", text))
    with pytest.raises(UserError, match=r"/0\.txt\.gz, line 2: not UTF-8 text"):
      prepare(make_job(tmp_path, "other", [path], spm_model), runner)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"/0\.txt\.gz: the GZIP file is damaged or incomplete"):
      prepare(make_job(tmp_path, "other", [path], spm_model), runner)


# ---- kills ---------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.parametrize(
  ("step", "target"),
  [
    ("making", "data_prep.blocks.make_block"),
    ("writing", "data_prep.shards.write_shards"),
  ],
)
def test_a_killed_worker_is_replaced(tmp_path, corpus, spm_model, monkeypatch, runner, step, target):
  """`faults` has a function of the same name for each target. It kills its process once, and notes that in a file."""
  make_units_small(monkeypatch)
  prepare(make_job(tmp_path, "local", list(corpus.iterdir()), spm_model))
  monkeypatch.setattr(target, getattr(faults, target.rpartition(".")[2]))
  prepare(make_job(tmp_path, "other", list(corpus.iterdir()), spm_model), runner)
  pid = int((tmp_path / f"died-while-{step}").read_text())
  assert not _is_running(pid)
  assert contents(tmp_path / "other") == contents(tmp_path / "local")


@needs_ray
def test_the_tasks_of_a_node_that_dies_are_run_on_others(tmp_path, corpus, spm_model, monkeypatch, cluster, runner):
  make_units_small(monkeypatch)
  node = _add_node(cluster)
  prepare(make_job(tmp_path, "local", list(corpus.iterdir()), spm_model))
  monkeypatch.setattr("data_prep.blocks.make_block", faults.make_block_slowly)

  def remove_node() -> None:
    _wait_for(tmp_path / "other", "block-*.block", 2)
    cluster.remove_node(node, allow_graceful=False)

  with ThreadPoolExecutor(1) as threads:
    removal = threads.submit(remove_node)
    prepare(make_job(tmp_path, "other", list(corpus.iterdir()), spm_model), runner)
    removal.result()
  assert contents(tmp_path / "other") == contents(tmp_path / "local")


@needs_ray
def test_a_process_that_always_dies_ends_the_command(tmp_path, corpus, spm_model, monkeypatch, cluster):
  monkeypatch.setattr("data_prep.blocks.make_block", faults.die_always)
  message = r"a task failed on the Ray cluster .*: run the same command again; finished work is kept"
  with pytest.raises(RunError, match=message):
    prepare(make_job(tmp_path, "other", list(corpus.iterdir()), spm_model), ray_runner.make_runner(["--max_retries=1"]))
  assert not (tmp_path / "other" / "manifest.json").exists()


@needs_ray
def test_a_fault_of_the_program_keeps_its_traceback(tmp_path, corpus, spm_model, monkeypatch, runner):
  monkeypatch.setattr("data_prep.blocks.make_block", faults.fail)
  with pytest.raises(KeyError, match="a fault of the program"):
    prepare(make_job(tmp_path, "other", list(corpus.iterdir()), spm_model), runner)


@needs_ray
@pytest.mark.parametrize("ray_runs_on", ["cluster", "this machine"])
def test_a_killed_command_is_continued(tmp_path, spm_model, request, ray_runs_on):
  """The command is killed while units are made, and again while shards are written."""
  corpus = tmp_path / "corpus"
  corpus.mkdir()
  lines = ["\n".join(document) for document in english_like_documents(12_000, seed=3)]  # 8 MB: 4 units
  (corpus / "0.txt").write_text("\n\n".join(lines))
  compress_file(_write_file(corpus / "1.txt", "\n\n".join(lines[:1000]).encode()))
  flags = ["--dupe_factor=1", "--num_shards=40"]
  assert run_command(corpus, tmp_path / "local", spm_model, *flags).returncode == 0
  address = request.getfixturevalue("cluster").address if ray_runs_on == "cluster" else ""
  flags += ["--runner=ray", *(["--", f"--address={address}"] if address else [])]
  argv = command(corpus, tmp_path / "other", spm_model, *flags, num_processes=2)
  for pattern, count in (("block-*.block", 2), ("shard-*.json", 2)):
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
      _wait_for(tmp_path / "other", pattern, count)
      process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "other" / "manifest.json").exists()
  times_of_finished_shards = _modification_times_of_recorded_shards(tmp_path / "other")
  completed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
  assert completed.returncode == 0, completed.stderr
  assert re.search(ALL_UNITS_KEPT, completed.stdout)
  assert re.search(r"kept \d+ of 40 shards of an earlier run", completed.stdout)
  assert "Ray: " in completed.stdout
  assert contents(tmp_path / "other") == contents(tmp_path / "local")
  assert len(times_of_finished_shards) >= 2
  assert {
    name: (tmp_path / "other" / name).stat().st_mtime_ns for name in times_of_finished_shards
  } == times_of_finished_shards


@needs_ray
def test_a_stopped_command_ends_its_cluster(tmp_path, corpus, spm_model):
  """SIGTERM ends the command and the processes of Ray that it started. The command's last line says how to continue."""
  argv = command(corpus, tmp_path / "other", spm_model, "--dupe_factor=200", "--runner=ray", num_processes=2)
  with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
    _wait_for(tmp_path / "other", ".block-*.tmp", 1)  # a worker has begun, and the command waits for it
    children = _descendants(process.pid)
    process.terminate()
    _, errors = process.communicate(timeout=60)
  assert process.returncode == 128 + signal.SIGTERM
  assert errors.splitlines()[-1] == "stopped: run the same command again to continue"
  assert len(children) >= 3
  deadline = time.monotonic() + 30
  while any(map(_is_running, children)) and time.monotonic() < deadline:
    time.sleep(0.2)
  assert not [pid for pid in children if _is_running(pid)]


def _write_file(path: Path, content: bytes) -> Path:
  path.write_bytes(content)
  return path


def _modification_times_of_recorded_shards(output_dir: Path) -> dict[str, int]:
  """Returns the time in nanoseconds at which each shard with a record was last written, by the shard's file name.

  A later command writes a shard again if the kill came between the shard and its record.
  """
  records = [json.loads(path.read_text()) for path in output_dir.glob(".preparation-*/shard-*.json")]
  names = [record["shard"]["file"] for record in records]
  return {name: (output_dir / name).stat().st_mtime_ns for name in names}


def _wait_for(output_dir: Path, pattern: str, count: int) -> None:
  """Waits until the hidden directory of a job has `count` files whose names match the pattern."""
  deadline = time.monotonic() + 600
  while len(list(output_dir.glob(f".preparation-*/{pattern}"))) < count:
    assert time.monotonic() < deadline
    time.sleep(0.02)


def _is_running(pid: int) -> bool:
  """Whether a process exists and is not a zombie. In its stat file, the state follows the name in parentheses."""
  with contextlib.suppress(OSError):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
  return False


def _descendants(pid: int) -> list[int]:
  """Returns the ids of a process's children, of their children, and so on."""
  children: dict[int, list[int]] = {}
  for path in Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):
      parent = int(path.read_text().rpartition(")")[2].split()[1])  # it follows the state
      children.setdefault(parent, []).append(int(path.parent.name))
  descendants = list(children.get(pid, []))
  for descendant in descendants:  # grows while it is read
    descendants += children.get(descendant, [])
  return descendants


# ---- memory --------------------------------------------------------------------------------------------


@needs_ray
def test_memory_of_a_worker_does_not_grow_with_the_text(tmp_path, spm_model, capsys, runner):
  """The greatest resident memory of a worker, for 6 and for 30 MB of text."""
  documents = ["\n".join(document) for document in english_like_documents(10_000, seed=5)]
  peaks = []
  for copies in (1, 5):
    folder = tmp_path / f"corpus{copies}"
    folder.mkdir()
    for copy in range(copies):
      (folder / f"{copy}.txt").write_text("\n\n".join(documents))
    job = make_job(tmp_path, f"out{copies}", list(folder.iterdir()), spm_model, 2, max_seq_length=512, dupe_factor=1)
    prepare(job, runner)
    (peak,) = re.findall(r"peak memory of a process: (\d+) MB", capsys.readouterr().out)
    peaks.append(int(peak) * 1e6)
  assert max(peaks) < MAX_WORKER_BYTES, peaks
  assert peaks[1] < peaks[0] + MAX_GROWTH_BYTES, peaks


# ---- flags and errors ----------------------------------------------------------------------------------


@needs_ray
def test_nodes_without_the_files_are_named(tmp_path, corpus, spm_model, runner):
  def open_pool(job: Any, initializer: Any, arguments: Any) -> Any:
    """Opens workers whose output directory does not exist."""
    paths = {"output_dir": "/no/such"}
    return ray_runner.RayPool(
      RayOptions(), job.num_processes, ray_runner._start_worker, (paths, initializer, arguments)
    )

  message = r"--output_dir=/no/such does not exist on .*, a node of the Ray cluster: all nodes"
  with pytest.raises(UserError, match=message):
    prepare(make_job(tmp_path, "other", list(corpus.iterdir()), spm_model), open_pool)


@needs_ray
def test_a_module_that_the_nodes_lack_is_named(cluster):
  module = types.ModuleType("only_here")
  exec("def work(item): return item", module.__dict__)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "only_here", module)
    pool = ray_runner.RayPool(RayOptions(), num_processes=1, initializer=print)
    with pool, pytest.raises(UserError, match=r"lack .*only_here.*: install"):
      list(pool.map(module.work, [1]))


@needs_ray
def test_a_task_that_fits_on_no_node_is_reported(capsys, cluster):
  pool = ray_runner.RayPool(parse_flags(["--num_cpus=900"]), num_processes=1, initializer=print)
  with pool:
    pass
  assert "no node of the Ray cluster has 900 CPUs" in capsys.readouterr().err


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "no port", "[::1]:1"])
def test_a_cluster_that_does_not_exist_is_named(monkeypatch, address):
  monkeypatch.setattr(ray, "is_initialized", lambda: False)
  message = rf"--runner=ray: no Ray cluster can be used at {re.escape(address)} \(.*: start one with"
  pool = ray_runner.RayPool(RayOptions(address), num_processes=1, initializer=print)
  with pytest.raises(UserError, match=message), pool:
    pass


@needs_ray
@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--adress=auto", r"unrecognized arguments: --adress=auto \(there are --address, --num_cpus, --max_retries\)"),
    ("--num_cpus=0", r"--num_cpus=0 is not a number above 0"),
    ("--max_retries=-5", "--max_retries=-5 is below 0"),
    ("--max_retries=few", r"argument --max_retries: invalid int value: 'few'"),
    ("stray", "unrecognized arguments: stray"),
  ],
)
def test_wrong_flags_are_named(flag: str, message: str) -> None:
  with pytest.raises(UserError, match=f"flags of Ray after --: {message}"):
    parse_flags([flag])


@needs_ray
def test_right_flags_are_parsed() -> None:
  assert parse_flags([]) == RayOptions()
  assert parse_flags(["--address=a:1", "--num_cpus=0.5", "--max_retries", "0"]) == RayOptions("a:1", 0.5, 0)


@pytest.mark.skipif(ray is not None, reason="Ray is installed")
def test_without_ray_one_line_says_what_to_install(tmp_path, corpus, spm_model):
  completed = run_command(corpus, tmp_path / "out", spm_model, "--runner=ray")
  assert completed.returncode == 2
  assert re.fullmatch(
    r"error: --runner=ray needs Ray \(No module named 'ray'\): pip install 'ray>=[\d.]+,<3'\n", completed.stderr
  )
