"""The vocabularies of the tests of SentencePiece.

If ALBERT_DATA_DIR is set, the original vocabulary is tested, too. It is vocab/30k-clean.model in this directory.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_NEEDS_DATA = pytest.mark.skipif("ALBERT_DATA_DIR" not in os.environ, reason="no ALBERT_DATA_DIR")


@pytest.fixture(scope="module", params=["fixture", pytest.param("30k", marks=[pytest.mark.thorough, _NEEDS_DATA])])
def model_file(request: pytest.FixtureRequest, spm_model: str) -> str:
  return spm_model if request.param == "fixture" else str(Path(os.environ["ALBERT_DATA_DIR"], "vocab/30k-clean.model"))
