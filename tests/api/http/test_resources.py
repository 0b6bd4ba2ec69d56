"""Engines, recordings, heat, plans, rollouts and jobs over HTTP, with a replay engine where an engine is needed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from api.service import jobs as job_service
from api.service.context import Service
from api.states import JobState, PlanState
from api.store import jobs, plans
from api.store.audit import Actor, change_state
from tests.api.http.conftest import READ_KEY, client_of
from tests.api.services import (
    GPUS,
    SLOTS_PER_GPU,
    counts_trace,
    plan_for_replay,
    ready_plan,
    ready_trace,
    replay_engine,
)
from tests.case_files import case_json

pytestmark = pytest.mark.one_database

COUNTS_WLE = [[[4, 3, 2, 1], [0, 0, 0, 0]], [[1, 1, 5, 1], [0, 0, 0, 8]]]
UNREACHABLE = {"name": "gone", "url": "http://127.0.0.1:9"}


@pytest.fixture
def trace_id(service: Service, tmp_path: Path) -> str:
    return ready_trace(service, counts_trace(tmp_path, COUNTS_WLE))


@pytest.fixture
def plan_id(service: Service) -> str:
    return ready_plan(service, plan_for_replay(), engine_id=None, state=PlanState.PROPOSED)


class TestEngines:
    def test_an_engine_is_read_when_it_is_registered(self, admin: TestClient) -> None:
        with replay_engine() as url:
            shown = admin.post("/v1/engines", json={"name": "replay", "url": url, "labels": {"a": "b"}}).json()
        facts = shown["facts"]
        assert (shown["state"], facts["engine"], facts["simulated"]) == ("ready", "moeplan-replay", True)
        assert (facts["ep_size"], facts["slots_per_gpu"]) == (GPUS, SLOTS_PER_GPU)
        assert "physical_to_logical_map" not in facts
        # Case S01: an engine that takes orders from anybody is warned of.
        assert [warning["code"] for warning in shown["warnings"]] == ["ENGINE_UNPROTECTED"]

    def test_one_that_does_not_answer_is_registered_and_says_so(self, admin: TestClient) -> None:
        made = admin.post("/v1/engines", json=UNREACHABLE)
        assert (made.status_code, made.json()["state"]) == (201, "unreachable")
        assert made.json()["error"]["code"] == "ENGINE_UNREACHABLE"

    def test_one_that_fails_again_and_again_is_left_alone_for_a_while(self, admin: TestClient) -> None:
        path = admin.post("/v1/engines", json=UNREACHABLE).headers["location"]
        for _ in range(2):
            admin.post(f"{path}/read")
        shown = admin.get(path).json()
        assert shown["failures_in_row"] == 3
        assert shown["resting_until"] is not None
        assert f'moeplan_engine_resting{{engine="{UNREACHABLE["name"]}"}} 1.0' in admin.get("/metrics").text

    def test_an_engine_that_answers_again_is_trusted_again(self, admin: TestClient) -> None:
        path = admin.post("/v1/engines", json=UNREACHABLE).headers["location"]
        with replay_engine() as url:
            tag = admin.get(path).headers["etag"]
            assert admin.patch(path, json={"url": url}, headers={"If-Match": tag}).status_code == 200
            shown = admin.post(f"{path}/read").json()
        assert (shown["state"], shown["failures_in_row"], shown["error"]) == ("ready", 0, None)

    def test_names_are_taken_once_and_free_after_removal(self, admin: TestClient) -> None:
        path = admin.post("/v1/engines", json=UNREACHABLE).headers["location"]
        assert admin.post("/v1/engines", json=UNREACHABLE).json()["code"] == "NAME_TAKEN"
        assert admin.delete(path).status_code == 204
        assert admin.get(path).status_code == 404
        assert admin.post("/v1/engines", json=UNREACHABLE).status_code == 201

    def test_one_with_an_open_job_is_not_removed(self, admin: TestClient) -> None:
        made = admin.post("/v1/engines", json=UNREACHABLE).json()
        admin.post("/v1/traces/capture", json={"engine_id": made["id"], "steps": 5})
        assert admin.delete(f"/v1/engines/{made['id']}").json()["code"] == "ENGINE_IN_USE"

    @pytest.mark.parametrize("costs", [[[0, 1], [1]], [[1]], [[0, -1], [1, 0]], []])
    def test_costs_that_are_no_matrix_are_refused(self, admin: TestClient, costs: Any) -> None:
        assert admin.post("/v1/engines", json={**UNREACHABLE, "costs": costs}).status_code == 422


class TestTraces:
    def test_an_upload_is_stored_and_queued(self, service: Service, admin: TestClient) -> None:
        content = json.dumps({"logical_count": COUNTS_WLE}).encode()
        made = admin.post("/v1/traces", files=[("files", ("counts.json", content))], data={"name": "evening"})
        assert made.status_code == 202
        assert (made.json()["state"], made.json()["name"]) == ("waiting", "evening")
        job = admin.get(made.headers["location"]).json()
        assert (job["kind"], job["state"], job["subject_id"]) == ("import", "queued", made.json()["id"])

    def test_path_like_names_are_refused_and_nothing_is_kept(self, service: Service, admin: TestClient) -> None:
        for name in case_json("S03", "names.json"):
            refused = admin.post("/v1/traces", files=[("files", (name, b"{}"))])
            assert refused.status_code in (400, 422), name
        assert admin.get("/v1/traces").json()["items"] == []
        outside = service.settings.data_dir.parent / "b.pt"
        assert not outside.exists()

    @pytest.mark.parametrize(
        ("files", "data"),
        [
            ([], {"name": "x"}), ([("files", ("a.json", b""))], {}), ([("other", ("a.json", b"{}"))], {}),
            ([("files", ("a.json", b"{}")), ("files", ("a.json", b"[]"))], {}),
            ([("files", ("a.json", b"{}"))], {"experts": "many"}), ([("files", ("a.json", b"{}"))], {"nam": "x"}),
            ([("files", ("a.json", b"{}"))], {"model": "{"}), ([("files", ("a.json", b"{}"))], {"engine_id": "eng_x"}),
        ],
    )  # fmt: skip
    def test_forms_that_are_not_what_is_asked(self, admin: TestClient, files: Any, data: dict[str, str]) -> None:
        assert admin.post("/v1/traces", files=files, data=data).status_code in (404, 422)
        assert admin.get("/v1/traces").json()["items"] == []

    def test_a_capture_has_an_end(self, admin: TestClient) -> None:
        engine = admin.post("/v1/engines", json=UNREACHABLE).json()
        for limits in ({}, {"steps": 5, "seconds": 1.0}, {"steps": 5, "window_steps": 1, "window_seconds": 1.0}):
            refused = admin.post("/v1/traces/capture", json={"engine_id": engine["id"], **limits})
            assert refused.status_code == 422

    def test_a_trace_is_downloaded_kept_and_removed(self, service: Service, admin: TestClient, trace_id: str) -> None:
        path = f"/v1/traces/{trace_id}"
        content = admin.get(f"{path}/content")
        assert content.content.startswith(b"PAR1")
        tag = admin.get(path).headers["etag"]
        assert admin.patch(path, json={"name": "n"}, headers={"If-Match": tag}).json()["name"] == "n"
        assert admin.delete(path).status_code == 204
        assert admin.get(path).json()["state"] == "expired"
        for gone in (f"{path}/content", f"{path}/heat"):
            assert admin.get(gone).json()["code"] == "WRONG_STATE"


class TestHeat:
    def test_experts_by_window_and_together(self, reader: TestClient, trace_id: str) -> None:
        path = f"/v1/traces/{trace_id}/heat"
        together = reader.get(path).json()
        assert together["tokens"] == np.sum(COUNTS_WLE, axis=0).tolist()
        one = reader.get(path, params={"window": together["windows"][1]}).json()
        assert one["tokens"] == COUNTS_WLE[1]

    def test_the_formats_hold_the_same(self, reader: TestClient, trace_id: str) -> None:
        path = f"/v1/traces/{trace_id}/heat"
        expected = np.sum(COUNTS_WLE, axis=0)
        rows = list(csv.reader(io.StringIO(reader.get(path, params={"format": "csv"}).text)))
        assert rows[0] == ["layer", *(f"expert {index}" for index in range(4))]
        assert [[int(cell) for cell in row[1:]] for row in rows[1:]] == expected.tolist()
        table = pa.ipc.open_file(reader.get(path, params={"format": "arrow"}).content).read_all()
        assert table["tokens"].to_pylist() == expected.reshape(-1).tolist()

    def test_it_is_known_by_its_tag(self, reader: TestClient, trace_id: str) -> None:
        path = f"/v1/traces/{trace_id}/heat"
        tags = {reader.get(path, params={"format": each}).headers["etag"] for each in ("json", "csv", "arrow")}
        assert len(tags) == 3
        tag = reader.get(path).headers["etag"]
        assert reader.get(path, headers={"If-None-Match": tag}).status_code == 304

    def test_loads_by_gpu_add_up_to_the_traffic(self, service: Service, reader: TestClient, tmp_path: Path) -> None:
        made = plan_for_replay()
        plan_id = ready_plan(service, made, engine_id=None, state=PlanState.PROPOSED)
        trace_id = ready_trace(service, counts_trace(tmp_path, made.heat_LE.tolist()))
        asked = {"axis": "gpus", "plan_id": plan_id}
        heat = reader.get(f"/v1/traces/{trace_id}/heat", params=asked).json()
        assert heat["gpus"] == GPUS
        assert np.sum(heat["tokens"], axis=1) == pytest.approx(made.heat_LE.sum(axis=1), abs=GPUS)

    @pytest.mark.parametrize(
        ("asked", "status"),
        [({"window": "none"}, 422), ({"axis": "gpus"}, 422), ({"plan_id": "pln_x"}, 404), ({"format": "png"}, 422)],
    )
    def test_what_is_not_there(self, reader: TestClient, trace_id: str, asked: dict[str, str], status: int) -> None:
        assert reader.get(f"/v1/traces/{trace_id}/heat", params=asked).status_code == status


class TestPlans:
    def test_options_are_checked_when_they_are_sent(self, admin: TestClient, trace_id: str) -> None:
        for options, code in (
            ({}, "BAD_REQUEST"), ({"gpus": 2, "max_moved_bytes": 5}, "BAD_OPTION"),
            ({"gpus": 2, "fit": True, "max_moved_slots": 1}, "BAD_OPTION"), ({"gpus": 0}, "BAD_REQUEST"),
            ({"gpus": 2, "costs": [[0]]}, "BAD_TOPOLOGY"), ({"gpus": 2, "slots": 3}, "BAD_REQUEST"),
        ):  # fmt: skip
            refused = admin.post("/v1/plans", json={"trace_ids": [trace_id], **options})
            assert (refused.status_code, refused.json()["code"]) == (422, code), options
        twice = admin.post("/v1/plans", json={"trace_ids": [trace_id, trace_id], "gpus": 2})
        assert twice.status_code == 422
        assert admin.post("/v1/plans", json={"trace_ids": ["trc_x"], "gpus": 2}).status_code == 404
        assert admin.get("/v1/plans").json()["items"] == []

    def test_the_engines_shape_is_usual(self, admin: TestClient, trace_id: str) -> None:
        with replay_engine() as url:
            engine = admin.post("/v1/engines", json={"name": "replay", "url": url}).json()
        made = admin.post("/v1/plans", json={"trace_ids": [trace_id], "engine_id": engine["id"]})
        assert made.status_code == 202
        assert made.json()["request"] == {
            "gpus": GPUS, "nodes": 1, "slots_per_gpu": SLOTS_PER_GPU, "dispatch": "nearest-dynamic",
        }  # fmt: skip

    def test_a_plan_in_all_its_forms(self, reader: TestClient, plan_id: str) -> None:
        made, path = plan_for_replay(), f"/v1/plans/{plan_id}"
        assert reader.get(path).json()["layout_hash"] == made.layout.hash
        assert reader.get(f"{path}/file").json()["layout_hash"] == made.layout.hash
        comparison = reader.get(f"{path}/comparison").json()
        assert {"trivial", "random", "eplb", "hot_replication"} <= set(comparison["baselines"])
        exported = reader.get(f"{path}/export").json()
        assert exported == {"physical_to_logical_map": made.layout.slot_to_expert_LP.tolist()}
        assert "<html" in reader.get(f"{path}/report").text
        same = reader.get(f"{path}/diff", params={"against": plan_id}).json()
        assert same["moved_slots"] == 0
        assert reader.get(f"{path}/diff").json()["code"] == "WRONG_STATE"  # made for no engine
        assert reader.get(f"{path}/export", params={"format": "../x"}).json()["code"] == "EXPORT_FORMAT_UNKNOWN"
        tag = reader.get(f"{path}/file").headers["etag"]
        assert reader.get(f"{path}/file", headers={"If-None-Match": tag}).status_code == 304

    def test_what_is_decided_is_written_down(self, admin: TestClient, plan_id: str) -> None:
        path = f"/v1/plans/{plan_id}"
        assert admin.post(f"{path}/approve", json={"reason": "ticket 7"}).json()["state"] == "approved"
        again = admin.post(f"{path}/approve")
        assert (again.status_code, again.json()["code"]) == (409, "WRONG_STATE")
        assert admin.post(f"{path}/reject").json()["state"] == "rejected"
        stale = admin.post(f"{path}/approve", headers={"If-Match": '"v1"'})
        assert stale.status_code == 412
        events = admin.get("/v1/audit", params={"subject_id": plan_id}).json()["items"]
        assert [(event["to_state"], event["why"]) for event in events] == [("rejected", ""), ("approved", "ticket 7")]

    def test_a_stored_plan_that_was_changed_is_not_given_out(
        self, service: Service, admin: TestClient, plan_id: str
    ) -> None:
        with service.database.reading() as session:
            sha256 = str(plans.find(session, plan_id).sha256)
        service.files.path(sha256).write_bytes(b"{}")
        broken = admin.get(f"/v1/plans/{plan_id}/file")
        assert (broken.status_code, broken.json()["code"]) == (500, "STORED_FILE_LOST")


class TestRollouts:
    def test_only_an_approved_plan_is_pushed(self, admin: TestClient, plan_id: str) -> None:
        engine = admin.post("/v1/engines", json=UNREACHABLE).json()
        asked = {"plan_id": plan_id, "engine_id": engine["id"]}
        assert admin.post("/v1/rollouts", json=asked).json()["code"] == "APPROVAL_NEEDED"
        admin.post(f"/v1/plans/{plan_id}/approve")
        assert admin.post("/v1/rollouts", json={"plan_id": plan_id}).status_code == 422  # for no engine
        begun = admin.post("/v1/rollouts", json=asked)
        assert (begun.status_code, begun.json()["state"]) == (202, "waiting")
        assert (begun.json()["measure_seconds"], begun.json()["roll_back_margin"]) == (30.0, 0.05)
        for bad in ({"measure_seconds": -1}, {"measure_seconds": 1e6}, {"roll_back_margin": -0.1}):
            assert admin.post("/v1/rollouts", json={**asked, **bad}).status_code == 422
        path = f"/v1/rollouts/{begun.json()['id']}"
        assert admin.post(f"{path}/rollback").json()["code"] == "WRONG_STATE"
        cancelled = admin.post(f"{begun.headers['location']}/cancel", json={"reason": "not now"})
        assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
        assert admin.get(path).json()["state"] == "cancelled"
        assert admin.post(f"{begun.headers['location']}/cancel").status_code == 409


class TestEvents:
    def test_a_job_is_followed_to_its_end_and_from_any_event(self, service: Service, admin: TestClient) -> None:
        job_id = self._ended_job(service, admin)
        events = self._events(admin, job_id)
        assert [event["event"] for event in events] == ["state", "state", "progress", "progress", "state"]
        assert [json.loads(events[index]["data"])["state"] for index in (0, 1, 4)] == ["queued", "running", "succeeded"]
        rest = self._events(admin, job_id, last=events[2]["id"])
        assert rest == events[3:]
        assert self._events(admin, job_id, last=events[-1]["id"]) == []

    @pytest.mark.parametrize("last", ["x", "-1", "1e3", "9" * 19])
    def test_ids_of_no_event_are_refused(self, service: Service, admin: TestClient, last: str) -> None:
        job_id = self._ended_job(service, admin)
        assert admin.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last}).status_code == 422

    def test_events_of_no_job(self, admin: TestClient) -> None:
        assert admin.get("/v1/jobs/job_x/events").status_code == 404

    @staticmethod
    def _ended_job(service: Service, admin: TestClient) -> str:
        made = admin.post("/v1/traces", files=[("files", ("c.json", b"{}"))])
        job_id: str = made.headers["location"].rsplit("/", 1)[-1]
        actor = Actor("worker:w")
        with service.database.writing() as session:
            job = jobs.lock(session, job_id)
            change_state(session, job, JobState.RUNNING, actor)
            jobs.say(session, job_id, "state", state="running")
            session.flush()
            for progress in (0.1, 0.7):
                jobs.report(session, job_id, progress=progress, step="reading")
            job_service.end(session, job, JobState.SUCCEEDED, actor)
        return job_id

    @staticmethod
    def _events(client: TestClient, job_id: str, *, last: str | None = None) -> list[dict[str, str]]:
        headers = {} if last is None else {"Last-Event-ID": last}
        text = client.get(f"/v1/jobs/{job_id}/events", headers=headers).text
        blocks = [block for block in text.split("\n\n") if block]
        return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


def test_the_metrics_name_what_matters(service: Service, admin: TestClient, plan_id: str) -> None:
    admin.post("/v1/traces", files=[("files", ("c.json", b"{}"))])
    text = client_of(service, READ_KEY).get("/metrics").text
    assert 'moeplan_jobs{kind="import",state="queued"} 1.0' in text
    assert "moeplan_jobs_waiting 1.0" in text
    assert "moeplan_database_up 1.0" in text
