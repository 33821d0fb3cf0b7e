"""The command data_prep.split_text: what it writes, and which files it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from albert.errors import UserError
from data_prep.readers.records import ReadingSettings
from data_prep.split_text import split_files


def run_split_text(**flags: object) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "-m", "data_prep.split_text", *(f"--{name}={value}" for name, value in flags.items())]
  return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_command_writes_sentences_and_a_report_and_keeps_other_files(tmp_path: Path) -> None:
  (tmp_path / "input").mkdir()
  (tmp_path / "input" / "novel.txt").write_text("A title\n\nThe first sentence\nends here. The second.\n")
  out = tmp_path / "out"
  out.mkdir()
  (out / "text-mine.txt").write_text("mine")
  flags = {"input_file": tmp_path / "input", "output_dir": out, "num_processes": 1}
  completed = run_split_text(**flags, document="file")
  assert completed.returncode == 0, completed.stderr
  (text,) = out.glob("text-0*.txt")
  assert text.read_text() == "A title\nThe first sentence ends here.\nThe second.\n\n"
  assert "kept          1          3" in completed.stdout
  report = json.loads((out / "reading.json").read_text())
  assert (report["documents"], report["sentences"]) == (1, 3)
  assert report["input_files"][0]["file"] == "novel.txt"
  assert (out / "text-mine.txt").read_text() == "mine"
  completed = run_split_text(**flags)
  assert completed.returncode == 2
  assert "holds other text, or of other settings" in completed.stderr
  assert completed.stderr.count("\n") == 1


def test_input_files_are_not_overwritten(tmp_path: Path) -> None:
  path = tmp_path / "text-00000000-000000000000000.txt"
  path.write_text("A sentence. Another one.\n")
  with pytest.raises(UserError, match="is an input file, and would be written, too"):
    split_files([str(path)], ReadingSettings(sentences="split"), str(tmp_path))
  assert path.read_text() == "A sentence. Another one.\n"
