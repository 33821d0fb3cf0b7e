"""Text whose lines are not sentences, or whose blank lines do not end documents, gives a warning with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.create_pretraining_data import prepare
from data_prep.examples.settings import PreparationSettings
from data_prep.readers.records import ReadingSettings
from data_prep.text_checks import layout_warnings
from tests.conftest import english_like_documents
from tests.data_prep.readers.forms import as_text
from tests.data_prep.runners.jobs import make_job

WRAPPED_LINES = """The captain sold the river, because
nobody had watched the teacher. The train
was late, and so was the painter.
""".splitlines()


def test_good_text_gives_no_warning() -> None:
  lines = as_text(english_like_documents(50, seed=1)).splitlines()
  assert layout_warnings([lines, lines]) == []
  assert layout_warnings([[line.lower() for line in lines]]) == []
  assert layout_warnings([["漢字。"] * 9 + [""]] * 9) == []
  assert layout_warnings([]) == []


def test_a_blank_line_after_each_paragraph_gives_a_warning() -> None:
  lines = as_text([["A paragraph. It has some sentences."]] * 30).splitlines()
  (warning,) = layout_warnings([lines])
  assert warning.startswith("warning: documents have 1.0 sentences on average (a sample of the text)")
  assert warning.endswith("give --document=file; if each line is a paragraph, give --sentences=split")


def test_wrapped_lines_give_a_warning() -> None:
  (warning,) = layout_warnings([[*WRAPPED_LINES, ""] * 30])
  # Two of three lines begin with a lower-case letter.
  assert warning.startswith("warning: 67% of the lines begin with a lower-case letter")
  assert "--document=file, or --sentences=split --paragraph=blank_line" in warning


def test_the_warning_is_printed_and_the_remedy_works(
  tmp_path: Path, spm_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
  text_file = tmp_path / "novel.txt"
  text_file.write_text("\n".join([*WRAPPED_LINES, ""] * 30))
  settings = PreparationSettings(max_seq_length=32, dupe_factor=1)
  manifest = prepare(make_job(str(text_file), spm_model, tmp_path / "wrong", settings=settings))
  assert manifest.num_documents == 30
  assert "warning: 67% of the lines" in capsys.readouterr().err
  reading = ReadingSettings(document="file")
  manifest = prepare(make_job(str(text_file), spm_model, tmp_path / "right", settings=settings, reading=reading))
  assert manifest.num_documents == 1
  assert manifest.reading is not None
  assert manifest.reading["sentences"] == 60  # two in each of the 30 copies of WRAPPED_LINES
  assert "warning" not in capsys.readouterr().err
