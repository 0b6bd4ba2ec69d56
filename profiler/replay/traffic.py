"""The requests of a recorded token trace, ready to be served again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.errors import BadOption, EmptyProfile, SourceCountMismatch
from profiler.errors import InputsDisagree
from profiler.trace import NO_EXPERT, TokenChunk, TraceReader

Homes = Literal["measured", "round-robin", "domain"]

_DECODE = 2


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in the order of their first token, each a run of rows.

    Attributes
    ----------
    name, model : str
        Of the trace.
    experts_LRK : ndarray
        uint16 [L, R, K], rows of all requests, request by request; :data:`profiler.trace.NO_EXPERT` where none.
    first_row_Q, rows_Q, prompt_rows_Q : ndarray
        int64 [Q], a request's first row, its number of rows, and how many of them are its prompt.
    source_Q, domain_Q : ndarray
        int64 [Q], recorded rank and domain, -1 where unknown.
    experts : int
    source_ranks : int or None
        Ranks that sources were recorded by.
    """

    name: str
    model: str
    experts_LRK: npt.NDArray[np.uint16]
    first_row_Q: npt.NDArray[np.int64]
    rows_Q: npt.NDArray[np.int64]
    prompt_rows_Q: npt.NDArray[np.int64]
    source_Q: npt.NDArray[np.int64]
    domain_Q: npt.NDArray[np.int64]
    experts: int
    source_ranks: int | None

    @property
    def layers(self) -> int:
        return int(self.experts_LRK.shape[0])

    @property
    def top_k(self) -> int:
        return int(self.experts_LRK.shape[2])

    @property
    def requests(self) -> int:
        return len(self.rows_Q)

    def moe_layers(self) -> tuple[int, ...]:
        """Layers in which some token has an expert."""
        return tuple(np.flatnonzero((self.experts_LRK != NO_EXPERT).any(axis=(1, 2))).tolist())


def read_traffic(trace: TraceReader) -> Traffic:
    """Read a token trace into memory (2 bytes x layers x top-k for each token).

    Raises
    ------
    BadOption
        The trace holds counts, which cannot be served again token by token.
    EmptyProfile
        It holds no token.
    InputsDisagree
        A token names an expert that the header does not know.
    """
    header = trace.header
    if header.kind != "tokens":
        raise BadOption(
            f"{trace.name} holds counts; the replay engine needs a token trace, which names every token's experts."
        )
    chunks = [chunk for chunk in trace.chunks() if isinstance(chunk, TokenChunk)]
    if not chunks or not sum(len(chunk.request_id_T) for chunk in chunks):
        raise EmptyProfile(f"{trace.name} holds no token: there is nothing to replay.")
    _, first_seen, request_R = np.unique(_request_keys(chunks), return_index=True, return_inverse=True)
    arrival_of_request = np.argsort(np.argsort(first_seen))
    arrival_R = arrival_of_request[request_R]
    order_R = np.argsort(arrival_R, kind="stable")
    rows_Q = np.bincount(arrival_R)
    first_row_Q = np.cumsum(rows_Q) - rows_Q
    is_decode_R = np.concatenate([chunk.phase_T for chunk in chunks])[order_R] == _DECODE
    experts_LRK = np.concatenate([chunk.topk_LTK for chunk in chunks], axis=1)[:, order_R]
    _check_ids(experts_LRK, experts=header.experts, name=trace.name)
    return Traffic(
        name=trace.name,
        model=header.model,
        experts_LRK=experts_LRK,
        first_row_Q=first_row_Q,
        rows_Q=rows_Q,
        prompt_rows_Q=rows_Q - np.add.reduceat(is_decode_R.astype(np.int64), first_row_Q),
        source_Q=np.concatenate([chunk.source_T for chunk in chunks])[order_R][first_row_Q].astype(np.int64),
        domain_Q=np.concatenate([chunk.domain_T for chunk in chunks])[order_R][first_row_Q].astype(np.int64),
        experts=header.experts,
        source_ranks=header.source_ranks,
    )


def _request_keys(chunks: list[TokenChunk]) -> npt.NDArray[np.int64]:
    """Number requests apart, int64 [R]: ids are unique within a window only."""
    names = list(dict.fromkeys(chunk.window for chunk in chunks))
    ids, id_R = np.unique(np.concatenate([chunk.request_id_T for chunk in chunks]), return_inverse=True)
    window_R = np.concatenate([np.full(len(chunk.request_id_T), names.index(chunk.window)) for chunk in chunks])
    keys_R: npt.NDArray[np.int64] = window_R * len(ids) + id_R
    return keys_R


def _check_ids(experts_LRK: npt.NDArray[np.uint16], *, experts: int, name: str) -> None:
    bad = np.argwhere((experts_LRK >= experts) & (experts_LRK != NO_EXPERT))
    if bad.size:
        layer, row, choice = (int(value) for value in bad[0])
        found = int(experts_LRK[layer, row, choice])
        raise InputsDisagree(f"{name}: layer {layer} names expert {found}; ids run from 0 to {experts - 1}.")


def assign_homes(traffic: Traffic, *, gpus: int, homes: Homes | None) -> tuple[Homes, npt.NDArray[np.int64]]:
    """Give every request a home GPU.

    Parameters
    ----------
    traffic
    gpus
        Number of GPUs, each a data-parallel rank.
    homes
        ``measured``: the recorded rank. ``round-robin``: in order of arrival, as a data-parallel router does.
        ``domain``: requests of one domain stay together, the largest domains spread first. None takes the
        recorded ranks where there are as many as GPUs, else round-robin.

    Returns
    -------
    rule, home_Q
        The rule used, and int64 [Q].

    Raises
    ------
    SourceCountMismatch
        ``measured`` was asked for, but the trace was recorded on another number of ranks.
    BadOption
        ``domain`` was asked for, but the trace names none.
    """
    recorded = traffic.source_ranks == gpus and bool((traffic.source_Q >= 0).all())
    if homes == "measured" and not recorded:
        ranks = traffic.source_ranks or "an unknown number of"
        raise SourceCountMismatch(f"{traffic.name} was recorded on {ranks} ranks, not {gpus}; use round-robin homes.")
    if homes == "domain":
        if (traffic.domain_Q < 0).any():
            raise BadOption(f"{traffic.name} names no domain for some requests; use round-robin homes.")
        return "domain", _by_domain(traffic, gpus=gpus)
    if homes == "round-robin" or not recorded:
        return "round-robin", np.arange(traffic.requests, dtype=np.int64) % gpus
    return "measured", traffic.source_Q


def _by_domain(traffic: Traffic, *, gpus: int) -> npt.NDArray[np.int64]:
    """Place whole domains, most tokens first, on the GPU with the fewest so far.

    With fewer domains than GPUs, domain ``d`` has the GPUs ``d``, ``d + domains``, ... in turn.
    """
    names, domain_Q = np.unique(traffic.domain_Q, return_inverse=True)
    home_Q = np.zeros(traffic.requests, dtype=np.int64)
    if len(names) < gpus:
        for domain in range(len(names)):
            own = np.flatnonzero(domain_Q == domain)
            home_Q[own] = np.resize(np.arange(domain, gpus, len(names)), len(own))
        return home_Q
    tokens_D = np.bincount(domain_Q, weights=traffic.rows_Q)
    load_G = np.zeros(gpus)
    for domain in np.argsort(-tokens_D, kind="stable"):
        gpu = int(load_G.argmin())
        load_G[gpu] += tokens_D[domain]
        home_Q[domain_Q == domain] = gpu
    return home_Q
