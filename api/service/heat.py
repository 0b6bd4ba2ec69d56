"""Expert heat: routed tokens by layer and expert, or load by layer and GPU, of a window or of all."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from api.errors import BadRequest
from api.loading import load_demand, read_options
from api.service import plans as plan_service
from api.service.context import Service
from api.service.traces import require_ready
from api.store.models import Plan, Trace
from placement.demand import Demand
from placement.score import loads_WLG

Axis = Literal["experts", "gpus"]
Format = Literal["json", "csv", "arrow"]

MEDIA_TYPES: dict[str, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.file",
}

KEPT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class HeatAsked:
    """Which heat is asked for.

    Attributes
    ----------
    axis : {"experts", "gpus"}
    window : str or None
        A window's name; None for all together.
    format : {"json", "csv", "arrow"}
    phase : {"prefill", "decode"} or None
        Traffic of one phase alone.
    """

    axis: Axis
    window: str | None
    format: Format
    phase: Literal["prefill", "decode"] | None = None


class HeatCache:
    """Rendered heats, the least used forgotten first. A stored recording never changes, so none gets old."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return what is kept under a key, or make it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        content = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = content
                self._bytes += len(content)
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= len(dropped)
        return content


def heat(service: Service, trace: Trace, plan: Plan | None, asked: HeatAsked) -> bytes:
    """Return the heat of a recording, rendered.

    Parameters
    ----------
    plan
        Whose layout serves the traffic, for the axis ``gpus``.

    Raises
    ------
    WrongState
        The recording, or the plan, is not ready.
    BadRequest
        There is no such window, or no plan for the axis ``gpus``; or the recording is of another model.
    """
    require_ready(trace)
    path = service.files.path(str(trace.sha256))
    if asked.axis == "gpus":
        if plan is None:
            raise BadRequest("load by GPU needs a layout: name a plan in plan_id.")
        made = plan_service.made(service, plan)
        demand = load_demand(
            [path], read_options(), gpus=made.topology.gpus, window_by="file", sources="auto", phase=asked.phase
        ).demand
        if (demand.layers, demand.experts) != (made.layout.layers, made.layout.experts):
            raise BadRequest(
                f"the plan is for {made.layout.layers} layers x {made.layout.experts} experts, the recording has "
                f"{demand.layers} x {demand.experts}."
            )
        values_WLC: npt.NDArray[Any] = loads_WLG(made.layout, demand, made.topology, dispatch=made.options.dispatch)
    else:
        demand = load_demand(
            [path], read_options(), gpus=1, window_by="file", sources="uniform", phase=asked.phase
        ).demand
        values_WLC = demand.tokens_WLE
    values_LC = _of_window(values_WLC, demand, asked.window)
    return _rendered(values_LC, demand, trace_id=trace.id, asked=asked)


def tag_of(key: str) -> str:
    """Return what a heat is known by."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _of_window(values_WLC: npt.NDArray[Any], demand: Demand, window: str | None) -> npt.NDArray[Any]:
    if window is None:
        total: npt.NDArray[Any] = values_WLC.sum(axis=0)
        return total
    if window not in demand.window_names:
        shown = ", ".join(demand.window_names[:5]) + (", ..." if len(demand.window_names) > 5 else "")
        raise BadRequest(f"the recording has no window {window[:80]!r}; there are {shown}.")
    found: npt.NDArray[Any] = values_WLC[demand.window_names.index(window)]
    return found


def _rendered(values_LC: npt.NDArray[Any], demand: Demand, *, trace_id: str, asked: HeatAsked) -> bytes:
    column = "expert" if asked.axis == "experts" else "gpu"
    if asked.format == "json":
        return json.dumps(
            {
                "trace_id": trace_id,
                "axis": asked.axis,
                "window": asked.window,
                "windows": list(demand.window_names),
                "sources": demand.sources,
                "layers": int(values_LC.shape[0]),
                f"{column}s": int(values_LC.shape[1]),
                "moe_layers": list(demand.moe_layers),
                "tokens": np.rint(values_LC).astype(np.int64).tolist(),
            },
            separators=(",", ":"),
        ).encode()
    if asked.format == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(["layer", *(f"{column} {index}" for index in range(values_LC.shape[1]))])
        for layer, row in enumerate(np.rint(values_LC).astype(np.int64).tolist()):
            writer.writerow([layer, *row])
        return text.getvalue().encode()
    layers, columns = values_LC.shape
    batch = pa.record_batch(
        {
            "layer": pa.array(np.repeat(np.arange(layers, dtype=np.int32), columns)),
            column: pa.array(np.tile(np.arange(columns, dtype=np.int32), layers)),
            "tokens": pa.array(np.rint(values_LC).astype(np.int64).reshape(-1)),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
