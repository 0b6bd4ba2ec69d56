"""Steps are counted with the result that the scheduler looks at, without the tokens that it throws away."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from profiler.engine.contract_demand import DemandOptions
from profiler.plugin.demand_recorder import DemandRecorder
from profiler.plugin.own_rows import unused_tokens
from profiler.plugin.rank_demand import RankDemand
from tests.profiler.plugin.views import plain

EXPERTS = 4


@dataclass
class Mode:
    decode: bool = True

    def is_decode(self) -> bool:
        return self.decode

    def is_extend(self) -> bool:
        return not self.decode

    def is_idle(self) -> bool:
        return False

    def is_target_verify(self) -> bool:
        return False


@dataclass
class Request:
    ended: bool = False
    is_retracted: bool = False

    def finished(self) -> bool:
        return self.ended


@dataclass
class Batch:
    reqs: list[Request]
    forward_mode: Mode = field(default_factory=Mode)


@dataclass
class Result:
    number: int


class Engine:
    """A scheduler that launches a step before it looks at the result of the one before."""

    enable_overlap = True

    def __init__(self, demand: RankDemand) -> None:
        self.demand = demand
        self.runner = SimpleNamespace(is_draft_worker=False, forward_pass_id=0)

    def launch(self, batch: Batch) -> Result:
        result: Result = self.demand.around_run_batch(self._run_batch, self, batch)
        return result

    def look_at(self, batch: Batch, result: Result) -> None:
        self.demand.around_result(lambda scheduler, batch, result: None, self, batch, result)

    def _run_batch(self, _scheduler: Any, batch: Batch) -> Result:
        self.runner.forward_pass_id += 1
        forward = SimpleNamespace(forward_mode=batch.forward_mode, input_ids=torch.zeros(len(batch.reqs)))
        self.demand.around_forward(self._forward, self.runner, forward)
        return Result(self.runner.forward_pass_id)

    def _forward(self, runner: Any, forward: Any) -> Any:
        ids_TK = torch.arange(len(forward.input_ids))[:, None] % EXPERTS
        recorder = self.demand._recorder
        assert recorder is not None
        recorder.count_layer(0, ids_TK, padded_tokens=None)
        return SimpleNamespace(can_run_graph=False)


@pytest.fixture
def demand() -> RankDemand:
    demand = RankDemand(generation=lambda: 0)
    demand._recorder = DemandRecorder(
        layers=1,
        experts=EXPERTS,
        device=torch.device("cpu"),
        view=plain(0),
        options=DemandOptions(window_steps=100),
        recording_id="r",
    )
    return demand


def counted(demand: RankDemand) -> list[int]:
    recorder = demand._recorder
    assert recorder is not None
    recorder.stop()
    return [int(n) for n in np.sum([window.counts_FLE()[1, 0] for window in recorder.fetch(9)], axis=0)]


def test_a_token_computed_after_its_request_ended_is_not_counted(demand: RankDemand) -> None:
    engine = Engine(demand)
    batch = Batch([Request(), Request(), Request()])
    first = engine.launch(batch)
    second = engine.launch(batch)
    engine.look_at(batch, first)
    batch.reqs[1].ended = True
    third = engine.launch(Batch([batch.reqs[0], batch.reqs[2]]))
    engine.look_at(batch, second)
    batch.reqs[0].is_retracted = True
    engine.look_at(Batch([batch.reqs[0], batch.reqs[2]]), third)
    # First step: tokens 0, 1 and 2. Second: request 1 had ended. Third: its first request was taken back.
    assert counted(demand) == [2, 2, 2, 0]


def test_a_forward_pass_outside_a_batch_counts_at_once(demand: RankDemand) -> None:
    engine = Engine(demand)
    engine._run_batch(engine, Batch([Request(), Request()]))
    assert counted(demand) == [1, 1, 0, 0]


def test_a_batch_that_fails_leaves_the_next_alone(demand: RankDemand) -> None:
    engine = Engine(demand)

    def fails(_scheduler: Any, _batch: Batch) -> Any:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        demand.around_run_batch(fails, engine, Batch([Request()]))
    batch = Batch([Request()])
    engine.look_at(batch, engine.launch(batch))
    assert counted(demand) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("overlap", "decode", "tokens", "expected"),
    [(True, True, 2, (1,)), (True, True, 6, (3, 4, 5)), (False, True, 2, ()), (True, False, 9, ())],
)
def test_which_tokens_are_thrown_away(overlap: bool, decode: bool, tokens: int, expected: tuple[int, ...]) -> None:
    scheduler = SimpleNamespace(enable_overlap=overlap)
    batch = Batch([Request(), Request(ended=True)], Mode(decode))
    assert unused_tokens(scheduler, batch, tokens=tokens) == expected
