"""Bounds over host sets: never passed by any layout without duplicates, tight where they can be, absent elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from placement.bounds import capped_local_bound, host_set_imbalance_bound, local_gpu_bound
from placement.bounds.capped import HostSetBound
from placement.bounds.host_sets import MOST_GPUS, host_sets
from placement.demand import Demand
from placement.dispatch import Dispatch, dispatch_table
from placement.layout import Layout
from placement.problem import LocalScope, Problem
from placement.topology import Topology
from tests.placement.bounds.brute_force import Reachable, TinyProblem, reachable
from tests.placement.bounds.tiny_problems import tiny_problem

PROBLEMS = 200
ROUNDING = 1e-12
ROOM = (1.0, 1.2)
"""Caps to try, over the smallest imbalance that can be reached."""


@dataclass(frozen=True)
class Tried:
    problem: Problem
    reachable: Reachable
    caps: tuple[float, ...]
    gpu: tuple[HostSetBound, ...]
    node: tuple[HostSetBound, ...]
    imbalance: HostSetBound


def planned(tiny: TinyProblem) -> Problem:
    return Problem(tiny.demand, tiny.topology, tiny.slots_per_gpu, dispatch=tiny.dispatch)


def is_priced(tiny: TinyProblem) -> bool:
    return tiny.demand.sources == "measured" or tiny.topology.nodes > 1


@pytest.fixture(scope="module")
def tried() -> list[Tried]:
    done: list[Tried] = []
    seed = 0
    while len(done) < PROBLEMS:
        tiny = replace(tiny_problem(seed), dispatch=Dispatch.NEAREST_DYNAMIC)
        seed += 1
        if is_priced(tiny):
            done.append(_try(tiny, room=ROOM[seed % 2]))
    return done


def _try(tiny: TinyProblem, *, room: float) -> Tried:
    problem, all_layouts = planned(tiny), reachable(tiny)
    caps = (all_layouts.imbalance * room * (1 + ROUNDING),)
    at_nodes = replace(problem, local_scope=LocalScope.NODE)
    return Tried(
        problem,
        all_layouts,
        caps,
        gpu=tuple(present(capped_local_bound(problem, max_imbalance=cap, effort_s=1e-4)) for cap in caps),
        node=(present(capped_local_bound(at_nodes, max_imbalance=caps[0], effort_s=1e-4)),),
        imbalance=present(host_set_imbalance_bound(problem, effort_s=1e-4)),
    )


def present(bound: HostSetBound | None) -> HostSetBound:
    assert bound is not None
    return bound


def shares_passed(one: Tried, *, times: float = 1.0) -> bool:
    """Tell whether some layout under a cap serves a larger share than ``times`` the bound allows."""
    best_gpu = [one.reachable.best_local(one.reachable.local_gpu_X, cap=cap) for cap in one.caps]
    best_node = [one.reachable.best_local(one.reachable.local_node_X, cap=cap) for cap in one.caps]
    pairs = [*zip(best_gpu, one.gpu, strict=True), *zip(best_node, one.node, strict=False)]
    return any(best > bound.value * times + ROUNDING for best, bound in pairs)


def test_problems_are_many_and_different(tried: list[Tried]) -> None:
    assert {one.problem.topology.nodes for one in tried} == {1, 2, 3, 4}
    assert {one.problem.demand.windows for one in tried} == {1, 2, 3}
    assert {one.problem.demand.sources for one in tried} == {"measured", "uniform"}
    assert sum(one.reachable.imbalance > 1.05 for one in tried) >= 50


def test_local_bounds_are_never_passed(tried: list[Tried]) -> None:
    assert not [index for index, one in enumerate(tried) if shares_passed(one)]


def test_imbalance_bound_is_never_passed(tried: list[Tried]) -> None:
    passed = [one.reachable.imbalance < one.imbalance.value * (1 - ROUNDING) for one in tried]
    assert not np.flatnonzero(passed).tolist()


def test_the_cap_makes_the_bound_tighter(tried: list[Tried]) -> None:
    """The flow bound does not see the cap; here it is beaten by 1 % and more in many problems."""
    tighter = 0
    for one in tried:
        flow = local_gpu_bound(one.problem.demand, one.problem.topology, one.problem.slots_per_gpu).share
        tighter += one.gpu[0].value < flow * 0.99
    assert tighter >= 15


def test_the_check_catches_a_wrong_local_bound(tried: list[Tried]) -> None:
    """Negative control: 2 % too low is noticed in many problems, because the bounds are tight there."""
    assert sum(shares_passed(one, times=0.98) for one in tried) >= 100


def test_the_check_catches_a_wrong_imbalance_bound(tried: list[Tried]) -> None:
    caught = [one.reachable.imbalance < one.imbalance.value * 1.05 for one in tried]
    assert sum(caught) >= 20


def test_the_check_catches_loads_of_another_dispatch(tried: list[Tried]) -> None:
    """Negative control of the proof: with shares of ``even`` dispatch for ``nearest`` demand, layouts pass."""
    wrong = 0
    for one in tried:
        sets = host_sets(one.problem.topology, Dispatch.EVEN)
        assert sets is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("placement.bounds.capped.host_sets", lambda topology, dispatch, even=sets: even)
            bound = present(capped_local_bound(one.problem, max_imbalance=one.caps[0], effort_s=1e-4))
        wrong += shares_passed(replace(one, gpu=(bound, *one.gpu[1:])))
    assert wrong >= 1


def test_parts_add_up_to_the_bound(tried: list[Tried]) -> None:
    for one in tried:
        for cap, bound in zip(one.caps, one.gpu, strict=True):
            whole = bound.value_L.sum() + cap * bound.window_price_W.sum()
            assert bound.value == pytest.approx(min(1.0, max(0.0, whole)), rel=1e-6)
        assert one.imbalance.window_price_W.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.EVEN])
@pytest.mark.parametrize("topology", [Topology(3), Topology(4, 2), Topology(6, 3), Topology(4, 4)])
def test_shares_of_host_sets_are_those_of_dispatch(topology: Topology, dispatch: Dispatch) -> None:
    """One layer per host set: expert 0 on the set, other experts elsewhere; the same shares as the dispatch model."""
    sets = host_sets(topology, dispatch)
    assert sets is not None
    other_G = np.arange(topology.gpus) + 1
    slots_LP = np.where(sets.hosts_HG[:-1] > 0, 0, other_G)
    for hosts, slots_P in zip(sets.hosts_HG, slots_LP, strict=False):
        # A second slot per GPU holds what the first does not, so that every expert is somewhere.
        pairs_G2 = np.stack([slots_P, other_G], axis=1)
        layout = Layout(
            np.where(hosts[:, None] > 0, pairs_G2, other_G[:, None]).reshape(1, -1), topology.gpus, topology.gpus + 1
        )
        shares_SG = dispatch_table(layout, topology, dispatch=dispatch).share_SEG(0)[:, 0]
        index = int((hosts * 2 ** np.arange(topology.gpus)).sum()) - 1
        assert sets.share_HSG[index] == pytest.approx(shares_SG)


class TestAbsent:
    def problem(
        self, *, sources: str = "measured", gpus: int = 2, dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC
    ) -> Problem:
        shape = (1, 1, gpus if sources == "measured" else 1, 2 * gpus)
        demand = Demand(np.ones(shape, dtype=int), sources, ("all",))  # type: ignore[arg-type]
        return Problem(demand, Topology(gpus), 3, dispatch=dispatch)

    def test_present_with_measured_sources(self) -> None:
        assert capped_local_bound(self.problem()) is not None
        assert host_set_imbalance_bound(self.problem()) is not None

    def test_uniform_sources_on_one_node_say_nothing(self) -> None:
        assert capped_local_bound(self.problem(sources="uniform")) is None

    @pytest.mark.parametrize("dispatch", [Dispatch.EVEN, Dispatch.NEAREST_STATIC])
    def test_other_dispatch(self, dispatch: Dispatch) -> None:
        assert capped_local_bound(self.problem(dispatch=dispatch)) is None
        assert host_set_imbalance_bound(self.problem(dispatch=dispatch)) is None

    def test_too_little_effort(self) -> None:
        assert capped_local_bound(self.problem(), effort_s=1e-6) is None
        assert host_set_imbalance_bound(self.problem(), effort_s=1e-6) is None

    def test_too_many_host_sets(self) -> None:
        assert capped_local_bound(self.problem(gpus=MOST_GPUS + 1)) is None


def test_a_gpu_that_holds_everything_serves_its_own_users() -> None:
    """All experts on both GPUs: loads are what each GPU sends, so the imbalance is 3 / 2."""
    demand = Demand(np.array([[[[5, 4], [2, 1]]]]), "measured", ("all",))
    bound = present(host_set_imbalance_bound(Problem(demand, Topology(2), 2)))
    assert bound.value == pytest.approx(9 / 6)


def test_an_unreachable_cap_drives_the_bound_down() -> None:
    """No layout keeps 1.2, so nothing is local in any of them; more rounds would reach 0."""
    demand = Demand(np.array([[[[5, 4], [2, 1]]]]), "measured", ("all",))
    problem = Problem(demand, Topology(2), 2)
    assert present(capped_local_bound(problem, max_imbalance=1.2)).value < 0.5
    assert present(capped_local_bound(problem, max_imbalance=1.6)).value == pytest.approx(1.0)


def test_same_problem_and_effort_give_the_same_bytes() -> None:
    problem = planned(replace(tiny_problem(3), dispatch=Dispatch.NEAREST_DYNAMIC))
    problem = replace(
        problem,
        demand=Demand(np.arange(1, 31).reshape(1, 1, 3, 10), "measured", ("all",)),
        topology=Topology(3),
        slots_per_gpu=4,
    )
    first, second = (present(capped_local_bound(problem, effort_s=0.1)) for _ in range(2))
    assert first.value == second.value
    assert first.hosting_LEG.tobytes() == second.hosting_LEG.tobytes()
