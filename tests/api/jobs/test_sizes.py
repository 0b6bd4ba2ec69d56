"""Plans for other numbers of slots: a job of a plan, its curve, and who may ask for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.service.context import Service
from api.states import JobState, PlanState
from tests.api.http.conftest import client_of
from tests.api.jobs.by_hand import carried_out, tasks_here  # noqa: F401  (fixture)
from tests.api.services import counts_trace, plan_for_replay, ready_plan, ready_trace, service_on

pytestmark = pytest.mark.usefixtures("tasks_here")


@pytest.fixture
def service(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Service]:
    """What is asked of a database here is asked of both in the tests of jobs."""
    shutil.copy(migrated_sqlite, tmp_path / "moeplan.db")
    with service_on(f"sqlite:///{tmp_path}/moeplan.db", tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def client(service: Service) -> TestClient:
    return client_of(service)


@pytest.fixture
def plan_id(service: Service, client: TestClient, tmp_path: Path) -> str:
    counts = [[[900, 30, 20, 10, 400, 60, 50, 40]], [[100, 200, 300, 400, 500, 60, 70, 80]]]
    trace_id = ready_trace(service, counts_trace(tmp_path, counts))
    asked = client.post("/v1/plans", json={"trace_ids": [trace_id], "gpus": 2, "slots_per_gpu": 5})
    carried_out(service, job_of(asked.headers["location"]))
    return str(asked.json()["id"])


def job_of(location: str) -> str:
    return location.rsplit("/", 1)[-1]


def test_rows_hold_the_bound_alone_until_plans_were_made(service: Service, client: TestClient, plan_id: str) -> None:
    before = client.get(f"/v1/plans/{plan_id}/sizes").json()
    assert before["planned_by"] is None
    assert [row["slots_per_gpu"] for row in before["rows"]] == [4, 5, 6, 7, 8]
    assert all(row["local_gpu"] is None and 0 < row["local_gpu_bound"] <= 1 for row in before["rows"])
    assert 'data-planned="no"' in client.get(f"/plans/{plan_id}").text

    asked = client.post(f"/v1/plans/{plan_id}/sizes")
    assert asked.status_code == 202
    job_id = job_of(asked.headers["location"])
    assert client.post(f"/v1/plans/{plan_id}/sizes").json()["code"] == "WRONG_STATE"  # it is being done
    assert f'data-job="{job_id}"' in client.get(f"/plans/{plan_id}").text
    assert carried_out(service, job_id).state is JobState.SUCCEEDED

    after = client.get(f"/v1/plans/{plan_id}/sizes").json()
    plan = client.get(f"/v1/plans/{plan_id}").json()
    assert after["planned_by"] == job_id
    assert after["plan"] == {
        "slots_per_gpu": 5, "local_gpu": plan["local_gpu"], "imbalance": plan["imbalance"],
    }  # fmt: skip
    assert 5 in [row["slots_per_gpu"] for row in after["rows"]]
    for row in after["rows"]:
        assert 0 < row["local_gpu"] <= row["local_gpu_bound"] * (1 + 1e-9)
    assert 'data-planned="yes"' in client.get(f"/plans/{plan_id}").text
    assert f"/plans/{plan_id}" in client.get(f"/jobs/{job_id}").text


def test_the_cache_needs_a_model_and_a_memory_that_fit_the_plan(client: TestClient, plan_id: str) -> None:
    one = client.get(f"/v1/plans/{plan_id}/sizes?model=deepseek-v3")
    assert (one.status_code, "belong together" in one.json()["detail"]) == (422, True)
    other = client.get(f"/v1/plans/{plan_id}/sizes?model=deepseek-v3&gpu_memory_gib=80").json()
    assert other["code"] == "BAD_MODEL_CONFIG"
    assert "256 experts, the plan 8" in other["detail"]
    mixtral = client.get(f"/v1/plans/{plan_id}/sizes?model=mixtral-8x7b&gpu_memory_gib=80").json()
    assert [row["fits"] for row in mixtral["rows"]][:2] == [True, True]
    tokens = [row["cache_tokens"] for row in mixtral["rows"] if row["fits"]]
    assert tokens == sorted(tokens, reverse=True)


def test_a_plan_without_recordings_here_is_refused(service: Service, client: TestClient) -> None:
    made = ready_plan(service, plan_for_replay(), engine_id=None, state=PlanState.PROPOSED)
    refused = client.post(f"/v1/plans/{made}/sizes")
    assert (refused.status_code, refused.json()["code"]) == (409, "WRONG_STATE")
    assert "has no recording" in refused.json()["detail"]
