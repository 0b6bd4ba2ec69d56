"""Reading back what the report drew."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import numpy as np
import numpy.typing as npt

VOID = {"meta", "link", "br", "input", "img", "hr"}


@dataclass
class Element:
    """A start tag with its attributes and the text inside it, that of inner elements included."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """All elements of a page; raises where tags are not closed in order."""

    elements: list[Element] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    @classmethod
    def parse(cls, html: str) -> Page:
        page = cls()
        page.feed(html)
        page.close()
        if page._open:
            raise ValueError(f"not closed: {[element.tag for element in page._open]}")
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].tag != tag:
            raise ValueError(f"</{tag}> closes {self._open[-1].tag if self._open else 'nothing'}")
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Return the elements of a tag whose attributes (``class_`` for class) hold the words given."""
        wanted = {name.rstrip("_"): set(words.split()) for name, words in attributes.items()}
        return [
            element
            for element in self.elements
            if element.tag == tag
            and all(words <= set(element.attributes.get(name, "").split()) for name, words in wanted.items())
        ]


def painted_steps(svg: str, *, rows: int, columns: int, scale: str) -> npt.NDArray[np.int64]:
    """Return which colour step covers every cell of a ``cells`` drawing, -1 where none does."""
    painted = np.full((rows, columns), -1)
    for step, path in re.findall(rf'<path class="{scale}-(\d+)" d="([^"]*)"', svg):
        for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            cells = painted[int(row), int(start) : int(start) + int(length)]
            if (cells != -1).any():
                raise ValueError(f"row {row} is painted twice from column {start}")
            cells[:] = int(step)
    return painted
