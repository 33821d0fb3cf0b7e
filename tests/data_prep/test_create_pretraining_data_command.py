"""The command data_prep.create_pretraining_data: it resumes after a kill; help, bad input and memory."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import english_like_documents
from tests.data_prep.runners.jobs import contents


def make_argv(**flags: object) -> list[str]:
  """Returns the command line with these flags."""
  module = "data_prep.create_pretraining_data"
  return [sys.executable, "-m", module, *(f"--{name}={value}" for name, value in flags.items())]


def run_preparation(**flags: object) -> subprocess.CompletedProcess[str]:
  return subprocess.run(make_argv(**flags), capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def longer_text(tmp_path_factory: pytest.TempPathFactory) -> str:
  """A text file of 5 MB, which the command cuts into three units."""
  documents = english_like_documents(400, seed=1)
  sample = random.Random(0).choices(documents, k=10_000)
  path = tmp_path_factory.mktemp("longer") / "text.txt"
  path.write_text("\n\n".join("\n".join(document) for document in sample))
  return str(path)


def _command_flags(longer_text: str, spm_model: str) -> dict[str, object]:
  return {
    "input_file": longer_text,
    "spm_model_file": spm_model,
    "max_seq_length": 128,
    "dupe_factor": 1,
    "num_processes": 2,
    "num_shards": 4,
    "random_seed": 7,
  }


@pytest.fixture(scope="module")
def uninterrupted_output(
  tmp_path_factory: pytest.TempPathFactory, longer_text: str, spm_model: str
) -> dict[str, bytes]:
  """The files that an uninterrupted command writes with one process. Its seed is given by the other name."""
  directory = tmp_path_factory.mktemp("uninterrupted")
  flags = _command_flags(longer_text, spm_model) | {"num_processes": 1, "seed": 7}
  del flags["random_seed"]
  completed = run_preparation(output_dir=directory, **flags)
  assert completed.returncode == 0, completed.stderr
  return contents(directory)


@pytest.mark.thorough
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_command_resumes(
  tmp_path: Path,
  longer_text: str,
  spm_model: str,
  uninterrupted_output: dict[str, bytes],
  signal_number: signal.Signals,
) -> None:
  flags = _command_flags(longer_text, spm_model)
  process = subprocess.Popen(
    make_argv(output_dir=tmp_path / "out", **flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  deadline = time.monotonic() + 60
  while not list(tmp_path.glob("out/.*/*.block")) and time.monotonic() < deadline:
    time.sleep(0.01)
  process.send_signal(signal_number)
  _, errors = process.communicate(timeout=60)
  was_killed = signal_number == signal.SIGKILL
  assert process.returncode == (-signal_number if was_killed else 128 + signal_number)
  if not was_killed:
    assert errors.strip().splitlines()[-1] == "stopped: run the same command again to continue"
    assert "Traceback" not in errors
  assert not [name for name in os.listdir(tmp_path / "out") if not name.startswith(".")]
  repeated = run_preparation(output_dir=tmp_path / "out", **flags)
  assert repeated.returncode == 0, repeated.stderr
  assert "units of an earlier run" in repeated.stdout
  assert contents(tmp_path / "out") == uninterrupted_output


# Flags that replace some of a good command, where {dir} stands for the test's directory; and a part of the error.
@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"input_file": "absent-*.txt"}, "--input_file: 'absent-*.txt' matches no file"),
    ({"input_file": "{dir}/empty.txt"}, "empty.txt is empty"),
    ({"input_file": "{dir}/latin.txt", "num_processes": 2}, "latin.txt, line 3: not UTF-8 text"),
    ({"input_file": "{dir}/torn.txt.gz"}, "torn.txt.gz: the GZIP file is damaged or incomplete"),
    ({"spm_model_file": "{dir}/absent.model"}, "absent.model"),
    pytest.param(
      {"output_dir": "{dir}/good.txt"}, "good.txt: cannot make a directory of it", marks=pytest.mark.thorough
    ),
    ({"sentence_prediction": "nsp"}, "--sentence_prediction=nsp needs at least two documents"),
    ({"num_processes": 0}, "--num_processes=0: must be at least 1"),
    ({"num_shards": 1000}, "--num_shards=1000: the text gives"),
    ({"num_sharts": 1}, "num_sharts"),
  ],
)
def test_bad_input_is_one_line(tmp_path: Path, spm_model: str, changes: dict[str, object], message: str) -> None:
  (tmp_path / "good.txt").write_text("the captain sold the river\nnobody watched the teacher\n")
  (tmp_path / "empty.txt").write_bytes(b"")
  (tmp_path / "latin.txt").write_bytes(b"good line\n\ncaf\xe9\n")
  (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"the captain " * 1000)[:-9])
  flags: dict[str, object] = {
    "input_file": "{dir}/good.txt",
    "output_dir": "{dir}/out",
    "spm_model_file": spm_model,
    "num_processes": 1,
    "num_shards": 1,
    **changes,
  }
  completed = run_preparation(**{name: str(value).replace("{dir}", str(tmp_path)) for name, value in flags.items()})
  assert completed.returncode == 2, completed.stderr
  progress = "reading text", "decompressing"
  (line,) = [line for line in completed.stderr.splitlines() if not line.startswith(progress)]
  assert line.startswith("error: ")
  assert message in line
  # After an error about --num_shards, finished units are kept for a run with fewer shards. Otherwise nothing is kept.
  remaining = list(tmp_path.glob("out/*"))
  assert all(path.name.startswith(".preparation-") for path in remaining)
  assert len(remaining) == (1 if "num_shards" in changes else 0)


# Runs a command, and prints the peak memory of its processes. In a new process, `ru_maxrss` begins with the
# memory of the process that started it, and pytest with TensorFlow needs more than the command.
MEASURE_MEMORY = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, longer_text: str, spm_model: str) -> None:
  """Preparing 150 MB of text in one file needs at most 1.5 times the memory of 5 MB, and less than 300 MB."""
  peaks = []  # memory in MB
  for copies in (1, 30):
    path = tmp_path / f"{copies}.txt"
    path.write_text((Path(longer_text).read_text() + "\n\n") * copies)
    flags = _command_flags(str(path), spm_model) | {"max_seq_length": 512, "dupe_factor": 2, "num_shards": 2}
    argv = make_argv(output_dir=tmp_path / str(copies), **flags)
    printed = subprocess.run([sys.executable, "-c", MEASURE_MEMORY, *argv], check=True, stdout=subprocess.PIPE).stdout
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    peaks.append(int(printed) * bytes_per_unit / 1e6)
  assert peaks[1] < 300
  assert peaks[1] < 1.5 * peaks[0]
