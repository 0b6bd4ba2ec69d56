"""Whole models against all layouts of a layer, and the sums of peaks over layers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ortools.sat.python import cp_model

from placement.solver.model.exact import Limits, best_at_prices, keep_sums_of_peaks_below, most_valuable, smallest_peaks
from placement.solver.model.gpu_contents import (
    contents_of,
)
from placement.solver.model.host_sets import (
    sets_of,
)
from placement.solver.model.layer import LayerNumbers
from tests.placement.solver.model.small_models import even_layer, fix, integers, is_feasible, layer_of_sets

LIMITS = Limits(effort=5.0)


class TestKeepSumsOfPeaksBelow:
    """Two layers, two windows."""

    def feasible(self, peaks_LW: list[list[int]] | None, *, factor_W: list[int] | None = None) -> bool:
        model = cp_model.CpModel()
        variables = [integers(model, 2) for _ in range(2)]
        keep_sums_of_peaks_below(model, variables, [10, 20], factor_W)
        for peak_W, values in zip(variables, peaks_LW or [], strict=False):
            fix(model, peak_W, values)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None)

    @pytest.mark.parametrize("peaks", [[[5, 0], [6, 0]], [[0, 15], [0, 6]]])
    def test_one_window_above_its_limit_is_refused(self, peaks: list[list[int]]) -> None:
        assert not self.feasible(peaks)

    def test_factors_count(self) -> None:
        assert not self.feasible([[3, 0], [3, 0]], factor_W=[2, 1])
        assert self.feasible([[3, 0], [2, 20]], factor_W=[2, 1])

    def test_sums_at_the_limits_are_allowed(self) -> None:
        assert self.feasible([[4, 20], [6, 0]])


def layouts_of(numbers: LayerNumbers) -> list[np.ndarray]:
    """List the hosts of all layouts of a layer, bool [E, G] each."""
    held = [
        [expert in content for expert in range(numbers.experts)]
        for content in contents_of(experts=numbers.experts, slots_per_gpu=numbers.slots_per_gpu)
    ]
    all_hosts = [np.array(each).T for each in product(held, repeat=numbers.gpus)]
    return [hosts_EG for hosts_EG in all_hosts if hosts_EG.any(axis=1).all()]


def worth_and_peaks(numbers: LayerNumbers, hosts_EG: np.ndarray) -> tuple[float, np.ndarray]:
    """Figures of a layout, added up expert by expert."""
    worth, loads_WG = 0.0, np.zeros((numbers.windows, numbers.gpus))
    for expert, hosts_G in enumerate(hosts_EG):
        worth += float(numbers.value_EM[expert][hosts_G].sum())
        if numbers.set_load_WESG is None:
            loads_WG += numbers.load_WE[:, expert, None] / hosts_G.sum() * hosts_G
        else:
            index = int((hosts_G * 2 ** np.arange(numbers.gpus)).sum()) - 1
            loads_WG += numbers.set_load_WESG[:, expert, index]
    return worth, loads_WG.max(axis=1)


def random_layer(seed: int, *, factor: int = 1) -> LayerNumbers:
    """Draw a layer, by contents or by sets; loads are multiples of what halves and thirds need."""
    generator = np.random.default_rng(seed)
    experts, gpus, slots_per_gpu, windows = ((3, 2, 2), (4, 2, 3), (3, 3, 2))[seed % 3] + (1 + seed % 2,)
    value_EM = np.repeat(generator.integers(0, 50, (experts, 1)), gpus, axis=1).astype(float)
    if seed % 4 < 2:
        load_WE = generator.integers(0, 50, (windows, experts)) * 6.0 * factor
        return LayerNumbers(load_WE, value_EM, None, gpus, slots_per_gpu)
    held_SG = sets_of(gpus)
    load_WESG = generator.integers(1, 50, (windows, experts, len(held_SG), gpus)) * held_SG * float(factor)
    numbers = layer_of_sets(load_WESG, value_EM=value_EM, slots_per_gpu=slots_per_gpu)
    # The peaks' floor is the mean load, which every set must then add up to.
    scale_WES1 = numbers.load_WE[:, :, None, None] / load_WESG.sum(axis=3, keepdims=True)
    return layer_of_sets(np.floor(load_WESG * scale_WES1), value_EM=value_EM, slots_per_gpu=slots_per_gpu)


class TestExactModels:
    """Whole models against all layouts of a layer."""

    @pytest.mark.parametrize("seed", range(12))
    def test_best_at_prices(self, seed: int) -> None:
        numbers = random_layer(seed)
        price_W = [1 + window for window in range(numbers.windows)]
        scored = [worth_and_peaks(numbers, hosts_EG) for hosts_EG in layouts_of(numbers)]
        best = max(100 * worth - float(peak_W @ price_W) for worth, peak_W in scored)
        found = best_at_prices(numbers, layouts_of(numbers)[0], value_factor=100, price_W=price_W, limits=LIMITS)
        assert found.proven
        assert found.bound == pytest.approx(best)
        assert found.hosts_LEG is not None
        worth, peak_W = worth_and_peaks(numbers, found.hosts_LEG[0])
        assert 100 * worth - float(peak_W @ price_W) == pytest.approx(best)

    @pytest.mark.parametrize("seed", range(12))
    def test_smallest_peaks(self, seed: int) -> None:
        numbers = random_layer(seed)
        best = min(peak_W.max() for _, peak_W in (worth_and_peaks(numbers, each) for each in layouts_of(numbers)))
        found = smallest_peaks([numbers], layouts_of(numbers)[0][None], factor_W=[1] * numbers.windows, limits=LIMITS)
        assert found.proven
        assert -found.bound == pytest.approx(best)
        assert found.hosts_LEG is not None
        assert worth_and_peaks(numbers, found.hosts_LEG[0])[1].max() == pytest.approx(best)

    @pytest.mark.parametrize("seed", range(12))
    def test_most_valuable(self, seed: int) -> None:
        """The cap is the median of what layouts have, so some are refused."""
        numbers = random_layer(seed)
        scored = [worth_and_peaks(numbers, hosts_EG) for hosts_EG in layouts_of(numbers)]
        cap = int(np.median([peak_W.max() for _, peak_W in scored]))
        best = max(worth for worth, peak_W in scored if peak_W.max() <= cap)
        found = most_valuable([numbers], layouts_of(numbers)[0][None], cap_W=[cap] * numbers.windows, limits=LIMITS)
        assert found.proven
        assert found.bound == pytest.approx(best)
        assert found.hosts_LEG is not None
        worth, peak_W = worth_and_peaks(numbers, found.hosts_LEG[0])
        assert (worth, peak_W.max() <= cap) == (pytest.approx(best), True)

    def test_a_cap_below_all_layouts(self) -> None:
        numbers = random_layer(0)
        found = most_valuable([numbers], layouts_of(numbers)[0][None], cap_W=[0], limits=LIMITS)
        assert found.hosts_LEG is None

    @pytest.mark.parametrize("seed", [0, 1, 4, 5, 8, 9])
    def test_loads_beyond_32_bits(self, seed: int) -> None:
        """OR-Tools 9.15 drops layouts where rows that hold only sometimes add up to more than 2^31 (issue 5293)."""
        numbers = random_layer(seed, factor=2**28)
        best = min(peak_W.max() for _, peak_W in (worth_and_peaks(numbers, each) for each in layouts_of(numbers)))
        found = smallest_peaks([numbers], layouts_of(numbers)[-1][None], factor_W=[1] * numbers.windows, limits=LIMITS)
        assert -found.bound == pytest.approx(best)

    def test_one_light_replica_beyond_32_bits(self) -> None:
        """Replicating the lightest expert is best here, and that is what presolve dropped."""
        numbers = even_layer([[4707177060, 3327882290, 554875238]], gpus=2, slots_per_gpu=2)
        hint_EG = np.array([[True, True], [True, False], [False, True]])
        found = smallest_peaks([numbers], hint_EG[None], factor_W=[1], limits=LIMITS)
        assert -found.bound == 4707177060 + 554875238 / 2
        assert found.proven
