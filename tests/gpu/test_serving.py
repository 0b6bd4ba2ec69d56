"""What of the acceptance of serving needs no engine, and all of its stages on an engine made up here."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.model_shape import ModelShape
from tests.gpu import serving, serving_measure, serving_plans, serving_run
from tests.gpu.checkpoints import CHECKPOINTS
from tests.gpu.layouts import baseline, demand_of, layers_with_experts, whole_map
from tests.gpu.load import Load
from tests.gpu.load_metrics import LoadTimes, RequestTimes
from tests.gpu.machine import Machine, cpu_machine
from tests.gpu.measure import Dispatched, dispatched
from tests.gpu.plans import MadePlan, WantedPlan
from tests.gpu.results import Results, run_stages
from tests.gpu.server import EngineNotUp, EngineSetup
from tests.gpu.serving_cases import SCALES, ServingScale, checkpoint_name, serving_cases
from tests.gpu.serving_measure import in_turn
from tests.gpu.serving_plans import FEWEST, LEAST_TIME, CasePlans
from tests.gpu.serving_run import Serving, Wanted
from tests.gpu.serving_tables import serving_table
from tests.gpu.slot_choice import choose_slots, slots_to_try
from tests.gpu.traffic import Routed, Traffic, routed_by_source

GPUS = 2


@pytest.mark.parametrize(
    ("experts", "gpus", "numbers"),
    [
        (64, 8, [64, 72, 80, 96, 112, 128]),
        (64, 2, [64, 72, 80, 96, 112, 128]),
        (8, 8, [8, 16]),
        (8, 2, [8, 10, 12, 14, 16]),
    ],
)
def test_up_to_twice_the_slots_are_tried(experts: int, gpus: int, numbers: list[int]) -> None:
    assert slots_to_try(experts=experts, gpus=gpus) == numbers


def test_more_slots_are_taken_only_for_a_shorter_step() -> None:
    assert choose_slots({64: 100e-6, 72: 99.5e-6, 80: 99.1e-6}) == 64
    assert choose_slots({64: 110e-6, 72: 100.9e-6, 80: 100e-6, 96: 104e-6}) == 72
    assert choose_slots({}) is None


def test_every_second_round_goes_backwards() -> None:
    assert in_turn(["a", "b", "c"], 3) == [
        *((0, name) for name in "abc"),
        *((1, name) for name in "cba"),
        *((2, name) for name in "abc"),
    ]


def test_a_whole_map_has_rows_for_layers_without_experts() -> None:
    layout = Layout(np.array([[3, 2, 1, 0, 3, 2]]), gpus=2, experts=4)
    whole = whole_map(layout, dense_layers=2)
    assert whole.slot_to_expert_LP.tolist() == [[0, 1, 2, 3, 0, 1]] * 2 + [[3, 2, 1, 0, 3, 2]]
    assert layers_with_experts(whole, dense_layers=2).hash == layout.hash
    assert whole_map(layout, dense_layers=0) is layout


def test_checkpoints_are_named_by_their_domains() -> None:
    assert checkpoint_name("lite", "mla", gpus=8) == "lite-mla-8"
    assert checkpoint_name("mixtral", "plain", gpus=8) == "mixtral-4"
    with pytest.raises(ValueError, match="no model"):
        checkpoint_name("lite", "linear", gpus=8)
    for gpus in SCALES:
        for model, attention in (("lite", "mla"), ("lite", "plain"), ("mixtral", "plain")):
            sizes = CHECKPOINTS[checkpoint_name(model, attention, gpus=gpus)]
            shape = ModelShape.from_config(sizes.config())
            assert shape.layers == sizes.decoder_layers
            assert shape.moe_layers == tuple(range(sizes.dense_layers, sizes.decoder_layers))
            assert (shape.experts, shape.top_k) == (sizes.experts, sizes.top_k)
            assert sizes.experts // sizes.domains >= sizes.top_k or model == "lite"


def test_halves_have_other_prompts_and_homes_their_domains() -> None:
    domain, anywhere = serving_cases(
        "lite-mla-2", gpus=2, homes=["domain homes", "random homes"], mixes=["decode-heavy"]
    )
    assert domain.name == "domain decode-heavy"
    for source, prompts in enumerate(domain.halves.judged_on.prompts_S):
        assert {token // 256 for prompt in prompts for token in prompt} == {source}
    assert {prompt[0] // 256 for prompt in anywhere.halves.judged_on.prompts_S[0]} == {0, 1}
    first, second = (half.prompts_S for half in (domain.halves.planned_from, domain.halves.judged_on))
    assert not {tuple(prompt) for prompt in first[0]} & {tuple(prompt) for prompt in second[0]}


class _Pool:
    """Starts nothing; engines whose names begin with ``broken`` do not come up."""

    def __init__(self, broken: str = "none of them") -> None:
        self.broken = broken
        self.engines: dict[str, Any] = {}
        self.stopped: list[str] = []
        self.setups: list[EngineSetup] = []

    def launch(self, setup: EngineSetup) -> None:
        self.setups.append(setup)
        self.engines[setup.name] = SimpleNamespace(
            setup=setup, url=setup.name, pid=1, sources=GPUS, start_s=1.0, requests=3, failed=0, failures=[]
        )

    def get(self, setup: EngineSetup) -> Any:
        if setup.name.startswith(self.broken):
            raise EngineNotUp("no kernel image is available")
        if setup.name not in self.engines:
            self.launch(setup)
        return self.engines[setup.name]

    def holds(self, name: str) -> bool:
        return name in self.engines

    def stop(self, *names: str) -> None:
        for name in names:
            self.engines.pop(name, None)
            self.stopped.append(name)


class _Client:
    """Holds the layout that was pushed last, the whole map with rows of dense layers."""

    running: ClassVar[str] = ""
    pushed: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, _url: str) -> None:
        pass

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def placement(self) -> Any:
        return SimpleNamespace(layout_hash=_Client.running)

    def put_placement(self, request: Any) -> Any:
        layout = Layout(request.map_LP, gpus=GPUS, experts=64)
        _Client.running = layout.hash
        _Client.pushed.append((layout.layers, layout.slots))
        return SimpleNamespace(status="applied", layout_hash=layout.hash, error="", chunks=[])


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Routing by domain, plans that are EPLB's, and a load whose every request takes 0.1 s."""
    draw = np.random.default_rng(3)
    _Client.running, _Client.pushed = "", []

    def routed(_engine: Any, _traffic: Traffic, *, layers: int, top_k: int, dense_layers: int) -> Routed:
        assert (layers, top_k, dense_layers) == (4, 6, 1)
        source_T = np.repeat(np.arange(GPUS), 40)
        experts = [draw.choice(32, top_k, replace=False) * 2 + source for source in source_T for _ in range(layers)]
        return Routed(np.array(experts, dtype=np.int32).reshape(-1, layers, top_k), source_T)

    def plans(machine: Machine, wanted: Sequence[WantedPlan], **_more: Any) -> list[MadePlan]:
        made = []
        for plan in wanted:
            decode = plan.name.endswith("decode-heavy")
            slots = (36 if decode else 34) if plan.slots_per_gpu is None else plan.slots_per_gpu
            demand = demand_of(routed(None, traffic, **sizes), experts=64, gpus=GPUS)
            rule = Dispatch.NEAREST_DYNAMIC
            layout = baseline("eplb", demand, gpus=GPUS, slots=slots * GPUS, dispatch=rule, seed=slots)
            seconds = 1e-4 if decode else 1e-4 / slots
            made.append(
                MadePlan(plan, whole_map(layout, dense_layers=1), {"metrics": {"moe_layer": {"moe_layer_s": seconds}}})
            )
        return made

    traffic = Traffic(([], []), 1)
    sizes = {"layers": 4, "top_k": 6, "dense_layers": 1}

    @contextmanager
    def load(machine: Machine, engine: Any, load: Load) -> Iterator[LoadTimes]:
        times, start_s = LoadTimes(), time.monotonic()
        yield times
        count = int((time.monotonic() - start_s) / 0.001)
        times.requests += [
            RequestTimes(at_s, 100, 4, np.array([at_s + 0.002, at_s + 0.005]), np.array([1, 4]))
            for at_s in (start_s + 0.001 * np.arange(count)).tolist()
        ]
        engine.requests += count

    monkeypatch.setattr(serving_run, "EngineClient", _Client)
    monkeypatch.setattr(serving_run, "routed_by_source", routed)
    monkeypatch.setattr(serving_run, "calibrate", lambda *_words, base, **_more: base)
    monkeypatch.setattr(serving_run.subprocess, "run", lambda *_words, **_more: None)
    monkeypatch.setattr(serving_plans, "make_plans", plans)
    for module in (serving_measure, serving_run):
        monkeypatch.setattr(module, "loading", load)
    monkeypatch.setattr(serving_measure, "count_dispatched", lambda *_words, **_more: Dispatched(9, 1.02, 0.5, 0.7))
    return cpu_machine(tmp_path, tmp_path)


