"""Small SVG drawings, built as elements so that every attribute is escaped by the library."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from markupsafe import Markup


def element(tag: str, **attributes: object) -> Element:
    """Return an element; an attribute named ``class_`` is ``class``, and ``a_b`` is ``a-b``."""
    return Element(tag, {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()})


def drawing(parts: list[Element], *, label: str | None, **attributes: object) -> Markup:
    """Put parts into an ``svg`` element with a text for those who cannot see it, or hide it from them (None)."""
    spoken = {"aria_hidden": "true"} if label is None else {"role": "img", "aria_label": label}
    root = element("svg", **attributes, **spoken)
    root.extend(parts)
    return Markup(tostring(root, encoding="unicode"))  # noqa: S704  (the library has escaped it)
