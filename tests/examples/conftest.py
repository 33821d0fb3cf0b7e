"""The exported models that the tests of the example server serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert.export.export_model import export_model
from tests.export.pipelines import FORMS, write_run


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> Path:
  """A folder of exported models with random weights: cola (a classifier of texts), squad, fill_mask and race."""
  folder = tmp_path_factory.mktemp("exports")
  for name, form in (("cola", "classifier"), ("squad", "squad_v2"), ("fill_mask", "fill_mask"), ("race", "race")):
    run = write_run(folder / "runs" / name, FORMS[form], spm_model)
    export_model(run.directory, str(folder / "models"), name=name, task=form)
  return folder / "models"
