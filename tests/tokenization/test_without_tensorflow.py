"""The tokenizer, and the batches that are made with it, need no libraries but NumPy and sentencepiece."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import TokenizerConfig
from tests.fresh_interpreter import run_fresh

# Refuses to import any other library, as if it were not installed.
_ONLY_TWO_LIBRARIES = """
import sys
class RefusesOtherLibraries:
  def find_spec(self, name, path=None, target=None):
    library = name.partition(".")[0]
    if library not in {"albert", "numpy", "sentencepiece", *sys.stdlib_module_names}:
      raise ModuleNotFoundError(f"No module named {library!r}")
sys.meta_path.insert(0, RefusesOtherLibraries())
"""


def write_exported_model(directory: Path, spm_model: str, **settings: bool) -> Path:
  """Writes the files of an exported model that a tokenizer reads."""
  (directory / "assets").mkdir(parents=True)
  shutil.copyfile(spm_model, directory / "assets" / "spiece.model")
  (directory / "assets.extra").mkdir()
  (directory / "assets.extra" / "servable.json").write_text(json.dumps({"name": "cola", **settings}))
  return directory


def test_only_numpy_and_sentencepiece_are_needed(spm_model: str, tmp_path: Path) -> None:
  exported = write_exported_model(tmp_path / "1", spm_model, do_lower_case=False, convert_quotes=True)
  run = tmp_path / "run"
  run.mkdir()
  shutil.copyfile(spm_model, run / "spiece.model")
  (run / "config.json").write_text(json.dumps({"data": {"do_lower_case": False}}))
  code = f"""
{_ONLY_TWO_LIBRARIES}
import albert, json
tokenizer = albert.Tokenizer.from_pretrained({str(exported)!r})
batch = tokenizer(["The captain sold the garden.", ""], ["in 1999, x", "y"], max_length=12)
masked = albert.masked_batch(tokenizer, ["the [MASK] sold the garden"])
windows = albert.question_windows(tokenizer, "Who?", "the captain sold " * 9, max_length=12, doc_stride=3)
try:
  tokenizer([1])
except albert.UserError as error:
  message = str(error)
run_tokenizer = albert.Tokenizer.from_pretrained({str(run)!r})
print(json.dumps([batch["input_ids"].tolist(), masked["input_ids"].shape, len(windows.char_starts), message,
                  [tokenizer.config.do_lower_case, tokenizer.config.convert_quotes,
                   run_tokenizer.config.do_lower_case]]))
"""
  process, modules = run_fresh(code, tmp_path)
  assert process.returncode == 0, process.stderr
  assert {"albert.tokenization.sentence_piece", "numpy", "sentencepiece"} <= modules
  assert not {"tensorflow", "tf_keras", "tensorflow_text", "msgspec", "absl", "google.protobuf"} & modules
  tokenizer = Tokenizer(spm_model, do_lower_case=False, convert_quotes=True)
  batch = tokenizer(["The captain sold the garden.", ""], ["in 1999, x", "y"], max_length=12)
  ids, masked_shape, num_windows, message, settings = json.loads(process.stdout)
  assert ids == batch["input_ids"].tolist()
  assert masked_shape[0] == 1
  assert num_windows > 1
  assert message == "texts[0] is 1, of type int: give texts only"
  assert settings == [False, True, False]


@pytest.mark.parametrize(
  "settings", [{}, {"do_lower_case": False, "keep_accents": True}, {"convert_quotes": True, "do_lower_case": True}]
)
def test_an_exported_model_gives_the_settings_of_its_tokenizer(
  spm_model: str, tmp_path: Path, settings: dict[str, bool]
) -> None:
  exported = write_exported_model(tmp_path / "1", spm_model, **settings)
  vocabulary = str(exported / "assets" / "spiece.model")
  assert Tokenizer.from_pretrained(exported).config == TokenizerConfig(vocabulary, **settings)
  assert Tokenizer(vocabulary).config == TokenizerConfig(vocabulary, **settings)
  do_lower_case = settings.get("do_lower_case", False)
  assert Tokenizer.from_pretrained(f"{exported}/", do_lower_case=do_lower_case).config.do_lower_case == do_lower_case


def test_settings_that_are_neither_true_nor_false_are_refused(spm_model: str, tmp_path: Path) -> None:
  exported = write_exported_model(tmp_path / "1", spm_model)
  settings = exported / "assets.extra" / "servable.json"
  settings.write_text('{"do_lower_case": 1}')
  with pytest.raises(UserError, match=r"servable\.json: do_lower_case must be true or false, it is 1: restore"):
    Tokenizer.from_pretrained(exported)
