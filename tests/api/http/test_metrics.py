"""``/metrics``: what is told of engines, plans and rollouts, under the names that the README explains."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.http.app import create_app
from api.service.context import Service
from api.states import EngineState, PlanState, RolloutState, TraceState
from api.store.columns import now
from api.store.identifiers import new_id
from api.store.models import Engine, Rollout, Trace
from tests.api.http.conftest import READ_KEY, client_of
from tests.api.services import counts_trace, plan_for_replay, ready_plan

pytestmark = pytest.mark.one_database

README = Path(__file__).parents[3] / "api" / "README.md"
FIGURES = {"local_gpu": 0.5, "local_node": 0.5, "imbalance": 1.25, "balancedness": 0.8, "sglang_balancedness": 0.82}


def values(service: Service, **settings: object) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample that is exposed, by name and labels."""
    chosen = dataclasses.replace(service, settings=service.settings.model_copy(update=settings))
    text = client_of(chosen, READ_KEY).get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


@pytest.fixture
def engine_id(service: Service) -> str:
    engine = Engine(
        id=new_id("eng"), name="east", url="http://east:30000", labels={}, state=EngineState.READY, warnings=[],
        failures_in_row=1, failures=7, moved_bytes=2**40, version=1, created_at=now(),
    )  # fmt: skip
    with service.database.writing() as session:
        session.add(engine)
    ready_plan(service, plan_for_replay(), engine_id=engine.id, state=PlanState.APPROVED)
    return engine.id


def ended(service: Service, engine_id: str, state: RolloutState, **fields: object) -> None:
    rollout = Rollout(
        id=new_id("rol"), engine_id=engine_id, state=state, to_hash="0" * 64, pace={}, measure_seconds=30.0,
        roll_back_margin=0.05, warnings=[], reason="", created_by="t", created_at=now(),
        ended_at=now() - timedelta(seconds=100), version=1, **fields,
    )  # fmt: skip
    with service.database.writing() as session:
        session.add(rollout)


def test_the_layout_that_was_applied_last_is_told_predicted_measured_and_beside_the_one_before(
    service: Service, engine_id: str
) -> None:
    worse = {**FIGURES, "local_gpu": 0.25}
    ended(service, engine_id, RolloutState.APPLIED, predicted=FIGURES, measured=FIGURES, measured_before=worse)
    ended(service, engine_id, RolloutState.ROLLED_BACK, predicted=worse, measured=worse, measured_before=FIGURES)
    found = values(service)
    for kind, local in (("predicted", 0.5), ("measured", 0.5), ("before", 0.25)):
        assert found["moeplan_local_gpu", labelled(engine="east", kind=kind)] == local
        assert found["moeplan_balancedness", labelled(engine="east", kind=kind)] == 0.8
    assert found["moeplan_local_target", labelled(engine="east")] == 0.6
    assert 100 <= found["moeplan_layout_age_seconds", labelled(engine="east")] < 4000
    assert found["moeplan_last_rollout", labelled(engine="east", state="rolled_back")] == 1
    assert found["moeplan_last_rollout", labelled(engine="east", state="applied")] == 0
    assert found["moeplan_rollouts", labelled(state="applied")] == 1
    assert found["moeplan_engine_errors_total", labelled(engine="east")] == 7
    assert found["moeplan_moved_bytes_total", labelled(engine="east")] == 2**40
    assert found["moeplan_plan_imbalance", labelled(engine="east")] == plan_for_replay().metrics.imbalance


def test_what_is_not_known_has_no_series(service: Service, engine_id: str) -> None:
    ended(service, engine_id, RolloutState.APPLIED, predicted={**FIGURES, "local_gpu": None}, measured=None)
    found = values(service)
    assert ("moeplan_local_gpu", labelled(engine="east", kind="predicted")) not in found
    assert ("moeplan_imbalance", labelled(engine="east", kind="measured")) not in found
    assert found["moeplan_imbalance", labelled(engine="east", kind="predicted")] == 1.25


@pytest.mark.parametrize("asked_for", [False, True])
def test_experts_have_series_only_when_asked_for(
    service: Service, engine_id: str, tmp_path: Path, asked_for: bool
) -> None:
    stored = service.files.put_bytes(counts_trace(tmp_path, [[[3, 1], [0, 0]], [[0, 0], [1, 1]]]))
    trace = Trace(
        id=new_id("trc"), name="t", state=TraceState.READY, origin="capture", engine_id=engine_id, request={},
        sha256=stored.sha256, size_bytes=stored.size_bytes, facts={}, warnings=[], kept=True, created_by="t",
        created_at=now(), version=1,
    )  # fmt: skip
    with service.database.writing() as session:
        session.add(trace)
    for _ in range(2):  # the second time from memory
        found = values(service, metrics_per_expert=asked_for)
        shares = {dict(labels)["layer"] + "/" + dict(labels)["expert"]: value
                  for (name, labels), value in found.items() if name == "moeplan_expert_share"}  # fmt: skip
        assert shares == ({"0/0": 0.75, "0/1": 0.25, "1/0": 0.5, "1/1": 0.5} if asked_for else {})


def test_every_name_is_explained_in_the_readme_and_no_other(service: Service) -> None:
    section = README.read_text(encoding="utf-8").split("## Metrics")[1].split("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    explained = {name.removesuffix("_total") for name in re.findall(r"`(moeplan_[a-z_]+)`", table)}
    chosen = dataclasses.replace(service, settings=service.settings.model_copy(update={"metrics_per_expert": True}))
    registry = create_app(chosen).state.registry
    exposed = {family.name for family in registry.collect()}
    assert exposed == explained
