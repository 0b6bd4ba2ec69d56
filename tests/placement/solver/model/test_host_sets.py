"""Where experts live, as sets of hosts: trivially kept, refused when broken, allowed when kept."""

from __future__ import annotations

import numpy as np
import pytest
from ortools.sat.python import cp_model

from placement.solver.model.host_sets import (
    fill_every_gpu,
    keep_loads_below_peaks,
    set_loads,
    sets_of,
    take_one_set,
)
from tests.placement.solver.model.small_models import booleans, even_layer, fix, integers, is_feasible, layer_of_sets


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


def test_sets_are_listed_by_their_bits() -> None:
    assert sets_of(2).tolist() == [[True, False], [False, True], [True, True]]


def test_loads_of_sets_are_absent_for_contents() -> None:
    with pytest.raises(ValueError, match="no loads of sets"):
        set_loads(even_layer([[1.0]], gpus=1, slots_per_gpu=1))
