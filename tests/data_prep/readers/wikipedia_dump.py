"""Makes small dumps of Wikipedia in the real schema, for tests of the reader.

The dumps have redirects, pages of other namespaces, lists, tables and templates, which the reader must leave out.
"""

from __future__ import annotations

import bz2
import itertools
from collections.abc import Iterable
from xml.sax.saxutils import escape

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" \
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://www.mediawiki.org/xml/export-0.11/ http://www.mediawiki.org/xml/export-0.11.xsd" \
version="0.11" xml:lang="en">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <dbname>enwiki</dbname>
    <base>https://en.wikipedia.org/wiki/Main_Page</base>
    <generator>MediaWiki 1.43.0</generator>
    <case>first-letter</case>
    <namespaces>
      <namespace key="-1" case="first-letter">Special</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Talk</namespace>
      <namespace key="6" case="first-letter">File</namespace>
      <namespace key="10" case="first-letter">Template</namespace>
      <namespace key="14" case="first-letter">Category</namespace>
    </namespaces>
  </siteinfo>
"""
FOOTER = "</mediawiki>\n"

# The wikitext of an article, for str.format: {{ stands for a brace. Only the two paragraphs are text to keep.
ARTICLE_TEMPLATE = """{{{{Short description|A test}}}}
{{{{Infobox thing
| name = {{{{nowrap|A name}}}}
| image = [[File:Picture.jpg|thumb|A caption with [[a link]].]]
}}}}
[[File:Other.jpg|thumb|left|A caption. With two sentences.]]
{first_paragraph}<ref name="a">{{{{cite book|title=A book}}}} Not text.</ref><!-- a comment -->

== A heading ==
{second_paragraph}

* An entry of a list.
** A nested [[entry]].
# A numbered entry.
: An indented entry.
{{| class="wikitable"
|-
! Head !! Other
|-
| A cell || Another cell
|}}
<gallery>
File:Third.jpg|A picture
</gallery>

=== See also ===
* [[Another page]]
[[Category:Things]]
[[fr:Une chose]]
__NOTOC__
"""


def make_page(
  title: str, text: str, number: int, *, namespace: int = 0, redirect: str = "", model: str = "wikitext"
) -> str:
  """Returns the XML of a page. `redirect` is the title of the page that it redirects to; "" if it is an article."""
  redirect_element = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
  return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>{number}</id>
{redirect_element}    <revision>
      <id>{1000 + number}</id>
      <parentid>{900 + number}</parentid>
      <timestamp>2026-11-01T10:0{number % 10}:00Z</timestamp>
      <contributor>
        <username>Someone</username>
        <id>7</id>
      </contributor>
      <comment>/* A heading */ changed</comment>
      <origin>{1000 + number}</origin>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text.encode())}" sha1="x" xml:space="preserve">{escape(text)}</text>
      <sha1>x</sha1>
    </revision>
  </page>
"""


def make_article(sentences: list[str]) -> str:
  """Returns wikitext with these sentences in two paragraphs, and with markup that is not text.

  The second paragraph begins with a link or a bold word, followed by a named link.
  """
  middle = len(sentences) // 2
  words = " ".join(sentences[middle:]).split(" ")
  words[0] = f"[[{words[0]}]]" if len(words) % 2 else f"'''{words[0]}'''"
  words[1] = f"[[Some page|{words[1]}]]"
  return ARTICLE_TEMPLATE.format(first_paragraph=" ".join(sentences[:middle]), second_paragraph=" ".join(words))


def make_pages(documents: Iterable[list[str]]) -> list[str]:
  """Returns the XML of an article for each document, and of redirects, talk pages and data pages between them."""
  pages = []
  for number, document in enumerate(documents):
    page_id = 10 * number
    pages.append(make_page(f"Title {number} & more", make_article(document), page_id))
    if number % 3 == 0:
      redirect_text = f"#REDIRECT [[Title {number}]]"
      pages.append(make_page(f"Redirect {number}", redirect_text, page_id + 1, redirect=f"T {number}"))
    if number % 7 == 0:
      talk_text = "Somebody says something here. And more."
      pages.append(make_page(f"Talk:Title {number}", talk_text, page_id + 2, namespace=1))
      pages.append(make_page(f"Data {number}", "{}", page_id + 3, model="json"))
  return pages


def make_dump(documents: Iterable[list[str]]) -> bytes:
  """Returns a dump in one XML file."""
  return (HEADER + "".join(make_pages(documents)) + FOOTER).encode()


def make_multistream_dump(documents: Iterable[list[str]], pages_per_stream: int = 10) -> bytes:
  """Returns a dump as Wikipedia publishes it: bzip2 streams of the header, of some pages each, and of the footer."""
  remaining = iter(make_pages(documents))
  streams = [HEADER]
  while chunk := list(itertools.islice(remaining, pages_per_stream)):
    streams.append("".join(chunk))
  return b"".join(bz2.compress(stream.encode()) for stream in [*streams, FOOTER])


def make_dump_of_cut_pages(documents: Iterable[list[str]], stream_bytes: int = 3000) -> bytes:
  """Returns a dump whose bzip2 streams begin in the middle of a page, as parallel compressors write it."""
  dump = make_dump(documents)
  return b"".join(bz2.compress(dump[start : start + stream_bytes]) for start in range(0, len(dump), stream_bytes))
