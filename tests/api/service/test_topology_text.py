"""What ``nvidia-smi topo -m`` prints, as link costs."""

from __future__ import annotations

import pytest

from api.errors import BadRequest
from api.service.topology_text import costs_from_text
from placement.topology import from_cost_matrix

TWO_ISLANDS = """
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tSYS\tPIX\t0-47\t0
GPU1\tNV18\t X \tSYS\tSYS\tNODE\t0-47\t0
GPU2\tSYS\tSYS\t X \tNV18\tSYS\t48-95\t1
GPU3\tSYS\tSYS\tNV18\t X \tSYS\t48-95\t1
NIC0\tPIX\tNODE\tSYS\tSYS\t X

Legend:
  X    = Self
"""


def test_islands_become_nodes() -> None:
    costs = costs_from_text(TWO_ISLANDS)
    assert costs[0] == [0.0, 1.0, 6.0, 6.0]
    assert from_cost_matrix(costs, gpus=4).nodes == 2


def test_one_switch_is_one_node() -> None:
    text = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
    assert from_cost_matrix(costs_from_text(text), gpus=2).nodes == 1


@pytest.mark.parametrize(
    "text", ["", "no GPUs here", "\tGPU0\tGPU1\nGPU0\tX\n", "\tGPU0\tGPU1\nGPU0\tX\tNV1\n", "\tGPU0\nGPU0\tFOO\n",
             "\tGPU1\nGPU1\tX\n"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        costs_from_text(text)
