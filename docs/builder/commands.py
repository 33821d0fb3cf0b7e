"""Makes a page for each command, with all of its flags. The texts come from the command's --help."""

from __future__ import annotations

import dataclasses
import html
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of the project.

  Attributes:
    target: what Python runs: the path of a script, or the name of a module.
    title: what a user types.
    description: paragraphs that say what it does.
    flags: for each flag the fields of albert.app.FlagHelp.
  """

  target: str
  title: str
  description: str
  flags: Sequence[dict[str, str]]

  @property
  def page(self) -> str:
    """The path of its page in the site's sources."""
    return f"reference/commands/{self.target.removesuffix('.py')}.md"

  @property
  def summary(self) -> str:
    """The first paragraph of its description."""
    return " ".join(inspect.cleandoc(self.description).split("\n\n")[0].split())


def targets() -> list[str]:
  """The scripts and modules that are commands: those that call `app.run` or `startup.run_command_of` when run."""
  scripts = [path.name for path in sorted(ROOT.glob("run_*.py"))]
  modules = []
  for path in sorted(path for package in ("albert", "data_prep") for path in (ROOT / package).rglob("*.py")):
    text = path.read_text(encoding="utf-8")
    if re.search(r"^  (app\.run|startup\.run_command_of)\(", text, re.MULTILINE) and '__name__ == "__main__"' in text:
      name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
      modules.append(name.removesuffix(".__main__"))
  return scripts + modules


def read_commands(names: Sequence[str]) -> list[Command]:
  """Runs commands with --help.

  Args:
    names: some of `targets`.

  Raises:
    RuntimeError: a command failed.
  """
  environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
  script = [sys.executable, str(Path(__file__).with_name("print_help.py")), *names]
  result = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
  if result.returncode:
    raise RuntimeError(f"print_help.py ended with exit code {result.returncode}: {result.stderr}")
  lines = result.stdout.splitlines()
  return [Command(name, **json.loads(line)) for name, line in zip(names, lines, strict=True)]


def command_page(command: Command) -> str:
  """The Markdown page of a command."""
  lines = [
    f"# {command.title}",
    "",
    *_paragraphs(command.description),
  ]
  group = ""
  for flag in command.flags:
    if flag["group"] != group:
      group = flag["group"]
      lines += [f"## {group}", ""]
    lines += _flag_lines(flag)
  return "\n".join(lines)


def _paragraphs(text: str) -> list[str]:
  """The paragraphs of a docstring, as Markdown. A paragraph with indented lines is a command."""
  lines = []
  for paragraph in inspect.cleandoc(text).split("\n\n"):
    if any(line.startswith(" ") for line in paragraph.splitlines()):
      lines += ["```sh", textwrap.dedent(paragraph), "```", ""]
    elif paragraph:
      lines += [markdown_text(paragraph), ""]
  return lines


def _flag_lines(flag: dict[str, str]) -> list[str]:
  """The entry of a flag in a definition list. `flag`: see Command.flags."""
  name, placeholder, text = flag["name"], flag["value"], flag["text"]
  # A list of choices is part of the text, since a term cannot be wrapped.
  choices = placeholder.split("|") if "|" in placeholder else []
  term = f"--{name}={'NAME' if choices else placeholder}" if placeholder else f"--[no]{name}"
  details = []
  if choices:
    details.append(f"Values: {', '.join(f'`{choice}`' for choice in choices)}.")
  if flag["default"]:
    default = flag["default"] if flag["default"] == "one per core" else f"`{flag['default']}`"
    details.append(f"Default: {default}.")
  text = markdown_text(text[:1].upper() + text[1:])
  text += "" if text.endswith((".", "?")) else "."
  return [f"`{term}`{{ #{name} }}", f":   {' '.join([text, *details])}", ""]


def markdown_text(text: str) -> str:
  """Escapes a plain text for Markdown, and sets flags and paths as code. What is between backquotes stays."""
  parts = re.split(r"(`[^`]+`)", text)
  return "".join(part if part.startswith("`") and len(part) > 1 else _escape(part) for part in parts)


def _escape(text: str) -> str:
  """Escapes a text without code spans, and sets flags and paths as code."""
  text = re.sub(r"([\\*_\[\]{}$^~])", r"\\\1", html.escape(text, quote=False)).replace("`", "\\`")
  # "--name=value" and "dir/file.json" are code; within code nothing is escaped.
  code = r"--[a-z](?:[\w=.:/|-]|\\_)*\w"
  return re.sub(code, lambda match: "`" + match[0].replace("\\", "") + "`", text)
