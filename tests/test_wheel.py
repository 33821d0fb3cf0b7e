"""The wheel has everything that an installation needs, and its console commands run in any directory."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import english_like_documents
from tests.test_packaging import ROOT, console_commands
from tests.thorough import thorough_except

# What a wheel is built from, besides the run_*.py scripts.
SOURCES = ("albert", "data_prep", "configs", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")


@dataclasses.dataclass(frozen=True)
class Installation:
  """The wheel, installed in a directory of its own. Its dependencies are those of this environment."""

  directory: Path

  @property
  def library(self) -> Path:
    """The directory of the installed packages."""
    (path,) = self.directory.glob("lib/python*/site-packages")
    return path

  def run(self, program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs an installed command, or "python"."""
    environment = os.environ | {"PYTHONPATH": str(self.library), "PYTHONSAFEPATH": "1"}
    path = sys.executable if program == "python" else str(self.directory / "bin" / program)
    return subprocess.run(
      [path, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """The path of a wheel. It is built from a copy, so that the repository gets no build files."""
  source = tmp_path_factory.mktemp("source")
  for path in [*map(ROOT.joinpath, SOURCES), *ROOT.glob("run_*.py")]:
    if path.is_dir():
      shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
      shutil.copy(path, source)
  directory = tmp_path_factory.mktemp("wheel")
  code = f"from setuptools import build_meta; build_meta.build_wheel({str(directory)!r})"
  subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
  (path,) = directory.glob("*.whl")
  return path


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
  directory = tmp_path_factory.mktemp("installation")
  pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
  subprocess.run([*pip, "--ignore-installed", f"--prefix={directory}", str(wheel)], check=True)
  return Installation(directory)


def test_the_wheel_has_all_code_and_recipes_and_nothing_else(wheel: Path) -> None:
  def paths(pattern: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}

  code = paths("albert/**/*.py") | paths("data_prep/**/*.py") | paths("run_*.py")
  recipes = {f"albert/{path}" for path in paths("configs/**/*.json")}
  assert code
  assert recipes
  with zipfile.ZipFile(wheel) as archive:
    names = {name for name in archive.namelist() if ".dist-info/" not in name}
    metadata = [name.partition(".dist-info/")[2] for name in archive.namelist() if ".dist-info/" in name]
  tables = paths("albert/**/*.json")
  assert "albert/settings/tpu_memory.json" in tables
  assert names == code | recipes | tables | {"albert/py.typed", "data_prep/py.typed"}
  assert any(name.endswith("LICENSE") for name in metadata)


def test_every_console_command_is_installed_and_imports_no_large_library(
  installation: Installation, tmp_path: Path
) -> None:
  code = """
import importlib.metadata, sys
commands = importlib.metadata.distribution("albert-tf2").entry_points.select(group="console_scripts")
assert all(callable(command.load()) for command in commands)
print(*sorted(command.name for command in commands))
assert not {"tensorflow", "numpy", "sentencepiece"} & set(sys.modules)
"""
  result = installation.run("python", "-c", code, cwd=tmp_path)
  assert result.stderr == ""
  assert result.stdout.split() == sorted(console_commands())


@pytest.mark.parametrize("command_name", thorough_except(["albert-classify"], console_commands()))
def test_help_and_version_name_the_command(command_name: str, installation: Installation, tmp_path: Path) -> None:
  (version,) = re.findall(r'VERSION = "(.*)"', (ROOT / "albert" / "version.py").read_text())
  assert installation.run(command_name, "--version", cwd=tmp_path).stdout == f"albert-tf2 {version}\n"
  help_text = installation.run(command_name, "--help", cwd=tmp_path).stdout
  assert help_text.startswith(f"usage: {command_name} --flag=value ...\n")
  assert re.search(r"^  --(\[no\])?\w+", help_text, re.MULTILINE)
  # The examples in the text use the name of the installed command, too.
  assert not re.search(r"python run_", help_text)


@pytest.mark.parametrize("recipe_name", ["configs/pretraining_small.json", "pretraining_small"])
def test_recipes_are_found_in_any_directory(recipe_name: str, installation: Installation, tmp_path: Path) -> None:
  code = f"""
from albert.config import recipes
recipe = recipes.read_recipe({recipe_name!r}, "pretraining")
print(recipe.path, recipe.sections["optimizer"]["learning_rate"])
"""
  result = installation.run("python", "-c", code, cwd=tmp_path)
  expected = installation.library / "albert" / "configs" / "pretraining_small.json"
  assert result.stdout.split() == [str(expected), "0.003"]


def test_a_command_reports_that_another_distribution_has_replaced_the_package(
  installation: Installation, tmp_path: Path
) -> None:
  package = tmp_path / installation.library.relative_to(installation.directory) / "albert"
  package.mkdir(parents=True)
  for path in (installation.library / "albert").iterdir():
    (package / path.name).symlink_to(path)
  init = package / "__init__.py"
  # The __init__.py of the other distribution, or none after that distribution was uninstalled.
  for content in ('__version__ = "1.68.0"\n', None):
    init.unlink()
    if content:
      init.write_text(content)
    result = Installation(tmp_path).run("python", "-c", "from albert.cli import report; report()", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {init}: is not a file of albert-tf2 ")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_installed_commands_go_from_text_to_answers(installation: Installation, tmp_path: Path) -> None:
  def run(*words: str) -> str:
    result = installation.run(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    return result.stdout

  documents = english_like_documents(200)
  (tmp_path / "corpus.txt").write_text("".join("\n".join(document) + "\n\n" for document in documents))
  run("albert-train-vocab", "--input_file=corpus.txt", "--output_dir=vocab", "--vocab_size=400")
  vocabulary = "--spm_model_file=vocab/spiece.model"
  run(
    "albert-create-pretraining-data",
    "--input_file=corpus.txt",
    "--output_dir=shards",
    vocabulary,
    "--max_seq_length=32",
    "--eval_share=0.1",
  )
  run(
    *(
      "albert-pretrain",
      "--recipe=pretraining_small",
      "--input_file=shards/*.tfrecord",
      vocabulary,
      "--output_dir=run",
    ),
    *("--do_train", "--do_eval", "--num_train_steps=10", "--max_eval_steps=2"),
  )
  run("albert-convert", "--init_checkpoint=run", "--output_dir=converted", "--format=huggingface", vocabulary)
  assert (tmp_path / "converted" / "model.safetensors").exists()
  run("albert-export", "--checkpoint=run", "--task=embeddings", "--output_dir=models", vocabulary)
  answer = run("albert-predict", "--model=models/embeddings", "--input_file=corpus.txt")
  assert answer.count("\n") == (tmp_path / "corpus.txt").read_text().count("\n")
  run("albert-report", "run", "--output_file=report.html")
  assert run("albert-experiments", "--list")
