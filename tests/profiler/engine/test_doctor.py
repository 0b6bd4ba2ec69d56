"""What the doctor says of engines with and without the plugin, and of what is no engine."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from placement.layout import Layout
from profiler.engine.contract import Ability
from profiler.engine.doctor import Diagnosis, examine
from profiler.engine.doctor_checks import Check
from profiler.errors import EngineAnswerInvalid, EngineUnreachable, NotAnEngine
from profiler.replay import running_replay
from tests.case_files import case, case_json
from tests.profiler.engine.messages import MAP_LP, health, placement
from tests.profiler.engine.server_infos import server_info
from tests.profiler.engine.servers import Handler, Told, answer, engine_that_answers, healthy_routes
from tests.profiler.replay.traces import made_up

Routes = dict[tuple[str, str], Handler]


def stock(architectures: tuple[str, ...] = ("Qwen3MoeForCausalLM",), **changes: Any) -> Routes:
    """Return the routes of an SGLang without the plugin."""
    return {
        ("GET", "/health"): answer({}),
        ("GET", "/server_info"): answer(server_info(**changes)),
        ("GET", "/model_info"): answer({"architectures": list(architectures)}),
        ("GET", "/hicache/storage-backend"): answer({"error": "no admin key"}, status=400),
    }


def with_plugin(routes: Routes, **reasons: str) -> Routes:
    broken = {name: Ability(works=False, reason=reason) for name, reason in reasons.items()}
    told = health(abilities={**health().abilities, **broken})
    return {**healthy_routes(), **routes, ("GET", "/moeplan/health"): answer(told.to_json())}


def diagnosed(routes: Routes, **keys: str) -> tuple[Diagnosis, Told]:
    with engine_that_answers(routes) as (url, told):
        return examine(url, **keys), told


def states(diagnosis: Diagnosis) -> dict[str, str]:
    return {check.name: check.state for check in diagnosis.checks}


def remedy(diagnosis: Diagnosis, name: str) -> str:
    return next(check.remedy for check in diagnosis.checks if check.name == name)


def test_an_engine_with_the_plugin_and_all_flags_is_ready() -> None:
    diagnosis, told = diagnosed(with_plugin(stock()))
    assert diagnosis.ready
    assert {name: state for name, state in states(diagnosis).items() if state != "works"} == {"keys": "limited"}
    assert {method for method, _ in told.requests} == {"GET"}, "the doctor changes nothing"


def test_a_stock_engine_can_be_recorded_and_started_anew_but_not_pushed() -> None:
    diagnosis, _ = diagnosed(stock())
    found = states(diagnosis)
    assert not diagnosis.ready
    assert (found["plugin"], found["capture"], found["push"]) == ("missing",) * 3
    assert (found["capture_dumps"], found["sample"], found["layout_at_start"]) == ("works",) * 3
    assert "pip install --no-deps moeplan" in remedy(diagnosis, "plugin")
    assert "--print-restart" in remedy(diagnosis, "push")


@pytest.mark.parametrize(
    ("changes", "name", "state", "flag"),
    [
        (
            {"expert_distribution_recorder_mode": None},
            "recorder",
            "missing",
            "--expert-distribution-recorder-mode stat",
        ),
        (
            {"expert_distribution_recorder_mode": None},
            "capture_dumps",
            "missing",
            "--expert-distribution-recorder-mode",
        ),
        ({"enable_return_routed_experts": False}, "sample", "missing", "--enable-return-routed-experts"),
        ({"ep_dispatch_algorithm": None}, "dispatch", "missing", "--ep-dispatch-algorithm dynamic"),
        ({"ep_dispatch_algorithm": None}, "push", "missing", "--ep-dispatch-algorithm dynamic"),
        ({"ep_dispatch_algorithm": "static"}, "dispatch", "limited", "--ep-dispatch-algorithm dynamic"),
        ({"moe_a2a_backend": "none"}, "locality", "missing", "--moe-a2a-backend deepep"),
        ({"enable_dp_attention": False}, "locality", "limited", "--enable-dp-attention"),
        ({"dp_size": 1}, "locality", "limited", "--enable-dp-attention"),
        ({"ep_size": 4, "tp_size": 4}, "locality", "limited", "--dp 4"),
        ({"enable_eplb": True}, "capture_dumps", "missing", "without --enable-eplb"),
    ],
)
def test_what_is_missing_is_named_with_its_flag(changes: dict[str, Any], name: str, state: str, flag: str) -> None:
    diagnosis, _ = diagnosed(with_plugin(stock(**changes)))
    assert states(diagnosis)[name] == state
    assert flag in remedy(diagnosis, name)


@pytest.mark.parametrize(("version", "state"), [("0.5.16", "works"), ("0.5.20", "limited"), ("0.7.0", "limited")])
def test_how_well_a_version_is_known_is_said(version: str, state: str) -> None:
    assert states(diagnosed(stock(version=version))[0])["version"] == state


def test_a_model_without_expert_location_can_only_be_sampled() -> None:
    diagnosis, _ = diagnosed(stock(architectures=("MixtralForCausalLM",)))
    found = states(diagnosis)
    assert (found["push"], found["layout_at_start"], found["capture_dumps"]) == ("missing",) * 3
    assert found["sample"] == "works"
    assert "MixtralForCausalLM" in next(check.detail for check in diagnosis.checks if check.name == "push")


def test_what_the_plugin_cannot_do_is_said_in_its_words() -> None:
    diagnosis, _ = diagnosed(with_plugin(stock(), push="SCALES_LEFT_BEHIND: w13_scale would stay", demand="no hook"))
    details = {check.name: check.detail for check in diagnosis.checks}
    assert "w13_scale" in details["push"]
    assert details["capture"] == "no hook"
    assert not diagnosis.ready


def test_a_plugin_that_misses_ranks_is_no_plugin() -> None:
    routes = {**with_plugin(stock()), ("GET", "/moeplan/health"): answer(health(ranks=(0,)).to_json())}
    assert states(diagnosed(routes)[0])["plugin"] == "missing"


# ------------------------------------------------------------------ keys


def guarded(message: Any, *, key: str, status: int = 200) -> Handler:
    def handle(request: BaseHTTPRequestHandler) -> None:
        allowed = request.headers.get("authorization") == f"Bearer {key}"
        (answer(message, status=status) if allowed else answer({"error": "Unauthorized"}, status=401))(request)

    return handle


def engine_with_keys(*, read: str, admin: str, plugin: bool) -> Routes:
    routes = stock()
    routes[("GET", "/server_info")] = guarded(server_info(), key=read)
    routes[("GET", "/model_info")] = guarded({"architectures": ["Qwen3MoeForCausalLM"]}, key=read)
    routes[("GET", "/hicache/storage-backend")] = guarded({}, key=admin)
    if plugin:
        routes[("GET", "/moeplan/health")] = guarded(health().to_json(), key=admin)
        routes[("GET", "/moeplan/placement")] = guarded(placement().to_json(), key=admin)
    else:  # a route that is not there is one that reads
        routes[("GET", "/moeplan/health")] = guarded({"detail": "Not Found"}, key=read, status=404)
    return routes


@pytest.mark.parametrize(
    ("plugin", "keys", "read", "admin", "plugin_route"),
    [
        (True, {}, "key needed", "key needed", None),
        (True, {"key": "the-admin"}, "key refused", "key accepted", True),
        (True, {"key": "the-admin", "read_key": "the-reader"}, "key accepted", "key accepted", True),
        (True, {"key": "wrong", "read_key": "the-reader"}, "key accepted", "key refused", None),
        (False, {"key": "the-admin", "read_key": "the-reader"}, "key accepted", "key accepted", False),
        (False, {"key": "the-reader"}, "key accepted", "key refused", False),
        (False, {"key": "wrong"}, "key refused", "key refused", None),
    ],
)
def test_which_key_opens_which_level(
    plugin: bool, keys: dict[str, str], read: str, admin: str, plugin_route: bool | None
) -> None:
    routes = engine_with_keys(read="the-reader", admin="the-admin", plugin=plugin)
    diagnosis, _ = diagnosed(routes, **keys)
    access = diagnosis.access
    assert (access.read, access.admin, access.plugin_route) == (read, admin, plugin_route)
    told = {check.name: check for check in diagnosis.checks}["keys"]
    assert told.state == ("works" if "accepted" in read and "accepted" in admin else "missing")
    text = json.dumps(diagnosis.to_dict())
    assert not any(secret in text for secret in ("the-admin", "the-reader", "wrong"))


def test_the_arguments_that_hold_secrets_are_not_passed_on() -> None:
    routes = with_plugin(stock(api_key="sk-reader", admin_api_key="sk-admin"))
    assert "sk-" not in json.dumps(diagnosed(routes)[0].to_dict())


# ------------------------------------------------------------------ the replay engine, and no engine


@pytest.mark.parametrize(("options", "ready"), [({}, True), ({"dispatch": None}, False)])
def test_the_replay_engine_says_that_it_is_simulated(options: dict[str, Any], ready: bool) -> None:
    with running_replay(made_up([(4, 2)]), gpus=2, slots_per_gpu=5, steps_per_s=0, **options) as url:
        diagnosis = examine(url)
    assert diagnosis.simulated
    assert diagnosis.ready == ready
    assert "simulated" in diagnosis.checks[0].detail


@pytest.mark.parametrize("keys", [{}, {"key": "guess"}])
def test_a_replay_engine_behind_a_key_is_not_taken_for_open(keys: dict[str, str]) -> None:
    with running_replay(made_up([(4, 2)]), gpus=2, slots_per_gpu=5, steps_per_s=0, admin_key="a") as url:
        diagnosis = examine(url, **keys)
    assert diagnosis.access.admin.startswith("key ")
    assert diagnosis.access.admin != "key accepted"
    assert not diagnosis.ready


def page(request: BaseHTTPRequestHandler) -> None:
    answer(raw=b"<html>hello</html>")(request)


@pytest.mark.parametrize(
    "routes",
    [
        {},
        {("GET", "/health"): answer({})},
        {("GET", "/health"): page, ("GET", "/server_info"): page, ("GET", "/moeplan/health"): page},
        {("GET", "/health"): answer({}), ("GET", "/server_info"): answer({"vllm": "0.9"})},
        {("GET", "/health"): answer({}), ("GET", "/server_info"): answer([1])},
        {("GET", "/health"): answer({}), ("GET", "/server_info"): answer(case_json("U13", "server_info.json"))},
    ],
)
def test_another_server_is_not_taken_for_an_sglang(routes: Routes) -> None:
    with pytest.raises(NotAnEngine, match=r"no SGLang|as an SGLang|SGLang's arguments"):
        diagnosed(routes)


@pytest.mark.parametrize(
    ("enabled", "balancer", "state", "words"),
    [
        (False, "none", "works", "pushes only"),
        (True, "moeplan", "works", "drop-in mode"),
        (True, "sglang", "limited", "SGLang's own"),
    ],
)
def test_who_balances_is_said(enabled: bool, balancer: str, state: str, words: str) -> None:
    routes = with_plugin(stock(enable_eplb=enabled))
    told = health(balancer=balancer)
    routes[("GET", "/moeplan/health")] = answer(told.to_json())
    diagnosis, _ = diagnosed(routes)
    check = next(check for check in diagnosis.checks if check.name == "balancer")
    assert check.state == state
    assert words in check.detail
    assert ("MOEPLAN_PLUGIN_EPLB=1" in check.remedy) == (balancer == "sglang")


def test_a_model_without_expert_location_is_not_told_to_dispatch() -> None:
    """SGLang 0.5.23 asserts expert location at the first request when a dispatch algorithm is set."""
    for dispatch, state, told in ((None, "works", ""), ("dynamic", "missing", "without --ep-dispatch-algorithm")):
        routes = stock(architectures=("MixtralForCausalLM",), ep_dispatch_algorithm=dispatch)
        diagnosis, _ = diagnosed(routes)
        assert states(diagnosis)["dispatch"] == state
        assert remedy(diagnosis, "dispatch") == told


def test_dumps_of_an_overlapping_engine_are_said_to_hold_more() -> None:
    for overlaps in (True, False):
        diagnosis, _ = diagnosed(stock(disable_overlap_schedule=not overlaps))
        check = next(check for check in diagnosis.checks if check.name == "capture_dumps")
        assert ("UNUSED_TOKENS_COUNTED" in check.detail) == overlaps


def test_a_balancer_without_the_plugin_is_sglangs_own() -> None:
    assert states(diagnosed(stock(enable_eplb=True))[0])["balancer"] == "limited"
    assert states(diagnosed(stock())[0])["balancer"] == "works"


# ------------------------------------------------------------------ the layout that shall run

RUNNING = Layout(MAP_LP, gpus=2, experts=3)
OTHER = Layout(MAP_LP[:, ::-1], gpus=2, experts=3)


def layout_check(routes: Routes, layout: Layout) -> tuple[Diagnosis, Check]:
    with engine_that_answers(routes) as (url, _):
        diagnosis = examine(url, layout=lambda ep_size: layout)
    return diagnosis, diagnosis.checks[-1]


def test_a_layout_that_runs_on_every_rank_is_confirmed() -> None:
    diagnosis, check = layout_check(with_plugin(stock()), RUNNING)
    assert (check.name, check.state, diagnosis.ready) == ("layout", "works", True)


def test_case_u13_a_layout_that_was_ignored_is_not_said_to_run() -> None:
    """The engine was started with a file and runs another layout, or cannot be read: only what is read back counts."""
    code = case("U13")["expect"]["error_code"]
    diagnosis, check = layout_check(with_plugin(stock(init_expert_location="/layout.json")), OTHER)
    assert (check.state, check.detail.partition(":")[0], diagnosis.ready) == ("missing", code, False)
    diagnosis, check = layout_check(stock(init_expert_location="/layout.json"), RUNNING)
    assert (check.state, diagnosis.ready) == ("unknown", False)
    assert "LAYOUT_NOT_VERIFIED" in check.detail
    routes = {("GET", "/health"): answer({}), ("GET", "/server_info"): answer(case_json("U13", "server_info.json"))}
    with pytest.raises(NotAnEngine):
        layout_check(routes, RUNNING)


def test_ranks_that_disagree_do_not_run_the_layout() -> None:
    routes = with_plugin(stock())
    split = placement(rank_hashes=(RUNNING.hash, "0" * 64))
    routes[("GET", "/moeplan/placement")] = answer(split.to_json())
    assert layout_check(routes, RUNNING)[1].state == "missing"


@pytest.mark.parametrize("bad", ["two", -1, 1.5, True])
def test_arguments_of_another_type_end_in_a_sentence(bad: Any) -> None:
    with pytest.raises(EngineAnswerInvalid, match=r"server_info\.tp_size"):
        diagnosed(stock(tp_size=bad))


def test_nobody_listens() -> None:
    with engine_that_answers({}) as (url, _):
        pass
    with pytest.raises(EngineUnreachable):
        examine(url)
