"""Hooks are found in place or reported missing, and the backport stays out of the way where it must."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from profiler.plugin import hooks
from profiler.plugin.hooks import DEMAND_VARIABLE, EnginePlugin, Hook, is_in_place
from profiler.plugin.versions import EngineVersion


def hooked(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap as SGLang's hook registry does."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return wrapper


def target(number: int) -> int:
    return number + 1


def ours(original: Callable[[int], int], number: int) -> int:
    return original(number) * 10


def theirs(original: Callable[[int], int], number: int) -> int:
    return original(number)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    fake = types.ModuleType("fake_engine")
    monkeypatch.setitem(sys.modules, "fake_engine", fake)
    return fake


def test_hook_is_found_below_other_plugins_hooks(module: types.ModuleType) -> None:
    module.target = hooked(hooked(target, ours), theirs)  # type: ignore[attr-defined]
    assert is_in_place(Hook("fake_engine.target", "AROUND", ours, ()))


def test_hook_that_was_not_applied_is_missing(module: types.ModuleType) -> None:
    module.target = hooked(target, theirs)  # type: ignore[attr-defined]
    assert not is_in_place(Hook("fake_engine.target", "AROUND", ours, ()))


@pytest.mark.parametrize("path", ["fake_engine.gone", "no_such_engine.target"])
def test_target_that_is_gone_is_missing(module: types.ModuleType, path: str) -> None:
    assert not is_in_place(Hook(path, "AROUND", ours, ()))


def targets(monkeypatch: pytest.MonkeyPatch, version: str, *, demand: str) -> set[str]:
    monkeypatch.setattr(hooks, "installed_engine", lambda: EngineVersion.parse(version))
    monkeypatch.setenv(DEMAND_VARIABLE, demand)
    plugin = EnginePlugin()
    assert ("demand" in plugin.missing()) is True, "nothing is hooked in this process"
    return {hook.target.removeprefix("sglang.srt.") for hook in plugin.hooks}


def test_only_the_version_that_needs_it_gets_the_backport(monkeypatch: pytest.MonkeyPatch) -> None:
    newest, oldest = (targets(monkeypatch, version, demand="1") for version in ("0.5.23", "0.5.16"))
    assert newest < oldest
    assert {target.partition(".")[0] for target in oldest - newest} == {"layers", "eplb", "model_executor"}
    assert targets(monkeypatch, "0.5.17", demand="1") == newest, "never tested there, so never installed there"


def test_demand_can_be_left_out_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with_demand, without = (targets(monkeypatch, "0.5.23", demand=value) for value in ("1", "0"))
    assert with_demand - without == {
        "managers.scheduler.Scheduler.run_batch",
        "managers.scheduler.Scheduler.process_batch_result",
        "model_executor.model_runner.ModelRunner.forward",
        "layers.moe.topk.capture_routed_experts_if_allowed",
    }
