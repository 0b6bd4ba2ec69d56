"""Drop-in mode: moeplan's heuristic in the place of SGLang's own EPLB algorithm (``--enable-eplb``).

SGLang keeps what it does around it: when it rebalances, how it counts, how it moves weights. Only the layout is
another, and it is installed by mapping instead of by balancing, so that ranks prefer their own replicas and their
node's ("nearest" dispatch), which SGLang leaves out for layouts of its own balancer.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.map_rules import check_map
from profiler.plugin.placement_state import current_map
from profiler.plugin.rank_view import location_metadata, metadata_of_map

logger = logging.getLogger(__name__)

BALANCER_VARIABLE = "MOEPLAN_PLUGIN_EPLB"
"""Set to 1 to have SGLang's ``--enable-eplb`` use moeplan's layouts."""

TIME_LIMIT_S = 2.0
"""The engine stands still while a layout is worked out."""

MOST_WINDOWS = 8
"""SGLang's last steps are judged in so many stretches, so that a layout suits all of them and not only their sum."""

TARGET = "sglang.srt.eplb.expert_location.ExpertLocationMetadata.init_by_eplb"


def is_asked_for() -> bool:
    """Whether this engine was started with the drop-in mode."""
    return os.environ.get(BALANCER_VARIABLE) == "1"


def balancer_of(server_args: Any) -> str:
    """Return who changes layouts by itself on this engine: ``none``, ``sglang`` or ``moeplan``."""
    if not getattr(server_args, "enable_eplb", False):
        return "none"
    return "moeplan" if is_asked_for() else "sglang"


def around_init_by_eplb(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Work out a layout and install it by mapping (hook on ``ExpertLocationMetadata.init_by_eplb``).

    Rank 0 does it for all, so that all have the same whatever their clocks. What goes wrong is said in the log, and
    SGLang's own algorithm does its work, on all ranks.
    """
    metadata = location_metadata()
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    if metadata is None or given.get("use_flat_topology"):  # at start, or while ranks join: SGLang's own way
        return original(*args, **kwargs)

    def plan() -> npt.NDArray[np.int32]:
        return plan_layout(_counts(given["logical_count"]), current_map(metadata), nodes=_nodes(given), gpus=_gpus())

    map_LP = _of_rank_0(plan)
    return original(*args, **kwargs) if map_LP is None else _installed(map_LP, metadata, given)


def _installed(map_LP: npt.NDArray[np.int32], metadata: Any, given: dict[str, Any]) -> Any:
    import torch
    from sglang.srt.runtime_context import get_parallel

    map_tensor = torch.tensor(map_LP, dtype=metadata.physical_to_logical_map.dtype)
    rank = int(get_parallel().moe_ep_rank)
    return metadata_of_map(given.get("server_args"), given["model_config"], map_tensor, ep_rank=rank)


def plan_layout(
    counts_WLE: npt.NDArray[np.int64], running_LP: npt.NDArray[np.int32], *, nodes: int, gpus: int
) -> npt.NDArray[np.int32]:
    """Return the layout for some windows of counts, int32 [L, P]; the running one where there is nothing to gain.

    Parameters
    ----------
    counts_WLE
        int64 [W, L, E], tokens by logical expert; sources are taken as uniform, since SGLang adds them up.
    """
    from placement.demand import Demand
    from placement.layout import Layout
    from placement.problem import Problem
    from placement.solver.quick import quick_balance
    from placement.topology import Topology

    windows_WLE = _stretches(counts_WLE, most=MOST_WINDOWS)
    if not windows_WLE.size:
        return running_LP
    layers, slots = running_LP.shape
    experts = int(counts_WLE.shape[2])
    problem = Problem(
        demand=Demand.uniform(windows_WLE),
        topology=Topology(gpus=gpus, nodes=nodes),
        slots_per_gpu=slots // gpus,
        current=Layout(running_LP, gpus=gpus, experts=experts),
    )
    started_s = time.perf_counter()
    map_LP = quick_balance(problem, time_limit_s=TIME_LIMIT_S).slot_to_expert_LP
    check_map(map_LP, layers=layers, slots=slots, experts=experts)
    spent_s, changed = time.perf_counter() - started_s, int((map_LP != running_LP).sum())
    logger.info("moeplan: a layout in %.2f s, %d of %d slots change", spent_s, changed, map_LP.size)
    return map_LP


def _stretches(counts_WLE: npt.NDArray[np.int64], *, most: int) -> npt.NDArray[np.int64]:
    """Add consecutive steps up to a few windows, steps without tokens left out; int64 [W, L, E], W may be 0."""
    busy_WLE = counts_WLE[counts_WLE.sum(axis=(1, 2)) > 0]
    parts = [part.sum(axis=0) for part in np.array_split(busy_WLE, min(most, max(len(busy_WLE), 1))) if len(part)]
    return np.stack(parts) if parts else np.zeros((0, *counts_WLE.shape[1:]), dtype=np.int64)


def _counts(logical_count: Any) -> npt.NDArray[np.int64]:
    """Read what SGLang's recorder counted: [steps, layers, experts], or one step without the first axis."""
    counts: npt.NDArray[np.int64] = np.asarray(logical_count.cpu().numpy(), dtype=np.int64)
    return counts if counts.ndim == 3 else counts[None]


def _of_rank_0(make: Callable[[], npt.NDArray[np.int32]]) -> npt.NDArray[np.int32] | None:
    """Run something on the first rank and return its value on all; None on all where it failed."""
    import torch.distributed as dist
    from sglang.srt.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    made: list[npt.NDArray[np.int32] | None] = [None]
    if group.rank_in_group == 0:
        try:
            made = [make()]
        except Exception:
            logger.exception("moeplan: no layout could be worked out; SGLang's own balancer does it")
    dist.broadcast_object_list(made, src=group.ranks[0], group=group.cpu_group)
    return made[0]


def _nodes(given: dict[str, Any]) -> int:
    if "server_args" in given:
        return int(given["server_args"].nnodes)
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().nnodes)


def _gpus() -> int:
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().moe_ep_size)
