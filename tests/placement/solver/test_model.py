"""The OR-Tools models, family by family: trivially kept, refused when broken, allowed when kept."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from placement.solver.model.columns import (
    Columns,
    choose_smallest_peak,
    choose_under_cap,
    mixtures,
    one_column_each,
    prices_of_smallest_peak,
    prices_under_cap,
    window_rows,
)
from placement.solver.model.exact import Limits, best_at_prices, keep_sums_of_peaks_below, most_valuable, smallest_peaks
from placement.solver.model.gpu_contents import (
    contents_of,
    count_replicas,
    give_every_gpu_a_content,
    keep_contents_below_peaks,
    mark_used_contents,
    number_of_contents,
    split_load_evenly,
)
from placement.solver.model.host_sets import (
    fill_every_gpu,
    keep_loads_below_peaks,
    set_loads,
    sets_of,
    take_one_set,
)
from placement.solver.model.layer import LayerNumbers, whole, whole_worth

LIMITS = Limits(effort=5.0)


def is_feasible(model: cp_model.CpModel) -> bool:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE), solver.status_name(status)
    return status != cp_model.INFEASIBLE


def booleans(model: cp_model.CpModel, count: int) -> list[cp_model.IntVar]:
    return [model.new_bool_var("") for _ in range(count)]


def integers(model: cp_model.CpModel, count: int, *, most: int = 100) -> list[cp_model.IntVar]:
    return [model.new_int_var(0, most, "") for _ in range(count)]


def fix(model: cp_model.CpModel, variables: list[cp_model.IntVar], values: list[int]) -> None:
    for variable, value in zip(variables, values, strict=True):
        model.add(variable == value)


def even_layer(load_WE: list[list[float]], *, gpus: int, slots_per_gpu: int) -> LayerNumbers:
    """All replicas of an expert carry the same load; worth is the load in window 0."""
    load = np.array(load_WE, dtype=float)
    value_EM = np.repeat(load[0][:, None], gpus, axis=1)
    return LayerNumbers(load, value_EM, None, gpus, slots_per_gpu)


def layer_of_sets(set_load_WESG: np.ndarray, *, value_EM: np.ndarray, slots_per_gpu: int) -> LayerNumbers:
    load_WE = set_load_WESG[:, :, 0].sum(axis=2)
    return LayerNumbers(load_WE, value_EM, set_load_WESG, set_load_WESG.shape[3], slots_per_gpu)


class TestGiveEveryGpuAContent:
    def feasible(self, held: list[int] | None, *, gpus: int = 3) -> bool:
        model = cp_model.CpModel()
        gpus_with = integers(model, 2, most=gpus)
        give_every_gpu_a_content(model, gpus_with, gpus=gpus)
        if held is not None:
            fix(model, gpus_with, held)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None)

    @pytest.mark.parametrize("held", [[1, 1], [0, 0], [3, 1]])
    def test_an_empty_or_a_doubled_gpu_is_refused(self, held: list[int]) -> None:
        assert not self.feasible(held)

    @pytest.mark.parametrize("held", [[3, 0], [1, 2]])
    def test_all_gpus_full_is_allowed(self, held: list[int]) -> None:
        assert self.feasible(held)


class TestCountReplicas:
    """Three experts, two slots: contents {0,1}, {0,2}, {1,2} on up to two GPUs."""

    def feasible(self, held: list[int], replicas: list[int] | None) -> bool:
        model = cp_model.CpModel()
        gpus_with = integers(model, 3, most=2)
        count = [booleans(model, 2) for _ in range(3)]
        count_replicas(model, contents_of(experts=3, slots_per_gpu=2), gpus_with, count)
        fix(model, gpus_with, held)
        for count_n, number in zip(count, replicas or [], strict=False):
            model.add(count_n[number - 1] == 1)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible([1, 1, 0], None)

    def test_a_missing_expert_is_refused(self) -> None:
        assert not self.feasible([2, 0, 0], None)

    def test_a_wrong_count_is_refused(self) -> None:
        assert not self.feasible([1, 1, 0], [1, 1, 1])

    def test_right_counts_are_allowed(self) -> None:
        assert self.feasible([1, 1, 0], [2, 1, 1])


class TestSplitLoadEvenly:
    """One expert of load 12 on up to three GPUs."""

    def feasible(self, *, replicas: int, carried: int | None) -> bool:
        model = cp_model.CpModel()
        count, share = [booleans(model, 3)], [integers(model, 1)]
        split_load_evenly(model, even_layer([[12.0]], gpus=3, slots_per_gpu=1), count, share)
        model.add_exactly_one(count[0])
        model.add(count[0][replicas - 1] == 1)
        if carried is not None:
            model.add(share[0][0] == carried)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(replicas=2, carried=None)

    @pytest.mark.parametrize(("replicas", "carried"), [(1, 6), (2, 12), (3, 3), (3, 5)])
    def test_a_wrong_share_is_refused(self, replicas: int, carried: int) -> None:
        assert not self.feasible(replicas=replicas, carried=carried)

    @pytest.mark.parametrize(("replicas", "carried"), [(1, 12), (2, 6), (3, 4)])
    def test_load_over_replicas_is_allowed(self, replicas: int, carried: int) -> None:
        assert self.feasible(replicas=replicas, carried=carried)


class TestMarkUsedContents:
    def feasible(self, held: list[int], marked: list[int] | None) -> bool:
        model = cp_model.CpModel()
        gpus_with, used = integers(model, 2, most=4), booleans(model, 2)
        mark_used_contents(model, gpus_with, used, gpus=4)
        fix(model, gpus_with, held)
        if marked is not None:
            fix(model, used, marked)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible([4, 0], None)

    @pytest.mark.parametrize(("held", "marked"), [([4, 0], [0, 0]), ([1, 3], [1, 0]), ([0, 4], [1, 1])])
    def test_a_wrong_mark_is_refused(self, held: list[int], marked: list[int]) -> None:
        assert not self.feasible(held, marked)

    @pytest.mark.parametrize(("held", "marked"), [([4, 0], [1, 0]), ([1, 3], [1, 1])])
    def test_right_marks_are_allowed(self, held: list[int], marked: list[int]) -> None:
        assert self.feasible(held, marked)


class TestKeepContentsBelowPeaks:
    """Contents {0}, {1} and {0,1} of experts that carry 5 and 7."""

    def feasible(self, used_contents: list[int], *, peak: int) -> bool:
        model = cp_model.CpModel()
        used, share, peak_W = booleans(model, 3), [integers(model, 2)], integers(model, 1)
        keep_contents_below_peaks(model, [(0,), (1,), (0, 1)], used, share, peak_W)
        fix(model, share[0], [5, 7])
        fix(model, used, used_contents)
        fix(model, peak_W, [peak])
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible([0, 0, 0], peak=0)

    @pytest.mark.parametrize(("used", "peak"), [([1, 1, 0], 6), ([0, 0, 1], 11)])
    def test_a_peak_below_a_used_content_is_refused(self, used: list[int], peak: int) -> None:
        assert not self.feasible(used, peak=peak)

    @pytest.mark.parametrize(("used", "peak"), [([1, 1, 0], 7), ([0, 0, 1], 12), ([1, 0, 0], 5)])
    def test_a_peak_at_the_heaviest_used_content_is_allowed(self, used: list[int], peak: int) -> None:
        assert self.feasible(used, peak=peak)


class TestTakeOneSet:
    def feasible(self, values: list[int] | None) -> bool:
        model = cp_model.CpModel()
        taken = [booleans(model, 3)]
        take_one_set(model, taken)
        if values is not None:
            fix(model, taken[0], values)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None)

    @pytest.mark.parametrize("values", [[0, 0, 0], [1, 1, 0]])
    def test_none_or_two_sets_are_refused(self, values: list[int]) -> None:
        assert not self.feasible(values)

    def test_one_set_is_allowed(self) -> None:
        assert self.feasible([0, 0, 1])


class TestFillEveryGpu:
    """Two experts on two GPUs; sets are {0}, {1}, {0,1}."""

    def feasible(self, sets: list[int] | None, *, slots_per_gpu: int = 1) -> bool:
        model = cp_model.CpModel()
        taken = [booleans(model, 3) for _ in range(2)]
        take_one_set(model, taken)
        fill_every_gpu(model, taken, sets_of(2), slots_per_gpu=slots_per_gpu)
        for taken_S, index in zip(taken, sets or [], strict=False):
            model.add(taken_S[index] == 1)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None)

    @pytest.mark.parametrize(("sets", "slots_per_gpu"), [([0, 0], 1), ([2, 1], 1), ([0, 1], 2)])
    def test_too_few_or_too_many_on_a_gpu_is_refused(self, sets: list[int], slots_per_gpu: int) -> None:
        assert not self.feasible(sets, slots_per_gpu=slots_per_gpu)

    @pytest.mark.parametrize(("sets", "slots_per_gpu"), [([0, 1], 1), ([1, 0], 1), ([2, 2], 2)])
    def test_exactly_full_is_allowed(self, sets: list[int], slots_per_gpu: int) -> None:
        assert self.feasible(sets, slots_per_gpu=slots_per_gpu)


class TestKeepLoadsBelowPeaks:
    """One expert on two GPUs: alone it brings 8, on both 5 and 3."""

    numbers = layer_of_sets(
        np.array([[[[8, 0], [0, 8], [5, 3]]]], dtype=float), value_EM=np.ones((1, 2)), slots_per_gpu=1
    )

    def feasible(self, taken_set: int | None, *, peak: int) -> bool:
        model = cp_model.CpModel()
        taken, peak_W = [booleans(model, 3)], integers(model, 1)
        take_one_set(model, taken)
        keep_loads_below_peaks(model, self.numbers, taken, peak_W)
        fix(model, peak_W, [peak])
        if taken_set is not None:
            model.add(taken[0][taken_set] == 1)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None, peak=8)

    @pytest.mark.parametrize(("taken_set", "peak"), [(0, 7), (1, 7), (2, 4), (None, 4)])
    def test_a_peak_below_a_gpu_is_refused(self, taken_set: int | None, peak: int) -> None:
        assert not self.feasible(taken_set, peak=peak)

    @pytest.mark.parametrize(("taken_set", "peak"), [(0, 8), (1, 8), (2, 5)])
    def test_a_peak_at_the_heaviest_gpu_is_allowed(self, taken_set: int, peak: int) -> None:
        assert self.feasible(taken_set, peak=peak)


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


COLUMNS = Columns(
    local_CL=np.array([[0.3, 0.4], [0.2, 0.1]]),
    peak_CWL=np.array([[[0.6, 0.8], [0.5, 0.5]], [[0.5, 0.5], [0.6, 0.5]]]),
)
"""Two columns of two layers in two windows: the first is more local and taller in window 0."""


class TestOneColumnEach:
    def feasible(self, values_CL: list[list[int]] | None) -> bool:
        model = cp_model.CpModel()
        taken = one_column_each(model, COLUMNS, hint_L=np.zeros(2, dtype=np.int64))
        for variables, values in zip(taken, values_CL or [], strict=False):
            fix(model, variables, values)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None)

    @pytest.mark.parametrize("values", [[[1, 1], [1, 0]], [[0, 1], [0, 0]]])
    def test_two_columns_or_none_for_a_layer_are_refused(self, values: list[list[int]]) -> None:
        assert not self.feasible(values)

    def test_a_mix_is_allowed(self) -> None:
        assert self.feasible([[1, 0], [0, 1]])


class TestWindowRows:
    """The linear master: a mixture of columns keeps every window below the limit."""

    def feasible(self, parts_CL: list[list[float]] | None, *, limit: float) -> bool:
        solver = pywraplp.Solver.CreateSolver("GLOP")
        part = mixtures(solver, COLUMNS)
        window_rows(solver, COLUMNS, part, limit=limit)
        for variables, values in zip(part, parts_CL or [], strict=False):
            for variable, value in zip(variables, values, strict=True):
                solver.Add(variable == value)
        return bool(solver.Solve() == pywraplp.Solver.OPTIMAL)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None, limit=2.0)

    def test_a_window_above_the_limit_is_refused(self) -> None:
        assert not self.feasible([[1, 1], [0, 0]], limit=1.39)
        assert not self.feasible(None, limit=0.99)

    def test_parts_that_are_no_mixture_are_refused(self) -> None:
        assert not self.feasible([[0.5, 1], [0.4, 0]], limit=2.0)

    def test_a_window_at_the_limit_is_allowed(self) -> None:
        assert self.feasible([[1, 1], [0, 0]], limit=1.4001)
        assert self.feasible([[0.5, 0.5], [0.5, 0.5]], limit=1.2001)


class TestChoices:
    """The choice of columns against all choices."""

    def columns(self, seed: int) -> Columns:
        generator = np.random.default_rng(seed)
        shape = (int(generator.integers(1, 5)), int(generator.integers(1, 4)), int(generator.integers(1, 5)))
        return Columns(generator.random((shape[0], shape[2])), generator.random(shape))

    def every_choice(self, columns: Columns) -> list[tuple[float, float]]:
        """Return worst window and local share of all choices."""
        layer_L = np.arange(columns.layers)
        choices = [np.array(choice) for choice in product(range(columns.count), repeat=columns.layers)]
        return [
            (
                float(columns.peak_CWL[chosen_L, :, layer_L].sum(axis=0).max()),
                float(columns.local_CL[chosen_L, layer_L].sum()),
            )
            for chosen_L in choices
        ]

    def figures(self, columns: Columns, chosen_L: np.ndarray) -> tuple[float, float]:
        layer_L = np.arange(columns.layers)
        return (
            float(columns.peak_CWL[chosen_L, :, layer_L].sum(axis=0).max()),
            float(columns.local_CL[chosen_L, layer_L].sum()),
        )

    @pytest.mark.parametrize("seed", range(12))
    def test_smallest_peak(self, seed: int) -> None:
        columns = self.columns(seed)
        worst, _ = self.figures(columns, choose_smallest_peak(columns, seed=0, effort=1.0))
        best = min(peak for peak, _ in self.every_choice(columns))
        assert worst == pytest.approx(best, abs=1e-8)
        relaxed, price_W = prices_of_smallest_peak(columns)
        assert relaxed <= best + 1e-9
        assert price_W.sum() == pytest.approx(1.0)

    @pytest.mark.parametrize("seed", range(12))
    def test_most_local_under_a_cap(self, seed: int) -> None:
        columns = self.columns(seed)
        choices = self.every_choice(columns)
        cap = float(np.median([peak for peak, _ in choices])) + 1e-6
        chosen_L = choose_under_cap(columns, cap=cap, seed=0, effort=1.0)
        assert chosen_L is not None
        peak, local = self.figures(columns, chosen_L)
        best = max(local for peak, local in choices if peak <= cap)
        assert peak <= cap
        assert local == pytest.approx(best, abs=1e-8)
        relaxed = prices_under_cap(columns, cap=cap)
        assert relaxed is not None
        assert relaxed[0] >= best - 1e-9
        assert (relaxed[1] >= 0).all()

    def test_a_cap_that_no_choice_keeps(self) -> None:
        columns = self.columns(3)
        cap = min(peak for peak, _ in self.every_choice(columns)) / 2
        assert choose_under_cap(columns, cap=cap, seed=0, effort=1.0) is None
        assert prices_under_cap(columns, cap=cap / 2) is None


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


def test_contents_are_counted() -> None:
    assert len(contents_of(experts=5, slots_per_gpu=2)) == number_of_contents(experts=5, slots_per_gpu=2) == 10


def test_sets_are_listed_by_their_bits() -> None:
    assert sets_of(2).tolist() == [[True, False], [False, True], [True, True]]


def test_loads_of_sets_are_absent_for_contents() -> None:
    with pytest.raises(ValueError, match="no loads of sets"):
        set_loads(even_layer([[1.0]], gpus=1, slots_per_gpu=1))


@pytest.mark.parametrize(("value", "load", "worth"), [(3.0, 3, 3), (2.999, 3, 3), (3.001, 3, 3), (3.5, 3, 4)])
def test_rounding_loosens(value: float, load: int, worth: int) -> None:
    assert (whole(value), whole_worth(value)) == (load, worth)
