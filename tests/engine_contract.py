"""What every engine of the contract must do, whoever answers: the replay engine and SGLang with moeplan's plugin.

``TestReplayEngine`` (``tests/profiler/replay``) and ``TestLiveEngine`` (``tests/engine``) run the same methods, so that
both stay the same thing. An engine is idle but for the requests made here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from profiler.engine.contract import ABILITIES, CONTRACT_VERSION, Placement, PluginHealth, Refusal
from profiler.engine.contract_demand import PHASES, DemandAnswer, DemandState
from profiler.engine.contract_push import MAX_PAUSE_S, PushAnswer
from profiler.engine.json_body import MAX_BODY_BYTES
from profiler.engine.map_rules import layout_hash
from tests.engine.engine_server import EngineServer
from tests.engine.traffic import EIGHT_PROMPTS, NEW_TOKENS, generate

Rows = list[list[int]]


def read_placement(engine: EngineServer, *, checksums: int = 1) -> Placement:
    return Placement.from_json(good(engine.get("/moeplan/placement", checksums=checksums)))


def good(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response) -> tuple[int, str]:
    """Return status and code of a refusal, whose sentence must be one."""
    refusal = Refusal.from_json(response.json())
    assert refusal.detail.endswith("."), refusal.detail
    return response.status_code, refusal.code


def another_layout(placement: Placement, *, seed: int) -> Rows:
    """Return every expert once and random further ones, shuffled."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(placement.layers):
        extra = random.integers(placement.experts, size=placement.slots - placement.experts)
        rows.append(random.permutation(np.concatenate([np.arange(placement.experts), extra])).tolist())
    return rows


def push(engine: EngineServer, rows: object, **options: object) -> httpx.Response:
    return engine.put("/moeplan/placement", {"physical_to_logical_map": rows, **options})


def pushed(engine: EngineServer, rows: Rows, **options: object) -> PushAnswer:
    return PushAnswer.from_json(good(push(engine, rows, **options)))


def start(engine: EngineServer, **options: object) -> DemandState:
    return DemandState.from_json(good(engine.post("/moeplan/demand/start", options)))


def stop(engine: EngineServer) -> DemandState:
    return DemandState.from_json(good(engine.post("/moeplan/demand/stop")))


def fetch(engine: EngineServer, *, max_windows: int = 64) -> DemandAnswer:
    return DemandAnswer.from_json(good(engine.get("/moeplan/demand", max_windows=max_windows)))


def wrong_slots(before: Placement, after: Placement) -> int:
    """Count slots that do not hold the weights of their expert."""
    assert before.checksums is not None
    assert after.checksums is not None
    assert before.checksums.keys() == after.checksums.keys()
    wrong = 0
    for tensor, rows in before.checksums.items():
        for layer in before.moe_layers:
            of_expert = dict(zip(before.map_LP[layer].tolist(), rows[layer], strict=True))
            now = zip(after.map_LP[layer].tolist(), after.checksums[tensor][layer], strict=True)
            wrong += sum(of_expert[expert] != checksum for expert, checksum in now)
    return wrong


