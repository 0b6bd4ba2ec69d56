"""What every answer tells browsers, and that no route sets a cookie where nobody signs in."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api.http.routes.plans import REPORT_POLICY
from api.service.context import Service
from api.states import PlanState
from tests.api.http.conftest import client_of
from tests.api.http.test_permissions import operations
from tests.api.services import plan_for_replay, ready_plan

pytestmark = pytest.mark.one_database

SCRIPT = "default-src 'none'"


def test_every_answer_of_the_api_forbids_browsers_to_run_or_keep_it(service: Service, admin: TestClient) -> None:
    for operation in sorted(operations(service)):
        method, path = operation.split(" ", 1)
        for client in (admin, client_of(service)):
            headers = client.request(method, path).headers
            assert headers["x-content-type-options"] == "nosniff", operation
            assert headers["content-security-policy"].startswith(SCRIPT), operation
            assert "frame-ancestors" in headers["content-security-policy"], operation
            assert headers["referrer-policy"] == "no-referrer", operation
            assert headers["cross-origin-resource-policy"] == "same-origin", operation
            assert headers["cache-control"] in ("no-store", "private, no-cache"), operation
            assert "set-cookie" not in headers, operation
            assert "access-control-allow-origin" not in headers, operation
            assert "server" not in headers, operation


def test_answers_outside_of_any_route_have_them_too(admin: TestClient) -> None:
    large = admin.post("/v1/engines", content=b"x" * 2**21, headers={"Content-Type": "application/json"})
    for answer in (admin.get("/v1/nothing"), admin.put("/v1/engines"), large):
        assert answer.status_code >= 400
        assert answer.headers["content-security-policy"].startswith(SCRIPT)
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_report_may_show_its_own_styles_and_nothing_else(service: Service, reader: TestClient) -> None:
    plan_id = ready_plan(service, plan_for_replay(), engine_id=None, state=PlanState.PROPOSED)
    report = reader.get(f"/v1/plans/{plan_id}/report")
    assert report.headers["content-security-policy"] == REPORT_POLICY
    assert "script-src" not in REPORT_POLICY
    assert "sandbox" in REPORT_POLICY


@pytest.mark.parametrize("origin", ["http://attacker.example", "null"])
def test_no_other_site_is_let_in_by_a_browser(admin: TestClient, origin: str) -> None:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    for path in ("/v1/engines", "/metrics"):
        asked = admin.options(path, headers=headers)
        assert "access-control-allow-origin" not in asked.headers
