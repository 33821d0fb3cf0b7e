"""Dumps of Wikipedia: hand-made wikitext, what is left out, and damaged dumps."""

from __future__ import annotations

import bz2
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from albert.errors import UserError
from data_prep.readers import wikipedia, wikitext
from data_prep.readers.records import ReadingSettings
from data_prep.split_text import split_files
from tests.data_prep.readers import wikipedia_dump
from tests.data_prep.readers.forms import DOCUMENTS

mwparserfromhell = pytest.importorskip("mwparserfromhell")
# Names of namespaces, in lower case.
NAMESPACES = frozenset({"file", "category", "special"})


@pytest.mark.parametrize(
  ("text", "paragraphs"),
  [
    ("'''Bold''' and ''italic'' text.", ["Bold and italic text."]),
    ("A [[link]], a [[page|named link]] and a [[page#part|part]]s.", ["A link, a named link and a parts."]),
    ("[[Star Trek: First Contact]] is a film.", ["Star Trek: First Contact is a film."]),
    ("See [[:Category:Things]] for [[:fr:Une chose|more]].", ["See Category:Things for more."]),
    ("[http://example.org A site] and http://example.org.", ["A site and."]),
    ("Born (''née'' {{lang|fr|Dupont}}; {{IPA|x}}) in 1900.", ["Born (née Dupont;) in 1900."]),
    ("He ({{IPA|x}}, {{circa}}) ran {{convert|5|km|mi}} a day.", ["He ran 5 km a day."]),
    ("Five {{nowrap|10 m}} &amp; six&nbsp;feet &ndash; long.", ["Five 10 m & six feet – long."]),
    ("A&#xD800;B &#x10FFFF;&bogus; &#x110000;.", ["AB \U0010ffff&bogus; &#x110000;."]),
    ("One<ref>A note.</ref> two.<ref name=x /><br/>Three.", ["One two. Three."]),
    ("First.\n\nSecond\nthird.", ["First.", "Second", "third."]),
    ("== Heading ==\nText.\n* entry\n*# entry '''two'''\n: quoted\nMore.", ["Text.", "More."]),
    ("{| class=x\n| a\n{| \n| inner\n|}\n|}\nAfter.", ["After."]),
    ("Before.\n{| never closed\n|-\n| cell\n! head", ["Before."]),
    ("{{never closed\n| a = b\nText.", ["Text."]),
    ("[[File:A.jpg|thumb|x [[y]] z.]]Text.[[Category:C]]", ["Text."]),
    ("[[special:Search|search]] here.", ["here."]),
    ("A <math>x^2</math> and <nowiki>[[no link]]</nowiki>.", ["A and [[no link]]."]),
    ("<blockquote>Said he.</blockquote><!-- no -->__TOC__", ["Said he."]),
    ("{{a|{{b|{{c}}}}}}\n'''", []),
  ],
)
def test_wikitext_becomes_paragraphs(text: str, paragraphs: list[str]) -> None:
  assert wikitext.parse(text, NAMESPACES)[0] == paragraphs


@pytest.mark.parametrize(
  ("text", "paragraphs"),
  [
    ("[[Datei:A.jpg|mini|Ein [[Turm]].]]Text.[[Kategorie:Turm]]", ["Text."]),
    ("[[Image:A|thumb|left|caption]]Text.[[Category:Turm]]\n[[category: Turm|T]]", ["Text."]),
    ("[[Bild:A b.JPG|thumb|left|Ein [[Turm]].]]Text. [[Изображение:A.svg|мини|Башня]]", ["Text."]),
    ("[[User_talk:A]]Text.[[zh-min-nan:Ta]][[simple:Tower]]", ["Text."]),
    ("[[2001: Odyssee im Weltraum|Film]] und [[A.B.: C]].", ["Film und A.B.: C."]),
    ("__KEIN_INHALTSVERZEICHNIS__Text.__БЕЗ_ОГЛ____NOTOC__ a__b__c", ["Text. a__b__c"]),
  ],
)
def test_names_in_the_language_of_the_wiki_and_other_names_are_known(text: str, paragraphs: list[str]) -> None:
  assert wikitext.parse(text, frozenset({"datei", "kategorie"}))[0] == paragraphs


