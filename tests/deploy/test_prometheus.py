"""Alerts and board: by promtool, and every query asked of a real Prometheus that scrapes a running service."""

from __future__ import annotations

import itertools
import json
import re
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, Histogram, Summary

from tests.api.cycle import rebalance, served
from tests.api.services import replay_engine, wait_for
from tests.deploy.tools import DEPLOY, program, run

pytestmark = pytest.mark.xdist_group("prometheus")  # one server and one service for all queries

FOLDER = DEPLOY / "prometheus"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "boards" / "moeplan.json").read_text())
ALERTS = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
ENGINE = "decode"

SGLANG: dict[str, type[Gauge] | type[Histogram] | type[Summary]] = {
    "sglang:eplb_balancedness": Summary,
    "sglang:gen_throughput": Gauge,
    "sglang:inter_token_latency_seconds": Histogram,
    "sglang:num_queue_reqs": Gauge,
    "sglang:num_running_reqs": Gauge,
    "sglang:token_usage": Gauge,
}
"""SGLang's metrics that the board shows, and their kinds: read in srt/observability/metrics_collector.py of 0.5.16 and
0.5.23."""

OF_PROMETHEUS = {"up"}
NAME = re.compile(r"\b(?:moeplan_|sglang:)[a-z0-9_]+|\bup\b")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def board_queries() -> dict[str, str]:
    """Return every query of the board, with its variables as Grafana fills them in."""
    filled = {}
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$engine", ".*").replace("$__rate_interval", "1m")
            assert "$" not in query, query
            filled[f"{panel['title']}, {target['refId']}"] = query
    return filled


QUERIES = {**{rule["alert"]: rule["expr"] for rule in ALERTS}, **board_queries()}


def names_in(queries: dict[str, str]) -> set[str]:
    return {name for query in queries.values() for name in NAME.findall(query)}


class TestAlerts:
    def test_prometheus_takes_rules_and_configuration(self) -> None:
        run(program("promtool"), "check", "rules", FOLDER / "alerts.yaml")
        run(program("promtool"), "check", "config", FOLDER / "prometheus.yaml")
        assert yaml.safe_load((FOLDER / "sglang.yaml").read_text()) == []

    def test_each_speaks_where_it_must_and_only_there(self) -> None:
        run(program("promtool"), "test", "rules", FOLDER / "alerts.test.yaml")
        tests = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]
        tried = [case for test in tests for case in test["alert_rule_test"]]
        names = {rule["alert"] for rule in ALERTS}
        assert {case["alertname"] for case in tried if case["exp_alerts"]} == names
        assert {case["alertname"] for case in tried if not case["exp_alerts"]} == names

    def test_each_has_a_place_in_the_guide(self) -> None:
        guide = (DEPLOY / "README.md").read_text()
        assert [rule["alert"] for rule in ALERTS if f"`{rule['alert']}`" not in guide] == []
        assert set(re.findall(r"`(Moeplan[A-Za-z]+)`", guide)) == {rule["alert"] for rule in ALERTS}

    def test_each_says_how_bad_it_is_in_a_sentence(self) -> None:
        for rule in ALERTS:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"]["summary"].endswith(".")


