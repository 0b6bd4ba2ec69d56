"""Bodies of requests: bounded, JSON as the standard has it, and whatever they hold the answer is no fault of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.engine.contract_demand import DemandOptions
from profiler.engine.contract_push import PushRequest
from profiler.engine.json_body import MAX_BODY_BYTES, MAX_DEPTH, parse_json, read_json
from profiler.engine.json_fields import ContractViolation

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    *("physical_to_logical_map", "layers", "expected_layout_hash", "layers_per_chunk", "pause_s", "dry_run"),
    *("window_steps", "window_seconds", "max_steps", "ring_windows", "lease_seconds", "owner", "take_over"),
)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def test_a_body_in_pieces_is_one_body() -> None:
    assert asyncio.run(read_json(in_pieces(b'{"a"', b"", b": [1, 2]}"))) == {"a": [1, 2]}
    assert asyncio.run(read_json(in_pieces(b""))) == {}


def test_a_body_is_read_no_further_than_its_limit() -> None:
    with pytest.raises(ContractViolation, match="larger than") as refusal:
        asyncio.run(read_json(in_pieces(b" " * MAX_BODY_BYTES, b" ")))
    assert refusal.value.code == "BAD_MESSAGE"


def test_nesting_is_refused_beyond_its_limit_and_not_before() -> None:
    assert json.dumps(parse_json(nested(MAX_DEPTH))).encode() == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 1000, 200_000):
        with pytest.raises(ContractViolation, match="nests deeper") as refusal:
            parse_json(nested(depth))
        assert refusal.value.code == "BAD_JSON"
    assert parse_json(b'{"a": %s, "b": 1}' % nested(MAX_DEPTH - 1))


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"nan", b"[NaN]", b"-Infinity", b"1" * 5000, b"[1,]", b"\x00"])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ContractViolation) as refusal:
        parse_json(body)
    assert refusal.value.code == "BAD_JSON"
    assert refusal.value.detail.endswith(".")


def said(make: Callable[[], Any]) -> Any:
    """Return a value, or the refusal's sentence."""
    try:
        return make()
    except ContractViolation as refusal:
        return refusal.detail


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(), VALUES) | VALUES)
def test_every_message_is_read_or_refused_and_what_is_said_can_be_sent(message: Any) -> None:
    value = said(lambda: parse_json(json.dumps(message).encode()))
    for read in (PushRequest.from_json, DemandOptions.from_json):
        answer = said(partial(read, value))
        text = answer if isinstance(answer, str) else json.dumps(answer.to_json(), ensure_ascii=False)
        assert text.encode()
