"""Files of columns and JSON lines: the texts that are read, the errors, and the files of predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert.data.rows import rows_of
from albert.errors import UserError
from albert.tasks.tagging.files import TaggedText, TaggingData, read_texts, write_predictions
from albert.tasks.tagging.flags import TaggingConfig
from albert.tasks.tagging.schemes import Span

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
New NNP B-NP B-LOC
York NNP I-NP I-LOC

Peter NNP B-NP B-PER
"""
EXPECTED = [
  (["EU", "rejects", "New", "York"], [Span(0, 1, "ORG"), Span(2, 4, "LOC")]),
  (["Peter"], [Span(0, 1, "PER")]),
]


def read(path: Path, **settings: Any) -> list[tuple[list[str], list[Span]]]:
  return [
    (list(text.words), list(text.spans)) for text in read_texts(str(path), TaggingConfig(**settings), with_tags=True)
  ]


def write(path: Path, text: str) -> Path:
  path.write_text(text, encoding="utf-8")
  return path


# Name -> text of a file, and the flags that choose its columns. Each holds the sentences of EXPECTED.
COLUMN_FILES: dict[str, tuple[str, dict[str, str]]] = {
  "spaces": (CONLL, {}),
  "several spaces": (CONLL.replace(" ", "   "), {}),
  "tabs": (CONLL.replace(" ", "\t"), {}),
  "carriage returns": (CONLL.replace("\n", "\r\n"), {}),
  "byte order mark": ("\ufeff" + CONLL.removeprefix("-DOCSTART- -X- -X- O\n\n"), {}),
  "blank lines": (CONLL.replace("\n\n", "\n \n\n") + "\n\n", {}),
  "no blank line before a document": (CONLL.replace("York NNP I-NP I-LOC\n", "York NNP I-NP I-LOC\n-DOCSTART- O"), {}),
  "numbers": (CONLL, {"word_column": "0", "tag_column": "3"}),
  "numbers from the end": (CONLL, {"word_column": "-4", "tag_column": "-1"}),
  "names": ("form\tpos\tchunk\tner\n" + CONLL.replace(" ", "\t"), {"word_column": "form", "tag_column": "ner"}),
  "name and number": ("form pos chunk ner\n" + CONLL, {"word_column": "form", "tag_column": "3"}),
  "CoNLL-U Plus": ("# global.columns = FORM XPOS CHUNK NER\n" + CONLL, {"tag_column": "NER"}),
  "comments": ("# id = 7\n" + CONLL.replace(" ", "\t").replace("\n\nPeter", "\n\n# text\nPeter"), {}),
}


@pytest.mark.parametrize("name", COLUMN_FILES)
def test_columns_are_read(name: str, tmp_path: Path) -> None:
  text, settings = COLUMN_FILES[name]
  assert read(write(tmp_path / "train.conll", text), **settings) == EXPECTED


def test_another_column_has_other_spans(tmp_path: Path) -> None:
  texts = read(write(tmp_path / "train.conll", CONLL), tag_column="2")
  assert texts[0][1] == [Span(0, 1, "NP"), Span(1, 2, "VP"), Span(2, 4, "NP")]


def test_in_a_file_with_spaces_a_number_sign_is_a_word(tmp_path: Path) -> None:
  assert read(write(tmp_path / "train.conll", "# O\nEU B-ORG\n")) == [(["#", "EU"], [Span(1, 2, "ORG")])]


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_only_tabs_and_ascii_spaces_separate_columns(separator: str, tmp_path: Path) -> None:
  spaces = "\u00a0\u2009\u3000\u2028\x85\x0b\x0c\x1c"
  rows = [
    ("It", "O"),
    *((f"10{space}000", "B-NUM") for space in spaces),
    *((space, "O") for space in spaces),
    ("km", "O"),
  ]
  path = write(tmp_path / "train.conll", "".join(f"{separator.join(row)}\n" for row in rows))
  ((words, spans),) = read(path)
  assert words == [word for word, _ in rows]
  assert spans == [Span(1 + index, 2 + index, "NUM") for index in range(len(spaces))]
  json_path = write(tmp_path / "train.jsonl", json.dumps({"tokens": words, "tags": [tag for _, tag in rows]}))
  assert read(json_path) == [(words, spans)]
  words_only = write(tmp_path / "words.txt", "".join(f"{word}\n" for word in words))
  (text,) = read_texts(str(words_only), TaggingConfig(), with_tags=False)
  assert text.words == words


