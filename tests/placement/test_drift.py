"""Total variation between profiles and the notice that it raises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.drift import jensen_shannon_distance_L, profile_drift_notices, total_variation_L
from placement.errors import BadOption, EmptyProfile, LayoutMismatch
from tests.case_files import case, case_json


def test_a_shifted_workload_is_told_with_its_distance():
    known = case("L20")
    oracle = known["expect"]["oracle"]
    old, new = (Demand.uniform(case_json("L20", name)["logical_count"]) for name in ("old.json", "new.json"))

    assert total_variation_L(old, new)[0] == pytest.approx(oracle["total_variation"])
    (notice,) = profile_drift_notices(old, new)
    assert notice.code == known["expect"]["error_code"]
    assert "0.75" in notice.detail
    assert "plan again" in notice.detail


def test_more_of_the_same_traffic_is_no_drift():
    a, b = Demand.uniform([[80, 10, 5, 5]]), Demand.uniform([[800, 100, 50, 50]])

    assert total_variation_L(a, b).tolist() == [0]
    assert profile_drift_notices(a, b) == ()


def test_drift_at_the_limit_is_allowed_and_above_it_is_told():
    a, b = Demand.uniform([[3, 1]]), Demand.uniform([[1, 1]])

    assert profile_drift_notices(a, b, limit=0.25) == ()
    assert len(profile_drift_notices(a, b, limit=0.24)) == 1


def test_the_mean_over_moe_layers_counts_and_the_worst_layer_is_named():
    a = Demand.uniform([[0, 0], [1, 1], [1, 0]])
    b = Demand.uniform([[0, 0], [1, 1], [0, 1]])

    np.testing.assert_array_equal(total_variation_L(a, b), [np.nan, 0, 1])
    (notice,) = profile_drift_notices(a, b, limit=0.4)
    assert "0.50 on average over 2 MoE layers" in notice.detail
    assert "layer 2: 1.00" in notice.detail


def test_a_layer_that_only_one_demand_has_is_not_compared():
    variation_L = total_variation_L(Demand.uniform([[1, 1], [1, 0]]), Demand.uniform([[0, 0], [0, 1]]))

    np.testing.assert_array_equal(variation_L, [np.nan, 1])


def test_windows_and_sources_are_added_up():
    a = Demand(np.array([[[[1, 0], [2, 0]]], [[[0, 3], [0, 0]]]]), "measured", ("x", "y"))

    assert total_variation_L(a, Demand.uniform([[1, 1]])).tolist() == [0]


def test_demands_of_other_models_are_refused():
    with pytest.raises(LayoutMismatch, match="1 layers x 2 experts and 1 x 3"):
        total_variation_L(Demand.uniform([[1, 1]]), Demand.uniform([[1, 1, 1]]))


def test_demands_without_a_common_layer_are_refused():
    with pytest.raises(EmptyProfile, match="no layer has traffic in both"):
        profile_drift_notices(Demand.uniform([[0, 0], [1, 1]]), Demand.uniform([[1, 1], [0, 0]]))


@pytest.mark.parametrize("limit", [-0.1, 1.1, float("nan")])
def test_a_limit_outside_zero_to_one_is_refused(limit):
    with pytest.raises(BadOption, match="drift limit"):
        profile_drift_notices(Demand.uniform([[1]]), Demand.uniform([[1]]), limit=limit)


@st.composite
def profiles(draw: st.DrawFn) -> list[Demand]:
    rows = st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any)
    return [Demand.uniform([draw(rows)]) for _ in range(3)]


@given(profiles())
@settings(max_examples=80, deadline=None)
def test_total_variation_is_a_distance_between_zero_and_one(three):
    a, b, c = three

    def distance(x: Demand, y: Demand) -> float:
        return float(total_variation_L(x, y)[0])

    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a)
    assert 0 <= distance(a, b) <= 1 + 1e-12
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-12


def profile(*rows: list[int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


def test_jensen_shannon_distance_of_known_profiles():
    same, disjoint = profile([3, 1], [1, 0]), profile([30, 10], [0, 5])
    np.testing.assert_allclose(jensen_shannon_distance_L(same, disjoint), [0, 1])
    # Half of the traffic on an expert that the other profile does not know: sqrt(h(1/4) - h(1/2) / 2), h in bits.
    entropy = -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75))
    np.testing.assert_allclose(jensen_shannon_distance_L(profile([1, 1]), profile([1, 0])), [np.sqrt(entropy - 0.5)])


def test_layers_without_traffic_in_either_have_no_distance():
    distance_L = jensen_shannon_distance_L(profile([0, 0], [1, 1], [0, 0]), profile([0, 0], [0, 0], [1, 1]))
    np.testing.assert_array_equal(distance_L, [np.nan, np.nan, np.nan])


def test_profiles_of_different_models_have_no_distance():
    with pytest.raises(LayoutMismatch, match="different models"):
        jensen_shannon_distance_L(profile([1, 1]), profile([1, 1, 1]))


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any), min_size=3, max_size=3))
def test_jensen_shannon_distance_is_a_metric_within_what_total_variation_allows(rows: list[list[int]]):
    a, b, c = (profile(row) for row in rows)
    (ab,), (ba,), (bc,), (ac,) = (jensen_shannon_distance_L(x, y) for x, y in ((a, b), (b, a), (b, c), (a, c)))
    assert ab == ba
    assert 0 <= ab <= 1
    assert ac <= ab + bc + 1e-9
    (variation,) = total_variation_L(Demand.uniform(a), Demand.uniform(b))
    assert ab**2 <= variation + 1e-9  # Lin 1991: the divergence in bits is at most the total variation
    assert variation**2 / (2 * np.log(2)) <= ab**2 + 1e-9  # Pinsker's inequality, for both halves
