"""Orders from the HTTP process to the ranks, and how they are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiler.engine.json_fields import ContractViolation

PREFIX = "moeplan:"
"""Start of the method name of every control message of ours."""

STATUS_OF_CODE = {
    "LAYOUT_HASH_MISMATCH": 409,
    "PUSH_IN_PROGRESS": 409,
    "RECORDING_IN_PROGRESS": 409,
    "RANKS_DISAGREE": 409,
    "RANKS_DO_NOT_ANSWER": 503,
    "ENGINE_FAILED": 500,
    "ROUTING_NOT_SEEN": 500,
}
"""HTTP status of a refusal, 400 where not listed."""


class OrderRefused(ContractViolation):
    """An order was not carried out, and nothing changed unless ``detail`` says so."""

    @property
    def status(self) -> int:
        return STATUS_OF_CODE.get(self.code, 400)


@dataclass(frozen=True)
class RankAnswer:
    """What one rank answered to an order.

    Attributes
    ----------
    rank : int
        TP rank.
    result : dict
        Empty when refused.
    code, detail : str
        Why it was refused, empty when carried out.
    """

    rank: int
    result: dict[str, Any]
    code: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return vars(self).copy()

    @classmethod
    def from_json(cls, message: dict[str, Any]) -> RankAnswer:
        return cls(**message)


def first_refusal(answers: list[RankAnswer]) -> OrderRefused | None:
    """Return the refusal of the lowest rank that refused, naming how many others did."""
    refused = [answer for answer in answers if answer.code]
    if not refused:
        return None
    first = refused[0]
    others = f" ({len(refused)} of {len(answers)} ranks refused)" if len(refused) < len(answers) else ""
    return OrderRefused(f"rank {first.rank}: {first.detail}{others}" if others else first.detail, code=first.code)
