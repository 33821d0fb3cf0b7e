"""Lines become requests: texts, columns or JSON objects, which must fit the fields of the model."""

from __future__ import annotations

import json

import pytest

from albert.errors import UserError
from albert.export.companion_files import RequestField
from albert.predict.requests import AUTO, JSON, LINES, PredictRequest, RequestParser

# Fields of models, as in servable.json.
TEXT_FIELD = RequestField("text", "any")
PAIR_FIELDS = [RequestField("text_a", "any"), RequestField("text_b", "any")]
CHOICE_FIELDS = [RequestField("article", "any"), RequestField("options", "the options", is_list=True)]


def parse_line(fields: list[RequestField], line: bytes, input_format: str = AUTO) -> PredictRequest:
  """The request in line 3 of a file."""
  request = RequestParser(fields, input_format, "file").parse(3, line)
  assert request is not None
  return request


def test_a_line_is_a_text_columns_or_a_json_object() -> None:
  assert parse_line([TEXT_FIELD], b"two\twords").texts == {"text": b"two\twords"}
  assert parse_line(PAIR_FIELDS, b"a b\tc").texts == {"text_a": b"a b", "text_b": b"c"}
  assert parse_line(CHOICE_FIELDS, b"a\tb\tc").texts == {"article": b"a", "options": [b"b", b"c"]}
  request = parse_line(CHOICE_FIELDS, '{"id": 7, "article": "é", "options": ["b", ""]}'.encode())
  assert request == PredictRequest(3, {"article": "é".encode(), "options": [b"b", b""]}, {"id": 7})
  assert request.num_bytes == 3
  assert parse_line([TEXT_FIELD], b'{"text": "a"}', LINES).texts == {"text": b'{"text": "a"}'}
  assert RequestParser([TEXT_FIELD], AUTO, "file").parse(1, b"\xef\xbb\xbfa") == PredictRequest(1, {"text": b"a"})


@pytest.mark.parametrize(
  ("fields", "line", "message"),
  [
    ([TEXT_FIELD], b'{"text": "a", "x": NaN}', r"^file, line 3: holds NaN, which is not a finite number"),
    ([TEXT_FIELD], b'{"text": "a", "x": -Infinity}', r"^file, line 3: holds -Infinity, which is not a finite number"),
    ([TEXT_FIELD], b'{"text": "a", "x": 1e999}', r"^file, line 3: holds 1e999, which is not a finite number"),
    (PAIR_FIELDS, b"a", r"file, line 3: has 1 column; give text_a, text_b"),
    (PAIR_FIELDS, b"a\tb\tc", r"line 3: has 3 columns"),
    (CHOICE_FIELDS, b"a", r"each further column is one more of options"),
    (PAIR_FIELDS, b'{"text_a": "a"}', r"line 3: lacks 'text_b' \(a text: any\)"),
    (PAIR_FIELDS, b'{"text_a": "a", "text_b": 5}', r"'text_b' must be a text, it is 5"),
    (CHOICE_FIELDS, b'{"article": "a", "options": "b"}', r"'options' must be a list of texts"),
    (CHOICE_FIELDS, b'{"article": "a", "options": [1]}', r"must be a list of texts"),
    (PAIR_FIELDS, b'{"text_a": ', r"not JSON \(it ends too early, column 12\)"),
    (PAIR_FIELDS, b'{"text_a": "\xff"}', r"not UTF-8 \(byte 13 of the line is 0xff\)"),
    (CHOICE_FIELDS, b'{"article": "a", "options": []}', r"^file, line 3: 'options' has no text \(the options\): give"),
    (CHOICE_FIELDS, b'{"article": "a", "options": ["", ""]}', r"^file, line 3: 'options' has no text"),
    (CHOICE_FIELDS, b"a\t\t", r"^file, line 3: 'options' has no text"),
    (
      CHOICE_FIELDS,
      b'{"article": "a", "options": null}',
      r"^file, line 3: 'options' must be a list of texts, it is null",
    ),
    (CHOICE_FIELDS, b'{"article": "a", "options": ["b"], "n": ' + b"[" * 100_000, r"^file, line 3: .* nested too deep"),
    (CHOICE_FIELDS, b'{"article": "a", "options": ["b"], "n": ' + b"1" * 5000 + b"}", r"^file, line 3: holds a number"),
  ],
)
def test_a_line_that_does_not_fit_the_fields_is_refused(fields: list[RequestField], line: bytes, message: str) -> None:
  with pytest.raises(UserError, match=message):
    parse_line(fields, line)


def test_a_line_that_does_not_fit_the_given_format_is_refused() -> None:
  with pytest.raises(UserError, match="must hold a JSON object, holds 5"):
    parse_line([TEXT_FIELD], b"5", JSON)
  with pytest.raises(UserError, match=r"--format=lines: the model takes text_a, text_b: give tsv or json"):
    parse_line(PAIR_FIELDS, b"a", LINES)
  for line in (b"[", b' [ {"text": "a"}]'):
    with pytest.raises(UserError, match=r"^file: is a list: give an object a line"):
      parse_line([TEXT_FIELD], line)
  assert parse_line([TEXT_FIELD], b"[MASK] [1]").texts == {"text": b"[MASK] [1]"}


def test_a_line_with_the_names_of_the_columns_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
  for fields, line in ((PAIR_FIELDS, b"text_a\ttext_b"), ([RequestField("text", "custom: comment")], b"comment\r")):
    parser = RequestParser(fields, AUTO, "file")
    assert all(parser.parse(number, line) for number in (1, 2))
    assert capsys.readouterr().err.count("warning: file, line 1: names the columns, and is answered like the oth") == 1


def test_one_option_and_empty_texts_are_requests() -> None:
  assert parse_line(CHOICE_FIELDS, b'{"article": "", "options": ["b"]}').texts == {"article": b"", "options": [b"b"]}
  assert parse_line(CHOICE_FIELDS, b"\t\tc").texts == {"article": b"", "options": [b"", b"c"]}
  assert parse_line(PAIR_FIELDS, b"\t").texts == {"text_a": b"", "text_b": b""}


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
  """Python's UTF-16 decoder with errors="replace" gives the same text. In fields that are only copied it stays."""
  for text in ("\\ud800", "a\\udc00b", "\\ud83d\\ude00\\ud83d", "\\ude00\\ud83d"):
    line = '{"text": "' + text + '", "kept": "' + text + '"}'
    request = parse_line([TEXT_FIELD], line.encode())
    original = json.loads(line)["text"]
    units = original.encode("utf-16-le", "surrogatepass")
    assert request.texts["text"] == units.decode("utf-16-le", "replace").encode()
    assert b"?" not in request.texts["text"]
    assert request.extra_fields == {"kept": original}


def test_extra_fields_with_the_name_of_an_answer_are_renamed() -> None:
  """The new names depend on the names of the model's answers only, and all of them are different."""
  names = ["label", "input_label", "input_input_label", "labels", "input_id", "id", "input_"]
  parser = RequestParser([TEXT_FIELD], AUTO, "file", answers=("label", "probabilities"))
  request = parser.parse(1, json.dumps({"text": "a", **{name: name for name in names}}).encode())
  assert request is not None
  assert request.extra_fields == {
    "input_label": "label",
    "input_input_label": "input_label",
    "input_input_input_label": "input_input_label",
    "labels": "labels",
    "input_id": "input_id",
    "id": "id",
    "input_": "input_",
  }
  request = parser.parse(2, b'{"text": "a", "label": 5}')
  assert request is not None
  assert request.extra_fields == {"input_label": 5}