class EngineContract:
    """The tests; a subclass's module has the fixture ``subject``, an :class:`EngineServer` that is idle."""

    def test_health_is_complete(self, subject: EngineServer) -> None:
        health = PluginHealth.from_json(good(subject.get("/moeplan/health")))
        assert health.contract == CONTRACT_VERSION
        assert health.engine in ("sglang", "moeplan-replay")
        assert health.simulated == (health.engine == "moeplan-replay")
        assert health.ranks == tuple(range(health.ranks_expected))
        assert {name: ability.reason for name, ability in health.abilities.items()} == dict.fromkeys(ABILITIES, "")
        assert health.engine_version == good(subject.get("/server_info"))["version"]

    def test_placement_describes_the_engine_in_its_own_words(self, subject: EngineServer) -> None:
        placement, info = read_placement(subject), good(subject.get("/server_info"))
        assert placement.ranks_agree
        assert placement.ep_size == info["ep_size"]
        assert placement.slots == placement.experts + info["ep_num_redundant_experts"]
        assert placement.dispatch == info["ep_dispatch_algorithm"]
        assert placement.a2a_backend == info["moe_a2a_backend"]
        assert placement.layout_hash == layout_hash(placement.map_LP)
        assert not placement.push_in_progress
        assert placement.checksums
        assert wrong_slots(placement, placement) == 0, "equal experts have equal checksums"
        assert read_placement(subject, checksums=0).checksums is None

    def test_a_push_moves_maps_and_weights_and_can_be_taken_back(self, subject: EngineServer) -> None:
        before = read_placement(subject)
        rows = another_layout(before, seed=1)
        answer = pushed(subject, rows, expected_layout_hash=before.layout_hash)
        after = read_placement(subject)
        assert (answer.status, answer.error) == ("applied", "")
        assert answer.previous_layout_hash == before.layout_hash
        assert answer.layout_hash == after.layout_hash == layout_hash(np.array(rows, dtype=np.int32))
        assert answer.generation == after.generation == before.generation + 1
        assert (after.map_LP.tolist(), wrong_slots(before, after)) == (rows, 0)
        assert (answer.new_layers, answer.old_layers) == (before.moe_layers, ())
        changed = int((before.map_LP != after.map_LP).sum())
        assert sum(chunk.changed_slots for chunk in answer.chunks) == changed
        assert all(chunk.seconds is not None and chunk.seconds >= 0 for chunk in answer.chunks)
        back = pushed(subject, before.map_LP.tolist())
        assert back.layout_hash == before.layout_hash
        assert read_placement(subject).checksums == before.checksums

    def test_the_layout_that_runs_is_not_pushed_again(self, subject: EngineServer) -> None:
        before = read_placement(subject, checksums=0)
        answer = pushed(subject, before.map_LP.tolist())
        assert (answer.status, answer.chunks, answer.generation) == ("applied", (), before.generation)

    def test_a_dry_run_plans_and_moves_nothing(self, subject: EngineServer) -> None:
        before = read_placement(subject)
        answer = pushed(subject, another_layout(before, seed=2), dry_run=True, layers_per_chunk=2)
        assert answer.status == "dry_run"
        assert {chunk.status for chunk in answer.chunks} == {"planned"}
        assert [len(chunk.layers) for chunk in answer.chunks] == [2, 1]
        after = read_placement(subject)
        assert (after.layout_hash, after.generation) == (before.layout_hash, before.generation)
        assert after.checksums == before.checksums

    def test_chunks_are_of_the_size_asked_for(self, subject: EngineServer) -> None:
        before = read_placement(subject)
        answer = pushed(subject, another_layout(before, seed=3), layers_per_chunk=1)
        assert [chunk.layers for chunk in answer.chunks] == [(layer,) for layer in before.moe_layers]
        assert {chunk.status for chunk in answer.chunks} == {"applied"}
        assert answer.generation == before.generation + 1, "a push is one generation, however many chunks it has"
        assert wrong_slots(before, read_placement(subject)) == 0
        pushed(subject, before.map_LP.tolist())

    def test_only_the_layers_asked_for_change(self, subject: EngineServer) -> None:
        before = read_placement(subject, checksums=0)
        rows = another_layout(before, seed=4)
        assert pushed(subject, rows, layers=[1]).new_layers == (1,)
        after = read_placement(subject, checksums=0)
        assert after.map_LP[1].tolist() == rows[1]
        assert after.map_LP[[0, 2]].tolist() == before.map_LP[[0, 2]].tolist()
        pushed(subject, before.map_LP.tolist())

    @pytest.mark.parametrize(
        ("damage", "code"),
        [
            (lambda rows: rows[:-1], "LAYOUT_MISMATCH"),
            (lambda rows: [row[:-2] for row in rows], "SLOT_COUNT_MISMATCH"),
            (lambda rows: [[-1, *row[1:]] for row in rows], "EXPERT_ID_RANGE"),
            (lambda rows: [[10**6, *row[1:]] for row in rows], "EXPERT_ID_RANGE"),
            (lambda rows: [[0] * len(row) for row in rows], "EXPERT_MISSING"),
            (lambda rows: [[0.5, *row[1:]] for row in rows], "BAD_MAP_SHAPE"),
            (lambda rows: rows[0], "BAD_MAP_SHAPE"),
            (lambda rows: [], "BAD_MAP_SHAPE"),
            (lambda rows: None, "BAD_MAP_SHAPE"),
        ],
    )
    def test_a_bad_map_is_refused_and_changes_nothing(
        self, subject: EngineServer, damage: Callable[[Rows], object], code: str
    ) -> None:
        before = read_placement(subject, checksums=0)
        assert refused(push(subject, damage(before.map_LP.tolist()))) == (400, code)
        assert read_placement(subject, checksums=0).generation == before.generation

    @pytest.mark.parametrize(
        "options",
        [
            {"layers": [0, 0]},
            {"layers": [99]},
            {"layers": "all"},
            {"layers_per_chunk": 0},
            {"pause_s": -1},
            {"pause_s": 1e9},
            {"dry_run": "yes"},
            {"expected_layout_hash": 5},
        ],
    )
    def test_bad_options_of_a_push_are_refused(self, subject: EngineServer, options: dict[str, object]) -> None:
        before = read_placement(subject, checksums=0)
        status, _ = refused(push(subject, before.map_LP.tolist(), **options))
        assert status == 400

    def test_unknown_fields_are_left_alone(self, subject: EngineServer) -> None:
        before = read_placement(subject, checksums=0)
        assert pushed(subject, before.map_LP.tolist(), dry_run=True, from_a_later_version=1).status == "dry_run"

    @pytest.mark.parametrize(
        "content",
        [
            b"{",
            b"\xff\xfe",
            b"not json",
            b'{"window_steps": NaN}',
            b'{"window_steps": 1%s}' % (b"0" * 5000),
            b"[" * 100_000 + b"]" * 100_000,
            b'{"physical_to_logical_map": %s1%s, "window_steps": 1}' % (b"[" * 500, b"]" * 500),
        ],
        ids=["cut", "no text", "no json", "not a number", "too many digits", "too deep to parse", "too deep"],
    )
    def test_a_body_that_is_no_json_is_refused(self, subject: EngineServer, content: bytes) -> None:
        for method, path in (("PUT", "/moeplan/placement"), ("POST", "/moeplan/demand/start")):
            assert refused(subject.client.request(method, path, content=content)) == (400, "BAD_JSON")

    @pytest.mark.parametrize("body", [[], 3, "x", {}])
    def test_a_body_that_is_no_message_is_refused(self, subject: EngineServer, body: object) -> None:
        assert refused(subject.put("/moeplan/placement", body))[0] == 400
        assert refused(subject.post("/moeplan/demand/start", body)) == (400, "BAD_MESSAGE")

    def test_an_empty_body_is_a_message_without_fields(self, subject: EngineServer) -> None:
        for method, path in (("PUT", "/moeplan/placement"), ("POST", "/moeplan/demand/start")):
            assert refused(subject.client.request(method, path, content=b"")) == (400, "BAD_MESSAGE")

    def test_a_body_of_any_size_is_refused(self, subject: EngineServer) -> None:
        content = b'{"owner": "%s"}' % (b"x" * MAX_BODY_BYTES)
        assert refused(subject.client.put("/moeplan/placement", content=content)) == (400, "BAD_MESSAGE")

    def test_another_layout_than_expected_is_a_conflict(self, subject: EngineServer) -> None:
        before = read_placement(subject, checksums=0)
        response = push(subject, another_layout(before, seed=5), expected_layout_hash="0" * 64)
        assert refused(response) == (409, "LAYOUT_HASH_MISMATCH")
        assert read_placement(subject, checksums=0).generation == before.generation

    def test_of_two_pushers_one_wins_and_serving_goes_on(self, subject: EngineServer) -> None:
        started_s = time.monotonic()
        before = read_placement(subject)
        generate(subject, EIGHT_PROMPTS[0])
        # What is asked below during the first pause, on a machine that does other things too.
        pause_s = min(MAX_PAUSE_S, max(3.0, 4 * (time.monotonic() - started_s)))
        answers: list[PushAnswer] = []
        rows = another_layout(before, seed=6)
        first = threading.Thread(
            target=lambda: answers.append(pushed(subject, rows, layers_per_chunk=1, pause_s=pause_s)), daemon=True
        )
        first.start()
        deadline_s = time.monotonic() + 30
        while not read_placement(subject, checksums=0).push_in_progress:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert refused(push(subject, another_layout(before, seed=7))) == (409, "PUSH_IN_PROGRESS")
        assert refused(subject.get("/moeplan/placement", checksums=1)) == (409, "PUSH_IN_PROGRESS")
        generate(subject, EIGHT_PROMPTS[0])
        assert read_placement(subject, checksums=0).push_in_progress, "a request was answered while the push paused"
        first.join(timeout=60 + 2 * pause_s)
        assert [answer.status for answer in answers] == ["applied"]
        assert read_placement(subject).map_LP.tolist() == rows
        pushed(subject, before.map_LP.tolist())

    @pytest.mark.parametrize("query", ["checksums=2", "checksums=true", "checksums=x"])
    def test_a_bad_query_of_the_placement_is_refused(self, subject: EngineServer, query: str) -> None:
        assert refused(subject.client.get(f"/moeplan/placement?{query}")) == (400, "BAD_MESSAGE")

    # -------------------------------------------------------------- demand

    def test_windows_count_what_requests_route_and_are_handed_over_once(self, subject: EngineServer) -> None:
        placement = read_placement(subject, checksums=0)
        prompt = EIGHT_PROMPTS[1]
        started = start(subject, window_steps=3, owner="contract test")
        assert (started.recording, started.steps, started.owner) == (True, 0, "contract test")
        fields = {"input_ids": [*reversed(prompt), int(time.time()) % 200, 7]}  # nothing that a prefix cache has
        answer = generate(subject, fields["input_ids"], return_routed_experts=True)
        stopped = stop(subject)
        assert (stopped.recording, stopped.recording_id) == (False, started.recording_id)

        first = fetch(subject, max_windows=1)
        assert (len(first.windows), first.dropped_windows) == (1, 0)
        rest = fetch(subject)
        windows = (*first.windows, *rest.windows)
        assert len(windows) == 1 + first.remaining
        assert rest.remaining == 0
        assert fetch(subject).windows == (), "every window is handed over once"

        assert [window.index for window in windows] == list(range(len(windows)))
        assert all(window.steps == 3 for window in windows[:-1])
        assert all(a.first_step + a.steps <= b.first_step for a, b in pairwise(windows))
        assert {window.generation for window in windows} == {placement.generation}
        parts = [part for window in windows for part in window.phases]
        tokens = {phase: sum(part.tokens for part in parts if part.phase == phase) for phase in PHASES}
        assert tokens == {"prefill": len(fields["input_ids"]), "decode": NEW_TOKENS - 1}
        assert answer["meta_info"]["completion_tokens"] == NEW_TOKENS
        routed = sum(int(part.counts_LSE.sum()) for part in parts)
        assert routed == sum(tokens.values()) * len(placement.moe_layers) * int(placement.top_k or 0)

    def test_a_second_recording_is_a_conflict_unless_it_takes_over(self, subject: EngineServer) -> None:
        first = start(subject, window_steps=10, owner="the first one")
        response = subject.post("/moeplan/demand/start", {"window_steps": 1})
        assert refused(response) == (409, "RECORDING_IN_PROGRESS")
        assert "the first one" in response.json()["error"]["detail"]
        second = start(subject, window_steps=10, take_over=True)
        assert second.recording_id != first.recording_id
        assert second.taken_over_from == "the first one"
        assert stop(subject).recording_id == second.recording_id

    def test_a_recording_whose_lease_is_over_makes_way(self, subject: EngineServer) -> None:
        start(subject, window_steps=10, lease_seconds=0.2)
        time.sleep(0.4)
        start(subject, window_steps=10)
        stop(subject)

    def test_a_full_ring_drops_the_oldest(self, subject: EngineServer) -> None:
        start(subject, window_steps=1, ring_windows=2)
        generate(subject, EIGHT_PROMPTS[2])
        steps = stop(subject).steps
        answer = fetch(subject)
        assert [window.index for window in answer.windows] == [steps - 2, steps - 1]
        assert answer.dropped_windows == steps - 2

    def test_a_recording_ends_by_itself_after_its_steps(self, subject: EngineServer) -> None:
        start(subject, window_steps=3, max_steps=6)
        generate(subject, EIGHT_PROMPTS[3])
        answer = fetch(subject)
        assert (answer.recording, answer.steps) == (False, 6)
        assert [window.steps for window in answer.windows] == [3, 3]

    def test_windows_of_seconds_close_by_the_clock(self, subject: EngineServer) -> None:
        start(subject, window_seconds=0.05)
        generate(subject, EIGHT_PROMPTS[4])
        time.sleep(0.2)  # the clock closes the first window, however quick the engine is
        generate(subject, EIGHT_PROMPTS[5])
        steps = stop(subject).steps
        windows = fetch(subject).windows
        assert len(windows) > 1
        assert sum(window.steps for window in windows) == steps

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"window_steps": 0},
            {"window_steps": 1.5},
            {"window_steps": True},
            {"window_steps": 1, "window_seconds": 1.0},
            {"window_seconds": 0},
            {"window_steps": 1, "ring_windows": 10**6},
            {"window_steps": 1, "max_steps": 0},
            {"window_steps": 1, "lease_seconds": 0},
            {"window_steps": 1, "lease_seconds": 1e9},
            {"window_seconds": 10**400},
            {"window_steps": 1, "owner": 3},
            {"window_steps": 1, "take_over": "yes"},
        ],
    )
    def test_bad_options_of_a_recording_are_refused(self, subject: EngineServer, options: dict[str, object]) -> None:
        assert refused(subject.post("/moeplan/demand/start", options)) == (400, "BAD_MESSAGE")

    def test_an_owner_that_cannot_be_sent_back_is_refused(self, subject: EngineServer) -> None:
        content = b'{"window_steps": 1, "owner": "half of a letter: \\ud800"}'
        response = subject.client.post("/moeplan/demand/start", content=content)
        assert refused(response) == (400, "BAD_MESSAGE")

    @pytest.mark.parametrize("query", ["0", "-1", "99999", "x", "", "1.5", "9" * 5000], ids=lambda text: text[:9])
    def test_a_bad_query_of_the_demand_is_refused(self, subject: EngineServer, query: str) -> None:
        assert refused(subject.client.get(f"/moeplan/demand?max_windows={query}")) == (400, "BAD_MESSAGE")

    # -------------------------------------------------------------- requests

    def test_routed_experts_are_returned_only_where_they_are_asked_for(self, subject: EngineServer) -> None:
        meta = generate(subject, EIGHT_PROMPTS[0], return_routed_experts=True)["meta_info"]
        assert isinstance(meta["routed_experts"], str)
        assert {"prompt_tokens", "completion_tokens", "cached_tokens", "dp_rank"} <= meta.keys()
        assert "routed_experts" not in generate(subject, EIGHT_PROMPTS[0])["meta_info"]
