"""What the replay engine measured of its own dispatch: ``GET /moeplan/measured`` (no part of the plugin's contract).

The figures are counts of single (token, expert) pairs as the replay engine dispatched them, not predictions of the
ruler; times are simulated, so none are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.counts_codec import decode_counts, encode_counts
from profiler.engine.json_fields import Fields


@dataclass(frozen=True, eq=False)
class Measured:
    """Dispatched tokens since the last layout change.

    Attributes
    ----------
    engine : str
    simulated : bool
        As in ``PluginHealth``.
    layout_hash : str
    generation : int
        As in ``Placement``; the counts began when this generation did.
    push_in_progress : bool
        Counts taken during a push mix two layouts.
    steps : int
        Steps with traffic.
    tokens : int
        Tokens (rows) of all ranks.
    counts_LSG : ndarray
        int64 [L, S, G], routed (token, expert) pairs by layer, source GPU and serving GPU.
    local_gpu, local_node : float or None
        Share of pairs served on the token's home GPU and home node; None without traffic or all-to-all backend.
    local_reason : str
        Why they are None, else empty.
    imbalance : float or None
        Sum over MoE layers of the largest GPU load over the same sum of mean loads, all steps as one window;
        None without traffic.
    gpus_per_token, nodes_per_token : float or None
        Mean distinct remote GPUs and nodes a token was sent to per MoE layer; None as for ``local_gpu``.
    """

    engine: str
    simulated: bool
    layout_hash: str
    generation: int
    push_in_progress: bool
    steps: int
    tokens: int
    counts_LSG: npt.NDArray[np.int64]
    local_gpu: float | None
    local_node: float | None
    local_reason: str
    imbalance: float | None
    gpus_per_token: float | None
    nodes_per_token: float | None

    @property
    def load_LG(self) -> npt.NDArray[np.int64]:
        """Pairs computed by every GPU, int64 [L, G]."""
        load_LG: npt.NDArray[np.int64] = self.counts_LSG.sum(axis=1)
        return load_LG

    def to_json(self) -> dict[str, Any]:
        layers, gpus = self.load_LG.shape
        counts = {"layers": layers, "gpus": gpus, "counts_LSG": encode_counts(self.counts_LSG)}
        return {**vars(self), **counts, "load_LG": self.load_LG.tolist()}

    @classmethod
    def from_json(cls, message: object) -> Measured:
        fields = Fields(message, "measured")
        layers, gpus = fields.integer("layers", minimum=1), fields.integer("gpus", minimum=1)
        return cls(
            engine=fields.text("engine"),
            simulated=fields.flag("simulated"),
            layout_hash=fields.text("layout_hash"),
            generation=fields.integer("generation"),
            push_in_progress=fields.flag("push_in_progress"),
            steps=fields.integer("steps"),
            tokens=fields.integer("tokens"),
            counts_LSG=decode_counts(fields.value("counts_LSG"), "measured.counts_LSG", shape=(layers, gpus, gpus)),
            local_gpu=fields.optional("local_gpu", fields.number),
            local_node=fields.optional("local_node", fields.number),
            local_reason=fields.text("local_reason"),
            imbalance=fields.optional("imbalance", fields.number),
            gpus_per_token=fields.optional("gpus_per_token", fields.number),
            nodes_per_token=fields.optional("nodes_per_token", fields.number),
        )
