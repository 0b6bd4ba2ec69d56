"""The HTTP side with imagined ranks: one push at a time, partial pushes, lost answers, windows of all ranks merged."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from profiler.engine.contract_demand import DemandOptions
from profiler.engine.contract_push import PushRequest
from profiler.plugin.carrier import RankCarrier, _answers_of
from profiler.plugin.demand_desk import DemandDesk
from profiler.plugin.demand_merge import merge_ranks
from profiler.plugin.orders import OrderRefused, RankAnswer, first_refusal
from profiler.plugin.placement_desk import PlacementDesk
from profiler.plugin.push_desk import PushDesk
from profiler.plugin.routes import Routes, _endpoint

MAP = np.array([[0, 1], [1, 0]], dtype=np.int32)


@dataclass
class ImaginedRanks(RankCarrier):
    """Two ranks that answer from a table; an entry may be an exception or a function of the order."""

    replies: dict[str, Any]
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def answers(self, name: str, *, timeout_s: float = 60.0, **body: Any) -> list[RankAnswer]:
        self.asked.append((name, body))
        await asyncio.sleep(0)
        reply = self.replies[name]
        reply = reply(body) if isinstance(reply, Callable) else reply  # type: ignore[arg-type]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, list):
            return reply
        return [RankAnswer(rank=rank, result=reply) for rank in range(2)]


def push_replies(**changes: Any) -> dict[str, Any]:
    chunks = [{"layers": [layer], "changed_slots": 2, "moved_slots": 1} for layer in range(2)]
    return {
        "placement": {"expert_bytes": 10},
        "push_open": {"previous_layout_hash": "a", "generation": 4, "chunks": chunks},
        "push_chunk": {"seconds": 0.5},
        "push_close": {"applied_layers": [0, 1], "layout_hash": "b", "generation": 5},
        **changes,
    }


def test_push_reports_chunks_bytes_and_the_new_hash() -> None:
    ranks = ImaginedRanks(push_replies())
    answer = asyncio.run(PushDesk(ranks).push(PushRequest(map_LP=MAP, layers_per_chunk=1)))
    assert (answer.status, answer.layout_hash, answer.generation) == ("applied", "b", 5)
    assert [(c.status, c.seconds, c.changed_bytes, c.moved_bytes) for c in answer.chunks] == [
        ("applied", 0.5, 20, 10)
    ] * 2
    assert [name for name, _body in ranks.asked] == ["placement", "push_open", "push_chunk", "push_chunk", "push_close"]


def test_dry_run_stops_after_the_plan() -> None:
    ranks = ImaginedRanks(push_replies())
    answer = asyncio.run(PushDesk(ranks).push(PushRequest(map_LP=MAP, dry_run=True)))
    assert (answer.status, answer.layout_hash, answer.old_layers) == ("dry_run", "a", (0, 1))
    assert [name for name, _body in ranks.asked] == ["placement", "push_open"]


def test_failed_chunk_ends_the_push_and_names_what_runs() -> None:
    def chunk(body: dict[str, Any]) -> Any:
        if body["index"] == 0:
            return {"seconds": 0.1}
        return [RankAnswer(0, {"seconds": 0.1}), RankAnswer(1, {}, "ENGINE_FAILED", "layer 1 failed: no memory")]

    ends = [
        RankAnswer(rank, {"applied_layers": layers, "layout_hash": "c", "generation": 5})
        for rank, layers in ((0, [0, 1]), (1, [0]))
    ]
    ranks = ImaginedRanks(push_replies(push_chunk=chunk, push_close=ends))
    answer = asyncio.run(PushDesk(ranks).push(PushRequest(map_LP=MAP, layers_per_chunk=1)))
    assert (answer.status, answer.new_layers, answer.old_layers) == ("partial", (0,), (1,))
    assert "rank 1" in answer.error
    assert [chunk.status for chunk in answer.chunks] == ["applied", "failed"]


def test_push_is_closed_when_an_answer_is_lost() -> None:
    lost = OrderRefused("no answer", code="RANKS_DO_NOT_ANSWER")
    ranks = ImaginedRanks(push_replies(push_chunk=lost))
    desk = PushDesk(ranks)
    with pytest.raises(OrderRefused) as caught:
        asyncio.run(desk.push(PushRequest(map_LP=MAP)))
    assert caught.value.status == 503
    assert ranks.asked[-1][0] == "push_close"
    ranks.replies = push_replies()
    assert asyncio.run(desk.push(PushRequest(map_LP=MAP))).status == "applied", "the desk is free again"


def test_second_push_is_refused_while_the_first_runs() -> None:
    async def both() -> list[Any]:
        desk = PushDesk(ImaginedRanks(push_replies()))
        return await asyncio.gather(*(desk.push(PushRequest(map_LP=MAP)) for _ in range(2)), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first.status == "applied"
    assert isinstance(second, OrderRefused)
    assert (second.code, second.status) == ("PUSH_IN_PROGRESS", 409)


def test_health_answers_when_the_ranks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.plugin.placement_desk.installed_engine", _engine)
    ranks = ImaginedRanks({"health": OrderRefused("no answer", code="RANKS_DO_NOT_ANSWER")})
    health = asyncio.run(PlacementDesk(ranks, ranks_expected=2).health())
    assert (health.ranks, health.ranks_expected) == ((), 2)
    assert {ability.reason for ability in health.abilities.values()} == {"RANKS_DO_NOT_ANSWER: no answer"}


def test_one_rank_that_cannot_is_enough_to_say_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.plugin.placement_desk.installed_engine", _engine)
    works = {name: {"works": True, "reason": ""} for name in ("placement", "checksums", "push", "demand")}
    broken = works | {"push": {"works": False, "reason": "DISPATCH_NOT_SET: no"}}
    parts = [
        RankAnswer(rank, {"rank": rank, "ranks": 2, "balancer": "none", "abilities": a})
        for rank, a in ((0, works), (1, broken))
    ]
    health = asyncio.run(PlacementDesk(ImaginedRanks({"health": parts}), ranks_expected=2).health())
    assert {name: ability.works for name, ability in health.abilities.items()} == {
        "placement": True,
        "checksums": True,
        "push": False,
        "demand": True,
    }


def _engine() -> Any:
    from profiler.plugin.versions import EngineVersion

    return EngineVersion.parse("0.5.23")


def rank_part(rank: int, counts_FLE: np.ndarray[Any, Any], tokens: list[int], **changes: Any) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(counts_FLE.astype("<i8").tobytes())).decode()
    window = {
        "index": 0,
        "first_step": 10,
        "steps": 2,
        "seconds": 1.0,
        "generation": 0,
        "last_generation": 0,
        "unused_tokens": 0,
        "tokens": tokens,
        "phase_steps": [[0], [1]] if rank == 0 else [[], [0, 1]],
        "counts": data,
    }
    part = {"windows": [window], "layers": 2, "experts": 3, "sources": 2, "source": rank, "moe_layers": [1], "top_k": 1}
    state = {"recording": False, "recording_id": "r", "steps": 2, "remaining": 0, "dropped_windows": 0}
    return part | state | changes


def counts(layer_1_prefill: list[int], layer_1_decode: list[int]) -> np.ndarray[Any, Any]:
    return np.array([[[0, 0, 0], layer_1_prefill], [[0, 0, 0], layer_1_decode]])


def test_ranks_become_sources() -> None:
    answer = merge_ranks(
        [rank_part(0, counts([1, 2, 0], [0, 1, 0]), [3, 1]), rank_part(1, counts([0, 0, 0], [2, 0, 2]), [0, 4])],
        engine="sglang",
    )
    prefill, decode = answer.windows[0].phases
    assert (prefill.phase, prefill.tokens, prefill.steps) == ("prefill", 3, 1)
    assert prefill.counts_LSE[1].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert (decode.phase, decode.tokens, decode.steps) == ("decode", 5, 2)
    assert decode.counts_LSE[1].tolist() == [[0, 1, 0], [2, 0, 2]]


def test_counts_that_miss_tokens_are_never_handed_out() -> None:
    parts = [rank_part(0, counts([1, 2, 0], [0, 1, 0]), [4, 1]), rank_part(1, counts([0, 0, 0], [2, 0, 2]), [0, 4])]
    with pytest.raises(OrderRefused, match="layer 1 counts 3 routed tokens") as caught:
        merge_ranks(parts, engine="sglang")
    assert (caught.value.code, caught.value.status) == ("ROUTING_NOT_SEEN", 500)


def test_ranks_with_different_windows_are_refused() -> None:
    parts = [rank_part(rank, counts([0, 0, 0], [0, 0, 0]), [0, 0]) for rank in range(2)]
    parts[1]["windows"][0]["steps"] = 3
    with pytest.raises(OrderRefused, match="different windows"):
        merge_ranks(parts, engine="sglang")


def test_refusal_names_the_rank_only_when_not_all_refuse() -> None:
    refused = [RankAnswer(rank, {}, "EXPERT_MISSING", "expert 3") for rank in range(2)]
    alike, some = first_refusal(refused), first_refusal([RankAnswer(0, {}), refused[1]])
    assert alike is not None
    assert some is not None
    assert alike.detail == "expert 3"
    assert some.detail == "rank 1: expert 3 (1 of 2 ranks refused)"
    assert first_refusal([RankAnswer(0, {})]) is None


@dataclass
class Output:
    response: list[dict[str, Any]]
    success: bool = True
    error: str = ""


def test_answers_of_another_order_are_not_taken() -> None:
    message = {"order_id": "x", **RankAnswer(0, {"a": 1}).to_json()}
    assert _answers_of([Output([dict(message)]), Output([])], "x") == [RankAnswer(0, {"a": 1})]
    for outputs in ([Output([dict(message)])], [Output([])]):
        with pytest.raises(OrderRefused, match="another order"):
            _answers_of(outputs, "y")
    with pytest.raises(OrderRefused, match="does not know"):
        _answers_of([Output([], success=False, error="no")], "x")


@dataclass
class Request:
    content: bytes = b""
    query_params: dict[str, str] = field(default_factory=dict)

    async def stream(self) -> AsyncIterator[bytes]:
        yield self.content
        yield b""


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "BAD_JSON"),
        (b"[" * 100_000, "BAD_JSON"),
        (b'{"physical_to_logical_map": %s%s}' % (b"[" * 900, b"]" * 900), "BAD_JSON"),
        (b'{"pause_s": 1%s}' % (b"0" * 5000), "BAD_JSON"),
        (b"[]", "BAD_MESSAGE"),
        (b"", "BAD_MESSAGE"),
        (b'{"physical_to_logical_map": [0]}', "BAD_MAP_SHAPE"),
    ],
)
def test_bad_bodies_end_in_one_sentence(content: bytes, code: str) -> None:
    routes = Routes(ImaginedRanks({}), ranks_expected=2)
    response = asyncio.run(_endpoint(routes.put_placement)(Request(content)))  # type: ignore[arg-type]
    assert response.status_code == 400
    assert json.loads(response.body)["error"]["code"] == code


@pytest.mark.parametrize(
    "query", [{"max_windows": text} for text in ("0", "4097", "9" * 5000, "\u0663" * 9)] + [{"checksums": "2"}]
)
def test_bad_queries_end_in_one_sentence(query: dict[str, str]) -> None:
    routes = Routes(ImaginedRanks({}), ranks_expected=2)
    handler = routes.get_placement if "checksums" in query else routes.get_demand
    response = asyncio.run(_endpoint(handler)(Request(query_params=query)))  # type: ignore[arg-type]
    assert response.status_code == 400
    assert json.loads(response.body)["error"]["code"] == "BAD_MESSAGE"


def test_a_fault_of_ours_is_an_answer_not_a_crash() -> None:
    routes = Routes(ImaginedRanks({"placement": KeyError("x")}), ranks_expected=2)
    response = asyncio.run(_endpoint(routes.get_placement)(Request()))  # type: ignore[arg-type]
    assert response.status_code == 500
    assert json.loads(response.body)["error"]["code"] == "PLUGIN_FAILED"


def demand_ranks(*, unfetched_s: float) -> ImaginedRanks:
    state = {"recording": True, "steps": 1, "owner": "them", "unfetched_s": unfetched_s, "taken_over_from": ""}
    ranks = ImaginedRanks({})

    def with_id(body: dict[str, Any]) -> list[RankAnswer]:
        state.setdefault("recording_id", body.get("recording_id", ""))
        return [RankAnswer(rank, dict(state)) for rank in (0, 1)]

    ranks.replies.update(dict.fromkeys(("demand_start", "demand_state", "demand_stop"), with_id))
    return ranks


@pytest.mark.parametrize(("unfetched_s", "ended"), [(1.0, True), (0.0, False)])
def test_a_recording_that_nobody_fetches_from_ends(unfetched_s: float, ended: bool) -> None:
    ranks = demand_ranks(unfetched_s=unfetched_s)

    async def record() -> None:
        desk = DemandDesk(ranks)
        await desk.start(DemandOptions(window_steps=1, lease_seconds=0.05))
        for _ in range(200):
            await asyncio.sleep(0.01)
            if len([name for name, _body in ranks.asked if name == "demand_state"]) >= (1 if ended else 3):
                break
        await asyncio.sleep(0.01)
        await desk.stop() if not ended else None

    asyncio.run(record())
    asked = [name for name, _body in ranks.asked]
    assert asked[:2] == ["demand_start", "demand_state"]
    assert asked.count("demand_stop") == 1
    assert (asked.count("demand_state") == 1) is ended
