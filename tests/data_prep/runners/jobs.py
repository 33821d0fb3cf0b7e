"""Helpers to make jobs on a few short files and to read their output."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.create_pretraining_data import Job
from data_prep.settings import PreparationSettings
from data_prep.units import plan_units

SETTINGS = PreparationSettings(max_seq_length=32, dupe_factor=3)


def make_job(text: str | list[str], spm_model: str, output_dir: Path, **changes: object) -> Job:
  inputs = tuple([text] if isinstance(text, str) else text)
  values = {"settings": SETTINGS, "num_shards": 3, **changes}
  return Job(inputs=inputs, output_dir=str(output_dir), spm_model_file=spm_model, **values)  # type: ignore[arg-type]


def contents(directory: Path) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def make_units_small(monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes the units that this process plans small: half of a short file each."""

  def plan_small(paths: list[str], *, with_donors: bool) -> object:
    return plan_units(paths, with_donors=with_donors, unit_bytes=4096)

  monkeypatch.setattr("data_prep.runners.local.plan_units", plan_small)
