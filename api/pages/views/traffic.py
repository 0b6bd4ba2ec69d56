"""Traffic between GPUs and nodes: shares, the matrix as a table, and what a token costs on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from api.report import heat_map
from api.report.axes import Legend, legend
from api.report.numbers import byte_size, count, percent, ratio
from api.service.traffic import Traffic
from placement.plan import Plan as MadePlan


@dataclass(frozen=True)
class ShareRow:
    """Where routed tokens are served under one layout."""

    name: str
    local: str
    same_node: str
    remote: str
    copies: str
    token_bytes: str


@dataclass(frozen=True)
class TrafficView:
    """What the page says.

    Attributes
    ----------
    matrix : tuple of tuple of str
        Routed tokens from home GPU (row) to serving GPU (column) under the layout shown.
    busiest : str
        The pair of different GPUs with the most.
    """

    gpus: int
    nodes: int
    gpus_per_node: int
    sources: str
    shares: tuple[ShareRow, ...]
    matrix: tuple[tuple[str, ...], ...]
    by_node: tuple[tuple[str, ...], ...]
    busiest: str
    legend: Legend
    limits: tuple[float, ...]


def traffic_view(
    found: Mapping[str, Traffic], made: MadePlan, *, layout: str, token_bytes: float | None
) -> TrafficView:
    """Turn the traffic under both layouts into what the page says of the one that is shown."""
    shown = found[layout]
    tokens_SG = np.rint(shown.tokens_SG).astype(np.int64)
    return TrafficView(
        gpus=shown.topology.gpus,
        nodes=shown.topology.nodes,
        gpus_per_node=shown.topology.gpus_per_node,
        sources=shown.sources,
        shares=tuple(_share_row(name, each, made, token_bytes) for name, each in found.items()),
        matrix=tuple(tuple(count(each) for each in row) for row in tokens_SG.tolist()),
        by_node=tuple(
            tuple(count(each) for each in row) for row in np.rint(shown.by_node_NN).astype(np.int64).tolist()
        ),
        busiest=_busiest(shown),
        legend=legend(heat_map.SCALE, heat_map.LIMITS, heat_map.LABELS, unit="times an even share of the row"),
        limits=heat_map.LIMITS,
    )


def _share_row(name: str, found: Traffic, made: MadePlan, token_bytes: float | None) -> ShareRow:
    metrics = made.metrics if name == "plan" else made.baselines.get(made.moves.before)
    copies = None if metrics is None else metrics.gpus_per_token
    sent = None if copies is None or token_bytes is None else int(copies * token_bytes)
    shares = found.shares
    return ShareRow(
        name="plan" if name == "plan" else "before",
        local=percent(shares["local"]),
        same_node=percent(shares["same_node"]),
        remote=percent(shares["remote"]),
        copies=ratio(copies),
        token_bytes=byte_size(sent),
    )


def _busiest(found: Traffic) -> str:
    between_SG = found.tokens_SG.copy()
    np.fill_diagonal(between_SG, 0.0)
    if not between_SG.any():
        return "no token leaves its GPU"
    source, gpu = np.unravel_index(int(between_SG.argmax()), between_SG.shape)
    share = between_SG[source, gpu] / found.tokens_SG.sum()
    return f"most of what leaves a GPU goes from {source} to {gpu}: {percent(float(share), digits=2)} of all"
