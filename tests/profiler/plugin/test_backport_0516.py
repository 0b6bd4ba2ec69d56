"""Routers of SGLang 0.5.16 that do not know their layer are told it; all others are left alone."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from torch import nn

from profiler.plugin.backport_0516 import number_routers


class Router(nn.Module):
    def __init__(self, layer_id: int | None) -> None:
        super().__init__()
        self.layer_id = layer_id


class Experts(nn.Module):
    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id = layer_id


class Block(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the engine's names that hold these classes."""
    for path, name, found in (("fused_moe_triton.layer", "FusedMoE", Experts), ("topk", "TopK", Router)):
        module: Any = types.ModuleType(path)
        setattr(module, name, found)
        monkeypatch.setitem(sys.modules, f"sglang.srt.layers.moe.{path}", module)
    for parent in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.moe",
                   "sglang.srt.layers.moe.fused_moe_triton"):  # fmt: skip
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))


def loaded(*blocks: nn.Module) -> list[int | None]:
    """Load a model of these blocks; return its routers' layers."""
    runner: Any = types.SimpleNamespace(model=None)

    def load_model(runner: Any) -> str:
        runner.model = nn.Sequential(*blocks)
        return "loaded"

    assert number_routers(load_model, runner) == "loaded"
    return [part.layer_id for part in runner.model.modules() if type(part) is Router]


def test_a_router_gets_the_layer_of_the_experts_beside_it() -> None:
    blocks = [Block(topk=Router(None), experts=Experts(layer)) for layer in (3, 7)]
    assert loaded(*blocks) == [3, 7]


def test_a_router_that_knows_its_layer_keeps_it() -> None:
    assert loaded(Block(topk=Router(2), experts=Experts(5))) == [2]


@pytest.mark.parametrize(
    "block",
    [
        Block(topk=Router(None), gate=nn.Linear(2, 2)),
        Block(text=Router(None), vision=Router(None), experts=Experts(1)),
        Block(topk=Router(None), text=Experts(1), vision=Experts(1)),
    ],
    ids=["no experts", "two routers", "two groups of experts"],
)
def test_where_it_is_not_plain_which_layer_it_is_nothing_is_told(block: nn.Module) -> None:
    assert set(loaded(block)) == {None}
