"""An engine on which a push would be silently wrong refuses it, says which flag is missing, and still does the rest."""

from __future__ import annotations

import httpx
import pytest

from profiler.engine.contract import PluginHealth, Refusal
from tests.engine.engine_server import EngineServer
from tests.engine.test_demand import assert_recording_equals_requests
from tests.engine.test_placement import push, random_map, read_placement


def test_push_is_refused_without_a_dispatch_algorithm(protected_engine: EngineServer) -> None:
    health = PluginHealth.from_json(protected_engine.get("/moeplan/health").json())
    assert [name for name, ability in health.abilities.items() if not ability.works] == ["push"]
    assert health.abilities["push"].reason.startswith("DISPATCH_NOT_SET")
    assert "--ep-dispatch-algorithm dynamic" in health.abilities["push"].reason

    before = read_placement(protected_engine)
    assert before.dispatch is None
    response = push(protected_engine, random_map(before, seed=51))
    assert response.status_code == 400
    assert Refusal.from_json(response.json()).code == "DISPATCH_NOT_SET"
    assert read_placement(protected_engine).checksums == before.checksums


def test_demand_is_recorded_all_the_same(protected_engine: EngineServer) -> None:
    assert_recording_equals_requests(protected_engine, sources=1, seed=52)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guessed"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/moeplan/health"),
        ("GET", "/moeplan/placement"),
        ("PUT", "/moeplan/placement"),
        ("GET", "/moeplan/demand"),
        ("POST", "/moeplan/demand/start"),
        ("POST", "/moeplan/demand/stop"),
    ],
)
def test_every_route_asks_for_the_admin_key(
    protected_engine: EngineServer, method: str, path: str, headers: dict[str, str]
) -> None:
    response = httpx.request(method, protected_engine.url + path, headers=headers)
    assert response.status_code == 401
