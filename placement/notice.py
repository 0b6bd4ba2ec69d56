"""A remark that goes with a result: the ``warnings`` of every command and response."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Notice:
    """One warning: a stable code in capitals and one sentence with what was found."""

    code: str
    detail: str

    def to_dict(self) -> dict[str, str]:
        return {"code": self.code, "detail": self.detail}
