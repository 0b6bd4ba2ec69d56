"""Counters of what was dispatched where, since the last layout change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiler.replay.step import RoutedStep, count_by

NO_ALL_TO_ALL = "no all-to-all backend: every rank sees every token, so none is sent anywhere"
NO_TRAFFIC = "no traffic since the last layout change"


@dataclass(frozen=True)
class Shares:
    """The counters as figures, under the names and definitions of ``placement.metrics``; None without traffic."""

    local_gpu: float | None
    local_node: float | None
    local_reason: str
    imbalance: float | None
    gpus_per_token: float | None
    nodes_per_token: float | None


class DispatchCounters:
    """Counts every (token, expert) pair by layer, home GPU and serving GPU.

    Parameters
    ----------
    layers, gpus, gpus_per_node, slots_per_gpu : int
    all_to_all : bool
        Whether tokens travel to the GPU of their expert.
    """

    def __init__(self, *, layers: int, gpus: int, gpus_per_node: int, slots_per_gpu: int, all_to_all: bool) -> None:
        self._gpus_per_node = gpus_per_node
        self._slots_per_gpu = slots_per_gpu
        self._all_to_all = all_to_all
        self._shape = (layers, gpus, gpus)
        self.reset()

    def reset(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.counts_LSG: npt.NDArray[np.int64] = np.zeros(self._shape, dtype=np.int64)
        self._remote_gpus = self._remote_nodes = self._token_layers = 0

    def observe(self, step: RoutedStep) -> None:
        gpus = self._shape[1]
        source_1T1 = step.batch.source_T[None, :, None]
        gpu_LTK = step.slots_LTK // self._slots_per_gpu
        self.counts_LSG += count_by(step, (source_1T1, gpus), (gpu_LTK, gpus))
        self.steps += 1
        self.tokens += step.tokens
        at_home_LTK = np.where(step.present_LTK, gpu_LTK, source_1T1)
        self._remote_gpus += _distinct_elsewhere(at_home_LTK, source_1T1)
        self._remote_nodes += _distinct_elsewhere(at_home_LTK // self._gpus_per_node, source_1T1 // self._gpus_per_node)
        self._token_layers += int(step.present_LTK.any(axis=2).sum())

    def shares(self) -> Shares:
        pairs = int(self.counts_LSG.sum())
        if not pairs:
            return Shares(None, None, NO_TRAFFIC, None, None, None)
        load_LG = self.counts_LSG.sum(axis=1)
        imbalance = float(load_LG.max(axis=1).sum() / load_LG.mean(axis=1).sum())
        if not self._all_to_all:
            return Shares(None, None, NO_ALL_TO_ALL, imbalance, None, None)
        gpu_G = np.arange(self._shape[1])
        node_G = gpu_G // self._gpus_per_node
        same_node_SG = node_G[:, None] == node_G[None, :]
        return Shares(
            local_gpu=float(self.counts_LSG[:, gpu_G, gpu_G].sum() / pairs),
            local_node=float(self.counts_LSG[:, same_node_SG].sum() / pairs),
            local_reason="",
            imbalance=imbalance,
            gpus_per_token=self._remote_gpus / self._token_layers,
            nodes_per_token=self._remote_nodes / self._token_layers,
        )


def _distinct_elsewhere(place_LTK: npt.NDArray[np.integer], home_1T1: npt.NDArray[np.integer]) -> int:
    """Add up, over tokens and layers, the distinct places other than home."""
    ordered_LTK = np.sort(place_LTK, axis=2)
    away_LTK = ordered_LTK != home_1T1
    repeated_LTK = ordered_LTK[:, :, 1:] == ordered_LTK[:, :, :-1]
    return int(away_LTK.sum()) - int((away_LTK[:, :, 1:] & repeated_LTK).sum())
