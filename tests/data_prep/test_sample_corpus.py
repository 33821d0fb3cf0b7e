"""The command data_prep.sample_corpus: sentences of docstrings, and a directory of small generated packages."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import sample_corpus
from data_prep.sample_corpus import (
  Document,
  docstring_sentences,
  find_modules,
  module_sentences,
  sentence_key,
  split_documents,
  unique_documents,
)

# Kind of docstring -> (the docstring, its sentences).
DOCSTRINGS = {
  "sentences over lines": (
    """
    Computes the mean of the values. It is zero for
    an empty list, e.g. one without items. Is that all? Yes, it is
    """,
    [
      "Computes the mean of the values.",
      "It is zero for an empty list, e.g. one without items.",
      "Is that all?",
      "Yes, it is.",
    ],
  ),
  "Google sections": (
    """
    Trains the model for a fixed number of steps.

    Args:
      steps: Number of steps to train for. The
        default is one epoch of the data.
      log_dir: Where the logs of the run are written

    Examples:
      >>> name()

    Returns:
      A dictionary of the metrics
      that were seen last.
    """,
    [
      "Trains the model for a fixed number of steps.",
      "A dictionary of the metrics that were seen last.",
    ],
  ),
  "numpydoc sections": (
    """
    Fit the curve to the points.

    Parameters
    ----------
    x, y : array_like
        The points to which the curve is fitted.
    order : {1, 2}, optional
        Order of the curve, if it is not the first.

    See Also
    --------
    other_fit : Another way to fit a curve to the points.

    Notes
    -----
    The method is described in [1]_ and in [2]_.

    References
    ----------
    .. [1] A. Author, "A book about the fitting of curves", 1999.

    Examples
    --------
    The curve goes through all of the points:

    >>> fit([1, 2], [3, 4])
    array([1., 2.])

    It can be drawn with the function that follows.
    """,
    [
      "Fit the curve to the points.",
      "The method is described in and in.",
      "It can be drawn with the function that follows.",
    ],
  ),
  "inline markup": (
    """
    See :func:`~package.module.name` and :class:`Other` for the ``value`` of the **bold** and the *slanted* `word`.
    Read the [user guide](https://example.org/guide) or :ref:`the text <label>` to know more about it.
    The layout is the one of https://example.org/page and of the object `~axes.Axes` as well.
    """,
    [
      "See name and Other for the value of the bold and the slanted word.",
      "Read the user guide or the text to know more about it.",
      "The layout is the one of and of the object Axes as well.",
    ],
  ),
  "directives and blocks": (
    """
    The first line of the text says what it is::

        code = that_is(dropped)

    .. math::
        The sum of all of the terms is here.

    .. versionadded:: 1.2

    ```python
    this is the code of an example
    ```

    The last line of the text is kept too.
    """,
    ["The last line of the text is kept too."],
  ),
  "lists and tables": (
    """
    The following is a list of the colours that can be used.

    - The first of the colours is red, as
      it is the default for all lines.
    * The second of the colours is blue.

    ========  =======================
    name      what the name is for
    ========  =======================

    | a | row of the table is dropped |

    https://example.org/the/page/of/the/project
    """,
    [
      "The following is a list of the colours that can be used.",
      "The first of the colours is red, as it is the default for all lines.",
      "The second of the colours is blue.",
    ],
  ),
  "no prose": ("x = {'a': 1}\nfoo(bar) -> baz\nfirst second third fourth fifth\nShort one.\nreturn the_value", []),
}


@pytest.mark.parametrize("kind", DOCSTRINGS)
def test_sentences_of_a_docstring_are_found(kind: str) -> None:
  docstring, expected = DOCSTRINGS[kind]
  assert docstring_sentences(inspect.cleandoc(docstring)) == expected


def test_the_key_of_a_sentence_ignores_case_digits_and_packages() -> None:
  assert sentence_key("Use `tf.keras.Model` with 2 inputs.") == sentence_key("use keras.Model, with 3 inputs")
  assert sentence_key("The first of them.") != sentence_key("The last of them.")


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]  # fmt: skip


def make_sentence(word: str, kind: str) -> str:
  """Returns a sentence that occurs in one module, whose name is `word`."""
  return f"The {kind} of the {word} function is described in this text."


@pytest.fixture
def packages(tmp_path: Path) -> Path:
  """Twenty modules with four sentences each, a copy, a module with a syntax error, and tests, which are left out."""
  folder = tmp_path / "packages"
  (folder / "pack" / "tests").mkdir(parents=True)
  for word in WORDS:
    (folder / "pack" / f"{word}.py").write_text(
      f'"""{make_sentence(word, "purpose")}"""\nraise SystemExit("imported")\n'
      f'def f():\n  """{make_sentence(word, "argument")}\n\n  {make_sentence(word, "result")}\n  """\n'
      f"class C:\n  '''{make_sentence(word, 'class')}'''\n",
      encoding="utf-8",
    )
  (folder / "pack" / "zz_copy.py").write_bytes((folder / "pack" / "one.py").read_bytes())
  (folder / "pack" / "broken.py").write_text('"""The file of this text is not Python."""\ndef (', encoding="utf-8")
  (folder / "pack" / "tests" / "inner.py").write_text('"""The test of this text is left out."""', encoding="utf-8")
  (folder / "pack" / "test_more.py").write_text('"""The test of this text is left out."""', encoding="utf-8")
  return folder


def test_module_sentences_are_in_the_order_of_the_file(packages: Path) -> None:
  assert module_sentences(str(packages / "pack" / "two.py")) == [
    [make_sentence("two", "purpose")],
    [make_sentence("two", "argument"), make_sentence("two", "result")],
    [make_sentence("two", "class")],
  ]
  assert module_sentences(str(packages / "pack" / "broken.py")) == []


def test_a_module_that_a_library_fails_at_is_left_out(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  def fail(language: str, text: str) -> list[str]:
    raise BaseException("like a failure of Rust code")

  monkeypatch.setattr("data_prep.sentences.sentencex.segment", fail)
  assert module_sentences(str(packages / "pack" / "two.py")) == []


def test_find_modules_leaves_out_tests(packages: Path) -> None:
  assert list(find_modules(str(packages))) == sorted(f"pack/{name}.py" for name in [*WORDS, "broken", "zz_copy"])


def test_docstrings_that_mostly_repeat_earlier_ones_are_left_out() -> None:
  one, two, three, four, five = (f"The {word} sentence of the document is here." for word in WORDS[:5])
  six, seven = "Another one of them is new here.", "The last one of them is new here."
  documents = unique_documents(
    [
      ("first", [[one, two], [three]]),
      ("copy", [[one, two, three.upper()]]),  # no new sentence
      ("mostly", [[one, two, three, four]]),  # one new sentence of four
      ("partly", [[one, five, six, seven], [four]]),  # `four` was in "mostly"
      ("short", [["It is a new sentence.", "It is another one."]]),
    ]
  )
  assert list(documents) == [
    Document("first", f"{one}\n{two}\n{three}\n\n"),
    Document("partly", f"{one}\n{five}\n{six}\n{seven}\n\n"),
  ]


def test_held_out_documents_depend_on_names_only() -> None:
  documents = [Document(f"pack/{number}.py", f"The text of document {number} is here.\n\n") for number in range(1000)]
  train, heldout = split_documents(documents, 0.05)
  assert len(heldout) == 50
  assert sorted(train + heldout, key=documents.index) == documents
  assert train == sorted(train, key=documents.index)
  _, heldout_of_reversed = split_documents(documents[::-1], 0.05)
  assert heldout_of_reversed == heldout[::-1]
  limited_train, limited_heldout = split_documents(documents, 0.05, max_bytes=10_000)
  num_bytes = sum(len(document.text) for document in limited_train + limited_heldout)
  assert 9_900 < num_bytes <= 10_000
  assert set(limited_train) | set(limited_heldout) < set(documents)


def run_sample_corpus(*arguments: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "-m", "data_prep.sample_corpus", *arguments]
  return subprocess.run(
    command, capture_output=True, text=True, check=False, cwd=Path(sample_corpus.__file__).parents[1]
  )


def test_the_command_writes_the_same_text_with_any_number_of_processes(packages: Path, tmp_path: Path) -> None:
  outputs = []  # the bytes of both files, for each number of processes
  for num_processes in (1, 2):
    output_dir = tmp_path / str(num_processes)
    completed = run_sample_corpus(
      f"--packages_dir={packages}", f"--output_dir={output_dir}", "--heldout_fraction=0.1",
      f"--num_processes={num_processes}",
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert "18 documents, 72 sentences" in completed.stdout
    assert "2 documents, 8 sentences" in completed.stdout
    outputs.append([(output_dir / name).read_bytes() for name in ("train.txt", "heldout.txt")])
  assert outputs[0] == outputs[1]
  train, heldout = (text.decode().split("\n\n")[:-1] for text in outputs[0])
  assert [len(document.split("\n")) for document in train + heldout] == [4] * 20
  train_lines = {line for document in train for line in document.split("\n")}
  heldout_lines = {line for document in heldout for line in document.split("\n")}
  assert train_lines.isdisjoint(heldout_lines)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "--output_dir"),
    (["--output_dir=x", "--heldout_fraction=1"], "--heldout_fraction=1: must be below 1"),
    (["--output_dir=x", "--max_megabytes=0"], "--max_megabytes=0: must be above 0"),
    (["--output_dir=x", "--packages_dir=nowhere"], "nowhere: no such directory"),
    (["--output_dir=x", "--packages_dir=tests/data_prep/__init__.py"], "no such directory"),
  ],
)
def test_bad_flags_are_one_line(arguments: list[str], message: str) -> None:
  completed = run_sample_corpus(*arguments)
  assert completed.returncode == 2
  assert message in completed.stderr
  assert completed.stderr.count("\n") == 1


def test_too_little_text_is_an_error(tmp_path: Path) -> None:
  (tmp_path / "empty").mkdir()
  completed = run_sample_corpus(f"--packages_dir={tmp_path / 'empty'}", f"--output_dir={tmp_path / 'out'}")
  assert completed.returncode == 2
  assert "0 documents of prose, of which at least 2 are needed within the limit" in completed.stderr
  assert not (tmp_path / "out").exists()