class TestBoard:
    def test_panels_lie_beside_each_other(self) -> None:
        taken: dict[tuple[int, int], str] = {}
        for panel in BOARD["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            for cell in itertools.product(
                range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
            ):
                assert cell not in taken, f"{panel['title']} lies on {taken[cell]}"
                taken[cell] = panel["title"]
        ids = [panel["id"] for panel in BOARD["panels"]]
        assert len(set(ids)) == len(ids)

    def test_panels_explain_themselves_and_take_the_chosen_source(self) -> None:
        variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
        assert set(variables) == {"datasource", "engine"}
        for panel in panels():
            assert len(panel["description"]) > 15, panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            for each in [panel, *panel["targets"]]:
                assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}

    def test_predicted_and_measured_balancedness_are_in_one_panel(self) -> None:
        (panel,) = (panel for panel in panels() if "sglang:eplb_balancedness_sum" in str(panel))
        assert "moeplan_sglang_balancedness" in str(panel["targets"])

    def test_grafana_finds_it_where_compose_puts_it(self) -> None:
        grafana = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]["grafana"]
        folder = DEPLOY / "grafana" / "provisioning"
        (provider,) = yaml.safe_load((folder / "dashboards" / "boards.yaml").read_text())["providers"]
        assert f"../grafana/boards:{provider['options']['path']}:ro" in grafana["volumes"]
        (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
        assert source["url"] == "http://prometheus:9090"


@contextmanager
def sglang_metrics() -> Iterator[int]:
    """Serve metrics under the names and labels of SGLang's; their port."""
    registry = CollectorRegistry()
    labels = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "moe_ep_rank": "0"}
    for name, kind in SGLANG.items():
        more = {"forward_mode": "decode"} if name == "sglang:eplb_balancedness" else {}
        metric = kind(name, "As SGLang's.", [*labels, *more], registry=registry).labels(**labels, **more)
        if isinstance(metric, Gauge):
            metric.set(0.5)
        else:
            metric.observe(0.9)
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def prometheus_over(folder: Path, targets: dict[str, str]) -> Iterator[httpx.Client]:
    """Run a Prometheus with our rules that scrapes every half second."""
    configuration = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    configuration["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    for job in configuration["scrape_configs"]:
        if "static_configs" in job:
            job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    (folder / "sglang.yaml").write_text(
        yaml.safe_dump([{"targets": [targets["sglang"]], "labels": {"engine": ENGINE}}])
    )
    (folder / "alerts.yaml").write_text((FOLDER / "alerts.yaml").read_text())
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [
        program("prometheus"), f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30.0) as client:
            wait_for(lambda: _answers(client) or process.poll() is not None, what="Prometheus")
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            yield client
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/status/buildinfo").status_code == 200
    except httpx.TransportError:
        return False


def asked(client: httpx.Client, query: str) -> list[Any]:
    answer = client.get("/query", params={"query": query}).json()
    assert answer["status"] == "success", answer
    found: list[Any] = answer["data"]["result"]
    return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus that has seen an engine rebalanced, another one gone, and an engine's own metrics twice."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("metrics")
    with replay_engine() as engine_url, served(folder) as service, sglang_metrics() as sglang:
        engine = service.post("/v1/engines", {"name": ENGINE, "url": engine_url}, status=201)
        rebalance(service, engine["id"])
        service.post("/v1/engines", {"name": "gone", "url": "http://127.0.0.1:9"}, status=201)
        service.post("/v1/schedules", {"name": "nightly", "engine_id": engine["id"], "cron": "0 3 * * *"}, status=201)
        with closing(sqlite3.connect(folder / "data" / "moeplan.db")) as database, database:
            database.execute("UPDATE schedules SET last_success_at = created_at")  # a night is long
        targets = {"moeplan": service.url.removeprefix("http://"), "sglang": f"127.0.0.1:{sglang}"}
        with prometheus_over(folder, targets) as client:
            wait_for(lambda: len(asked(client, "up == 1")) == len(targets), what="both targets")
            wait_for(
                lambda: asked(client, "min(count_over_time(up[1m])) >= 3 and on() count(moeplan_engine_up) >= 2"),
                what="a few scrapes",
            )
            yield client


def test_every_metric_that_is_named_is_exported(prometheus: httpx.Client) -> None:
    exported = set(prometheus.get("/label/__name__/values").json()["data"])
    assert names_in(QUERIES) - exported == set()


def test_the_histogram_whose_le_is_a_gpu_is_no_distribution() -> None:
    """In ``sglang:eplb_gpu_physical_count`` ``le`` is the GPU's rank: quantiles and sums over it say nothing."""
    assert [name for name, query in QUERIES.items() if "eplb_gpu_physical_count" in query] == []


def test_sglangs_metrics_are_those_of_the_list() -> None:
    ends = "(_sum|_count|_bucket)?$"
    named = {re.sub(ends, "", name) for name in names_in(QUERIES) if name.startswith("sglang:")}
    assert named == set(SGLANG)


@pytest.mark.parametrize("title", sorted(board_queries()))
def test_every_panel_shows_something(prometheus: httpx.Client, title: str) -> None:
    assert asked(prometheus, QUERIES[title]), QUERIES[title]


def test_every_rule_is_evaluated(prometheus: httpx.Client) -> None:
    def rules() -> list[dict[str, Any]]:
        groups = prometheus.get("/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_for(lambda: all(rule["health"] != "unknown" for rule in rules()), limit_s=60.0, what="an evaluation")
    assert {rule["name"]: rule["lastError"] for rule in rules() if rule["health"] != "ok"} == {}
    pending = {rule["name"] for rule in rules() if rule["state"] != "inactive"}
    assert "MoeplanEngineUnreachable" in pending
    assert pending & {"MoeplanDown", "MoeplanNoWorker", "MoeplanDatabaseDown", "MoeplanRolloutFailed"} == set()


def test_the_board_asks_for_engines_by_a_label_that_is_there(prometheus: httpx.Client) -> None:
    (variable,) = (each for each in BOARD["templating"]["list"] if each["name"] == "engine")
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
    found = prometheus.get(f"/label/{label}/values", params={"match[]": metric}).json()["data"]
    assert set(found) == {ENGINE, "gone"}
