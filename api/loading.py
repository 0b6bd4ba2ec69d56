"""From the files and options of a command to demand, topology and slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from placement.demand import Demand
from placement.errors import BadTopology
from placement.model_shape import ModelShape
from placement.notice import Notice
from placement.topology import Topology, flat_or_nodes, from_cost_matrix
from profiler.inputs import OpenedInput, open_inputs
from profiler.json_file import read_json
from profiler.model_file import read_model_config
from profiler.readers.options import ReadOptions
from profiler.token_stream import RecordedTokens
from profiler.trace import TraceHeader
from profiler.windows import WindowBy, build_demand


@dataclass(frozen=True)
class LoadedDemand:
    """Demand to plan from, demand kept apart to judge on, and what is known of the inputs.

    Attributes
    ----------
    demand : Demand
    holdout : Demand or None
    header : TraceHeader
    inputs : tuple of dict
        Name and SHA-256 of every input.
    notices : tuple of Notice
    tokens, holdout_tokens : RecordedTokens or None
        The tokens behind either demand; None where some input holds counts.
    """

    demand: Demand
    holdout: Demand | None
    header: TraceHeader
    inputs: tuple[dict[str, str], ...]
    notices: tuple[Notice, ...]
    tokens: RecordedTokens | None = None
    holdout_tokens: RecordedTokens | None = None


def read_options(
    *,
    model: Path | None = None,
    experts: int | None = None,
    ranks: int | None = None,
    allow_partial: bool = False,
    map_history: Path | None = None,
) -> ReadOptions:
    """Turn command-line options into reader options; the model's config is parsed here."""
    return ReadOptions(
        model=read_model(model) if model else None,
        experts=experts,
        expected_ranks=ranks,
        allow_partial=allow_partial,
        map_history=map_history,
    )


def read_model(path: Path) -> ModelShape:
    """Read a Hugging Face ``config.json`` or a model that comes with moeplan."""
    return ModelShape.from_config(read_model_config(path))


def read_topology(path: Path | None, *, gpus: int, nodes: int) -> tuple[Topology, list[Notice]]:
    """Build the topology from a cost matrix file, or from the numbers of GPUs and nodes."""
    if path is None:
        return flat_or_nodes(gpus=gpus, nodes=nodes)
    matrix = read_json(path)
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
        raise BadTopology(f"{path.name} must hold a JSON list of {gpus} rows with {gpus} costs each.")
    return from_cost_matrix(matrix, gpus=gpus), []


def load_demand(
    paths: Sequence[Path],
    options: ReadOptions,
    *,
    gpus: int,
    window_by: str,
    sources: str,
    holdout: float | None = None,
    phase: Literal["prefill", "decode"] | None = None,
) -> LoadedDemand:
    """Read every input, refuse what must not be planned from, and add it up by window."""
    readers = open_inputs(paths, options)
    for reader in readers:
        reader.require_complete()
    result = build_demand(
        readers, window_by=WindowBy.parse(window_by), gpus=gpus, sources=sources, holdout=holdout, phase=phase
    )
    return LoadedDemand(
        demand=result.demand,
        holdout=result.holdout_demand,
        header=result.header,
        inputs=tuple(_identity(reader) for reader in readers),
        notices=tuple(result.notices),
        tokens=result.tokens,
        holdout_tokens=result.holdout_tokens,
    )


def _identity(reader: OpenedInput) -> dict[str, str]:
    return {"name": reader.name, "sha256": reader.content_hash}
