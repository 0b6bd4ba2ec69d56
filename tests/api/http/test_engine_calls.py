"""Engines that never answer keep no request waiting that does not ask them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from api.errors import EngineCallsFull
from api.http.engine_calls import MOST, MOST_OF_ONE, EngineCalls
from api.service import engine_access
from api.serving import serving
from api.settings import read_settings
from tests.api.services import wait_for
from tests.faulty_engine import FaultyEngine, faulty_engine, half_open

THREADS = 40
"""Of the web framework, for all requests."""


@pytest.fixture
def served(migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A service without workers and without patience for itself: an engine is waited for longer than a test takes."""
    monkeypatch.setattr(engine_access, "FIRST_PAUSE_S", 0.01)
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    settings = read_settings(
        database_url=f"sqlite:///{file}", data_dir=tmp_path / "data", port=0, workers=0, engine_timeout_s=600.0
    )
    with serving(settings) as url, httpx.Client(base_url=url, timeout=120.0) as client:
        yield client


def registered(client: httpx.Client, engine: FaultyEngine, name: str) -> str:
    """Register an engine that refuses connections for now, which is quick, and let it be the half-open one."""
    made = client.post("/v1/engines", json={"name": name, "url": "http://127.0.0.1:9"}).json()
    changed = client.patch(f"/v1/engines/{made['id']}", json={"url": engine.url}, headers={"If-Match": "*"})
    assert changed.status_code == 200, changed.text
    return str(made["id"])


def test_reads_are_answered_while_more_requests_wait_for_engines_than_there_are_threads(served: httpx.Client) -> None:
    answered: list[httpx.Response] = []

    def ask(engine_id: str) -> None:
        answered.append(httpx.post(f"{served.base_url}/v1/engines/{engine_id}/read", timeout=120.0))

    with ExitStack() as stack:
        fronts = [stack.enter_context(faulty_engine("http://127.0.0.1:9", half_open)) for _ in range(6)]
        ids = [registered(served, front, f"half-open {number}") for number, front in enumerate(fronts)]
        askers = [threading.Thread(target=ask, args=(ids[number % len(ids)],)) for number in range(THREADS + 5)]
        for asker in askers:
            asker.start()
        wait_for(lambda: len(answered) == len(askers) - MOST, what="the refusals")
        assert served.get("/readyz").status_code == 200
        assert len(served.get("/v1/engines").json()["items"]) == len(ids)
        refused = served.post("/v1/engines", json={"name": "one more", "url": "http://127.0.0.1:9"})
        assert (refused.status_code, refused.json()["code"]) == (503, "ENGINE_CALLS_FULL")
        assert len(served.get("/v1/engines").json()["items"]) == len(ids), "what is refused is not registered either"
        assert {answer.status_code for answer in answered} == {503}
        assert {answer.headers["retry-after"] for answer in answered} == {"5"}
        assert all("ask again in a while" in answer.json()["detail"] for answer in answered)
        for front in fronts:
            front.ending.set()
        for asker in askers:
            asker.join(timeout=120.0)
    assert len(answered) == len(askers)
    assert [answer.status_code for answer in answered].count(200) == MOST


def test_one_engine_leaves_room_for_the_others() -> None:
    calls = EngineCalls()
    with ExitStack() as stack:
        for _ in range(MOST_OF_ONE):
            stack.enter_context(calls.waiting_for("a"))
        with pytest.raises(EngineCallsFull, match="wait for this engine already"), calls.waiting_for("a"):
            pytest.fail("it may not wait")
        with calls.waiting_for("b"):
            pass
    with calls.waiting_for("a"):
        pass
