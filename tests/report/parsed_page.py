"""Parses a report page into elements, texts and tables."""

from __future__ import annotations

from html.parser import HTMLParser


class ParsedPage(HTMLParser):
  """A parsed page. Each element must be closed in the order in which it was opened.

  Attributes:
    elements: (name, names of the attributes) in order. End tags and comments are included.
    open_elements: elements that have no end tag so far.
    text: the texts between the elements.
    rows: the cells of each row of all tables.
    addresses: values of attributes that load or run something.
    descriptions: the alternative texts of images.
  """

  def __init__(self, page: str):
    super().__init__()
    self.elements: list[tuple[str, ...]] = []
    self.open_elements: list[str] = []
    self.text: list[str] = []
    self.rows: list[list[str]] = []
    self.addresses: list[str] = []
    self.descriptions: list[str] = []
    self.feed(page)
    self.close()

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self.elements.append((tag, *sorted(name for name, _ in attrs)))
    self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]
    self.descriptions += [value or "" for name, value in attrs if name == "alt"]
    if tag == "tr":
      self.rows.append([])
    elif tag in ("td", "th"):
      self.rows[-1].append("")
    if tag not in ("meta", "img"):
      self.open_elements.append(tag)

  handle_startendtag = handle_starttag

  def handle_endtag(self, tag: str) -> None:
    self.elements.append((f"/{tag}",))
    assert self.open_elements.pop() == tag

  def handle_data(self, data: str) -> None:
    self.text.append(data)
    if {"td", "th"} & set(self.open_elements):
      self.rows[-1][-1] += data

  def handle_comment(self, data: str) -> None:
    self.elements.append(("a comment", data))

  def unknown_decl(self, data: str) -> None:
    self.elements.append(("a declaration", data))

  def handle_pi(self, data: str) -> None:
    self.elements.append(("a processing instruction", data))