def test_json_lines_are_read(tmp_path: Path) -> None:
  lines = [
    {"tokens": ["EU", "rejects", "New", "York"], "tags": ["B-ORG", "O", "B-LOC", "I-LOC"], "id": 7},
    {"text": "Peter!", "spans": [{"start": 0, "end": 5, "label": "PER"}]},
  ]
  path = write(tmp_path / "train.jsonl", "\n".join(map(json.dumps, lines)))
  first, second = read_texts(str(path), TaggingConfig(), with_tags=True)
  assert ([*first.words], first.spans) == EXPECTED[0]
  assert second == TaggedText(1, f"{path}, line 2", ["Peter", "!"], [Span(0, 1, "PER")], "Peter!", [(0, 5), (5, 6)])
  assert (first.offsets(first.spans[1]), first.text_of(first.spans[1])) == ((2, 4), "New York")
  assert (second.offsets(second.spans[0]), second.text_of(second.spans[0])) == ((0, 5), "Peter")
  rows = rows_of([{"tokens": ["EU"], "tags": ["B-ORG"]}], "train", ["tokens", "tags"])
  assert read_texts(rows, TaggingConfig(), with_tags=True)[0].spans == [Span(0, 1, "ORG")]


def test_other_keys_and_whitespace_words(tmp_path: Path) -> None:
  path = write(tmp_path / "train.jsonl", '{"words": ["EU"], "ner": ["U-ORG"]}')
  assert read(path, word_column="words", tag_column="ner", scheme="BILOU") == [(["EU"], [Span(0, 1, "ORG")])]
  path = write(
    tmp_path / "text.jsonl", '{"text": "In Rome!", "spans": [{"start": 2, "end": 8, "label": "LOC", "text": "Rome!"}]}'
  )
  assert read(path, word_rule="whitespace") == [(["In", "Rome!"], [Span(1, 2, "LOC")])]


