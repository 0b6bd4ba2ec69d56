"""All stages of a grid on an engine made of numpy: it routes by token and dispatches to the nearest slot."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from placement.layout import Layout
from tests.gpu import grid as grid_module
from tests.gpu.checkpoints import CHECKPOINTS
from tests.gpu.grid import Grid
from tests.gpu.grid_cases import SCALES, random_cases, random_model
from tests.gpu.machine import Machine
from tests.gpu.plans import MadePlan, WantedPlan
from tests.gpu.results import Results, run_stages
from tests.gpu.server import EngineNotUp, EngineSetup
from tests.gpu.tables import grid_table

GPUS = 2
SCALE = SCALES[GPUS]
MODEL = CHECKPOINTS[SCALE.checkpoint]
SECONDS = {"row": 2e-6, "copy": 5e-6, "fixed": 1e-3, "outside": 4e-3}


class NumpyEngine:
    """Answers like an engine with moeplan's plugin and the probe."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup, self.url, self.sources, self.start_s = setup, setup.name, GPUS, 1.0
        self.requests = self.failed = 0
        self.failures: list[str] = []
        slots = MODEL.experts + setup.redundant
        row = [*range(MODEL.experts), *range(setup.redundant)]
        self.layout = Layout(np.array([row[:slots]] * MODEL.layers), gpus=GPUS, experts=MODEL.experts)
        draw = np.random.default_rng(5)
        self._experts_VLK = np.array(
            [
                [draw.choice(MODEL.experts // 2, MODEL.top_k, replace=False) * 2 + token // 256 for _ in range(3)]
                for token in range(MODEL.vocabulary)
            ],
            dtype=np.int32,
        )
        self._draw = draw
        self._seen: list[list[tuple[int, np.ndarray]]] = []

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._probe(body) if path == "/probe" else self._generate(body)

    def _generate(self, body: dict[str, Any]) -> Any:
        if body.get("return_routed_experts"):
            experts = self._experts_VLK[np.array(body["input_ids"])]
            routed = base64.b64encode(experts.astype("<i4").tobytes()).decode()
            return {"output_ids": [1], "meta_info": {"routed_experts": routed}}
        prompts = body["input_ids"]
        self._seen.append([(body["routed_dp_rank"], self._experts_VLK[np.concatenate(prompts)])])
        return [{"output_ids": [1]} for _ in prompts]

    def _probe(self, body: dict[str, Any]) -> Any:
        if body:
            self._seen.clear()
            return {}
        by_gpu = {gpu: [part for seen in self._seen for home, part in seen if home == gpu] for gpu in range(GPUS)}
        sends = len(by_gpu[0])
        ranks = [{"rank": gpu, "steps": [], "layers": self._counts(gpu, by_gpu)} for gpu in range(GPUS)]
        for send in range(sends):
            loads = [self._counts(gpu, {home: [parts[send]] for home, parts in by_gpu.items()}) for gpu in range(GPUS)]
            slots_L = np.sum([[layer["slots"] for layer in each] for each in loads], axis=0)
            rows_LG = slots_L.reshape(MODEL.layers, GPUS, -1).sum(axis=2)
            copies_L = np.max([[layer["copies"] for layer in each] for each in loads], axis=0)
            experts_LG = 1e3 * SECONDS["row"] * rows_LG
            moving_L = 1e3 * (SECONDS["fixed"] + SECONDS["copy"] * copies_L)
            step_ms = 1e3 * SECONDS["outside"] + float((experts_LG.max(axis=1) + moving_L).sum())
            for gpu, rank in enumerate(ranks):
                waits_L = experts_LG.max(axis=1) - experts_LG[:, gpu]
                parts = {
                    "dispatch_ms": moving_L / 2,
                    "experts_ms": experts_LG[:, gpu],
                    "combine_ms": moving_L / 2 + waits_L,
                }
                tokens = SCALE.step_tokens
                whole = {"phase": "prefill", "tokens": tokens, "step_ms": step_ms}
                rank["steps"].append(whole | {name: values.tolist() for name, values in parts.items()})
        self._seen.clear()
        return {"ranks": ranks}

    def _counts(self, gpu: int, by_gpu: dict[int, list[np.ndarray]]) -> list[dict[str, Any]]:
        """Count the pairs of the tokens that live on a GPU: own replica first, else any."""
        layers = []
        per_gpu = self.layout.slot_to_expert_LP.shape[1] // GPUS
        for layer, slots in enumerate(self.layout.slot_to_expert_LP.tolist()):
            counts, own, copies, tokens = np.zeros(len(slots), dtype=int), 0, 0, 0
            for part in by_gpu[gpu]:
                for experts in part[:, layer]:
                    goes = set()
                    for expert in experts:
                        hosts = [slot for slot, held in enumerate(slots) if held == expert]
                        near = [slot for slot in hosts if slot // per_gpu == gpu]
                        slot = near[0] if near else int(self._draw.choice(hosts))
                        counts[slot] += 1
                        goes.add(slot // per_gpu)
                        own += slot // per_gpu == gpu
                    copies += len(goes - {gpu})
                    tokens += 1
            layers.append({"slots": counts.tolist(), "tokens": tokens, "own_pairs": int(own), "copies": copies})
        return layers


class NumpyClient:
    def __init__(self, engine: NumpyEngine) -> None:
        self._engine = engine

    def placement(self) -> Any:
        layout = self._engine.layout
        return SimpleNamespace(
            layout_hash=layout.hash,
            ep_size=GPUS,
            slots=layout.slot_to_expert_LP.shape[1],
            experts=layout.experts,
            map_LP=layout.slot_to_expert_LP,
        )

    def put_placement(self, request: Any) -> Any:
        self._engine.layout = Layout(request.map_LP, gpus=GPUS, experts=MODEL.experts)
        chunk = SimpleNamespace(seconds=0.01, changed_slots=1, moved_slots=1, changed_bytes=1, moved_bytes=1)
        return SimpleNamespace(status="applied", layout_hash=self._engine.layout.hash, error="", chunks=[chunk])


class NumpyPool:
    """Starts engines of numpy, except those named."""

    def __init__(self, *, broken: str = "") -> None:
        self.engines: dict[str, NumpyEngine] = {}
        self.stopped: list[str] = []
        self._broken = broken

    def get(self, setup: EngineSetup) -> NumpyEngine:
        if setup.name == self._broken:
            raise EngineNotUp(f"engine {setup.name} ended")
        return self.engines.setdefault(setup.name, NumpyEngine(setup))

    def stop(self, name: str) -> None:
        self.stopped.append(name)


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: NumpyPool, *, budget_s: float = 1e9) -> Results:
    @contextmanager
    def client(url: str) -> Iterator[NumpyClient]:
        yield NumpyClient(pool.engines[url])

    def plans(_machine: Machine, wanted: list[WantedPlan], **_options: object) -> list[MadePlan]:
        return [MadePlan(plan, None, {}, "no such objective") for plan in wanted]

    monkeypatch.setattr(grid_module, "EngineClient", client)
    monkeypatch.setattr(grid_module, "make_plans", plans)
    machine = Machine("cpu", GPUS, tmp_path, "python", (), ())
    results = Results(tmp_path, budget_s)
    model = random_model(SCALE.checkpoint, tmp_path)
    setups = [EngineSetup(f"slots-{16 + more}", model.folder, more, True, True) for more in SCALE.redundant]
    cases = random_cases(SCALE, gpus=GPUS)
    grid = Grid(
        machine,
        SCALE,
        results,
        pool,
        name="",
        model=model,
        cases=cases,
        setups=setups,
        timed=True,  # type: ignore[arg-type]
    )
    stages = grid.stages()
    names = [name for name, _ in stages]
    run_stages(stages, results, wanted=names, table=lambda found: grid_table(found, gpus=GPUS))
    return results


def test_every_layout_is_predicted_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = NumpyPool()
    results = _run(tmp_path, monkeypatch, pool)
    assert results.failed_stages == []
    assert pool.stopped == ["slots-20", "slots-16"]
    counts = results.of("layout counts")
    assert len(counts) == 2 * 2 * 4  # engines, cases, layouts
    exact = [one for one in counts if one["engine"] == "slots-16"]  # one slot each: nothing is left to chance
    for figure in ("imbalance", "local_gpu", "copies_per_token"):
        assert all(one[figure]["predicted"] == one[figure]["counted"] for one in exact)
    assert {one["name"] for one in results.of("profile")} == {"calibrated-all-to-all"}
    steps = [one for one in results.of("layout step") if one["engine"] == "slots-16"]
    assert len(steps) == 8
    assert max(abs(one["relative_error"]) for one in steps) < 0.02
    table = (tmp_path / "table.md").read_text()
    assert "No plan for traffic by step (random, random homes, 20 slots): no such objective" in table
    assert "Largest relative error of predicted step time" in table


def test_an_engine_that_does_not_start_costs_its_own_stages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = _run(tmp_path, monkeypatch, NumpyPool(broken="slots-20"))
    assert set(results.failed_stages) == {"slots-20-random", "slots-20-domain"}
    assert {one["engine"] for one in results.of("layout counts")} == {"slots-16"}


def test_what_the_budget_leaves_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = _run(tmp_path, monkeypatch, NumpyPool(), budget_s=-1.0)
    assert {one["status"] for one in results.of("stage")} == {"skipped"}
    table = (tmp_path / "table.md").read_text()
    assert "Stage slots-16-domain skipped: the budget of -1 s is spent" in table
    assert [json.loads(line)["kind"] for line in (tmp_path / "results.jsonl").read_text().splitlines()] == [
        "stage"
    ] * len(results.found)
