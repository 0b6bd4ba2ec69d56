"""Kinds of engines that misbehave, and what the decision of a cycle has to say of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from api.states import Outcome
from profiler.engine.counts_codec import decode_counts, encode_counts
from profiler.engine.http import MAX_ANSWER_BYTES
from tests.bench.support.many_engines import HostedEngine
from tests.faulty_engine import (
    Exchange,
    Fault,
    another_page,
    closes_at_once,
    closes_in_the_middle,
    drips,
    fails,
    garbage,
    half_open,
    huge,
    lies,
    passes_on,
    slow,
)

PLACEMENT, DEMAND = "/moeplan/placement", "/moeplan/demand"
FAR_TOO_LATE_S = 60.0
"""Beyond every limit that tests and benchmarks set."""


@dataclass(frozen=True)
class Expected:
    """What a cycle's decision says.

    Attributes
    ----------
    outcome : Outcome
    code : str
    says : str
        Part of its sentence.
    rests : bool
        Whether the engine is left alone after a few such cycles.
    """

    outcome: Outcome
    code: str
    says: str
    rests: bool = True


@dataclass(frozen=True)
class EngineFault:
    """A kind of misbehaviour.

    Attributes
    ----------
    make : callable
        Builds the fault for an engine.
    only : tuple of str or None
        Routes that it is for; None is all.
    expected : Expected
    limit_s : float
        Time limit of a request with which it shows soon.
    """

    make: Callable[[HostedEngine], Fault]
    only: tuple[str, ...] | None
    expected: Expected
    limit_s: float = 30.0


def _wrong_hash(message: Any) -> None:
    message["layout_hash"] = "0" * 64


def _other_shape(message: Any) -> None:
    message["physical_to_logical_map"] = message["physical_to_logical_map"][:-1]


def _twice_the_tokens(message: Any) -> None:
    for window in message["windows"]:
        for phase in window["phases"]:
            phase["tokens"] *= 2


def _a_layer_lost_half(message: Any) -> None:
    shape = tuple(message[name] for name in ("layers", "sources", "experts"))
    for window in message["windows"]:
        for phase in window["phases"]:
            counts_LSE = decode_counts(phase["counts_LSE"], "counts", shape=shape).astype(np.int64)
            counts_LSE[0] //= 2
            phase["counts_LSE"] = encode_counts(counts_LSE)


def restarts_at(request: int, engine: HostedEngine) -> Fault:
    """Be started anew right before the request of this number, counted from 1."""
    left = [request]

    def fault(exchange: Exchange) -> None:
        left[0] -= 1
        if left[0] == 0:
            engine.restart()
        passes_on(exchange)

    return fault


def _unreachable(says: str) -> Expected:
    return Expected(Outcome.FAILED, "ENGINE_UNREACHABLE", says)


def _invalid(says: str) -> Expected:
    return Expected(Outcome.FAILED, "ENGINE_ANSWER_INVALID", says)


PARTIAL = Expected(Outcome.SKIPPED, "RECORDING_PARTIAL", "tokens were not counted in every layer", rests=False)

ENGINE_FAULTS: Mapping[str, EngineFault] = {
    "slow: answers after the limit": EngineFault(
        lambda _: slow(FAR_TOO_LATE_S), None, _unreachable("no whole answer within"), limit_s=0.4
    ),
    "half-open: never answers": EngineFault(
        lambda _: half_open, None, _unreachable("no whole answer within"), limit_s=0.4
    ),
    "half-open in recordings only": EngineFault(
        lambda _: half_open, (DEMAND,), _unreachable("/moeplan/demand: no whole answer within"), limit_s=1.0
    ),
    "closes before the answer": EngineFault(
        lambda _: closes_at_once, None, _invalid("not valid HTTP (Server disconnected without sending a response")
    ),
    "closes in the middle of a body": EngineFault(
        lambda _: closes_in_the_middle, None, _unreachable("closed the connection before its answer was whole")
    ),
    "sends a body byte by byte": EngineFault(
        lambda _: drips, (PLACEMENT,), _unreachable("no whole answer within"), limit_s=0.4
    ),
    "status 500": EngineFault(lambda _: fails, None, Expected(Outcome.FAILED, "ENGINE_FAILED", "(status 500)")),
    "garbage": EngineFault(lambda _: garbage, None, _invalid("the engine's answer is not JSON")),
    "garbage in recordings only": EngineFault(
        lambda _: garbage, (DEMAND,), _invalid("the engine's answer is not JSON")
    ),
    "a proxy's page": EngineFault(lambda _: another_page, None, _invalid("not JSON but '<!doctype html>")),
    "a huge body": EngineFault(
        lambda _: huge(100 * MAX_ANSWER_BYTES), (PLACEMENT,), _invalid("the answer is larger than")
    ),
    "lies: another hash than its map's": EngineFault(
        lambda _: lies(_wrong_hash), (PLACEMENT,), _invalid("is not the hash of its map")
    ),
    "lies: a map without a layer": EngineFault(lambda _: lies(_other_shape), (PLACEMENT,), _invalid("placement")),
    "lies: twice the tokens it counted": EngineFault(lambda _: lies(_twice_the_tokens), (DEMAND,), PARTIAL),
    "lies: a layer lost half of its counts": EngineFault(lambda _: lies(_a_layer_lost_half), (DEMAND,), PARTIAL),
    "restarts while it is recorded": EngineFault(
        lambda engine: restarts_at(3, engine),
        (DEMAND,),
        Expected(Outcome.SKIPPED, "ENGINE_RESTARTED", "was started anew while it was recorded", rests=False),
    ),
}
