"""What GPUs hold, as whole contents: trivially kept, refused when broken, allowed when kept."""

from __future__ import annotations

import pytest
from ortools.sat.python import cp_model

from placement.solver.model.gpu_contents import (
    contents_of,
    count_replicas,
    give_every_gpu_a_content,
    keep_contents_below_peaks,
    mark_used_contents,
    number_of_contents,
    split_load_evenly,
)
from tests.placement.solver.model.small_models import booleans, even_layer, fix, integers, is_feasible


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


def test_contents_are_counted() -> None:
    assert len(contents_of(experts=5, slots_per_gpu=2)) == number_of_contents(experts=5, slots_per_gpu=2) == 10
