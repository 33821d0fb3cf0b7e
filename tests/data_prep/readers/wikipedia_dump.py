"""Writes small dumps of Wikipedia in the real schema: redirects, other namespaces, lists, tables, templates."""

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

MARKUP = """{{{{Short description|A test}}}}
{{{{Infobox thing
| name = {{{{nowrap|A name}}}}
| image = [[File:Picture.jpg|thumb|A caption with [[a link]].]]
}}}}
[[File:Other.jpg|thumb|left|A caption. With two sentences.]]
{first}<ref name="a">{{{{cite book|title=A book}}}} Not text.</ref><!-- a comment -->

== A heading ==
{second}

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


def page(title: str, text: str, number: int, *, namespace: int = 0, redirect: str = "", model: str = "wikitext") -> str:
  target = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
  return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>{number}</id>
{target}    <revision>
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


def article(sentences: list[str]) -> str:
  """Wikitext with these sentences, in two paragraphs, and much that is not a sentence."""
  middle = len(sentences) // 2
  first, second = (" ".join(part) for part in (sentences[:middle], sentences[middle:]))
  words = second.split(" ")
  words[0] = f"[[{words[0]}]]" if len(words) % 2 else f"'''{words[0]}'''"
  words[1] = f"[[Some page|{words[1]}]]"
  return MARKUP.format(first=first, second=" ".join(words))


def pages(documents: Iterable[list[str]]) -> list[str]:
  """A page for each document, and others between them that are no articles."""
  found = []
  for number, document in enumerate(documents):
    found.append(page(f"Title {number} & more", article(document), 10 * number))
    if number % 3 == 0:
      found.append(page(f"Redirect {number}", f"#REDIRECT [[Title {number}]]", 10 * number + 1, redirect=f"T {number}"))
    if number % 7 == 0:
      found.append(
        page(f"Talk:Title {number}", "Somebody says something here. And more.", 10 * number + 2, namespace=1)
      )
      found.append(page(f"Data {number}", "{}", 10 * number + 3, model="json"))
  return found


def dump(documents: Iterable[list[str]]) -> bytes:
  """A dump in one XML file."""
  return (HEADER + "".join(pages(documents)) + FOOTER).encode()


def multistream(documents: Iterable[list[str]], pages_per_stream: int = 10) -> bytes:
  """A dump as Wikipedia publishes it: bzip2 streams with the header, with some pages each, and with the end."""
  remaining = iter(pages(documents))
  streams = [HEADER]
  while chunk := list(itertools.islice(remaining, pages_per_stream)):
    streams.append("".join(chunk))
  return b"".join(bz2.compress(stream.encode()) for stream in [*streams, FOOTER])


def cut_anywhere(documents: Iterable[list[str]], stream_bytes: int = 3000) -> bytes:
  """A dump whose bzip2 streams begin in the middle of pages, as parallel compressors write them."""
  data = dump(documents)
  return b"".join(bz2.compress(data[start : start + stream_bytes]) for start in range(0, len(data), stream_bytes))