QUICK = ServingScale((8, 16), ramp_s=0.0, settle_s=0.002, window_s=0.01, count_s=0.0, rounds=2)
DOMAIN = Wanted(["domain homes"], ["prefill-heavy", "decode-heavy"])


def test_equal_layouts_are_measured_once_under_both_names() -> None:
    case = serving_cases("lite-mla-2", gpus=2, homes=["domain homes"], mixes=["decode-heavy"])[0]
    one, same = (Layout(np.array([[1, 0]]), gpus=2, experts=2) for _ in range(2))
    wider = Layout(np.array([[1, 0, 0, 1]]), gpus=2, experts=2)
    assert list(CasePlans(case, {FEWEST: one, LEAST_TIME: same}).at(2)) == [f"{FEWEST} = {LEAST_TIME}"]
    assert list(CasePlans(case, {FEWEST: one, LEAST_TIME: wider}).at(2)) == [FEWEST]
    assert CasePlans(case, {FEWEST: one, LEAST_TIME: wider}).at(6) == {}


def test_tokens_are_asked_for_in_one_batch_of_each_source() -> None:
    def post(_path: str, body: dict[str, Any]) -> Any:
        assert (body["sampling_params"]["temperature"], body["return_routed_experts"]) == (1.0, True)
        answers = []
        for prompt in body["input_ids"][: 1 if lossy else None]:
            ids = np.array([[[-1, -1]] + [[token, body["routed_dp_rank"]]] * 2 for token in prompt], dtype="<i4")
            answers.append(
                {"output_ids": [1], "meta_info": {"routed_experts": base64.b64encode(ids.tobytes()).decode()}}
            )
        return answers

    lossy = False
    engine: Any = SimpleNamespace(sources=2, requests=0, failed=0, failures=[], post=post)
    traffic = Traffic(([[5, 6], [7]], [[8]]), new_tokens=1, temperature=1.0)
    found = routed_by_source(engine, traffic, layers=2, top_k=2, dense_layers=1)
    assert found.source_T.tolist() == [0, 0, 0, 1]
    assert found.experts_TLK.tolist() == [[[token, home]] * 2 for token, home in ((5, 0), (6, 0), (7, 0), (8, 1))]
    assert (engine.requests, engine.failed) == (3, 0)
    lossy = True
    with pytest.raises(RuntimeError, match="source 0's 2 requests"):
        routed_by_source(engine, traffic, layers=2, top_k=2, dense_layers=1)


