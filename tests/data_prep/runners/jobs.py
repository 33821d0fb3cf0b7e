"""Jobs of data preparation on short files, for the tests in this folder and its siblings."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.create_pretraining_data import Job, prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.units import plan_units

SETTINGS = PreparationSettings(max_seq_length=32, dupe_factor=3)


def make_job(inputs: str | list[str], spm_model: str, output_dir: Path, **changes: object) -> Job:
  """Returns a job of three shards on one file or several files. `changes` are other fields of Job."""
  paths = (inputs,) if isinstance(inputs, str) else tuple(inputs)
  fields = {"settings": SETTINGS, "num_shards": 3, **changes}
  return Job(inputs=paths, output_dir=str(output_dir), spm_model_file=spm_model, **fields)  # type: ignore[arg-type]


def contents(directory: Path) -> dict[str, bytes]:
  """Reads the files of a directory and its folders: {path in the directory: content}."""
  return {
    str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
  }


def output_of_small_units(job: Job) -> dict[str, bytes]:
  """Carries out a job with small units. Returns the files of its output, see `contents`."""
  with pytest.MonkeyPatch.context() as patch:
    make_units_small(patch)
    prepare(job)
  return contents(Path(job.output_dir))


def make_units_small(monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes this process plan small units, of about half a file of `small_files`."""

  def plan_small(paths: list[str], *, with_donors: bool) -> object:
    return plan_units(paths, with_donors=with_donors, unit_bytes=4096)

  monkeypatch.setattr("data_prep.units.plan_units", plan_small)
