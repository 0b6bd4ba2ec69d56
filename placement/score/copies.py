"""Copies of tokens: what an all-to-all pays that sends a token once to every GPU that needs it.

Counted over a token trace piece by piece, for any number of layouts in one pass; memory depends on the sizes of the
model and the machine, not on the length of the recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from placement.dispatch import Dispatch, DispatchTable, dispatch_table
from placement.errors import BadTokens
from placement.layout import Layout
from placement.score.sites import SiteTable
from placement.token_sample import joined_tokens
from placement.tokens import Tokens, TokenStream
from placement.topology import Topology

BATCH_IDS = 2**23
"""Routed ids counted at once: enough that the tables made for every layer weigh little beside it."""


@dataclass(frozen=True, eq=False)
class Copies:
    """Expected copies that leave their home GPU, by window, layer, source and destination.

    A token counts once for every GPU (node) other than its own that serves any of its experts. With uniform sources
    a token counts for every home with the share 1 / GPUs.

    Attributes
    ----------
    gpu_WLSG : ndarray
        float64 [W, L, S, G], copies from GPU s to GPU g; 0 for g = s. S is the number of GPUs.
    node_WLSN : ndarray
        float64 [W, L, S, N], copies from GPU s to node n, each token once per node; 0 for the own node.
    tokens_WL : ndarray
        int64 [W, L], tokens with any expert there.
    """

    gpu_WLSG: npt.NDArray[np.float64]
    node_WLSN: npt.NDArray[np.float64]
    tokens_WL: npt.NDArray[np.int64]

    @property
    def gpus_per_token(self) -> float:
        """Mean distinct remote GPUs that one token is sent to in a layer."""
        return float(self.gpu_WLSG.sum() / self.tokens_WL.sum())

    @property
    def nodes_per_token(self) -> float:
        """Mean distinct remote nodes that one token is sent to in a layer."""
        return float(self.node_WLSN.sum() / self.tokens_WL.sum())

    @property
    def sent_WLG(self) -> npt.NDArray[np.float64]:
        """Copies that each GPU sends, float64 [W, L, G]."""
        sent: npt.NDArray[np.float64] = self.gpu_WLSG.sum(axis=3)
        return sent

    @property
    def received_WLG(self) -> npt.NDArray[np.float64]:
        """Copies that each GPU receives, float64 [W, L, G]."""
        received: npt.NDArray[np.float64] = self.gpu_WLSG.sum(axis=2)
        return received


def count_copies(
    layouts: Mapping[str, Layout], stream: TokenStream, topology: Topology, *, dispatch: Dispatch, windows: int
) -> dict[str, Copies]:
    """Count the copies of every layout in one pass over a token trace.

    Parameters
    ----------
    layouts
        By name; replicas that share a GPU are accepted.
    stream
        Homes, where known, are GPUs of ``topology``.
    dispatch
        The engine's rule. Under ``even`` there is no all-to-all, so nothing is sent and counting makes no sense.
    windows : int
        Windows of the demand that the stream belongs to.

    Raises
    ------
    BadTokens
        The trace is of another model or machine, has no experts at all, or dispatch is ``even``.
    SlotCountMismatch
        A layout is for another number of GPUs.
    """
    if dispatch is Dispatch.EVEN:
        raise BadTokens("under even dispatch every GPU sees every token, so there are no copies to count.")
    counters = {
        name: CopyCounter(dispatch_table(layout, topology, dispatch=dispatch), windows=windows)
        for name, layout in layouts.items()
    }
    for batch in batches(stream):
        for counter in counters.values():
            counter.add(batch)
    return {name: counter.copies() for name, counter in counters.items()}


def batches(stream: TokenStream, *, ids: int = BATCH_IDS) -> Iterator[Tokens]:
    """Join the pieces of a stream into batches of about ``ids`` routed ids."""
    pieces: list[Tokens] = []
    held = 0
    for piece in stream:
        if piece.tokens == 0:
            continue
        pieces.append(piece)
        held += piece.experts_LTK.size
        if held >= ids:
            yield joined_tokens(pieces)
            pieces, held = [], 0
    if pieces:
        yield joined_tokens(pieces)


def site_tables(table: DispatchTable, layer: int) -> tuple[SiteTable, SiteTable | None]:
    """Return where a layer's experts are served: by GPU, and by node where there are several."""
    topology = table.topology
    share_SEG = table.share_SEG(layer)
    by_gpu = SiteTable.of(share_SEG, np.arange(topology.gpus))
    if topology.nodes == 1:
        return by_gpu, None
    share_SEN = share_SEG.reshape(*share_SEG.shape[:2], topology.nodes, topology.gpus_per_node).sum(axis=3)
    # Shares are exact where they are 0 or 1; a sum of thirds may miss 1 by rounding.
    share_SEN = np.where(np.abs(share_SEN - 1.0) < 1e-9, 1.0, share_SEN)
    return by_gpu, SiteTable.of(share_SEN, topology.node_of_gpu_G)


def require_match(tokens: Tokens, layout: Layout, topology: Topology) -> None:
    """Refuse tokens of another model or another machine."""
    if (tokens.layers, tokens.experts) != (layout.layers, layout.experts):
        raise BadTokens(
            f"the tokens are of {tokens.layers} layers x {tokens.experts} experts, the layout of {layout.layers} x "
            f"{layout.experts}."
        )
    if tokens.home_T is not None and tokens.tokens and int(tokens.home_T.max()) >= topology.gpus:
        raise BadTokens(
            f"a token lives on GPU {int(tokens.home_T.max())}; the topology has GPUs 0 to {topology.gpus - 1}."
        )


@dataclass(eq=False)
class CopyCounter:
    """Copies of one layout over the batches so far."""

    table: DispatchTable
    windows: int
    gpu_WLSG: npt.NDArray[np.float64] = field(init=False)
    node_WLSN: npt.NDArray[np.float64] = field(init=False)
    tokens_WL: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        layers, topology = self.table.layout.layers, self.table.topology
        self.gpu_WLSG = np.zeros((self.windows, layers, topology.gpus, topology.gpus))
        self.node_WLSN = np.zeros((self.windows, layers, topology.gpus, topology.nodes))
        self.tokens_WL = np.zeros((self.windows, layers), dtype=np.int64)

    def add(self, batch: Tokens) -> None:
        """Count the tokens of a batch."""
        require_match(batch, self.table.layout, self.table.topology)
        windows = np.unique(batch.window_T).tolist()
        if windows and windows[-1] >= self.windows:
            raise BadTokens(f"a token is in window {windows[-1]}; there are windows 0 to {self.windows - 1}.")
        parts = [(window, batch if len(windows) == 1 else batch.pick(batch.window_T == window)) for window in windows]
        for layer in batch.moe_layers:
            by_gpu, by_node = site_tables(self.table, layer)
            for window, part in parts:
                experts_TK = part.experts_LTK[layer]
                self.tokens_WL[window, layer] += int((experts_TK < part.experts).any(axis=1).sum())
                self.gpu_WLSG[window, layer] += by_gpu.needed(experts_TK, part.home_T).tokens_SM
                if by_node is not None:
                    self.node_WLSN[window, layer] += by_node.needed(experts_TK, part.home_T).tokens_SM

    def copies(self) -> Copies:
        """Return what was counted; raises :class:`BadTokens` where no token had an expert."""
        if not self.tokens_WL.any():
            raise BadTokens("no token of the trace has an expert, so there are no copies to count.")
        return Copies(self.gpu_WLSG, self.node_WLSN, self.tokens_WL)
