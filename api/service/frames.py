"""Heat as frames: windows x layers x experts (or GPUs) as plain numbers, for pages that play them.

A frame file is little-endian and read without copying:

=========  =====================================================================================================
bytes      what
=========  =====================================================================================================
0-7        ``MOEHEAT1``
8-11       length of the header, uint32; a multiple of 8 less 4, so that the values are aligned
12-        the header: JSON, padded with spaces (:func:`_header`)
then       the values, uint32 (``dtype`` of the header; float64 where a count does not fit), [windows, layers, columns]
=========  =====================================================================================================
"""

from __future__ import annotations

import json
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from api.errors import BadRequest
from api.loading import load_demand, read_options
from api.service import plans as plan_service
from api.service.context import Service
from api.service.traces import require_ready
from api.store.models import Plan, Trace
from placement.baselines import trivial
from placement.demand import Demand
from placement.layout import Layout
from placement.plan import Plan as MadePlan
from placement.problem import Problem
from placement.score import loads_WLG
from placement.tokens import PHASE_NUMBERS
from profiler.inputs import open_inputs
from profiler.trace import CountChunk

MAGIC = b"MOEHEAT1"
MEDIA_TYPE = "application/vnd.moeplan.heat"
LARGEST_PIECE_BYTES = 4 * 2**20
"""Of values in one answer; at least one window is sent."""

KEPT_BYTES = 256 * 2**20

Axis = Literal["experts", "gpus"]
PhaseAsked = Literal["prefill", "decode"]
LayoutAsked = Literal["plan", "before"]

PHASES: tuple[PhaseAsked, ...] = ("prefill", "decode")


@dataclass(frozen=True)
class FramesAsked:
    """Which frames are asked for.

    Attributes
    ----------
    axis : {"experts", "gpus"}
        Routed tokens by expert, or tokens computed by GPU under a layout.
    phase : {"prefill", "decode"} or None
        Traffic of one phase alone.
    layout : {"plan", "before"}
        For ``gpus``: the plan's layout, or the one it would replace (that of the engine when it was planned, else the
        one that an engine starts with).
    first : int or None
        First window; None for one frame with all windows together.
    count : int
        Most windows.
    """

    axis: Axis = "experts"
    phase: PhaseAsked | None = None
    layout: LayoutAsked = "plan"
    first: int | None = None
    count: int = 16


@dataclass(frozen=True, eq=False)
class Frames:
    """All windows of a recording on one axis.

    Attributes
    ----------
    values_WLC : ndarray
        float64 or int64 [W, L, C].
    window_names : tuple of str
    moe_layers : tuple of int
        Layers with any traffic; the rows of the others are zero and mean nothing.
    sources : {"measured", "uniform"}
    """

    values_WLC: npt.NDArray[Any]
    window_names: tuple[str, ...]
    moe_layers: tuple[int, ...]
    sources: str

    @classmethod
    def of(cls, values_WLC: npt.NDArray[Any], demand: Demand) -> Frames:
        return cls(values_WLC, demand.window_names, demand.moe_layers, demand.sources)


class FramesCache:
    """Frames of the recordings looked at last. A stored recording never changes, so none gets old."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Frames] = OrderedDict()
        self._phases: dict[str, tuple[PhaseAsked, ...]] = {}
        self._lock = threading.Lock()

    def get(self, service: Service, trace: Trace, plan: Plan | None, asked: FramesAsked) -> Frames:
        """Return what is kept, or read the recording; errors are those of :func:`frames`."""
        key = _key(trace, plan, asked)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        read = _read(service, trace, plan, asked)
        found = read[asked.layout]
        with self._lock:
            for layout, each in read.items():
                self._kept[_key(trace, plan, replace(asked, layout=layout))] = each
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and self._bytes() > self._most_bytes:
                self._kept.popitem(last=False)
        return found

    def phases(self, service: Service, trace: Trace) -> tuple[PhaseAsked, ...]:
        """Return the phases that a recording's traffic is marked with. Raises :class:`WrongState`."""
        key = str(require_ready(trace).sha256)
        with self._lock:
            found = self._phases.get(key)
        if found is None:
            found = recorded_phases(service.files.path(key))
            with self._lock:
                self._phases[key] = found
        return found

    def _bytes(self) -> int:
        return sum(each.values_WLC.nbytes for each in self._kept.values())


