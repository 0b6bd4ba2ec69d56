"""What pages draw: frames, orders, experts and traffic are those of the recording and of the ruler."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fastapi.testclient import TestClient

from api.loading import load_demand, read_options
from api.service.co_activation import spectral_order
from api.service.context import Service
from api.service.frames import FramesCache
from api.service.traffic import traffic_of
from api.states import PlanState
from api.store import traces
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.score import loads_WLG, score
from placement.topology import Topology
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.recordings import MIXED, recording_path
from profiler.writers.parquet import import_trace
from tests.api.services import counts_trace, plan_for_replay, ready_plan, ready_trace

COUNTS_WLE = [[[4, 3, 2, 1], [0, 0, 0, 0]], [[1, 1, 5, 1], [0, 0, 0, 8]], [[0, 0, 0, 2**33], [1, 1, 1, 1]]]


def read_frames(content: bytes) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """Read a frame file as its description says, and not with the code that writes it."""
    assert content[:8] == b"MOEHEAT1"
    (length,) = struct.unpack_from("<I", content, 8)
    header = json.loads(content[12 : 12 + length])
    assert (12 + length) % 8 == 0
    values = np.frombuffer(content, dtype={"uint32": "<u4", "float64": "<f8"}[header["dtype"]], offset=12 + length)
    return header, values.reshape(len(header["windows"]), header["layers"], header["columns"])


@pytest.fixture
def counts_id(service: Service, tmp_path: Path) -> str:
    return ready_trace(service, counts_trace(tmp_path, COUNTS_WLE))


@pytest.fixture
def tokens_id(service: Service, tmp_path: Path) -> str:
    out = tmp_path / "tokens.parquet"
    import_trace(open_inputs([recording_path(MIXED)], ReadOptions()), out)
    return ready_trace(service, out.read_bytes())


@pytest.fixture
def plan_id(service: Service) -> str:
    return ready_plan(service, plan_for_replay(), engine_id=None, state=PlanState.PROPOSED)


def test_frames_hold_every_window_as_recorded(browser: TestClient, counts_id: str) -> None:
    header, values = read_frames(browser.get(f"/v1/traces/{counts_id}/frames?first=0&count=2").content)
    assert values.tolist() == COUNTS_WLE[:2]
    assert (header["total_windows"], header["first"], header["dtype"]) == (3, 0, "uint32")
    assert header["moe_layers"] == [0, 1]
    header, values = read_frames(browser.get(f"/v1/traces/{counts_id}/frames?first=2").content)
    assert (values.tolist(), header["dtype"]) == (COUNTS_WLE[2:], "float64")  # one count is beyond 32 bits


def test_all_windows_together_are_one_frame(browser: TestClient, counts_id: str) -> None:
    header, values = read_frames(browser.get(f"/v1/traces/{counts_id}/frames").content)
    assert values[0].tolist() == np.sum(COUNTS_WLE, axis=0).tolist()
    assert (header["first"], header["windows"]) == (None, ["all windows"])


def test_frames_are_compressed_and_known_by_their_tag(browser: TestClient, counts_id: str) -> None:
    path = f"/v1/traces/{counts_id}/frames?first=0"
    sent = browser.get(path)
    assert sent.headers["content-encoding"] == "gzip"
    again = browser.get(path, headers={"If-None-Match": sent.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = browser.get(path, headers={"Accept-Encoding": "identity", "If-None-Match": sent.headers["etag"]})
    assert (plain.status_code, plain.content) == (200, sent.content)
    assert browser.get(path.replace("first=0", "first=1")).headers["etag"] != sent.headers["etag"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("first=3", 422), ("axis=gpus", 422), ("phase=decode", 422), ("first=-1", 422), ("count=0", 422),
        ("axis=gpus&plan_id=pln_none", 404), ("axis=slots", 422),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said(browser: TestClient, counts_id: str, query: str, status: int) -> None:
    refused = browser.get(f"/v1/traces/{counts_id}/frames?{query}")
    assert refused.status_code == status
    assert refused.json()["detail"].endswith(".")


def test_a_plan_for_another_model_is_refused(browser: TestClient, counts_id: str, plan_id: str) -> None:
    for path in (f"frames?axis=gpus&plan_id={plan_id}", f"traffic?plan_id={plan_id}", f"experts/0/0?plan_id={plan_id}"):
        refused = browser.get(f"/v1/traces/{counts_id}/{path}")
        assert refused.status_code == 422
        assert "32 experts" in refused.json()["detail"]


def test_phases_are_apart_and_add_up(browser: TestClient, tokens_id: str) -> None:
    frames = {
        phase: read_frames(browser.get(f"/v1/traces/{tokens_id}/frames{phase}").content)[1]
        for phase in ("", "?phase=prefill", "?phase=decode")
    }
    assert (frames["?phase=prefill"] + frames["?phase=decode"]).tolist() == frames[""].tolist()
    assert 0 < frames["?phase=decode"].sum() < frames[""].sum()


def test_loads_by_gpu_are_the_rulers(browser: TestClient, tokens_id: str, plan_id: str) -> None:
    made = plan_for_replay()
    demand = load_demand(
        [recording_path(MIXED)], read_options(), gpus=made.topology.gpus, window_by="file", sources="auto"
    ).demand
    _, planned = read_frames(browser.get(f"/v1/traces/{tokens_id}/frames?axis=gpus&plan_id={plan_id}").content)
    expected = loads_WLG(made.layout, demand, made.topology, dispatch=made.options.dispatch).sum(axis=0)
    assert planned[0].tolist() == np.rint(expected).tolist()
    path = f"/v1/traces/{tokens_id}/frames?axis=gpus&layout=before&plan_id={plan_id}"
    _, before = read_frames(browser.get(path).content)
    assert before[0].tolist() == made.load_before_LG.tolist()


def test_an_expert_tells_who_serves_it(browser: TestClient, tokens_id: str, plan_id: str) -> None:
    found = browser.get(f"/v1/traces/{tokens_id}/experts/2/10?plan_id={plan_id}").json()
    made = plan_for_replay()
    total = sum(found["tokens_by_window"])
    assert total == int(made.heat_LE[2, 10])
    assert {each["gpu"] for each in found["plan"]} == set(np.flatnonzero(made.layout.replicas_LEG[2, 10]).tolist())
    for side in ("plan", "before"):
        assert sum(each["tokens"] for each in found[side]) == pytest.approx(total)
    assert browser.get(f"/v1/traces/{tokens_id}/experts/2/99").status_code == 422
    assert browser.get(f"/v1/traces/{tokens_id}/experts/99/0").status_code == 422


def test_co_activation_orders_all_experts_of_every_layer(browser: TestClient, tokens_id: str, counts_id: str) -> None:
    told = browser.get(f"/v1/traces/{tokens_id}/order").json()
    assert len(told["order"]) == 6
    assert all(sorted(experts) == list(range(32)) for experts in told["order"])
    refused = browser.get(f"/v1/traces/{counts_id}/order")
    assert refused.status_code == 422
    assert "token trace" in refused.json()["detail"]


def test_experts_chosen_together_become_neighbours() -> None:
    groups = [[0, 5, 7], [1, 4, 6], [2, 3, 8]]
    together_EE = np.full((10, 10), 0.01)
    for group in groups:
        together_EE[np.ix_(group, group)] = 1.0
    np.fill_diagonal(together_EE, 0.0)
    together_EE[9], together_EE[:, 9] = 0.0, 0.0
    order = spectral_order(together_EE).tolist()
    assert order[-1] == 9  # never chosen: last
    assert sorted(sorted(order[at : at + 3]) for at in (0, 3, 6)) == sorted(groups)


@pytest.mark.parametrize("dispatch", list(Dispatch))
def test_traffic_loses_no_token_and_its_diagonal_is_the_local_share(dispatch: Dispatch) -> None:
    made = plan_for_replay()
    topology = Topology(made.topology.gpus, 2)
    rng = np.random.default_rng(0)
    tokens_WLSE = rng.integers(0, 50, (2, made.layout.layers, topology.gpus, made.layout.experts))
    for demand in (
        Demand(tokens_WLSE, "measured", ("a", "b")),
        Demand.uniform(tokens_WLSE.sum(axis=2), ("a", "b")),
    ):
        found = traffic_of(made.layout, demand, topology, dispatch=dispatch)
        assert found.tokens_SG.sum() == pytest.approx(demand.total_tokens)
        assert sum(found.shares.values()) == pytest.approx(1)
        figures = score(made.layout, demand, topology, dispatch=dispatch)
        if figures.local_gpu is not None and figures.local_node is not None:
            assert found.shares["local"] == pytest.approx(figures.local_gpu)
            assert found.shares["local"] + found.shares["same_node"] == pytest.approx(figures.local_node)


def test_traffic_of_one_expert_is_counted_by_hand() -> None:
    layout = Layout(np.array([[0, 1]], dtype=np.int32), gpus=2, experts=2)
    demand = Demand(np.array([[[[3, 1], [2, 4]]]]), "measured", ("a",))
    found = traffic_of(layout, demand, Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC)
    assert found.tokens_SG.tolist() == [[3.0, 1.0], [2.0, 4.0]]
    assert found.shares == {"local": 0.7, "same_node": pytest.approx(0.3), "remote": 0.0}


def test_slots_are_weighed_on_known_models_alone(browser: TestClient, service: Service, plan_id: str) -> None:
    address = f"/v1/plans/{plan_id}/sizes?gpu_memory_gib=80&model="
    assert browser.get(f"{address}deepseek-v3").status_code == 409  # that plan names no recording of the service
    for path in ("/etc/passwd", "../../etc/passwd", "nothing"):
        refused = browser.get(address + path)
        assert "passwd" not in refused.text or refused.status_code in (409, 422)


def test_phases_are_read_from_the_recording_itself(service: Service, tokens_id: str, counts_id: str) -> None:
    cache = FramesCache()
    with service.database.reading() as session:
        by_tokens, by_counts = (traces.find(session, each) for each in (tokens_id, counts_id))
    assert cache.phases(service, by_tokens) == ("prefill", "decode")
    assert cache.phases(service, by_counts) == ()
