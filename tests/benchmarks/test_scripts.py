"""The benchmarks print their tables, and refuse bad flags. The speed is not tested."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import sentencepiece

from benchmarks.profile_step import KINDS, find_kind
from tests.benchmarks import scripts
from tests.synthetic import VOCAB_SIZE, write_shards
from tests.tasks.glue.archive import write_archive

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize(
  ("script", "flags", "message"),
  [
    ("bench_step.py", ["--shapes=8"], "--shapes: '8' is not BATCHxLENGTH"),
    (
      "bench_step.py",
      ["--libraries=albert,jax"],
      "--libraries: 'jax' is unknown, the libraries are albert, transformers, keras_hub",
    ),
    ("bench_engines.py", ["--engines=torch,jax"], "--engines: 'jax' is unknown, the engines are saved_model, "),
    ("bench_scaling.py", ["--depths=3,six"], "--depths=3,six: give whole numbers separated by commas"),
    ("profile_step.py", ["--shape=8"], "--shape=8: is not BATCHxLENGTH, such as 8x128"),
    ("parity.py", ["--tf1_dir=nowhere"], "--tf1_dir=nowhere: no such file or directory"),
    (
      "bench_time_to_loss.py",
      ["--corpus=a", "--heldout_corpus=b", "--output_dir=/nonexistent", "--only=fastest"],
      "--only: 'fastest' is not a recipe of ",
    ),
    pytest.param(
      "bench_loop.py",
      ["--input_file=none", "--steps=15"],
      "--steps=15: give a multiple of 10",
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_bad_flag_is_an_error_of_one_line(script: str, flags: list[str], message: str) -> None:
  result = scripts.run(script, *flags)
  assert (result.returncode, result.stdout) == (2, "")
  *other_lines, line = result.stderr.splitlines()
  assert line.startswith(f"error: {message}")
  assert not other_lines or script == "bench_loop.py"  # which imports TensorFlow first


def _installed_libraries() -> list[str]:
  """Those of the libraries in the comparison that are installed."""
  modules = {"transformers": ("torch", "transformers"), "keras_hub": ("keras_hub",)}
  return [name for name in modules if all(map(importlib.util.find_spec, modules[name]))]


@pytest.mark.slow
def test_steps_have_a_row_for_each_installed_library(tmp_path: Path) -> None:
  libraries = ["albert", *_installed_libraries()]
  size_flags = ["--model=albert_tiny", "--shapes=2x16", "--predictions=3", "--precisions=float32", "--steps=1"]
  output_flags = ["--rounds=2", f"--output={tmp_path / 'step.md'}"]
  result = scripts.run("bench_step.py", f"--libraries={','.join(libraries)}", *size_flags, *output_flags)
  assert result.returncode == 0, result.stderr
  text = (tmp_path / "step.md").read_text()
  assert text == result.stdout
  rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| 2x16 | float32 | ")]
  assert [row[2] for row in rows] == libraries
  assert all(float(row[3]) > 0 for row in rows)
  assert rows[0][5] == "1.00"  # the time of this project divided by itself


@pytest.mark.slow
def test_the_profile_of_a_step_divides_the_time_among_all_kinds_of_operations() -> None:
  result = scripts.run("profile_step.py", "--model=albert_tiny", "--shape=2x16", "--predictions=3", "--steps=1")
  assert result.returncode == 0, result.stderr
  rows = re.findall(r"^\| ([a-z ,]+) \| ([0-9.]+) \| ([0-9.]+)% \|$", result.stdout, re.MULTILINE)
  assert {kind for kind, _, _ in rows} == set(KINDS)
  assert sum(float(share) for _, _, share in rows) == pytest.approx(100, abs=0.5)
  assert all(float(seconds) > 0 for kind, seconds, _ in rows if "products" in kind)


@pytest.mark.parametrize(
  ("operation", "kind"),
  [
    ("_MklNativeFusedMatMul", "matrix products"),
    ("_MklBatchMatMulV2", "products of attention"),
    ("_MklTranspose", "transposes, copies"),
    ("AddN", "sums over rows or tensors"),
    ("AddV2", "element by element"),
  ],
)
def test_the_name_of_an_operation_gives_its_kind(operation: str, kind: str) -> None:
  assert find_kind(operation) == kind


@pytest.mark.slow  # each of the six points is a process
def test_scaling_has_a_row_for_each_point_and_a_figure(tmp_path: Path) -> None:
  size_flags = ["--lengths=16,32", "--batches=1,2", "--depths=1", "--tokens=64", "--predictions=3"]
  result = scripts.run("bench_scaling.py", "--model=albert_tiny", *size_flags, "--rounds=1", f"--output_dir={tmp_path}")
  assert result.returncode == 0, result.stderr
  (table,) = tmp_path.glob("scaling_*.md")
  assert table.read_text() == result.stdout
  rows = [line.split(" | ") for line in result.stdout.splitlines() if " x " in line and line.startswith("| ")]
  # The varied quantity, batch x length, and whether activations are stored or recomputed. The first row is the header.
  points = [(row[0], row[1], row[3]) for row in rows[1:]]
  assert points == [
    ("| length", "4 x 16", "stored"),
    ("| length", "2 x 32", "stored"),
    ("| batch", "1 x 128", "stored"),
    ("| batch", "2 x 128", "stored"),
    ("| depth", "1 x 128", "stored"),
    ("| depth", "1 x 128", "recomputed"),
  ]
  assert table.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_startup_has_a_row_for_each_command() -> None:
  result = scripts.run("bench_startup.py", "--rounds=1", "--only=wrong value,albert.predict")
  assert result.returncode == 0, result.stderr
  rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+) \| ([\d.]+) \([\d. to]+\) \|$", result.stdout, re.MULTILINE)
  # The command, what it is timed until, and the target in seconds. The fourth column is the measured time.
  assert [row[:3] for row in rows] == [
    ("albert.predict", "first answer", "4"),
    ("run_pretraining.py, wrong value", "refusal", "0.7"),
    ("albert.predict, model", "refusal", "0.7"),
  ]
  assert all(float(row[3]) > 0 for row in rows)


@pytest.mark.slow
def test_the_loop_has_traces_memory_and_time(tmp_path: Path) -> None:
  write_shards(tmp_path, [30, 20])
  flags = ["--model=albert_tiny", "--batch_size=2", "--steps=10", "--masking=static"]
  result = scripts.run("bench_loop.py", f"--input_file={tmp_path}/*.tfrecord", *flags)
  assert result.returncode == 0, result.stderr
  cells = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", result.stdout, re.MULTILINE))
  assert cells["traces of the step"] == "1"
  assert len(cells["memory in MiB, every 1 steps"].split(", ")) == 9  # the first of ten steps is not measured
  assert float(cells["a step"].split()[0]) > 0


@pytest.mark.slow
def test_fine_tuning_has_seconds_and_equal_losses_for_both_kinds_of_padding(tmp_path: Path, spm_model: str) -> None:
  write_archive(tmp_path, ["MRPC"], num_rows=10)
  vocab_size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  flags = ["--tasks=MRPC", f"--data_dir={tmp_path}", f"--spm_model_file={spm_model}", f"--vocab_size={vocab_size}"]
  flags += ["--model=albert_tiny", "--batch_size=2", "--max_seq_length=64", "--steps=1", "--rounds=1", "--compared=4"]
  result = scripts.run("bench_finetuning.py", *flags)
  assert result.returncode == 0, result.stderr
  row = result.stdout.splitlines()[2].strip("| ").split(" | ")
  task, mean_length, seconds_by_length, seconds_at_full_length, _, largest_difference = row
  assert task == "MRPC"
  assert 0 < float(mean_length) <= 64
  assert float(seconds_by_length.split()[0]) > 0
  assert float(seconds_at_full_length.split()[0]) > 0
  assert float(largest_difference) < 1e-4


@pytest.mark.slow
def test_the_input_pipeline_has_both_masks_and_every_chip(tmp_path: Path, spm_model: str) -> None:
  assert VOCAB_SIZE < 100  # so that the pieces of the shards are pieces of the vocabulary
  write_shards(tmp_path, [3000, 3000])
  flags = ["--batch_size=64", "--windows=1", "--rounds=1", f"--spm_model_file={spm_model}"]
  result = scripts.run("bench_input.py", f"--input_file={tmp_path}/*.tfrecord", *flags)
  assert result.returncode == 0, result.stderr
  rates = dict(re.findall(r"^\| (static|dynamic) \| ([\d,]+) \|", result.stdout, re.MULTILINE))
  assert set(rates) == {"static", "dynamic"}
  # Nothing was compiled for sequences of 16 tokens, so no chip is compared.
  assert not re.findall(r"^\| v\d", result.stdout, re.MULTILINE)


def test_eight_chips_of_v3_have_sixteen_cores_and_train_as_the_table_of_compilations_says() -> None:
  """The numbers of sequences are those of tpu_aot_2026-11-27.md, times the cores of eight chips."""
  page = (RESULTS / "input_2026-11-23.md").read_text()
  table = (RESULTS / "tpu_aot_2026-11-27.md").read_text()
  for chip, cores in (("v3", 16), ("v5e", 8)):
    row = rf"^\| pretraining \| albert_base \| 512 \| {chip} \|.* (\d+) \| \w+ \| [\d-]+ \|$"
    (of_core,) = re.findall(row, table, re.MULTILINE)
    (of_chips,) = re.findall(rf"^\| {chip} \| \d \| albert_base \| ([\d,]+) \|", page, re.MULTILINE)
    assert int(of_chips.replace(",", "")) == pytest.approx(int(of_core) * cores, rel=0.005)