def frames(service: Service, cache: FramesCache, trace: Trace, plan: Plan | None, asked: FramesAsked) -> bytes:
    """Return windows of a recording's heat as a frame file.

    Raises
    ------
    WrongState
        The recording, or the plan, is not ready.
    BadRequest, BadOption
        There is no such window, no plan for the axis ``gpus``, no traffic of the phase; or the recording is of another
        model.
    """
    found = cache.get(service, require_ready(trace), plan, asked)
    windows = len(found.window_names)
    if asked.first is None:
        return _rendered(found, found.values_WLC.sum(axis=0, keepdims=True), ("all windows",), first=None, asked=asked)
    if asked.first >= windows:
        raise BadRequest(f"the recording has no window {asked.first}; there are windows 0 to {windows - 1}.")
    window_bytes = max(1, 4 * found.values_WLC[0].size)
    stop = min(windows, asked.first + min(asked.count, max(1, LARGEST_PIECE_BYTES // window_bytes)))
    values_WLC = found.values_WLC[asked.first : stop]
    return _rendered(found, values_WLC, found.window_names[asked.first : stop], first=asked.first, asked=asked)


def recorded_phases(path: Path) -> tuple[PhaseAsked, ...]:
    """Return the phases that a recording's traffic is marked with, prefill first; none where all is mixed."""
    (reader,) = open_inputs([path], read_options())
    seen: set[int] = set()
    for chunk in reader.chunks():
        if isinstance(chunk, CountChunk):
            seen.add(PHASE_NUMBERS[chunk.phase])
        else:
            seen.update(np.unique(chunk.phase_T).tolist())
    return tuple(phase for phase in PHASES if PHASE_NUMBERS[phase] in seen)


def frames_key(trace: Trace, plan: Plan | None, asked: FramesAsked) -> str:
    """Return what an answer of :func:`frames` is known by."""
    return f"frames {_key(trace, plan, asked)} {asked.first} {asked.count}"


def layout_before(service: Service, plan: Plan, made: MadePlan, demand: Demand) -> Layout:
    """Return the layout that a plan would replace: the engine's as it was, else the one that engines start with."""
    if plan.current_sha256 is not None:
        return plan_service.current_layout(service, plan)
    return trivial(Problem(demand=demand, topology=made.topology, slots_per_gpu=made.slots_per_gpu))


def require_same_model(made: MadePlan, demand: Demand) -> None:
    """Raise :class:`BadRequest` where a plan is for another model than a recording is of."""
    if (demand.layers, demand.experts) != (made.layout.layers, made.layout.experts):
        raise BadRequest(
            f"the plan is for {made.layout.layers} layers x {made.layout.experts} experts, the recording has "
            f"{demand.layers} x {demand.experts}."
        )


def demand_of(service: Service, trace: Trace, *, gpus: int, phase: PhaseAsked | None) -> Demand:
    """Return a recording's demand by window, with home GPUs where they are known for this number of GPUs."""
    path = service.files.path(str(require_ready(trace).sha256))
    return load_demand([path], read_options(), gpus=gpus, window_by="file", sources="auto", phase=phase).demand


def _key(trace: Trace, plan: Plan | None, asked: FramesAsked) -> str:
    by_gpu = "" if plan is None or asked.axis == "experts" else f"{plan.sha256} {plan.current_sha256} {asked.layout}"
    return f"{trace.sha256} {asked.axis} {asked.phase} {by_gpu}"


def _read(service: Service, trace: Trace, plan: Plan | None, asked: FramesAsked) -> dict[LayoutAsked, Frames]:
    """Return frames by layout: of both where they depend on it, since whoever looks at one looks at the other too."""
    if asked.axis == "experts":
        demand = demand_of(service, trace, gpus=1, phase=asked.phase)
        return {asked.layout: Frames.of(demand.tokens_WLE, demand)}
    if plan is None:
        raise BadRequest("load by GPU needs a layout: name a plan in plan_id.")
    made = plan_service.made(service, plan)
    demand = demand_of(service, trace, gpus=made.topology.gpus, phase=asked.phase)
    require_same_model(made, demand)
    layouts: dict[LayoutAsked, Layout] = {"before": layout_before(service, plan, made, demand), "plan": made.layout}
    return {
        name: Frames.of(loads_WLG(layout, demand, made.topology, dispatch=made.options.dispatch), demand)
        for name, layout in layouts.items()
    }


def _rendered(
    found: Frames, values_WLC: npt.NDArray[Any], names: tuple[str, ...], *, first: int | None, asked: FramesAsked
) -> bytes:
    whole_WLC = np.rint(values_WLC)
    dtype = "<u4" if float(whole_WLC.max(initial=0)) < 2.0**32 else "<f8"
    header = {
        "axis": asked.axis,
        "phase": asked.phase,
        "first": first,
        "windows": list(names),
        "total_windows": len(found.window_names),
        "layers": int(values_WLC.shape[1]),
        "columns": int(values_WLC.shape[2]),
        "moe_layers": list(found.moe_layers),
        "sources": found.sources,
        "dtype": "uint32" if dtype == "<u4" else "float64",
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(MAGIC) + 4 + len(text)) % 8)
    values: bytes = whole_WLC.astype(dtype).tobytes()
    return MAGIC + struct.pack("<I", len(text)) + text + values
