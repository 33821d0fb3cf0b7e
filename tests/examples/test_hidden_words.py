"""examples/hidden_words.py counts the hidden words among the guesses, and leaves out sentences of the training text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import albert

SCRIPT = Path(__file__).parents[2] / "examples" / "hidden_words.py"


class GuessesFile:
  """A model that guesses "file", "is" and three other pieces for each mask."""

  def predict(self, texts: list[str]) -> list[list[dict[str, float]]]:
    return [[dict.fromkeys(["▁file", "▁is", "s", "▁a", "."], 0.1)] for _ in texts]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
  """The script as a module, with a model of a run that need not exist."""
  spec = importlib.util.spec_from_file_location("hidden_words", SCRIPT)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  monkeypatch.setattr(albert.Estimator, "from_run", lambda run: GuessesFile())
  return module


def test_words_among_the_five_guesses_are_found_except_in_sentences_of_the_training_text(
  script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  monkeypatch.setattr(sys, "argv", ["hidden_words.py", "run"])
  script.main()
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 11
  assert [line.split("[MASK]")[1] for line in lines if line.startswith("found")] == [
    " to open.  file: file, is, s, a, .",
    " None, the default is used.  is: file, is, s, a, .",
  ]
  assert lines[-1] == "The hidden word is among the five best guesses in 2 of 10 sentences."

  text = tmp_path / "train.txt"
  text.write_text("the name of the\nfile to open\n")  # in lower case, on two lines
  monkeypatch.setattr(sys, "argv", ["hidden_words.py", "run", str(text)])
  script.main()
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 10
  assert lines[-1] == "The hidden word is among the five best guesses in 1 of 9 sentences."
  assert len(script.SENTENCES) == 10
  assert all(sentence.count("[MASK]") == 1 for sentence, _ in script.SENTENCES)