# The content of a file, and the error without the path. A content with {} is JSON lines.
BAD_FILES = [
  (
    "EU NNP B-ORG\nrejects O\n",
    ", line 2: 2 columns instead of 3: give each line the same columns, separated by spaces",
  ),
  ("EU\tB-ORG\nrejects O\n", ", line 2: 1 column instead of 2: give each line the same columns, separated by tabs"),
  ("EU\nrejects\n", r", line 1: column 0 is both the column of the words and .* \(1 column\): separate"),
  ("EU B-ORG\n\nYork I-LOC\n", ", line 3: tag 'I-LOC' is the first one of the sentence: in BIO a span beg"),
  ("EU B-ORG\nin U-ORG\n", ", line 2: tag 'U-ORG' is not one of BIO .*: give --scheme=BILOU"),
  ("word tag\nEU O\n", ", line 1: tag 'tag' is not one of BIO .*: correct it, or give another --tag_column"),
  ("\tO\nEU\tO\n", ", line 1: the word is empty: fill it in or remove the line"),
  ("", ": no words: give a file of columns with one word a line, or JSON lines"),
  ("\n-DOCSTART- O\n\n", ": no words"),
  ('{"tokens": ["EU"]}', ", line 1: no 'tags'; there are: 'tokens'"),
  ('{"words": ["EU"]}', ", line 1: has neither 'tokens' nor 'text'; it has: 'words'"),
  ('{"tokens": ["EU"], "tags": []}', ", line 1: 0 tags for 1 tokens: give each word one tag"),
  ('{"tokens": ["EU"], "tags": [3]}', r", line 1: tags: \$\[0\] must be a text, .*: give the names of"),
  ('{"tokens": "EU", "tags": []}', ", line 1: tokens: must be a list, it is a text"),
  ('{"tokens": ["EU", " "], "tags": ["O", "O"]}', r", line 1: tokens\[1\] is empty: give it a word"),
  ('{"tokens": [], "tags": []}', ", line 1: has no words: give some, or remove it"),
  ('{"tokens": ["EU", "in"], "tags": ["I-ORG", "B-X"]}', ", line 1: tag 'I-ORG' is the first one"),
  ('{"text": " ", "spans": []}', ", line 1: the text has no words"),
  ('{"text": "EU"}', ", line 1: no 'spans'; there are: 'text'"),
  ('{"text": "EU", "spans": [{"start": 0, "end": 3, "label": "ORG"}]}', ".*: not a part of the text, whi"),
  ('{"text": "EU", "spans": [{"start": 0, "end": 2}]}', r", line 1: spans: \$\[0\] lacks 'label'"),
  (
    '{"text": "😀 in Rome", "spans": [{"start": 6, "end": 10, "label": "LOC", "text": "Rome"}]}\n'
    '{"text": "😀 Rome", "spans": [{"start": 2, "end": 6, "label": "LOC", "text": "Rome"}]}',
    r", line 1: span 6 to 10 \(LOC\): the text there is 'ome', that of the span 'Rome': .*: give --offsets=utf16$",
  ),
  (
    '{"text": "EU", "label": [[0, 3, "ORG"]]}',
    r", line 1: span 0 to 3 \(ORG\): not a part of the text, .* 2 characters",
  ),
  ('[{"text": "EU", "label": [{"start": 2, "end": 3, "labels": ["ORG"]}]}]', r": row 1: span 2 to 3 .*: not a part"),
  ('[{"data": {"text": "EU"}, "annotations": [{}, {}]}]', r": row 1: has 2 annotations: keep one"),
  (
    '{"text": "in Rome", "spans": [{"start": 2, "end": 6, "label": "LOC", "text": "Rome"}]}',
    r", line 1: span 2 to 6 \(LOC\): the text there is ' Rom', that of the span 'Rome': correct it",
  ),
  (
    '{"text": "a b", "spans": [{"start": 0, "end": 3, "label": "A"}, {"start": 2, "end": 3, "label": "B"}]}',
    r", line 1: span 2 to 3 \(B\): overlaps with the span before it: keep one of the two",
  ),
  (
    '{"text": "in Europe", "spans": [{"start": 3, "end": 7, "label": "LOC"}]}',
    r", line 1: span 3 to 7 \(LOC\): 'Euro' does not consist of whole words; the word there is 'Europe'",
  ),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_bad_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
  path = write(tmp_path / ("a.jsonl" if "{" in content else "a.conll"), content)
  with pytest.raises(UserError, match=f"^{path}{message}") as error:
    read(path)
  assert "\n" not in str(error.value)


CONVERTED = [
  ("BIO", "I-ORG O I-LOC I-LOC B-LOC I-PER", "ORG 0 1, LOC 2 4, LOC 4 5, PER 5 6"),  # IOB1
  ("IO", "ORG O LOC LOC O PER", "ORG 0 1, LOC 2 4, PER 5 6"),
  ("IO", "I-ORG O LOC LOC PER O", "ORG 0 1, LOC 2 4, PER 4 5"),
  ("plain", "NNP NNP O , I-x NNP", "NNP 0 1, NNP 1 2, O 2 3, , 3 4, I-x 4 5, NNP 5 6"),
]


@pytest.mark.parametrize(("scheme", "tags", "expected"), CONVERTED)
def test_other_schemes_are_read(
  scheme: str, tags: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  path = write(tmp_path / "a.conll", "".join(f"w {tag}\n" for tag in tags.split()))
  ((_, spans),) = read(path, scheme=scheme)
  assert ", ".join(f"{span.type} {span.start} {span.end}" for span in spans) == expected
  assert capsys.readouterr().err.count("its tags are IOB1, where a span begins with I-: converted") == (scheme == "BIO")


@pytest.mark.parametrize(
  ("scheme", "content", "message"),
  [
    ("IO", "EU ORG\nin B-X\n", ", line 2: tag 'B-X' is not one of IO .*: give --scheme=BIO, or correct it"),
    (
      "plain",
      '{"text": "a EU", "spans": [{"start": 2, "end": 4, "label": "N"}]}',
      ", line 1: 1 span for 2 words: with",
    ),
  ],
)
def test_bad_files_of_other_schemes_are_refused(scheme: str, content: str, message: str, tmp_path: Path) -> None:
  path = write(tmp_path / ("a.jsonl" if "{" in content else "a.conll"), content)
  with pytest.raises(UserError, match=f"^{path}{message}"):
    read(path, scheme=scheme)


OFFSETS = {"start": 3, "end": 7, "text": "Rome"}
# What annotation tools write for the text "In Rome", where Rome is a place.
EXPORTS = {
  "doccano": {"id": 1, "text": "In Rome", "label": [[3, 7, "LOC"]]},
  "Label Studio, smaller": [{"text": "In Rome", "id": 1, "label": [OFFSETS | {"labels": ["LOC"]}], "annotator": 1}],
  "Label Studio": [{
    "id": 1,
    "data": {"text": "In Rome"},
    "annotations": [
      {"was_cancelled": True, "result": []},
      {"result": [{"value": OFFSETS | {"labels": ["LOC"]}, "type": "labels"}, {"type": "relation", "from_id": "x"}]},
    ],
  }],
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_annotation_tools_are_read(name: str, tmp_path: Path) -> None:
  path = write(tmp_path / "a.json", json.dumps(EXPORTS[name]))
  assert read(path) == [(["In", "Rome"], [Span(1, 2, "LOC")])]


def test_utf16_offsets_are_recognized_or_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  lines: list[dict[str, Any]] = [
    {"text": "In Rome", "spans": [OFFSETS | {"label": "LOC"}]},
    {"text": "😀 😀 in Rome", "spans": [{"start": 9, "end": 13, "label": "LOC", "text": "Rome"}]},
  ]
  path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
  expected = [(["In", "Rome"], [Span(1, 2, "LOC")]), (["😀", "😀", "in", "Rome"], [Span(3, 4, "LOC")])]
  assert read(path) == expected
  assert f"{path}: the offsets of its spans count UTF-16 units" in capsys.readouterr().err
  del lines[1]["spans"][0]["text"]
  write(path, "\n".join(map(json.dumps, lines)))
  assert read(path, offsets="utf16") == expected
  with pytest.raises(UserError, match=r"line 2: span 9 to 13 \(LOC\): not a part of the text, which has 11 characters"):
    read(path)
  write(path, json.dumps({"text": "😀", "spans": [{"start": 0, "end": 3, "label": "X"}]}))
  with pytest.raises(UserError, match=r"not a part of the text, which has 2 UTF-16 units"):
    read(path, offsets="utf16")


def test_columns_that_do_not_exist_are_refused(tmp_path: Path) -> None:
  path = write(tmp_path / "a.conll", "word tag\nEU O\n")
  message = f"^{path}, line 1: --tag_column=2: the file has 2 columns: give one from -2 to 1"
  with pytest.raises(UserError, match=message):
    read(path, tag_column="2")
  with pytest.raises(UserError, match=f"^{path}, line 2: --tag_column=ner: no such column; there are: 'word', 't"):
    read(path, tag_column="ner")


def tagging_data(**flags: Any) -> TaggingData:
  data = TaggingData(TaggingConfig(**flags))
  data.find_labels()
  return data


def test_types_are_those_of_the_training_file(tmp_path: Path) -> None:
  path = write(tmp_path / "train.conll", CONLL)
  data = tagging_data(train_file=str(path))
  assert (data.config.labels, data.types) == ("LOC,ORG,PER", ("LOC", "ORG", "PER"))
  path.unlink()  # it was read once
  assert len(data.rows("train")) == 2
  write(path, CONLL)
  assert tagging_data(labels="PER").config.labels == "PER"
  message = f"^{path}, line 5: the span 'New York' has the type 'LOC', which is none of those"
  with pytest.raises(UserError, match=message):
    tagging_data(train_file=str(path), labels="ORG,PER").rows("train")
  with pytest.raises(UserError, match=r"^--labels is missing, and there is no --train_file"):
    tagging_data()
  outside = write(tmp_path / "outside.conll", "EU O\n")
  with pytest.raises(UserError, match=f"^{outside}: has no spans, all tags are O: choose another --tag_column"):
    tagging_data(train_file=str(outside))


def test_other_data_of_one_split_leaves_the_others(tmp_path: Path) -> None:
  path = write(tmp_path / "train.conll", CONLL)
  data = tagging_data(train_file=str(path), predict_file="test.tsv")
  of_rows = data.with_source("test", rows_of([{"tokens": ["EU"]}], "test", ["tokens"]))
  of_file = of_rows.with_source("test", str(path))
  assert [text.words for text in of_rows.rows("test")] == [["EU"]]
  assert (len(of_file.rows("test")), of_file.sources("test")) == (2, [str(path)])
  kinds = (data, of_rows, of_file, tagging_data(train_file=str(path), predict_file="list.json.gz"))
  assert [held.extension("test") for held in kinds] == [".tsv", ".jsonl", ".conll", ".jsonl"]
  assert of_file.rows("train") is data.rows("train")


TAGS = [["B-ORG", "O", "O", "O"], ["O"]]


def written_predictions(path: Path, **settings: Any) -> str:
  output = path.with_name("predictions")
  spans: list[list[dict[str, Any]]] = [[{"start": 0, "end": 1, "label": "ORG"}], []]
  write_predictions(str(path), TaggingConfig(**settings), str(output), TAGS, spans)
  return output.read_text(encoding="utf-8")


def test_predictions_of_columns_are_a_further_column(tmp_path: Path) -> None:
  path = write(tmp_path / "test.conll", CONLL)
  assert written_predictions(path) == (
    "-DOCSTART- -X- -X- O O\n\nEU NNP B-NP B-ORG B-ORG\nrejects VBZ B-VP O O\nNew NNP B-NP B-LOC O\n"
    "York NNP I-NP I-LOC O\n\nPeter NNP B-NP B-PER O\n"
  )
  # The file of predictions can be read like the input.
  assert [spans for _, spans in read(tmp_path / "predictions", tag_column="-1")] == [[Span(0, 1, "ORG")], []]
  words_only = write(tmp_path / "words.txt", "EU\nrejects\nNew\nYork\n\nPeter\n")
  assert written_predictions(words_only) == "EU B-ORG\nrejects O\nNew O\nYork O\n\nPeter O\n"


def test_plain_text_in_a_file_of_columns_gives_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  path = write(tmp_path / "one.txt", "Anna likes New York.\n")
  read_texts(str(path), TaggingConfig(), with_tags=False)
  assert "reads 'Anna' as a word, and 'York.' as its last column: if this is plain" in capsys.readouterr().err


def test_predictions_of_columns_with_names_have_a_name(tmp_path: Path) -> None:
  text = "word\tid\nEU\t1\nrejects\t2\n# note\nNew\t3\nYork\t4\n\nPeter\t5\n"
  path = write(tmp_path / "test.tsv", text)
  assert written_predictions(path, word_column="word") == (
    "word\tid\tprediction\nEU\t1\tB-ORG\nrejects\t2\tO\n# note\nNew\t3\tO\nYork\t4\tO\n\nPeter\t5\tO\n"
  )
  plus = write(tmp_path / "plus.tsv", f"# global.columns = FORM ID\n{text.partition(chr(10))[2]}")
  assert written_predictions(plus).startswith("# global.columns = FORM ID prediction\nEU\t1\tB-ORG\n")


def test_predictions_of_json_lines_keep_their_keys(tmp_path: Path) -> None:
  path = write(tmp_path / "test.jsonl", '{"id": 7, "tokens": ["EU", "rejects", "New", "York"]}\n{"text": "Zoë"}\n')
  lines = [json.loads(line) for line in written_predictions(path).splitlines()]
  assert lines == [
    {
      "id": 7,
      "tokens": ["EU", "rejects", "New", "York"],
      "predicted_tags": TAGS[0],
      "predicted_spans": [{"start": 0, "end": 1, "label": "ORG"}],
    },
    {"text": "Zoë", "predicted_tags": ["O"], "predicted_spans": []},
  ]
