"""What is refused before a push, found by reading the engine."""

from __future__ import annotations

import pytest

from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract import Ability
from profiler.engine.preflight import check_dispatch, preflight
from profiler.errors import (
    DispatchCombo,
    DispatchNotSet,
    EngineBusy,
    EngineRebalances,
    EngineShapeUnsupported,
    EngineUnreachable,
    EngineVersionUntested,
    ModelWithoutExpertLocation,
    NotEnoughMemory,
    PluginMissing,
    PostPushCheckFailed,
    ScalesLeftBehind,
)
from profiler.json_file import read_json
from tests.case_files import case, case_folder
from tests.profiler.engine.messages import MAP_LP, health, placement
from tests.profiler.engine.servers import answer, engine_that_answers, healthy_routes

LAYOUT = Layout(MAP_LP, gpus=2, experts=3)


def preflight_of(routes: dict, **changes: object):
    with engine_that_answers({**healthy_routes(**changes), **routes}) as (url, told), EngineClient(url) as client:
        found = preflight(client, LAYOUT)
    assert ("PUT", "/moeplan/placement") not in told.requests
    return found


def with_health(**changes: object) -> dict:
    return {("GET", "/moeplan/health"): answer(health(**changes).to_json())}


def abilities(**reasons: str) -> dict[str, Ability]:
    broken = {name: Ability(works=False, reason=reason) for name, reason in reasons.items()}
    return {**health().abilities, **broken}


def test_an_engine_that_can_run_the_layout_passes():
    found = preflight_of({})
    assert found.placement.checksums is not None
    assert [notice.code for notice in found.notices] == ["ENGINE_UNPROTECTED"]


@pytest.mark.parametrize(
    ("routes", "error", "words"),
    [
        ({("GET", "/health"): answer({}, status=503)}, EngineUnreachable, "does not serve"),
        ({("GET", "/moeplan/health"): answer({}, status=404)}, PluginMissing, "log"),
        (with_health(abilities=abilities(push="no hook")), PluginMissing, "cannot do push: no hook"),
        (with_health(abilities=abilities(placement="x")), PluginMissing, "cannot do placement: x"),
        (with_health(ranks=(0,)), PluginMissing, "1 of 2 ranks"),
    ],
)
def test_an_engine_that_cannot_is_named(routes, error, words):
    with pytest.raises(error, match=words):
        preflight_of(routes)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"push_in_progress": True}, EngineBusy, "another push"),
        ({"rank_hashes": ("0" * 64, placement().layout_hash)}, PostPushCheckFailed, r"ranks \[0\] run another"),
        ({"rank_hashes": (placement().layout_hash,)}, PostPushCheckFailed, "1 of 2 ranks"),
        ({"dispatch": None}, DispatchNotSet, "--ep-dispatch-algorithm dynamic"),
        ({"dispatch": "static", "a2a_backend": "none"}, DispatchCombo, "1 redundant"),
    ],
)
def test_an_engine_that_would_answer_wrongly_is_left_alone(changes, error, words):
    with pytest.raises(error, match=words):
        preflight_of({}, **changes)


def test_an_engine_without_checksums_is_pushed_with_a_warning():
    found = preflight_of(with_health(abilities=abilities(checksums="float8")), checksums=None)
    assert "WEIGHTS_UNCHECKED" in [notice.code for notice in found.notices]


# ------------------------------------------------------------------ case U11 and its kind


def test_static_dispatch_without_an_all_to_all_backend_is_refused():
    found, info = case("U11"), read_json(case_folder("U11") / "server_info.json")
    engine = placement(
        dispatch=info["ep_dispatch_algorithm"],
        a2a_backend=info["moe_a2a_backend"],
        slots=placement().experts + info["ep_num_redundant_experts"],
        ep_size=info["ep_size"],
    )
    with pytest.raises(DispatchCombo, match="start it with --ep-dispatch-algorithm dynamic") as caught:
        check_dispatch(engine)
    assert caught.value.code == found["expect"]["error_code"]


@pytest.mark.parametrize(
    ("dispatch", "a2a_backend", "slots", "refused"),
    [
        ("static", "none", 4, True),
        ("lp", "none", 4, True),
        ("dynamic", "none", 4, False),
        ("static", "deepep", 4, False),
        ("lp", "deepep", 4, False),
        ("static", "none", 3, False),
    ],
)
def test_it_is_wrong_only_with_replicas_and_a_pick_of_each_ranks_own(dispatch, a2a_backend, slots, refused):
    engine = placement(dispatch=dispatch, a2a_backend=a2a_backend, slots=slots)
    if refused:
        with pytest.raises(DispatchCombo):
            check_dispatch(engine)
    else:
        check_dispatch(engine)


# ------------------------------------------------------------------ what the plugin says it cannot do, by its code


MIXTRAL = "MODEL_WITHOUT_EXPERT_LOCATION: MixtralForCausalLM has no expert location in SGLang."
SCALES = "SCALES_LEFT_BEHIND: SGLang would move layer 1 without w13_weight_scale_inv."
MEMORY = "NOT_ENOUGH_MEMORY: receiving one layer takes 300 MiB and 10 MiB are free."
VERSION = "ENGINE_VERSION_UNTESTED: SGLang 0.9 was never tested."
PIPELINE = "ENGINE_SHAPE_UNSUPPORTED: pipeline parallelism is not supported."
EPLB = "ENGINE_REBALANCES: its own balancer would overwrite a pushed layout."
NO_DISPATCH = "DISPATCH_NOT_SET: it takes expert ids for slots."
LP_DISPATCH = "DISPATCH_COMBO: lp does not follow a layout."
HOOK = "HOOK_MISSING: the hook is not in place."


@pytest.mark.parametrize(
    ("ability", "reason", "error", "still_works"),
    [
        ("placement", MIXTRAL, ModelWithoutExpertLocation, "moeplan sample"),
        ("push", SCALES, ScalesLeftBehind, "--print-restart"),
        ("push", MEMORY, NotEnoughMemory, "--print-restart"),
        ("push", VERSION, EngineVersionUntested, "--print-restart"),
        ("push", PIPELINE, EngineShapeUnsupported, "--print-restart"),
        ("push", EPLB, EngineRebalances, "--enable-eplb"),
        ("push", NO_DISPATCH, DispatchNotSet, "--ep-dispatch-algorithm dynamic"),
        ("push", LP_DISPATCH, DispatchCombo, "--ep-dispatch-algorithm dynamic"),
        ("push", HOOK, PluginMissing, ""),
    ],
)
def test_what_the_plugin_cannot_do_has_the_error_of_its_code(ability, reason, error, still_works):
    with pytest.raises(error) as caught:
        preflight_of(with_health(abilities=abilities(**{ability: reason})))
    assert type(caught.value) is error
    assert reason.partition(": ")[2].rstrip(".") in caught.value.detail
    assert still_works in "".join(caught.value.remedies)
    assert caught.value.detail.endswith(".")


@pytest.mark.parametrize(("free_bytes", "refused"), [(None, False), (2000, False), (1999, True), (0, True)])
def test_receiving_a_layer_needs_room_for_it(free_bytes, refused):
    # 2 slots of 1000 bytes on each GPU
    if not refused:
        assert preflight_of({}, free_bytes=free_bytes).placement.free_bytes == free_bytes
        return
    with pytest.raises(NotEnoughMemory, match="--mem-fraction-static"):
        preflight_of({}, free_bytes=free_bytes)
