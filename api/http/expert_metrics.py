"""A series for every expert of every layer: only where it is asked for, since large models have tens of thousands."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client.core import GaugeMetricFamily

from api.http.metric_families import gauge
from api.loading import load_demand, read_options
from api.service.context import Service
from api.store.models import Trace
from placement.errors import CodedError

LABELS = ("engine", "layer", "expert")


class ExpertShares:
    """Shares of the routed tokens of a layer, by expert, in each engine's newest recording.

    A stored recording never changes, so each is read once; those of older recordings are forgotten.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: dict[str, npt.NDArray[np.float64]] = {}
        self._lock = threading.Lock()

    def family(self, names: Mapping[str | None, str], newest: Sequence[Trace]) -> GaugeMetricFamily:
        """Return the series of engines whose newest recording can be read; layers without traffic have none."""
        values = []
        with self._lock:
            known: dict[str, npt.NDArray[np.float64]] = {}
            for trace in newest:
                shares_LE = self._shares_LE(str(trace.sha256)) if trace.engine_id in names else None
                if shares_LE is None:
                    continue
                known[str(trace.sha256)] = shares_LE
                for layer in np.flatnonzero(shares_LE.any(axis=1)).tolist():
                    values += [
                        ((names[trace.engine_id], str(layer), str(expert)), share)
                        for expert, share in enumerate(shares_LE[layer].tolist())
                    ]
            self._known = known
        return gauge("expert_share", "Share of a layer's routed tokens, in the newest recording.", LABELS, values)

    def _shares_LE(self, sha256: str) -> npt.NDArray[np.float64] | None:
        if sha256 in self._known:
            return self._known[sha256]
        try:
            path = self._service.files.path(sha256)
            demand = load_demand([path], read_options(), gpus=1, window_by="none", sources="uniform").demand
        except CodedError:
            return None  # a recording that is lost is told of where it is used
        tokens_LE = demand.tokens_WLE.sum(axis=0).astype(np.float64)
        shares_LE: npt.NDArray[np.float64] = tokens_LE / np.maximum(tokens_LE.sum(axis=1, keepdims=True), 1.0)
        return shares_LE