def test_counts_are_weighted_to_the_homes_of_the_recording() -> None:
    def rank(number: int, slots: list[int], own: int, copies: int) -> dict[str, Any]:
        return {"rank": number, "layers": [{"slots": slots, "tokens": sum(slots), "own_pairs": own, "copies": copies}]}

    ranks = [rank(0, [30, 0], 30, 0), rank(1, [5, 5], 5, 5)]
    raw = dispatched(ranks, all_to_all=True)
    even = dispatched(ranks, all_to_all=True, home_shares_S=[0.5, 0.5])
    assert (raw.imbalance, raw.local_gpu, raw.copies_per_token) == (35 / 20, 35 / 40, 5 / 40)
    assert (even.imbalance, even.local_gpu, even.copies_per_token) == pytest.approx((1.5, 0.75, 0.25))
    assert raw.tokens == even.tokens == 40


def test_all_stages_choose_slots_and_measure_every_layout_in_turn(made_up: Machine, tmp_path: Path) -> None:
    pool, results, scale = _Pool(), Results(tmp_path, 60.0), replace(QUICK, concurrency=(16,))
    names = ["lite-mla-2", "lite-plain-2"]
    run = Serving(made_up, scale, results, pool, checkpoints=names, wanted=DOMAIN)  # type: ignore[arg-type]
    run_stages(run.stages(), results, wanted=None, table=lambda found: serving_table(found, gpus=GPUS))
    assert not results.failed_stages
    assert [(one["fewest"], one["chosen"]) for one in results.of("slots")] == [(72, 128), (72, 64)]
    assert [setup.redundant for setup in pool.setups] == [0, 8, 64]
    assert {"lite-mla-2-64", "lite-mla-2-72", "lite-mla-2-128"} == set(pool.stopped)
    served_at = {(one["slots"], one["case"], one["concurrency"]) for one in results.of("served")}
    both = ("domain prefill-heavy", "domain decode-heavy")
    assert served_at == {(64, both[1], 16), *((72, case, 16) for case in both), (128, both[0], 16)}
    first = [one["layout"] for one in results.of("served")][:6]
    assert first == ["initial", "eplb", LEAST_TIME, LEAST_TIME, "eplb", "initial"]
    assert {one["layout"] for one in results.of("served") if one["slots"] == 72} == {"initial", "eplb", FEWEST}
    assert [one["layout"] for one in results.of("layout counts")][:3] == ["initial", "eplb", LEAST_TIME]
    assert {layers for layers, _slots in _Client.pushed} == {5}, "the dense layer has a row too"
    table = (tmp_path / "table.md").read_text()
    assert "MLA attention" in table
    assert "random weights" in table
    assert "### 72 slots, domain decode-heavy, 16 requests in flight" in table
    assert f"{FEWEST} against eplb: " in table
    assert f"{LEAST_TIME} against initial: " in table
    row = next(line for line in table.splitlines() if line.startswith("| initial"))
    assert " .. " in row
    assert "/ 0.5 |" in row
    assert "/ 0.7 |" in row
    assert "/ 1.02 |" in row
    assert "Failed requests: 0 of " in table


