"""setup.py, constraints/, the Makefile and the documents agree with each other and with the code."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("albert", "data_prep")
CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"

# Constraints file -> the extras whose packages it pins. Except for docs.txt, it also pins those of every installation.
EXTRAS_OF_PROFILE = {
  "default.txt": ("dev",),
  "tf215-tfa.txt": ("tfa", "dev"),
  "beam.txt": ("beam", "dev"),
  "ray.txt": ("ray", "dev"),
  "serving.txt": ("onnx", "tflite", "server", "dev"),
  "parity.txt": ("parity", "tokenizers", "dev"),
  "tpu.txt": ("tpu", "dev"),
  "gpu.txt": ("gpu", "dev"),
  "docs.txt": ("docs",),
}
# Pins only the packages of its extra, since the documentation is built without TensorFlow.
DOCS_CONSTRAINTS = "docs.txt"

# The environments in which a marker of a pin is evaluated.
PYTHONS = tuple({"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0"} for minor in range(10, 14))

# Imported name -> distribution, where the two names differ.
DISTRIBUTION_OF_IMPORT = {
  "absl": "absl-py",
  "google.protobuf": "protobuf",
  "griffe": "griffelib",
  "sklearn": "scikit-learn",
}


@functools.cache
def _setup_arguments() -> dict[str, Any]:
  """Returns the arguments that setup.py passes to `setuptools.setup`."""
  with mock.patch("setuptools.setup") as setup:
    runpy.run_path(str(ROOT / "setup.py"))
  return dict(setup.call_args.kwargs)


def console_commands() -> dict[str, str]:
  """Name of each command that setup.py installs -> its script or module: run_squad.py, albert.export."""
  commands = {}
  for line in _setup_arguments()["entry_points"]["console_scripts"]:
    name, target = line.split(" = ")
    module, function = target.split(":")
    # "albert.cli:export" runs the module albert.export; "run_squad:run_command" runs a script.
    package, dot, _ = module.rpartition(".")
    commands[name] = f"{package}.{function}" if dot else f"{module}.py"
  return commands


def _requirements(extras: tuple[str, ...]) -> list[Requirement]:
  arguments = _setup_arguments()
  optional = [line for name in extras for line in arguments["extras_require"][name]]
  return [Requirement(line) for line in [*arguments["install_requires"], *optional]]


def _pins(path: Path) -> dict[str, list[Requirement]]:
  """Returns the pins of each distribution, including those of the files that `path` includes with -c.

  A distribution has several pins if each has a marker for other versions of Python.
  """
  pins: dict[str, list[Requirement]] = {}
  for line in path.read_text(encoding="utf-8").splitlines():
    if line.startswith("-c "):
      pins |= _pins(path.parent / line.removeprefix("-c "))
    elif line and not line.startswith("#"):
      requirement = Requirement(line)
      same_name = pins.setdefault(canonicalize_name(requirement.name), [])
      for python in PYTHONS:
        holding = [pin for pin in [*same_name, requirement] if not pin.marker or pin.marker.evaluate(python)]
        assert len(holding) < 2, f"{path.name} pins {requirement.name} twice for {python}"
      same_name.append(requirement)
  return pins


def _pinned_version(requirement: Requirement) -> Version:
  (specifier,) = requirement.specifier
  assert specifier.operator == "==", f"{requirement} is not pinned with =="
  return Version(specifier.version)


def _python_files(*folders: str) -> list[Path]:
  return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> set[str]:
  """Returns the modules that a file imports from outside its own package, also inside functions."""
  modules: set[str] = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      modules |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and not node.level:
      modules |= {f"{node.module}.{alias.name}" for alias in node.names}
  return modules


def _distribution(module: str) -> str:
  """Returns the distribution that has a module. Most distributions have the name of their top-level package."""
  words = module.split(".")
  for name in (".".join(words[:2]), words[0]):
    if name in DISTRIBUTION_OF_IMPORT:
      return DISTRIBUTION_OF_IMPORT[name]
  return canonicalize_name(words[0])


def _undeclared_imports(paths: list[Path], extras: tuple[str, ...]) -> list[str]:
  """Returns a line for each import from a distribution that neither install_requires nor these extras name."""
  declared = {canonicalize_name(requirement.name) for requirement in _requirements(extras)}
  own_names = {*PACKAGES, "benchmarks", "docs", "tests", "conftest", *_setup_arguments()["py_modules"]}
  known_names = sys.stdlib_module_names | own_names
  return [
    f"{path.relative_to(ROOT)} imports {module}"
    for path in paths
    for module in sorted(_imports(path))
    if module.split(".")[0] not in known_names and _distribution(module) not in declared
  ]


def documents() -> list[Path]:
  return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_every_profile_has_its_constraints() -> None:
  assert {path.name for path in CONSTRAINTS} == set(EXTRAS_OF_PROFILE)


@pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.name)
def test_constraints_pin_exactly_and_in_order(path: Path) -> None:
  for requirement in itertools.chain.from_iterable(_pins(path).values()):
    _pinned_version(requirement)
  lines = [line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r"\w", line)]
  names = [canonicalize_name(Requirement(line).name) for line in lines]
  assert names == sorted(names)


@pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.name)
def test_constraints_satisfy_setup(path: Path) -> None:
  pins = _pins(path)
  always_required = {str(requirement) for requirement in _requirements(())}
  for requirement in _requirements(EXTRAS_OF_PROFILE[path.name]):
    if path.name == DOCS_CONSTRAINTS and str(requirement) in always_required:
      continue
    name = str(canonicalize_name(requirement.name))
    # In the TPU profile the same library has another name.
    own_pins = pins.get("tensorflow-tpu" if path.name == "tpu.txt" and name == "tensorflow" else name)
    assert own_pins, f"{path.name} leaves {name} unpinned"
    for pin in own_pins:
      assert _pinned_version(pin) in requirement.specifier, f"{path.name}: {pin} is not {requirement}"


def test_tpu_profile_is_the_default_one_with_the_tensorflow_of_tensorflow_tpu() -> None:
  default, tpu = _pins(ROOT / "constraints/default.txt"), _pins(ROOT / "constraints/tpu.txt")
  del default["tensorflow"]
  (tensorflow,) = tpu.pop("tensorflow-tpu")
  for name in ("tensorboard", "tensorflow-text", "tf-keras"):
    del default[name]
    (pin,) = tpu.pop(name)
    assert _pinned_version(pin).release[:2] == _pinned_version(tensorflow).release[:2], pin
  for name in ("libtpu", "jax", "jaxlib"):
    del tpu[name]
  assert {name: list(map(str, pins)) for name, pins in tpu.items()} == {
    name: list(map(str, pins)) for name, pins in default.items()
  }


def test_documentation_profile_agrees_with_the_default_one() -> None:
  default, docs = _pins(ROOT / "constraints/default.txt"), _pins(ROOT / "constraints" / DOCS_CONSTRAINTS)
  shared_names = docs.keys() & default.keys()
  assert shared_names >= {"absl-py", "msgspec", "numpy", "ruff"}
  for name in shared_names:
    assert [pin.specifier for pin in docs[name]] == [pin.specifier for pin in default[name]], name
  assert not {"tensorflow", "tf-keras"} & docs.keys()


def test_imports_of_the_library_are_declared() -> None:
  paths = [*_python_files(*PACKAGES), *sorted(ROOT.glob("run_*.py"))]
  optional = tuple(name for name in _setup_arguments()["extras_require"] if name != "dev")
  assert not _undeclared_imports(paths, optional)


def test_all_other_imports_are_declared() -> None:
  paths = _python_files("tests", "benchmarks", "docs", "examples")
  assert not _undeclared_imports(paths, tuple(_setup_arguments()["extras_require"]))


def test_every_folder_of_code_is_a_package() -> None:
  folders = {".".join(path.parent.relative_to(ROOT).parts) for path in _python_files(*PACKAGES)}
  assert {*folders, "albert.configs"} == set(_setup_arguments()["packages"])


def test_every_script_is_a_module() -> None:
  assert set(_setup_arguments()["py_modules"]) == {path.stem for path in ROOT.glob("run_*.py")}


def test_every_command_has_a_console_command() -> None:
  """A command is a script, or a module that startup.run_command_of runs."""
  modules = {
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__main__")
    for path in _python_files(*PACKAGES)
    if "\n  startup.run_command_of(__name__)\n" in path.read_text(encoding="utf-8")
  }
  assert sorted(console_commands().values()) == sorted({path.name for path in ROOT.glob("run_*.py")} | modules)
  for name, target in console_commands().items():
    if target in modules:
      assert name == f"albert-{target.partition('.')[2].replace('_', '-')}"


def test_errors_that_say_pip_install_name_packages_and_ranges_of_an_extra() -> None:
  """Error messages cannot say "install albert-tf2[onnx]", since albert-tf2 itself is not on PyPI."""
  extras = {line for lines in _setup_arguments()["extras_require"].values() for line in lines}
  for path in [*_python_files(*PACKAGES), *ROOT.glob("run_*.py"), *ROOT.glob("examples/*.py")]:
    text = path.read_text(encoding="utf-8")
    quoted_packages = re.findall(r"pip install ((?:'[^']+' ?)+)", text)
    assert len(quoted_packages) == text.count("pip install")
    assert set(re.findall(r"'([^']+)'", " ".join(quoted_packages))) <= extras


@pytest.mark.parametrize("path", documents() + CONSTRAINTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_extras_that_exist(path: Path) -> None:
  text = path.read_text(encoding="utf-8")
  named_extras = {name for names in re.findall(r"'(?:\.|albert-tf2)\[([\w,-]+)\]'", text) for name in names.split(",")}
  assert named_extras <= set(_setup_arguments()["extras_require"])
  assert "pip install albert-tf2" not in text.replace("`pip install albert-tf2` finds nothing", "")


def test_the_version_agrees_with_the_changelog() -> None:
  """A released version is the newest one in the changelog. A development version is higher."""
  version = Version(_setup_arguments()["version"])
  changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
  assert "## [Unreleased]" in changelog
  released = [Version(text) for text in re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)]
  newest = max(released, default=Version("0"))
  assert version > newest if version.is_devrelease else version == newest
  citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
  assert version.is_devrelease or f"\nversion: {version}\n" in citation


def test_python_versions_agree() -> None:
  supported = SpecifierSet(_setup_arguments()["python_requires"])
  versions = [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}" in supported]
  settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
  assert f'python_version = "{versions[0]}"' in settings
  assert f'target-version = "py{versions[0].replace(".", "")}"' in settings
  assert f",{' '.join(versions)},BASE_PYTHON)" in (ROOT / "Makefile").read_text(encoding="utf-8")
  assert f'python: ["{versions[0]}", "{versions[-1]}"]' in WORKFLOW.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*documents(), WORKFLOW], ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_files_and_make_targets_that_exist(path: Path) -> None:
  text = path.read_text(encoding="utf-8")
  makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
  targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
  # Code is fenced, indented, between backquotes, or a step of the workflow.
  code = "\n".join(re.findall(r"^```.*?^```|^ {4}[^\n]*|`[^`\n]+`", text, re.MULTILINE | re.DOTALL))
  code = code.replace("- run: ", "")
  mentioned_targets = set(re.findall(r"(?:^|[`&;$])\s*make ([a-z][a-z-]*)", code, re.MULTILINE))
  assert mentioned_targets <= targets
  prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
  links = [link for link in re.findall(r"\]\(([^)#\s]+)", prose) if "://" not in link]
  assert [link for link in links if not (path.parent / link).exists()] == []


def test_no_file_holds_a_path_of_a_developers_machine() -> None:
  try:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
  except (OSError, subprocess.CalledProcessError):
    pytest.skip("not a git checkout")
  paths = [ROOT / name for name in listing.split("\0") if name]
  assert ROOT / "setup.py" in paths
  local_path = re.compile(rb"(?<![\w/.:])/(?:work|root|home/\w+)/")
  assert [str(path) for path in paths if path.is_file() and local_path.search(path.read_bytes())] == []


@pytest.mark.parametrize("user_value", ["", "0"])
def test_importing_albert_turns_onednn_on_unless_the_user_has_decided(user_value: str) -> None:
  name = "TF_ENABLE_ONEDNN_OPTS"
  environment = os.environ.copy()
  environment.pop(name, None)
  if user_value:
    environment[name] = user_value
  code = f"import albert, os, sys; print(os.environ['{name}'], 'tensorflow' in sys.modules)"
  command = [sys.executable, "-c", code]
  result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
  assert result.stdout.split() == [user_value or "1", "False"]
