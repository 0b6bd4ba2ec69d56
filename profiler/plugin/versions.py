"""What is known of which SGLang version, from runs and from its source.

A version that was run is trusted. One between two tested ones is trusted as far as the pieces that the plugin uses
are found where they are expected. Any other is refused for whatever changes the engine, unless the operator takes
the risk with ``MOEPLAN_ALLOW_UNTESTED_SGLANG=1``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum

TESTED = ((0, 5, 16), (0, 5, 23))
"""Versions the tests of ``tests/engine`` run on, ascending."""

LAST_WITHOUT_REPLICA_CHOICE = (0, 5, 17)
"""Up to here no replica is chosen without an all-to-all backend; the backport is tested on 0.5.16 only."""

ALLOW_UNTESTED_VARIABLE = "MOEPLAN_ALLOW_UNTESTED_SGLANG"


class Trust(Enum):
    """How well a version is known."""

    TESTED = "tested"
    BETWEEN = "between two tested versions"
    UNKNOWN = "not tested"


@dataclass(frozen=True)
class EngineVersion:
    """A version of SGLang.

    Attributes
    ----------
    text : str
        As SGLang reports it.
    release : tuple of int
        Its numbers, empty when the text holds none.
    """

    text: str
    release: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> EngineVersion:
        found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
        return cls(text=text, release=tuple(int(part) for part in found.groups()) if found else ())

    @property
    def trust(self) -> Trust:
        if self.release in TESTED:
            return Trust.TESTED
        if self.release and TESTED[0] < self.release < TESTED[-1]:
            return Trust.BETWEEN
        return Trust.UNKNOWN

    @property
    def needs_backport(self) -> bool:
        """Whether replicas must be chosen by the plugin where there is no all-to-all backend."""
        return bool(self.release) and self.release <= LAST_WITHOUT_REPLICA_CHOICE

    def refusal(self) -> str:
        """Return why this version must not be changed, or an empty text."""
        if self.trust is not Trust.UNKNOWN or os.environ.get(ALLOW_UNTESTED_VARIABLE) == "1":
            return ""
        tested = " and ".join(".".join(str(part) for part in release) for release in TESTED)
        return (
            f"SGLang {self.text or 'of unknown version'} was never tested; tested are {tested} "
            f"(set {ALLOW_UNTESTED_VARIABLE}=1 to push all the same)."
        )


def installed_engine() -> EngineVersion:
    """Return the version of the SGLang that this process runs."""
    import sglang

    return EngineVersion.parse(str(getattr(sglang, "__version__", "")))


def moeplan_version() -> str:
    """Return this package's version, also where it was put on the path without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("moeplan")
    except PackageNotFoundError:
        return "0"
