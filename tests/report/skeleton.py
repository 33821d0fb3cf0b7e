"""Parses a report page into elements and texts, to test that no text in a run's files can add an element."""

from __future__ import annotations

from html.parser import HTMLParser


class Skeleton(HTMLParser):
  """The elements of a page with the names of their attributes, and the texts.

  Attributes:
    elements: (name, names of the attributes) in order. End tags and comments are included.
    text: the texts between the elements.
    addresses: values of attributes that load or run something.
  """

  def __init__(self, page: str):
    super().__init__()
    self.elements: list[tuple[str, ...]] = []
    self.text: list[str] = []
    self.addresses: list[str] = []
    self.feed(page)
    self.close()

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self.elements.append((tag, *sorted(name for name, _ in attrs)))
    self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]

  handle_startendtag = handle_starttag

  def handle_endtag(self, tag: str) -> None:
    self.elements.append((f"/{tag}",))

  def handle_data(self, data: str) -> None:
    self.text.append(data)

  def handle_comment(self, data: str) -> None:
    self.elements.append(("a comment", data))

  def unknown_decl(self, data: str) -> None:
    self.elements.append(("a declaration", data))

  def handle_pi(self, data: str) -> None:
    self.elements.append(("a processing instruction", data))
