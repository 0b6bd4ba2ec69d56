"""Schedules and decisions over HTTP, on both databases, without workers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.service.context import Service
from api.service.ticks import begin_due
from api.store import schedules
from api.store.columns import iso
from tests.api.schedules import an_engine, decisions_of

pytestmark = pytest.mark.one_database


@pytest.fixture
def engine_id(service: Service) -> str:
    return an_engine(service, "e1")


def made(admin: TestClient, engine_id: str, **fields: Any) -> Any:
    answer = admin.post("/v1/schedules", json={"engine_id": engine_id, "interval_s": 3600, **fields})
    assert answer.status_code == 201, answer.json()
    return answer


def test_a_schedule_from_birth_to_end(admin: TestClient, engine_id: str) -> None:
    answer = made(
        admin, engine_id, interval_s=None, cron="30 4 * * mon-fri", time_zone="Europe/Berlin", mode="apply",
        planning={"objective": "balance"},
        gates={"maintenance_hours": [{"days": ["mon"], "start": "22:00", "end": "06:00"}], "most_moved_slots": 5},
    )  # fmt: skip
    shown, url = answer.json(), answer.headers["location"]
    assert url == f"/v1/schedules/{shown['id']}"
    assert shown["name"] == "e1"
    assert (shown["mode"], shown["paused"], shown["cycles"]) == ("apply", False, 0)
    assert shown["capture"] == {"seconds": 60.0, "window_seconds": 10.0}
    assert shown["planning"] == {"objective": "balance", "holdout": 0.25}
    assert shown["gates"]["most_moved_slots"] == 5
    assert shown["gates"]["cool_down_s"] == 600
    assert shown["rollout"] == {"measure_seconds": 30.0, "roll_back_margin": 0.05}

    got = admin.get(url)
    assert (got.status_code, got.headers["etag"]) == (200, '"v1"')
    assert admin.patch(url, json={"mode": "propose"}).status_code == 428
    assert admin.patch(url, json={"mode": "propose"}, headers={"If-Match": '"v9"'}).status_code == 412
    changed = admin.patch(url, json={"mode": "propose", "interval_s": 60}, headers={"If-Match": '"v1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"v2"')
    assert (changed.json()["cron"], changed.json()["interval_s"], changed.json()["mode"]) == (None, 60, "propose")
    assert changed.json()["gates"]["most_moved_slots"] == 5

    paused = admin.post(f"{url}/pause", json={"reason": "load test"})
    assert (paused.status_code, paused.json()["next_due_at"]) == (200, None)
    assert admin.post(f"{url}/pause").status_code == 409
    assert admin.post(f"{url}/resume", headers={"If-Match": '"v2"'}).status_code == 412
    assert admin.post(f"{url}/resume").json()["next_due_at"] is not None
    assert admin.delete(url).status_code == 204
    assert admin.get(url).status_code == 404
    assert admin.get("/v1/schedules").json()["items"] == []


def test_a_cycle_is_asked_for_once_for_an_idempotency_key(admin: TestClient, engine_id: str) -> None:
    url = made(admin, engine_id).headers["location"]
    first, again = (admin.post(f"{url}/run", headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["kind"] == "rebalance"
    assert first.headers["location"] == f"/v1/jobs/{first.json()['id']}"
    refused = admin.post(f"{url}/run")
    assert (refused.status_code, refused.json()["code"]) == (409, "ENGINE_IN_USE")
    cancelled = admin.post(f"{first.headers['location']}/cancel")
    assert cancelled.status_code == 202
    (decision,) = admin.get("/v1/decisions").json()["items"]
    assert (decision["outcome"], decision["code"]) == ("skipped", "CYCLE_CANCELLED")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"interval_s": None}, "give either cron or interval_s"),
    ({"cron": "* * * * *"}, "not both"),
    ({"interval_s": None, "cron": "61 * * * *"}, "cannot be used"),
    ({"interval_s": None, "cron": "0 0 30 2 *"}, "never comes"),
    ({"time_zone": "Europe/Atlantis"}, "no time zone"),
    ({"interval_s": 0.1}, "greater than or equal to 1"),
    ({"mode": "yolo"}, "propose"),
    ({"capture": {"seconds": 5, "steps": 5}}, "not both"),
    ({"capture": {"seconds": 15, "window_seconds": 10}}, "give at least 20"),
    ({"planning": {"objective": "traffic"}}, "locality"),
    ({"planning": {"max_imbalance": 0.5}}, "greater than or equal to 1"),
    ({"gates": {"least_gian": 0.1}}, "least_gian"),
    ({"gates": {"most_moved_slots": 1, "most_moved_bytes": 1}}, "exclude each other"),
    ({"gates": {"maintenance_hours": [{"days": ["mon"], "start": "09:00", "end": "09:00"}]}}, "whole day"),
    ({"gates": {"time_zone": "Nowhere"}}, "no time zone"),
]


def test_what_cannot_be_is_one_sentence(admin: TestClient, engine_id: str) -> None:
    for fields, said in WRONG:
        answer = admin.post("/v1/schedules", json={"engine_id": engine_id, "interval_s": 3600, **fields})
        assert answer.status_code == 422, fields
        assert said in answer.json()["detail"]
    assert admin.get("/v1/schedules").json()["items"] == []


def test_whoever_may_only_read_changes_nothing(admin: TestClient, reader: TestClient, engine_id: str) -> None:
    url = made(admin, engine_id).headers["location"]
    assert reader.get(url).status_code == 200
    assert reader.get("/v1/decisions").status_code == 200
    answers = (
        reader.post("/v1/schedules", json={"engine_id": engine_id, "interval_s": 60}),
        reader.patch(url, json={"mode": "apply"}, headers={"If-Match": "*"}),
        reader.delete(url),
        *(reader.post(f"{url}/{verb}") for verb in ("pause", "resume", "run")),
    )
    assert {answer.status_code for answer in answers} == {403}


def test_decisions_are_found_by_engine_outcome_and_time(service: Service, admin: TestClient, engine_id: str) -> None:
    other = an_engine(service, "e2")
    # Two schedules of one engine: while the first one's cycle waits for a worker, every later tick is skipped.
    ids = [made(admin, each).json()["id"] for each in (engine_id, engine_id, other, other)]
    at = None
    for _ in range(3):
        due = max(schedule["next_due_at"] for schedule in admin.get("/v1/schedules").json()["items"])
        at = datetime.fromisoformat(due)
        begin_due(service, at=at)
    decisions = decisions_of(service)
    assert len(decisions) == 4 * 3 - 2
    assert at is not None

    def listed(**query: Any) -> list[str]:
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = admin.get("/v1/decisions", params={"limit": 3, **query, **cursor})
            assert page.status_code == 200, page.json()
            found += [item["id"] for item in page.json()["items"]]
            if page.json()["next_cursor"] is None:
                return found
            cursor = {"cursor": page.json()["next_cursor"]}

    newest_first = [each.id for each in reversed(decisions)]
    assert listed() == newest_first
    mine = [each.id for each in reversed(decisions) if each.engine_id == engine_id]
    assert listed(engine_id=engine_id) == mine
    assert listed(engine_id=engine_id, outcome="skipped") == mine
    assert listed(outcome="applied") == []
    assert listed(schedule_id=ids[0]) == [each.id for each in reversed(decisions) if each.schedule_id == ids[0]]
    middle = decisions[5].created_at
    # Identifiers know milliseconds; what was made in the same one may stand on either side.
    since, until = listed(since=iso(middle)), listed(until=iso(middle))
    assert sorted(since + until) == sorted(newest_first)
    edge = timedelta(milliseconds=2)
    assert {each.id for each in decisions if each.created_at > middle + edge} <= set(since)
    assert {each.id for each in decisions if each.created_at < middle - edge} <= set(until)
    shown = admin.get(f"/v1/decisions/{newest_first[0]}").json()
    assert shown["meaning"].startswith("Nothing was decided")
    assert admin.get("/v1/decisions/dec_00000000000000000000000000").status_code == 404


def test_metrics_say_where_schedules_stand(service: Service, admin: TestClient, engine_id: str) -> None:
    first, second = (made(admin, engine_id).json()["id"] for _ in range(2))
    due = datetime.fromisoformat(admin.get(f"/v1/schedules/{second}").json()["next_due_at"])
    begin_due(service, at=due + timedelta(hours=3))
    admin.post(f"/v1/schedules/{first}/pause")
    told = admin.get("/metrics").text
    labels = f'{{engine="e1",schedule="{first}",schedule_name="e1"}}'
    assert f"moeplan_schedule_paused{labels} 1.0" in told
    assert f"moeplan_schedule_missed_ticks_total{labels} 3.0" in told
    assert f"moeplan_schedule_cycles_total{labels} 1.0" in told
    assert f"moeplan_schedule_next_tick_seconds{labels}" not in told
    assert f'moeplan_schedule_next_tick_seconds{{engine="e1",schedule="{second}",schedule_name="e1"}} 1' in told
    assert 'moeplan_decisions_total{outcome="skipped"} 1.0' in told
    assert 'moeplan_decisions_total{outcome="applied"} 0.0' in told
    assert f"moeplan_schedule_success_age_seconds{labels}" not in told
    with service.database.writing() as session:
        schedules.succeeded(session, first, due)
    assert f"moeplan_schedule_success_age_seconds{labels}" in admin.get("/metrics").text
