"""Write the golden dispatch tables: what SGLang's own functions choose for a handful of layouts.

Give it the folders of unpacked SGLang wheels (``pip download --no-deps sglang==0.5.23``, then ``unzip``)::

    python tests/placement/dispatch/make_golden_tables.py UNPACKED_0_5_16 UNPACKED_0_5_23

It loads the engine's ``expert_location.py`` and ``expert_location_dispatch.py`` and nothing else of the engine: what
they import is replaced by the few settings they ask for. It refuses to write when the wheels disagree. Needs torch.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

GOLDEN_FILE = Path(__file__).parent / "golden_tables.json"
DRAWS = 1024

Map = list[list[int]]


def main(folders: list[str]) -> None:
    if not folders:
        raise SystemExit("give at least one folder with an unpacked SGLang wheel")
    engines = [Engine(Path(folder)) for folder in folders]
    cases = []
    for setup in setups():
        tables = [engine.tables(setup) for engine in engines]
        for engine, other in zip(engines[1:], tables[1:], strict=True):
            if other != tables[0]:
                raise SystemExit(f"{setup['name']}: {engine.version} differs from {engines[0].version}")
        cases.append({**setup, **tables[0]})
        # The engines differ without an all-to-all backend: keep what each does, by its version.
        cases[-1]["without_all_to_all"] = {engine.version: engine.candidates(setup, "none") for engine in engines}
    drop_equal_tables(cases)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    versions = json.dumps([engine.version for engine in engines])
    GOLDEN_FILE.write_text(f'{{"sglang": {versions}, "cases": [\n{lines}\n]}}\n')
    print(f"wrote {GOLDEN_FILE.name}: {len(cases)} layouts, {GOLDEN_FILE.stat().st_size} bytes")


def drop_equal_tables(cases: list[dict[str, Any]]) -> None:
    """Say ``collapsed`` or ``all slots`` without an all-to-all backend instead of repeating a table."""
    for case in cases:
        every_slot = [[slots_of(layer, case["experts"]) for layer in case["map"]]] * case["gpus"]
        names = {json.dumps(case["candidates"]): "collapsed", json.dumps(every_slot): "all slots"}
        case["without_all_to_all"] = {
            version: names[json.dumps(candidates)] for version, candidates in case["without_all_to_all"].items()
        }


def slots_of(layer: list[int], experts: int) -> list[list[int]]:
    return [[slot for slot, held in enumerate(layer) if held == expert] for expert in range(experts)]


# ---------------------------------------------------------------------------------------------------- layouts


def setups() -> Iterator[dict[str, Any]]:
    """Yield layouts: usual sizes, few experts with many replicas, repeats on one GPU, many slots of one expert."""
    generator = random.Random(20261129)
    for nodes in (1, 2, 4):
        usual = [any_slots(generator, experts=64, slots=96) for _ in range(3)]
        yield setup(f"8 x 12 slots, {nodes} nodes", usual, experts=64, gpus=8, nodes=nodes)
        many = [any_slots(generator, experts=4, slots=24) for _ in range(5)]
        yield setup(f"4 experts on 8 x 3 slots, {nodes} nodes", many, experts=4, gpus=8, nodes=nodes)
        wide = [any_slots(generator, experts=32, slots=48) for _ in range(3)]
        yield setup(f"16 x 3 slots, {nodes} nodes", wide, experts=32, gpus=16, nodes=nodes)
    for nodes in (1, 2):
        wrapped = [[slot % 3 for slot in range(16)]] * 4
        yield setup(f"trivial wrap repeats experts on a GPU, {nodes} nodes", wrapped, experts=3, gpus=4, nodes=nodes)
        pair = [[0, 0, 1, 2, 3, 1, 2, 3], [1, 2, 0, 0, 3, 3, 1, 2], [0, 1, 2, 3, 0, 0, 1, 2]]
        yield setup(f"both slots on one GPU, {nodes} nodes", pair, experts=4, gpus=4, nodes=nodes)
    # 23 slots for 3 ranks without one: here the sample takes its other branch, which draws without a pool.
    crowd = [generator.sample([0] * 23 + [1, 2, 3], k=26) for _ in range(4)]
    yield setup("23 slots of one expert", crowd, experts=4, gpus=26, nodes=1)


def setup(name: str, physical_to_logical: Map, *, experts: int, gpus: int, nodes: int) -> dict[str, Any]:
    return {"name": name, "experts": experts, "gpus": gpus, "nodes": nodes, "map": physical_to_logical}


def any_slots(generator: random.Random, *, experts: int, slots: int) -> list[int]:
    """Return every expert once and others at will, in any order: repeats on a GPU happen."""
    layer = list(range(experts)) + generator.choices(range(experts), k=slots - experts)
    generator.shuffle(layer)
    return layer


# ---------------------------------------------------------------------------------------------------- engine


class Engine:
    """The two modules of one wheel, asked as an engine's ranks ask them."""

    def __init__(self, folder: Path) -> None:
        self.version = next(folder.glob("sglang-*.dist-info")).name.removeprefix("sglang-").removesuffix(".dist-info")
        self.files = folder / "sglang" / "srt" / "eplb"

    def tables(self, setup: dict[str, Any]) -> dict[str, Any]:
        """Return ``candidates`` and ``static`` as nested lists [rank][layer][expert]."""
        return {"candidates": self.candidates(setup, "deepep"), "static": self.static(setup)}

    def candidates(self, setup: dict[str, Any], all_to_all: str) -> list[list[list[list[int]]]]:
        """Return the slots among which dynamic dispatch draws, after checking that it draws among all of them."""
        by_rank = []
        for rank in range(setup["gpus"]):
            with self.rank(setup, rank, algorithm="dynamic", all_to_all=all_to_all) as (location, dispatch):
                lists = [
                    [[slot for slot in slots if slot != -1] for slots in layer]
                    for layer in location.logical_to_all_physical_map.tolist()
                ]
                for layer, slots_of_expert in enumerate(lists):
                    tokens = torch.arange(setup["experts"]).repeat(DRAWS, 1)
                    drawn = dispatch.topk_ids_logical_to_physical(
                        tokens, dispatch.ExpertLocationDispatchInfo.init_new(layer)
                    )
                    seen = [sorted(set(column)) for column in drawn.T.tolist()]
                    if seen != slots_of_expert:
                        raise SystemExit(f"{setup['name']}: rank {rank} draws among other slots than its map lists")
            by_rank.append(lists)
        return by_rank

    def static(self, setup: dict[str, Any]) -> list[Map]:
        """Return the slot that every rank's static dispatch gives to every expert."""
        by_rank = []
        for rank in range(setup["gpus"]):
            with self.rank(setup, rank, algorithm="static", all_to_all="deepep") as (location, dispatch):
                by_rank.append(
                    [
                        dispatch.topk_ids_logical_to_physical(
                            torch.arange(setup["experts"]), dispatch.ExpertLocationDispatchInfo.init_new(layer)
                        ).tolist()
                        for layer in range(location.num_layers)
                    ]
                )
        return by_rank

    @contextmanager
    def rank(
        self, setup: dict[str, Any], rank: int, *, algorithm: str, all_to_all: str
    ) -> Iterator[tuple[Any, ModuleType]]:
        """Load the modules for one rank's settings; yield its expert locations and the dispatch module."""
        settings = SimpleNamespace(
            device="cpu",
            ep_size=setup["gpus"],
            nnodes=setup["nodes"],
            ep_num_redundant_experts=len(setup["map"][0]) - setup["experts"],
            ep_dispatch_algorithm=algorithm,
            moe_a2a_backend=all_to_all,
            ep_join_mode=None,
            elastic_ep_initial_size=None,
        )
        stubs = stub_modules(settings)
        sys.modules.update(stubs)
        try:
            locations = self.load("expert_location")
            stubs["sglang.srt.model_loader"].get_model_architecture = lambda _: (model_class(locations, setup), "")
            dispatch = self.load("expert_location_dispatch")
            make = locations.ExpertLocationMetadata.init_by_mapping
            leading = (settings,) if "server_args" in inspect.signature(make).parameters else ()
            model = SimpleNamespace(hf_config=None)
            location = make(*leading, model, physical_to_logical_map=setup["map"], moe_ep_rank=rank)
            dispatch.get_global_expert_location_metadata = lambda: location
            yield location, dispatch
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
                del sys.modules[name]

    def load(self, name: str) -> ModuleType:
        full_name = f"sglang.srt.eplb.{name}"
        spec = importlib.util.spec_from_file_location(full_name, self.files / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
        return module


def stub_modules(settings: SimpleNamespace) -> dict[str, ModuleType]:
    """Return stand-ins for what the two files import, made of the settings they read."""
    names = ["sglang", "sglang.srt", "sglang.srt.eplb", "sglang.srt.elastic_ep", "sglang.srt.elastic_ep.elastic_ep"]
    stubs = {name: ModuleType(name) for name in [*names, "sglang.srt.model_loader", "sglang.srt.runtime_context"]}
    for name in names[:4]:
        stubs[name].__path__ = []
    stubs["sglang.srt.elastic_ep.elastic_ep"].elastic_expanded_world_enabled = lambda: False
    context = stubs["sglang.srt.runtime_context"]
    context.get_server_args = context.get_parallel = context.get_device = lambda: settings
    context.get_exec = lambda: SimpleNamespace(moe=settings)
    context.get_resources = lambda: SimpleNamespace()
    return stubs


def model_class(locations: ModuleType, setup: dict[str, Any]) -> type:
    shape = locations.ModelConfigForExpertLocation(num_layers=len(setup["map"]), num_logical_experts=setup["experts"])
    return type("Model", (), {"get_model_config_for_expert_location": staticmethod(lambda _: shape)})


if __name__ == "__main__":
    main(sys.argv[1:])
