"""Demand: what is accepted, what is refused and where, windows and sources."""

from __future__ import annotations

import numpy as np
import pytest

from placement.demand import Demand
from placement.errors import BadDemandShape, BadWindow, CountOutOfRange, EmptyProfile, NegativeCount


def _measured(tokens: object) -> Demand:
    array = np.asarray(tokens)
    return Demand(array, "measured", tuple(f"w{index}" for index in range(len(array))))


def test_counts_of_one_window_are_uniform_demand():
    demand = Demand.uniform([[1, 2, 3], [4, 5, 6]])

    assert demand.tokens_WLSE.shape == (1, 2, 1, 3)
    assert (demand.windows, demand.layers, demand.experts) == (1, 2, 3)
    assert (demand.sources, demand.window_names, demand.total_tokens) == ("uniform", ("window 0",), 21)


def test_counts_of_several_windows_keep_their_names():
    demand = Demand.uniform(np.ones((2, 1, 3), dtype=np.int32), ["a", "b"])

    assert demand.window_names == ("a", "b")
    assert demand.tokens_WLSE.dtype == np.int64


@pytest.mark.parametrize(
    "tokens", [np.ones(3, int), np.ones((1, 1, 1, 3), int), [[1, 2], [3]], np.ones((1, 0, 3), int)]
)
def test_other_shapes_are_refused(tokens):
    with pytest.raises(BadDemandShape):
        Demand.uniform(tokens)


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[True, False]], [["a", "b"]], [[2**70, 1]]])
def test_counts_are_integers(values):
    with pytest.raises(BadDemandShape, match="token counts are integers"):
        Demand.uniform(values)


def test_demand_has_four_axes():
    with pytest.raises(BadDemandShape, match="windows, layers, sources, experts"):
        _measured(np.ones((1, 1, 1), int))


def test_uniform_demand_has_one_source_row():
    with pytest.raises(BadDemandShape, match="one source row, got 2"):
        Demand(np.ones((1, 1, 2, 3), int), "uniform", ("w",))


def test_every_window_has_a_name():
    with pytest.raises(BadDemandShape, match="1 window names for 2 windows"):
        Demand(np.ones((2, 1, 1, 3), int), "uniform", ("w",))


def test_a_negative_count_is_named():
    tokens = np.zeros((2, 3, 2, 4), int)
    tokens[1, 2, 0, 3] = -7

    with pytest.raises(NegativeCount, match="window 1, layer 2, source 0, expert 3 has the count -7"):
        _measured(tokens)


@pytest.mark.parametrize("values", [np.array([[2**63 + 5, 0]], np.uint64), [[2**61, 2**61]]])
def test_counts_beyond_64_bits_are_refused(values):
    with pytest.raises(CountOutOfRange):
        Demand.uniform(values)


def test_large_counts_are_kept_exactly():
    assert Demand.uniform([[2**61 + 1, 0]]).total_tokens == 2**61 + 1


def test_demand_cannot_be_changed():
    tokens = np.ones((1, 1, 3), int)
    demand = Demand.uniform(tokens)
    tokens[0, 0, 0] = 9

    assert demand.total_tokens == 3
    with pytest.raises(ValueError, match="read-only"):
        demand.tokens_WLSE[0, 0, 0, 0] = 9


def test_layers_without_tokens_in_any_window_are_not_moe_layers():
    demand = Demand.uniform([[[0, 0], [1, 0], [0, 0]], [[0, 0], [0, 0], [0, 2]]])

    assert demand.moe_layers == (1, 2)


def test_an_empty_profile_is_refused_only_when_all_of_it_is_zero():
    with pytest.raises(EmptyProfile, match="all 1 x 2 x 3 counts are zero"):
        Demand.uniform(np.zeros((2, 3), int)).require_not_empty()
    some = Demand.uniform([[0, 0], [0, 1]])
    assert some.require_not_empty() is some


def test_windows_merge_and_are_picked_in_the_order_given():
    demand = _measured([[[[1, 2], [3, 4]]], [[[10, 20], [30, 40]]]])

    assert demand.merged().tokens_WLSE.tolist() == [[[[11, 22], [33, 44]]]]
    assert demand.pick_windows([1, 0]).window_names == ("w1", "w0")
    assert demand.pick_windows([1]).tokens_WLE.tolist() == [[[40, 60]]]


@pytest.mark.parametrize("indices", [[], [2], [-1]])
def test_windows_that_do_not_exist_are_refused(indices):
    with pytest.raises(BadWindow, match="windows 0 to 1"):
        _measured(np.ones((2, 1, 1, 1), int)).pick_windows(indices)


def test_forgetting_sources_keeps_the_totals():
    demand = _measured([[[[1, 2], [3, 4]]]])

    uniform = demand.with_uniform_sources()

    assert uniform.sources == "uniform"
    np.testing.assert_array_equal(uniform.tokens_WLE, demand.tokens_WLE)