@pytest.mark.parametrize(
  ("template", "text"),
  [
    ("{{convert|5|to|10|km}}", "5 to 10 km"),
    ("{{convert|5|-|10|km|mi|abbr=on}}", "5–10 km"),
    ("{{Convert|2|x|3.5|x|1,000|m}}", "2 × 3.5 × 1,000 m"),
    ("{{cvt|5|ft|7+1/2|in|m}}", "5 ft 7 1/2 in"),
    ("{{convert|100|km|0}}", "100 km"),
    ("{{convert|3|e6sqmi|e6km2}}", "3 million sqmi"),
    ("{{convert| −5 | ± | 2 | °C }}", "−5 ± 2 °C"),
    ("{{convert|5|up to|10|km}}", ""),
    ("{{convert|5|to|10}}", ""),
    ("{{convert|{{#expr:1}}|km}}", ""),
    ("{{convert|five|km}}", ""),
    ("{{as of|2010|1}}", "As of January 2010"),
    ("{{As of|2010|12|5|lc=y|since=y|post=,}}", "since 5 December 2010,"),
    ("{{as of|2010|alt=in [[2010]]}}", "in 2010"),
    ("{{as of|2010|13}}", ""),
    ("{{as of}}", ""),
    ("{{nowrap|1=a=b}}", "a=b"),
    ("{{lang-de|Köln}}", "Köln"),
    ("{{langx|de|Köln}}", "Köln"),
    ("{{transl|ja|hepburn|Nihon}}", "Nihon"),
    ("{{ill|A (b)|de|lt=A}}", "A"),
    ("{{circa|1900|1910}}", "c. 1900 – c. 1910"),
    ("{{circa}}", ""),
    ("{{frac|3|1|2}}", "3 1/2"),
    ("{{frac|2}}", "1/2"),
    ("{{val|1.5|0.2|e=6|u=m}}", "1.5 × 10^6 m"),
    ("{{val|3|u=km|up=s}}", "3 km/s"),
    ("{{formatnum:12345}}", "12345"),
    ("{{formatnum:{{#expr:1}}}}", ""),
    ("{{spaced_ndash}}", "–"),
    ("{{unknown|5|km}}", ""),
  ],
)
def test_templates_within_sentences_are_text_or_left_out_as_a_whole(template: str, text: str) -> None:
  paragraphs, left_out = wikitext.parse(f"It is {template} here.", NAMESPACES)
  assert paragraphs == [f"It is {text} here." if text else "It is here."]
  assert bool(left_out) == (not text)


def test_pages_and_markup_that_are_left_out_are_counted(tmp_path: Path) -> None:
  path = tmp_path / "pages-articles.xml"
  path.write_bytes(wikipedia_dump.make_dump(DOCUMENTS[:9]))
  report = split_files([str(path)], ReadingSettings(), str(tmp_path / "out")).report
  assert report.documents == 9
  # Each third page is followed by a redirect, each seventh by a talk page and a data page (wikipedia_dump.make_pages).
  assert {reason: entry.documents for reason, entry in report.dropped.items()} == {"redirect": 3, "not an article": 4}
  assert report.dropped["redirect"].examples[0] == f"{path}, page 'Redirect 0'"
  # Per article: 1 table, 2 headings, 3 images and categories, at least 5 entries of lists.
  assert report.left_out["tables"] == 9
  assert report.left_out["headings"] == 18
  assert report.left_out["images and categories"] == 27
  assert report.left_out["entries of lists"] >= 45


def test_an_article_without_sentences_is_left_out(tmp_path: Path) -> None:
  path = tmp_path / "a.xml"
  pages = wikipedia_dump.make_page("Empty", "{{delete}}\n* [[a]]", 1) + wikipedia_dump.make_page(
    "Full", "Some text. And more.", 2
  )
  path.write_text(wikipedia_dump.HEADER + pages + wikipedia_dump.FOOTER)
  converted = split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))
  assert Path(converted.paths[0]).read_text() == "Some text.\nAnd more.\n\n"
  assert converted.report.dropped["no text"].examples == [f"{path}, page 'Empty'"]


def test_a_page_that_is_not_xml_is_an_error_or_skipped(tmp_path: Path) -> None:
  path = tmp_path / "a.xml"
  good_pages = [wikipedia_dump.make_page("One", "Some text.", 1), wikipedia_dump.make_page("Two", "More.", 2)]
  bad_page = wikipedia_dump.make_page("Bad", "A & B.", 1).replace("A &amp; B.", "A & B.")
  xml = wikipedia_dump.HEADER + good_pages[0] + bad_page + good_pages[1] + wikipedia_dump.FOOTER
  path.write_text(xml)
  # The text of a page is on line 17 of its element.
  with pytest.raises(UserError, match=r"a\.xml, page 'Bad': not XML \(.*line 17.*download the dump again"):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))
  converted = split_files([str(path)], ReadingSettings(skip_bad_records=1), str(tmp_path / "out"))
  assert Path(converted.paths[0]).read_text() == "Some text.\n\nMore.\n\n"


