"""GPUs, nodes, and nodes found in link costs."""

from __future__ import annotations

import json
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import BadTopology, GpusNotPositive
from placement.topology import MAX_GPUS, Topology, flat_or_nodes, from_cost_matrix
from tests.case_files import case, case_json


def _costs(node_of_gpu: list[int], *, inside: float, between: float) -> list[list[float]]:
    return [
        [0 if a == b else inside if node_of_gpu[a] == node_of_gpu[b] else between for b in range(len(node_of_gpu))]
        for a in range(len(node_of_gpu))
    ]


@pytest.mark.parametrize("gpus", [MAX_GPUS + 1, 10**30])
def test_numbers_of_gpus_that_no_array_can_have_are_refused(gpus):
    assert Topology(MAX_GPUS).gpus == MAX_GPUS
    with pytest.raises(BadTopology, match=str(MAX_GPUS)):
        Topology(gpus)


def test_ranks_of_a_node_are_neighbours():
    topology = Topology(8, 2)

    assert topology.gpus_per_node == 4
    assert topology.node_of_gpu_G.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_graph_joins_gpus_by_nvlink_and_nodes_by_rdma():
    graph = Topology(4, 2).graph()

    assert nx.is_connected(graph)
    assert sorted(data["link"] for *_, data in graph.edges(data=True)) == ["nvlink"] * 4 + ["rdma"] * 2
    assert nx.shortest_path_length(graph, ("gpu", 0), ("gpu", 1)) == 2
    assert nx.shortest_path_length(graph, ("gpu", 0), ("gpu", 2)) == 4


def test_one_node_needs_no_fabric():
    assert {data["link"] for *_, data in Topology(4).graph().edges(data=True)} == {"nvlink"}


@pytest.mark.parametrize(("gpus", "nodes"), [(0, 1), (4, 0), (-1, 1)])
def test_at_least_one_gpu_and_node_are_needed(gpus, nodes):
    with pytest.raises(GpusNotPositive, match=f"got {gpus} GPUs on {nodes} nodes"):
        Topology(gpus, nodes)


def test_nodes_that_do_not_divide_the_gpus_are_refused():
    with pytest.raises(BadTopology, match="8 GPUs do not divide evenly over 3 nodes"):
        Topology(8, 3)


def test_a_flat_topology_stands_in_with_a_notice():
    topology, notices = flat_or_nodes(gpus=8, nodes=3)

    assert topology == Topology(8)
    assert [notice.code for notice in notices] == ["FLAT_TOPOLOGY"]
    assert flat_or_nodes(gpus=8, nodes=2) == (Topology(8, 2), [])
    with pytest.raises(GpusNotPositive):
        flat_or_nodes(gpus=0, nodes=3)


# ------------------------------------------------------------------------------------------------ cost matrices


@pytest.mark.parametrize("name", ["not_square", "nan", "negative", "diagonal", "wrong_size"])
def test_a_bad_cost_matrix_is_refused(name):
    known = case("L14")

    with pytest.raises(BadTopology) as refused:
        from_cost_matrix(case_json("L14", "cases.json")[name], gpus=known["params"]["ep_size"])

    assert refused.value.code == known["expect"]["error_code"]


def test_every_bad_matrix_of_the_case_is_tested():
    assert set(case_json("L14", "cases.json")) == {
        "not_square",
        "nan",
        "negative",
        "diagonal",
        "wrong_size",
    }


@pytest.mark.parametrize("cost", [math.inf, "1", None, True, 10**400])
def test_an_entry_that_is_no_finite_number_is_named(cost):
    with pytest.raises(BadTopology, match=r"cost \[1\]\[0\]"):
        from_cost_matrix([[0, 1], [cost, 0]], gpus=2)


def test_a_short_row_is_named():
    with pytest.raises(BadTopology, match="row 1 of the cost matrix has 1 entries"):
        from_cost_matrix([[0, 1], [0]], gpus=2)


def test_equal_costs_are_one_node():
    assert from_cost_matrix(_costs([0] * 4, inside=1, between=9), gpus=4) == Topology(4)
    assert from_cost_matrix([[0]], gpus=1) == Topology(1)


def test_no_gpus_are_refused():
    with pytest.raises(GpusNotPositive):
        from_cost_matrix([], gpus=0)


def test_nodes_whose_ranks_are_not_neighbours_are_refused():
    with pytest.raises(BadTopology, match="equal runs of neighbouring ranks"):
        from_cost_matrix(_costs([0, 1, 0, 1], inside=1, between=9), gpus=4)


def test_nodes_of_unequal_size_are_refused():
    with pytest.raises(BadTopology, match="equal runs of neighbouring ranks"):
        from_cost_matrix(_costs([0, 0, 0, 1], inside=1, between=9), gpus=4)
    with pytest.raises(BadTopology):
        from_cost_matrix(_costs([0, 0, 1], inside=1, between=9), gpus=3)


def test_a_link_is_as_cheap_as_its_dearer_direction():
    costs = _costs([0, 0, 1, 1], inside=1, between=9)
    costs[0][2] = 1

    assert from_cost_matrix(costs, gpus=4) == Topology(4, 2)


def test_arrays_are_taken_like_lists():
    assert from_cost_matrix(np.array(_costs([0, 0, 1, 1], inside=1, between=2)), gpus=4) == Topology(4, 2)


@given(st.integers(1, 4), st.integers(2, 4), st.floats(0.01, 100), st.floats(1.01, 10))
def test_nodes_are_found_again(nodes, size, inside, factor):
    expected = Topology(nodes * size, nodes)
    costs = _costs(expected.node_of_gpu_G.tolist(), inside=inside, between=inside * factor)

    assert from_cost_matrix(json.loads(json.dumps(costs)), gpus=expected.gpus) == expected
