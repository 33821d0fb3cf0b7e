"""Sentences of docstrings: hand-made docstrings with each kind of markup, and the sentences to find in them."""

from __future__ import annotations

import inspect

import pytest

from data_prep.sample_corpus import docstring_sentences, sentence_key

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
      rate: {int: [1, 2]}
      log_dir: Where the logs of the run are written

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
  "sections without prose": (
    """
    Returns the name of the thing.

    Args:
      x: {int: [1, 2]}

    Raises:
      ValueError

    Notes:
      It is the only thing that has a name.

    Examples:
      >>> name()
    """,
    ["Returns the name of the thing.", "It is the only thing that has a name."],
  ),
  "no prose": ("x = {'a': 1}\nfoo(bar) -> baz\nfirst second third fourth fifth\nShort one.\nreturn the_value", []),
  "empty": ("", []),
}


@pytest.mark.parametrize("kind", DOCSTRINGS)
def test_sentences_of_a_docstring_are_found(kind: str) -> None:
  docstring, expected = DOCSTRINGS[kind]
  assert docstring_sentences(inspect.cleandoc(docstring)) == expected


def test_the_key_of_a_sentence_ignores_case_digits_and_packages() -> None:
  assert sentence_key("Use `tf.keras.Model` with 2 inputs.") == sentence_key("use keras.Model, with 3 inputs")
  assert sentence_key("The first of them.") != sentence_key("The last of them.")
