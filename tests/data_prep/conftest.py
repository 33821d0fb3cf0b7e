"""Fixtures for tests of data preparation: short files, and the output of an uninterrupted job on them."""

from __future__ import annotations

import pytest

from tests.conftest import english_like_documents
from tests.data_prep.runners.jobs import make_job, make_units_small, output_of_small_units


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
  """Eight files of about 8 KB with twelve documents each. With the fixture `small_units` they have 17 units."""
  directory = tmp_path_factory.mktemp("texts")
  paths = []
  for number in range(8):
    documents = english_like_documents(12, seed=number)
    path = directory / f"{number}.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents))
    paths.append(str(path))
  return paths


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes a unit of text half as long as a file of `small_files`, so that several processes have work."""
  make_units_small(monkeypatch)


@pytest.fixture(scope="module")
def uninterrupted_output(
  tmp_path_factory: pytest.TempPathFactory, small_files: list[str], spm_model: str
) -> dict[str, bytes]:
  """The output files of an uninterrupted job on `small_files`: {name: content}."""
  return output_of_small_units(make_job(small_files, spm_model, tmp_path_factory.mktemp("uninterrupted")))
