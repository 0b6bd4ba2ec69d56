"""How traffic is cut into windows: the value of ``--window-by``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from placement.errors import BadOption

_SIZED = re.compile(r"(steps|seconds):(\d{1,12}(?:\.\d{1,9})?)", re.ASCII)


@dataclass(frozen=True)
class WindowBy:
    """A rule that cuts traffic into windows.

    Attributes
    ----------
    kind : {"file", "domain", "steps", "seconds", "none"}
        As recorded (a table of counts keeps its windows, a dump or token trace is one); by the tokens' domain; every
        so many engine steps; every so many seconds; all in one.
    size : float
        Steps or seconds in a window, 0 for the other kinds.
    """

    kind: Literal["file", "domain", "steps", "seconds", "none"] = "file"
    size: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("steps", "seconds"):
            return
        if not (math.isfinite(self.size) and self.size > 0) or (self.kind == "steps" and self.size % 1):
            what = "a whole number of steps" if self.kind == "steps" else "a number of seconds"
            raise BadOption(f"windows of {self.size:g} {self.kind} cannot be cut; give {what} above 0.")

    @classmethod
    def parse(cls, text: str) -> WindowBy:
        """Parse ``file``, ``domain``, ``steps:N``, ``seconds:N`` or ``none``. Raises :class:`BadOption`."""
        plain = _PLAIN.get(text)
        if plain is not None:
            return plain
        match = _SIZED.fullmatch(text)
        if match is None:
            raise BadOption(f"--window-by is {text!r}; it must be file, domain, steps:N, seconds:N or none.")
        return cls("steps" if match[1] == "steps" else "seconds", float(match[2]))


_PLAIN: Mapping[str, WindowBy] = MappingProxyType(
    {"file": WindowBy("file"), "domain": WindowBy("domain"), "none": WindowBy("none")}
)