def test_where_no_engine_runs_the_attention_the_plain_one_takes_over(
    made_up: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = Results(tmp_path, 60.0)
    run = Serving(
        made_up,
        QUICK,
        results,
        _Pool(broken="lite-mla"),  # type: ignore[arg-type]
        checkpoints=["lite-mla-2", "lite-plain-2"],
        wanted=DOMAIN,
    )
    run_stages(run.stages(), results, wanted=["start"], table=lambda found: serving_table(found, gpus=GPUS))
    assert [one["name"] for one in results.of("model")] == ["lite-plain-2"]
    table = (tmp_path / "table.md").read_text()
    assert "plain attention" in table
    assert "no kernel image is available" in table


def test_when_the_budget_is_spent_what_was_left_out_is_named(made_up: Machine, tmp_path: Path) -> None:
    results = Results(tmp_path, 60.0)
    run = Serving(made_up, QUICK, results, _Pool(), checkpoints=["lite-mla-2"], wanted=DOMAIN)  # type: ignore[arg-type]
    for name, stage in run.stages():
        if name == "serve-lite-mla-2-64":
            results.budget_s = 0.0
            stage()
        elif not name.startswith("serve"):
            stage()
    assert not results.of("served")
    assert len(results.of("left out")) == 2
    assert "Left out: engine lite-mla-2-64, domain decode-heavy, 8 in flight." in serving_table(
        results.found, gpus=GPUS
    )


def test_saturated_clients_are_a_warning_in_the_table() -> None:
    one = {
        **{"kind": "served", "engine": "e", "case": "domain decode-heavy", "concurrency": 8, "layout": "initial"},
        **{"round": 0, "slots": 64, "output_tokens_per_s_gpu": 5.0, "input_tokens_per_s_gpu": 1.0, "push_ms": None},
        **{"first_token_ms": None, "token_ms": {"median": 1.0, "p99": 2.0, "count": 3}},
    }
    quiet = serving_table([{**one, "client_share": 0.3, "front_end_share": 0.2}], gpus=8)
    assert "WARNING" not in quiet
    assert "took 30% of a core at most" in quiet
    busy = serving_table([{**one, "client_share": 0.9, "front_end_share": 0.2}], gpus=8)
    assert "WARNING: in 1 windows one of clients took more than 80% of a core" in busy


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--homes", "nowhere"], "homes are domain, random"),
        (["--mixes", "chat"], "mixes are prefill-heavy"),
        (["--concurrency", "many"], "whole numbers"),
        (["--concurrency", "0"], "whole numbers"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serving.main(["--gpus", "2", "--out", str(tmp_path / "out"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
