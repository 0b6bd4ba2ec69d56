"""The search on a Ray cluster of two nodes on this machine; and Ray that is absent or cannot be reached."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from api.errors import RayMissing, RayUnreachable
from api.workers import FanOut, ray_cluster
from api.workers.ray_cluster import RayCrew
from tests.api.workers.layers import Dies, mapped_by, searched, several_batches


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start two nodes with one CPU each, without anything that reports outside."""
    pytest.importorskip("ray", reason="Ray is not installed (extra moeplan[ray]).")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        started.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", started.address)
        yield started
    finally:
        started.shutdown()


def test_a_cluster_gives_the_same_bytes_also_when_a_worker_is_killed(cluster: Any, tmp_path: Path) -> None:
    problem = several_batches(nodes=2)
    alone = searched(problem).layout.slot_to_expert_LP.tobytes()
    crew = RayCrew()
    try:
        assert crew.size == 2
        fan_out = FanOut(crew)
        assert searched(problem, map_tasks=fan_out).layout.slot_to_expert_LP.tobytes() == alone
        assert fan_out.notices == ()
        killed = searched(problem, map_tasks=mapped_by(fan_out, Dies(tmp_path, 1, os.getpid())))
        assert list(tmp_path.iterdir())
        assert killed.layout.slot_to_expert_LP.tobytes() == alone
        (notice,) = fan_out.notices
        assert notice.code == "WORKER_LOST"
        assert "WorkerCrashedError" in notice.detail
    finally:
        crew.close()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayMissing, match=r"moeplan\[ray\]"):
        RayCrew()


def test_an_address_at_which_nobody_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra moeplan[ray]).")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RayUnreachable, match=address):
            RayCrew()


def test_where_ray_does_not_connect_its_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray says of a wrong token only that it failed to connect, after 20 seconds."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra moeplan[ray]).")

    def refused(**_: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.7:6379.")

    monkeypatch.setattr(ray, "init", refused)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(RayUnreachable, match=r"at 10\.0\.0\.7:6379\. A cluster with a token .* RAY_AUTH_TOKEN"):
        RayCrew()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_a_server_that_is_no_ray_is_refused_instead_of_waited_for(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    """A web server, one that hangs up, and one that says nothing; Ray itself would wait for minutes."""
    pytest.importorskip("ray", reason="Ray is not installed (extra moeplan[ray]).")
    monkeypatch.setattr(ray_cluster, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(_answer_once, server, answer)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RayUnreachable, match="is no Ray"):
            RayCrew()
        served.result()


def _answer_once(server: socket.socket, answer: bytes | None) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        if answer is None:
            connection.recv(1)  # until the other side gives up
        else:
            connection.sendall(answer)
