"""What a push needs of an engine, rule by rule: refused with the flag to change, or let through."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.plugin import abilities
from profiler.plugin.orders import OrderRefused
from profiler.plugin.rank_view import RankView
from profiler.plugin.versions import EngineVersion
from tests.case_files import case, case_folder
from tests.profiler.plugin.views import PLAIN, dp_attention

NEWEST = EngineVersion.parse("0.5.23")


@pytest.fixture(autouse=True)
def _replicas_are_chosen_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "_chooses_replicas_alike", lambda version: version.release != (0, 5, 17))


def dispatch_code(view: RankView, version: EngineVersion = NEWEST) -> str:
    try:
        abilities._check_dispatch(view, version)
    except OrderRefused as refusal:
        return refusal.code
    return ""


@pytest.mark.parametrize(
    ("a2a_backend", "dispatch", "code"),
    [
        ("none", "dynamic", ""),
        ("none", "static", "DISPATCH_COMBO"),
        ("none", "lp", "DISPATCH_COMBO"),
        ("none", None, "DISPATCH_NOT_SET"),
        ("deepep", "dynamic", ""),
        ("deepep", "static", ""),
        ("deepep", "fake", "DISPATCH_COMBO"),
        ("deepep", None, "DISPATCH_NOT_SET"),
    ],
)
def test_dispatch(a2a_backend: str, dispatch: str | None, code: str) -> None:
    assert dispatch_code(replace(PLAIN, a2a_backend=a2a_backend, dispatch=dispatch)) == code


def test_case_of_redundant_experts_with_static_dispatch() -> None:
    server_info = json.loads((case_folder("U11") / "server_info.json").read_text())
    view = replace(PLAIN, a2a_backend=server_info["moe_a2a_backend"], dispatch=server_info["ep_dispatch_algorithm"])
    assert dispatch_code(view) == case("U11")["expect"]["error_code"]


def test_version_that_chooses_replicas_per_rank_needs_an_all_to_all_backend() -> None:
    version = EngineVersion.parse("0.5.17")
    assert dispatch_code(PLAIN, version) == "ENGINE_VERSION_UNTESTED"
    assert dispatch_code(dp_attention(0, ranks=2, a2a_backend="deepep"), version) == ""


def server_args(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"dp_size": 1, "elastic_ep_backend": None, "enable_eplb": False, **changes})


@pytest.mark.parametrize(
    ("changes", "view", "code"),
    [
        ({}, PLAIN, ""),
        ({"dp_size": 2}, dp_attention(0, ranks=2), ""),
        ({"dp_size": 2}, PLAIN, "ENGINE_SHAPE_UNSUPPORTED"),
        ({}, replace(PLAIN, pp_size=2), "ENGINE_SHAPE_UNSUPPORTED"),
        ({}, replace(PLAIN, ep_size=1), "ENGINE_SHAPE_UNSUPPORTED"),
        ({"elastic_ep_backend": "mooncake"}, PLAIN, "ENGINE_SHAPE_UNSUPPORTED"),
        ({"enable_eplb": True}, PLAIN, "ENGINE_REBALANCES"),
    ],
)
def test_shape(changes: dict[str, Any], view: RankView, code: str) -> None:
    found = ""
    try:
        abilities._check_shape(server_args(**changes), view)
    except OrderRefused as refusal:
        found = refusal.code
    assert found == code


def test_probe_that_fails_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise AttributeError("moved")

    monkeypatch.setattr(abilities, "location_metadata", broken)
    found = abilities.rank_abilities(None, server_args(), PLAIN, version=NEWEST, missing_hooks={"demand": "no hook"})
    assert {name: ability.works for name, ability in found.items()} == dict.fromkeys(found, False)
    assert found["push"].reason == "PROBE_FAILED: AttributeError: moved"
    assert found["demand"].reason == "HOOK_MISSING: no hook"


def test_model_without_expert_location_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class MixtralForCausalLM: ...

    monkeypatch.setattr(abilities, "location_metadata", lambda: None)
    runner = SimpleNamespace(model=MixtralForCausalLM())
    found = abilities.rank_abilities(runner, server_args(), PLAIN, version=NEWEST, missing_hooks={})
    assert found["push"].reason.startswith("MODEL_WITHOUT_EXPERT_LOCATION: MixtralForCausalLM")


@pytest.mark.parametrize(("free", "refused"), [(3 * 10 - 1, True), (3 * 10, False), (None, False)])
def test_memory_for_one_layer(monkeypatch: pytest.MonkeyPatch, free: int | None, refused: bool) -> None:
    monkeypatch.setattr(abilities, "free_bytes", lambda: free)
    monkeypatch.setattr(abilities, "moe_layers", lambda _model: (1,))
    module = SimpleNamespace(num_local_experts=3)
    monkeypatch.setattr(abilities.checksums, "expert_modules", lambda _model: {1: module})
    monkeypatch.setattr(abilities.checksums, "bytes_per_expert", lambda _module: 10)
    runner = SimpleNamespace(model=None)
    if refused:
        with pytest.raises(OrderRefused) as caught:
            abilities._check_memory(runner)
        assert caught.value.code == "NOT_ENOUGH_MEMORY"
    else:
        abilities._check_memory(runner)


def test_scales_that_stay_behind_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "moe_layers", lambda _model: (1,))
    monkeypatch.setattr(abilities, "weights_of_layers", lambda _model: {1: []})
    monkeypatch.setattr(abilities.checksums, "expert_modules", lambda _model: {1: None, 5: None})
    monkeypatch.setattr(abilities.checksums, "unmoved_tensors", lambda _module, _moved: ("w13_scale",))
    with pytest.raises(OrderRefused, match="layer 1 without w13_scale") as caught:
        abilities._check_tensors(SimpleNamespace(model=None))
    assert caught.value.code == "SCALES_LEFT_BEHIND"