def test_a_page_that_the_parser_fails_at_is_an_error_or_skipped(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  parse = mwparserfromhell.parse

  def fail_at_odd_text(text: str, **options: bool) -> object:
    if "odd" in text:
      raise SystemError("error return without exception set")
    return parse(text, **options)

  monkeypatch.setattr(mwparserfromhell, "parse", fail_at_odd_text)
  path = tmp_path / "a.xml"
  pages = wikipedia_dump.make_page("Odd", "An odd text.", 1) + wikipedia_dump.make_page("Two", "Some text.", 2)
  path.write_text(wikipedia_dump.HEADER + pages + wikipedia_dump.FOOTER)
  with pytest.raises(UserError, match=r"a\.xml, page 'Odd': cannot be parsed \(SystemError: error return"):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))
  converted = split_files([str(path)], ReadingSettings(skip_bad_records=1), str(tmp_path / "out"))
  assert Path(converted.paths[0]).read_text() == "Some text.\n\n"


@pytest.mark.parametrize("part_bytes", [1 << 20, 2000])
def test_an_incomplete_or_damaged_dump_is_an_error(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
  monkeypatch.setattr("data_prep.conversion.convert.PART_BYTES", part_bytes)
  path = tmp_path / "dump.xml.bz2"
  complete = wikipedia_dump.make_multistream_dump(DOCUMENTS)
  path.write_bytes(complete[: len(complete) * 2 // 3])
  message = r"dump\.xml\.bz2: the bzip2 (file is damaged or|stream at byte \d+ is) incomplete"
  with pytest.raises(UserError, match=message):
    split_files([str(path)], ReadingSettings(skip_bad_records=99), str(tmp_path / "out"))
  damaged = bytearray(complete)
  damaged[len(complete) // 2] ^= 0xFF
  path.write_bytes(damaged)
  with pytest.raises(UserError, match=r"dump\.xml\.bz2: the bzip2 .*(is damaged|damaged or incomplete)"):
    split_files([str(path)], ReadingSettings(skip_bad_records=99), str(tmp_path / "out"))


def test_the_time_for_a_page_is_in_proportion_to_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """A dump of all revisions has such pages. It is read in blocks of 4 kB, so that many are added to each other."""
  monkeypatch.setattr(wikipedia, "_READ_BYTES", 4096)
  path = tmp_path / "a.xml"
  path.write_text(wikipedia_dump.HEADER + "<page>" + "<id>7</id>\n" * 2_000_000 + "<ns>1</ns></page>\n")
  start = time.process_time()
  (piece,) = wikipedia.READER.plan(str(path), ReadingSettings(), 1 << 30)
  pages = list(wikipedia._find_pages(wikipedia._read_chunks(piece)))
  assert [len(page) for page in pages] == [22_000_023]
  assert time.process_time() - start < 2


def test_an_xml_file_that_is_no_dump_is_an_error(tmp_path: Path) -> None:
  path = tmp_path / "a.xml.bz2"
  path.write_bytes(bz2.compress(b"<html></html>"))
  with pytest.raises(UserError, match="begins with '<html></html>', not with <mediawiki"):
    split_files([str(path)], ReadingSettings(), str(tmp_path / "out"))


@pytest.mark.parametrize("unit_bytes", [100, 1000, 4096, 10_000_000])
@pytest.mark.parametrize(
  ("file_name", "make_dump"),
  [
    ("a.xml", wikipedia_dump.make_dump),
    ("a.xml.bz2", wikipedia_dump.make_multistream_dump),
    ("a.xml.bz2", wikipedia_dump.make_dump_of_cut_pages),
  ],
  ids=["dump", "multistream", "cut_anywhere"],
)
def test_pieces_of_any_size_hold_each_page_once(
  tmp_path: Path,
  monkeypatch: pytest.MonkeyPatch,
  file_name: str,
  make_dump: Callable[[list[list[str]]], bytes],
  unit_bytes: int,
) -> None:
  """The file is read in blocks of 97 bytes, so that a block may end anywhere, also within a tag."""
  monkeypatch.setattr(wikipedia, "_READ_BYTES", 97)
  documents = DOCUMENTS[:12]
  path = tmp_path / file_name
  path.write_bytes(make_dump(documents))
  pieces = list(wikipedia.READER.plan(str(path), ReadingSettings(), unit_bytes))
  found_pages = [record.get_place() for piece in pieces for record in wikipedia.READER.read(piece, ReadingSettings())]
  titles = [page.split("<title>")[1].split("</title>")[0] for page in wikipedia_dump.make_pages(documents)]
  assert found_pages == [f"page {title!r}" for title in titles]
