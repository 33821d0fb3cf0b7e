"""What docs/serving_without_tensorflow.md says: its Python and JavaScript give the answers of the SavedModel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from albert.tokenization.tokenizer import Tokenizer
from tests.docs.blocks import ROOT, blocks
from tests.docs.smaller_commands import run_block, write_python
from tests.fresh_interpreter import run_fresh
from tests.test_javascript_example import EXAMPLE, find_node

GUIDE = ROOT / "docs" / "serving_without_tensorflow.md"
# Directory of the run -> the form in which its model is served.
RUNS = {"runs/cola": "classifier", "runs/squad": "squad_v1", "runs/pretraining": "fill_mask"}


def write_runs(directory: Path, spm_model: str) -> None:
  """Writes the runs that the guide exports, with random weights."""
  from tests.export.pipelines import FORMS, write_run

  (directory / "runs").mkdir(parents=True)
  for path, form in RUNS.items():
    write_run(directory / path, FORMS[form], spm_model, max_position_embeddings=512)
  # The windows of the guide have the default sizes.
  (directory / "runs" / "squad" / "config.json").write_text('{"task": "squad", "data": {}}')


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> Path:
  """A directory with the models of the guide, exported in this process."""
  from albert.export.export_model import export_model

  directory = tmp_path_factory.mktemp("guide")
  write_runs(directory, spm_model)
  for path, form in RUNS.items():
    task, name = (form, "") if form == "fill_mask" else ("", path.removeprefix("runs/"))
    export_model(str(directory / path), str(directory / "models"), task=task, name=name, formats=("onnx",))
  return directory


@pytest.fixture
def packages() -> Path:
  """The node_modules with onnxruntime-node: those of the checkout, or those that `make test-serving` installs."""
  for folder in (EXAMPLE, Path(sys.prefix) / "javascript"):
    if (folder / "node_modules" / "onnxruntime-node").is_dir():
      return folder / "node_modules"
  pytest.skip("onnxruntime-node is not installed: npm ci --ignore-scripts --prefix examples/javascript")


def _saved_model_answers(directory: Path, name: str, **texts: list[str]) -> dict[str, Any]:
  import tensorflow as tf

  model = tf.saved_model.load(str(directory / "models" / name / "1"))
  inputs = {field: tf.constant(values) for field, values in texts.items()}
  return {key: value.numpy() for key, value in model.signatures["serving_default"](**inputs).items()}


@pytest.mark.serving
def test_python_answers_as_the_saved_model_without_importing_tensorflow(exported: Path, tmp_path: Path) -> None:
  code = "\n".join(block.text for block in blocks(GUIDE) if block.language == "python")
  search_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
  process, modules = run_fresh(f"import os\nos.chdir({str(exported)!r})\n{code}", tmp_path, PYTHONPATH=search_path)
  assert process.returncode == 0, process.stderr
  assert "onnxruntime" in modules
  assert not {"tensorflow", "tensorflow_text", "tf_keras", "msgspec"} & modules
  lines = process.stdout.splitlines()
  first, second, *masked, answer, verdict = lines
  texts = re.findall(r'tokenizer\(\["(.*?)", "(.*?)"\]', code)[0]
  expected = _saved_model_answers(exported, "cola", text=list(texts))
  best_probabilities = expected["probabilities"].max(axis=1)
  best = [f"{label.decode()} {best:.3f}" for label, best in zip(expected["label"], best_probabilities, strict=True)]
  assert [_rounded(first), _rounded(second)] == best
  expected = _saved_model_answers(exported, "fill_mask", text=re.findall(r'"(The \[MASK\].*?)"', code))
  assert [_rounded(line) for line in masked] == [
    f"{piece.decode()} {probability:.3f}"
    for piece, probability in zip(expected["pieces"][0, 0], expected["probabilities"][0, 0], strict=True)
  ]
  context, question = re.findall(r'context = "(.*)"', code), re.findall(r'question_windows\(tokenizer, "(.*?)"', code)
  expected = _saved_model_answers(exported, "squad", question=question, context=context)
  assert (answer, verdict) == (expected["best_text"][0].decode(), "answerable")


def _rounded(line: str) -> str:
  """A line of the guide's code, which ends in a number, with three decimals."""
  name, number = line.rsplit(" ", 1)
  return f"{name} {float(number):.3f}"


@pytest.mark.serving
def test_javascript_answers_as_the_saved_model(exported: Path, tmp_path: Path, packages: Path) -> None:
  texts = ["They drank the pub dry.", "", "  Two\u2003spaces, 1999, and naïve Σ👍🏽  ", "the captain " * 40]
  example = tmp_path / "javascript"
  shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("node_modules"))
  (example / "node_modules").symlink_to(packages)
  command = [find_node(), str(example / "answer.mjs"), str(exported / "models" / "cola" / "1")]
  result = subprocess.run(command, input="\n".join(texts) + "\n", capture_output=True, text=True, check=False)
  assert result.returncode == 0, result.stderr
  answers = [json.loads(line) for line in result.stdout.splitlines()]
  expected = _saved_model_answers(exported, "cola", text=texts)
  assert [answer["label"] for answer in answers] == [label.decode() for label in expected["label"]]
  assert [answer["probabilities"] for answer in answers] == [
    pytest.approx(row, abs=1e-4) for row in expected["probabilities"].tolist()
  ]
  squad = str(exported / "models" / "squad" / "1")
  result = subprocess.run([*command[:-1], squad], input="a\n", capture_output=True, text=True, check=False)
  message = f"error: {squad}: this example does not answer for the form squad_v1"
  assert (result.returncode, result.stderr.splitlines()) == (2, [message])


def test_the_javascript_of_the_guide_prints_the_ids_of_its_text(spm_model: str, tmp_path: Path) -> None:
  (code,) = [block.text for block in blocks(GUIDE) if block.language == "js"]
  (tmp_path / "guide.mjs").write_text(code, encoding="utf-8")
  shutil.copy(EXAMPLE / "tokenizer.mjs", tmp_path)
  (tmp_path / "models" / "cola" / "1" / "assets").mkdir(parents=True)
  shutil.copy(spm_model, tmp_path / "models" / "cola" / "1" / "assets" / "spiece.model")
  result = subprocess.run([find_node(), "guide.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
  (text,) = re.findall(r'encode\("(.*?)"\)', code)
  assert [int(number) for number in re.findall(r"\d+", result.stdout)] == Tokenizer(spm_model).encode(text)


@pytest.mark.serving
@pytest.mark.slow
def test_the_commands_of_the_guide_run_in_a_shell(tmp_path: Path, spm_model: str) -> None:
  """The blocks of shell and Python, in order. It needs the registries of pip and npm."""
  write_runs(tmp_path, spm_model)
  for name in ("albert", "data_prep", "configs", "examples"):
    shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
  for path in [*ROOT.glob("run_*.py"), *map(ROOT.joinpath, ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE"))]:
    shutil.copy(path, tmp_path)
  write_python(tmp_path / "bin" / "python", {"albert.export": "", "venv": ""})
  for index, block in enumerate(blocks(GUIDE)):
    if block.language == "sh":
      output = run_block(block.text, tmp_path, tmp_path / "bin")
    elif block.language == "python":
      (tmp_path / f"block_{index}.py").write_text(f"import albert, json, onnxruntime\n{block.text}", encoding="utf-8")
      command = [str(tmp_path / "clean" / "bin" / "python"), "-I", f"block_{index}.py"]
      output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
      assert output.strip()
  answers = output.splitlines()[-2:]  # after the messages of npm
  assert [set(json.loads(line)) for line in answers] == [{"label", "probabilities"}] * 2
