"""The builder of the documentation site converts links, help texts and docstrings, and reports wrong links."""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from pathlib import Path

import pytest

from docs.builder import tables
from docs.builder.assemble import Site
from docs.builder.commands import markdown_text
from docs.builder.notebooks import notebook_page


@pytest.fixture
def site(tmp_path: Path) -> Site:
  return Site(tmp_path, {"docs/tpu.md": "tpu.md", "docs/results/README.md": "results/index.md"})


@pytest.mark.parametrize(
  ("link", "expected"),
  [
    ("results/README.md", "results/index.md"),
    ("results/README.md#depth", "results/index.md#depth"),
    ("../albert/version.py", "source/albert/version.py.md"),
    ("#files", "#files"),
    ("https://arxiv.org/abs/1909.11942", "https://arxiv.org/abs/1909.11942"),
  ],
)
def test_links_lead_to_pages_of_the_site(site: Site, link: str, expected: str) -> None:
  text = "A `[code](x.md)` and [a page]({}).\n\n```\n[code](y.md)\n```\n"
  assert site.with_site_links("docs/tpu.md", text.format(link)) == text.format(expected)
  assert site.problems == []


def test_linked_files_and_notebooks_become_pages(site: Site) -> None:
  site.with_site_links("docs/tpu.md", "[code](../albert/version.py) [notebook](../examples/sentence_embeddings.ipynb)")
  assert "```python" in (site.output / "source/albert/version.py.md").read_text()
  page = (site.output / "source/examples/sentence_embeddings.ipynb.md").read_text()
  assert page.startswith("# Sentence embeddings\n\n*The notebook `examples/sentence_embeddings.ipynb`")
  assert "\n## Encode\n" in page
  assert "```python\nvectors = albert.encode(sentences, encoder, tokenizer=tokenizer)\nvectors.shape\n```\n" in page


def test_an_executed_notebook_shows_its_outputs_unless_its_cells_have_changed() -> None:
  def notebook(source: str, *outputs: dict[str, object]) -> str:
    code = {"cell_type": "code", "source": [source], "outputs": outputs}
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Title\n", "Text."]}, code]})

  executed = notebook(
    "f()",
    {"name": "stderr", "text": "step 5/135"},
    {"name": "stdout", "text": ["10%\r50%\r", "\x1b[1mdone\x1b[0m\n"]},
    {"data": {"text/plain": ["<Figure>"], "image/png": "iVBO\n"}},
    {"data": {"text/plain": "0.5"}},
    {"name": "stdout", "text": "twice"},
  )
  outputs = "```text\ndone\ntwice\n```\n\n![output](data:image/png;base64,iVBO)\n\n```text\n0.5\n```\n"
  assert notebook_page("a", notebook("f()"), executed).endswith(f"Text.\n\n```python\nf()\n```\n\n{outputs}")
  assert notebook_page("a", notebook("g()"), executed) == notebook_page("a", notebook("g()"))


@pytest.mark.parametrize("text", ["[a](nothing.md)", "![a](nothing.png)"])
def test_a_link_to_a_missing_file_is_reported(site: Site, text: str) -> None:
  site.with_site_links("docs/tpu.md", text)
  assert len(site.problems) == 1
  assert re.match(r"docs/tpu\.md: a link leads to nothing\.(md|png)", site.problems[0])


def test_a_document_that_the_navigation_lacks_is_reported(site: Site) -> None:
  site.site_paths["docs/new.md"] = "new.md"
  site.check_navigation()
  assert "mkdocs.yml: the navigation lacks new.md" in site.problems
  assert "mkdocs.yml: the navigation has index.md, which does not exist" in site.problems
  assert not any("tpu.md" in problem for problem in site.problems)


def test_the_table_of_models_has_the_papers_sizes() -> None:
  rows = {row.split("|")[1].strip(" `"): row for row in tables.models_table().splitlines()}
  assert "| 12 | 768 | 12 | 128 | all | 11,683,584 |" in rows["albert_base"]
  assert "| 12 | 4096 | 64 | 128 | all | 222,595,584 |" in rows["albert_xxlarge"]
  assert "bert_xlarge" in rows


def test_help_texts_are_escaped_for_markdown() -> None:
  text = "write <unk> to output_dir/a_b, see --task_name=NAME; at most 2*n [MASK]"
  assert markdown_text(text) == (
    "write &lt;unk&gt; to output\\_dir/a\\_b, see `--task_name=NAME`; at most 2\\*n \\[MASK\\]"
  )


def test_sections_of_docstrings_are_separated_by_blank_lines(monkeypatch: pytest.MonkeyPatch) -> None:
  # griffe is installed only where the site is built.
  monkeypatch.setitem(sys.modules, "griffe", types.SimpleNamespace(Extension=object))
  sections = importlib.import_module("docs.builder.docstring_sections")
  # A section is renamed as griffe names it, and its text is not changed.
  assert sections.with_separate_sections("Example:\n  >>> f(x)[0][1]") == "Examples:\n  >>> f(x)[0][1]"
  docstring = "Reads it.\n\nArgs:\n  path: the file.\nReturns: the text, or\n  None.\nRaises:\n  OSError: no file."
  assert sections.with_separate_sections(docstring) == (
    "Reads it.\n\nArgs:\n  path: the file.\n\nReturns:\n  the text, or\n  None.\n\nRaises:\n  OSError: no file."
  )
